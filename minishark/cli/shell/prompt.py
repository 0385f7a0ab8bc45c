"""The interactive prompt: reads statements and dot-commands until the user quits."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import completion_is_selected
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import PygmentsLexer
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style
from pygments.lexers.sql import PostgresLexer
from rich.console import Console

from minishark.cli.shell.commands import COMMANDS, kill_executor
from minishark.cli.shell.completion import Names, suggestions
from minishark.cli.shell.interpreter import (
    Interpreter,
    error_text,
    is_complete,
    split,
    table_columns,
)
from minishark.dataframe.show import human_bytes
from minishark.errors import MinisharkError
from minishark.model.debugging import debugging
from minishark.session.session import Session

_PROMPT = "minishark> "
_CONTINUATION = "      ...> "
_STATUS_AGE_MAX_S = 1.0
_INTERRUPT_AGAIN_S = 5.0
_STYLE = Style.from_dict(
    {
        "prompt": "ansicyan bold",
        "continuation": "ansibrightblack",
        "bottom-toolbar": "noreverse ansibrightblack",
        "bottom-toolbar.alarm": "noreverse ansired bold",
    }
)


def ask_until_over(shell: Interpreter) -> None:
    """Read and run entries until the user quits; errors are printed and do not end the loop."""
    shell.confirm = confirm
    prompt = _prompt(shell.session)
    with _Interrupts(partial(_kill_executor, shell)) as interrupts:
        while not shell.is_over:
            try:
                text = prompt.prompt([("class:prompt", _PROMPT)])
            except KeyboardInterrupt:  # the line is cleared
                continue
            except EOFError:
                return
            _run(shell, text, interrupts)


class _Interrupts:
    r"""The handler of the terminal's signals while an entry runs.

    Ctrl-C is KeyboardInterrupt, but not twice within seconds: a second one would interrupt the
    cancellation, and end the shell. Ctrl-\ calls `on_quit` on a thread, as the one that runs the
    entry may hold locks.

    Attributes:
        wanted: whether an entry runs; at other times the signals are ignored.
    """

    def __init__(self, on_quit: Callable[[], None]) -> None:
        self.wanted = False
        self._on_quit = on_quit
        self._last_s = -math.inf

    def begin(self) -> None:
        self._last_s = -math.inf
        self.wanted = True

    def __enter__(self) -> Self:
        self._previous = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGINT, self._interrupt),
                (signal.SIGQUIT, self._quit),
            )
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _quit(self, _number: int, _frame: FrameType | None) -> None:
        if self.wanted:
            threading.Thread(target=self._on_quit, name="minishark-quit", daemon=True).start()

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.wanted and now - self._last_s > _INTERRUPT_AGAIN_S:
            self._last_s = now
            raise KeyboardInterrupt


def _run(shell: Interpreter, text: str, interrupts: _Interrupts) -> None:
    try:
        interrupts.begin()
        for entry in split(text):
            shell.run(entry)
            if shell.is_over:
                return
    except KeyboardInterrupt:
        interrupts.wanted = False
        shell.errors.print("Cancelled.", style="yellow")
    except Exception as error:  # noqa: BLE001 - a bug must not end the user's session
        print_error(shell.errors, error)
    finally:
        interrupts.wanted = False


def _kill_executor(shell: Interpreter) -> None:
    """Kill an executor while a query runs; what is said of it stands above the progress."""
    try:
        shell.errors.print(kill_executor(shell.session), style="dim", markup=False)
    except MinisharkError as error:
        print_error(shell.errors, error)


def print_error(console: Console, error: Exception) -> None:
    if debugging():
        traceback.print_exception(error)
    kind = "" if isinstance(error, MinisharkError) else f"{type(error).__name__}: "
    first, _, rest = error_text(error).partition("\n")
    console.print(f"Error: {kind}{first}", style="bold red", markup=False)
    for line in rest.splitlines():
        is_mark = bool(line) and not line.strip(" ^")
        is_excerpt = is_mark or line.startswith("LINE ")  # wrapping would shift the mark
        style = "bold red" if is_mark else ""
        console.print(line, style=style, markup=False, soft_wrap=is_excerpt)


def confirm(question: str) -> bool:
    """Ask a yes/no question; Enter means yes, Ctrl-C and Ctrl-D mean no."""
    try:
        answer = input(f"{question} [Y/n] ")
    except (EOFError, KeyboardInterrupt):
        print()  # noqa: T201 - the next prompt starts on a new line
        return False
    return answer.strip().lower() in ("", "y", "yes")


def _prompt(session: Session) -> PromptSession[str]:
    return PromptSession(
        history=_history(),
        lexer=PygmentsLexer(PostgresLexer),
        completer=_SessionCompleter(session),
        complete_while_typing=False,
        complete_in_thread=True,
        complete_style=CompleteStyle.MULTI_COLUMN,
        auto_suggest=AutoSuggestFromHistory(),
        enable_history_search=True,
        multiline=True,
        key_bindings=_key_bindings(),
        prompt_continuation=_continuation,
        bottom_toolbar=_StatusLine(session),
        refresh_interval=_STATUS_AGE_MAX_S,
        reserve_space_for_menu=4,
        style=_STYLE,
    )


def _continuation(width: int, _line: int, wrapped: int) -> StyleAndTextTuples:
    return [("class:continuation", " " * width if wrapped else _CONTINUATION)]


def _key_bindings() -> KeyBindings:
    """Enter runs a complete entry, and inserts a newline into an incomplete one."""
    bindings = KeyBindings()

    @bindings.add("enter", filter=completion_is_selected)
    def _take(event: KeyPressEvent) -> None:
        event.current_buffer.complete_state = None

    @bindings.add("enter", filter=~completion_is_selected)
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        at_end = not buffer.document.text_after_cursor.strip()
        if at_end and is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    @bindings.add("escape", "enter")
    def _force(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    return bindings


def history_file() -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = Path.home() / ".local" / "state"
    return state / "minishark" / "history"


def _history() -> History:
    file = history_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.touch(mode=0o600)
    except OSError:  # the home folder is read-only
        return InMemoryHistory()
    return FileHistory(str(file))


class _SessionCompleter(Completer):
    """Completion with the names of the session's catalog."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # The names that are plain words: operators are functions, too.
        self._functions = _texts(
            session,
            "SELECT DISTINCT function_name FROM duckdb_functions() "
            r"WHERE regexp_full_match(function_name, '[a-z]\w*') ORDER BY ALL",
        )
        self._keywords = _texts(
            session, "SELECT upper(keyword_name) FROM duckdb_keywords() ORDER BY ALL"
        )
        self._commands = {name: command.arguments for name, command in COMMANDS.items()}

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        names = Names(self._columns(), self._functions, self._keywords, self._commands)
        for offer in suggestions(document.text_before_cursor, document.text_after_cursor, names):
            yield Completion(offer.text, -offer.length, display_meta=offer.kind)

    def _columns(self) -> dict[str, list[str]]:
        try:
            by_table = table_columns(self._session)
        except MinisharkError:
            return {}
        return {table: [name for name, _ in columns] for table, columns in by_table.items()}


def _texts(session: Session, query: str) -> list[str]:
    texts: list[str] = session.sql(query).to_arrow().column(0).to_pylist()
    return texts


class _StatusLine:
    """The status line at the bottom: the state of the cluster."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._text: StyleAndTextTuples = []
        self._made_s = 0.0

    def __call__(self) -> StyleAndTextTuples:
        now = time.monotonic()
        if now - self._made_s > _STATUS_AGE_MAX_S or not self._text:
            self._text, self._made_s = self._made(), now
        return self._text

    def _made(self) -> StyleAndTextTuples:
        address = getattr(self._session, "address", None)
        if address is not None:  # a server's, which does not show its cluster
            return [("", f" {address} · .help")]
        try:
            nodes = self._session.nodes()
        except MinisharkError as error:
            return [("class:bottom-toolbar.alarm", f" {error}")]
        alive = [node for node in nodes if node.alive]
        slots = sum(node.slots for node in alive)
        running = min(slots, sum(node.running for node in alive))
        memory = human_bytes(sum(node.memory_bytes for node in alive))
        parts: list[Any] = [
            ("", f" {len(alive)} {'node' if len(alive) == 1 else 'nodes'} · "),
            ("", f"{running} of {slots} slots busy · {memory} · .help"),
        ]
        if dead := [node.name for node in nodes if not node.alive]:
            parts.append(("class:bottom-toolbar.alarm", f" · lost: {', '.join(dead)}"))
        return parts
