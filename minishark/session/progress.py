"""Live progress of running queries and programs on the terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Protocol

from minishark.errors import ClusterError
from minishark.query.progress import QueryProgress
from minishark.query.report import rare_figures

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.text import Text

    from minishark.model.events.kinds import NodeReport
    from minishark.query.progress import ProgressHandler, StageProgress

_DELAY_S = 0.25
_REFRESH_S = 0.1
_QUIET_S = 2.0
_BAR = 24
_STAGES_MAX = 8
_BEHIND_MAX = 3


class Watched(Protocol):
    """What runs queries: a session, or its runtime."""

    def nodes(self) -> Sequence[NodeReport]: ...

    def register_progress_handler(self, handler: ProgressHandler) -> None: ...

    def remove_progress_handler(self, handler: ProgressHandler) -> None: ...


_drawing = threading.Lock()  # held while one is on the terminal


@contextmanager
def progress_for_people(watched: Watched, wanted: bool | None) -> Iterator[None]:
    """`shown_progress` on stderr, if that is a terminal and somebody is there.

    `wanted` None: in an interactive Python. Only on the main thread, and for the outermost block.
    """
    console = _console(wanted)
    with shown_progress(watched, console) if console is not None else nullcontext():
        yield


@contextmanager
def line_for_people(line: Callable[[], object], wanted: bool | None) -> Iterator[None]:
    """Likewise a line, which is asked for again and again while the block runs."""
    console = _console(wanted)
    if console is None:
        yield
        return
    drawn = partial(_line, line)
    with _screen(console) as is_free, _redrawn(console, drawn) if is_free else nullcontext():
        yield


def _console(is_wanted: bool | None) -> Console | None:
    chosen = hasattr(sys, "ps1") if is_wanted is None else is_wanted
    is_terminal = chosen and sys.stderr is not None and sys.stderr.isatty()
    if not is_terminal or threading.current_thread() is not threading.main_thread():
        return None
    from rich.console import Console  # noqa: PLC0415 - slow to import, and most programs don't use it

    return Console(stderr=True, highlight=False)


@contextmanager
def shown_progress(watched: Watched, console: Console) -> Iterator[None]:
    """Show the progress of the session's queries while the block runs, after a short delay."""
    with _screen(console) as is_free:
        if not is_free:
            yield
            return
        display = _Display(watched)
        watched.register_progress_handler(display.hear)
        try:
            with _redrawn(console, display.drawn):
                yield
        finally:
            watched.remove_progress_handler(display.hear)


@contextmanager
def _screen(console: Console) -> Iterator[bool]:
    """Whether the block may draw: on a terminal, and as the outermost that does."""
    is_free = console.is_terminal and _drawing.acquire(blocking=False)
    try:
        yield is_free
    finally:
        if is_free:
            _drawing.release()


@contextmanager
def _redrawn(console: Console, drawn: Callable[[], RenderableType]) -> Iterator[None]:
    """Draw again and again while the block runs, and leave nothing on the screen."""
    over = threading.Event()
    thread = threading.Thread(
        target=_redraw, args=(console, drawn, over), name="progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _redraw(console: Console, drawn: Callable[[], RenderableType], over: threading.Event) -> None:
    if over.wait(_DELAY_S):
        return
    from rich.live import Live  # noqa: PLC0415 - slow to import, and most queries are over

    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not over.wait(_REFRESH_S):
            live.update(drawn(), refresh=True)


def _line(line: Callable[[], object]) -> Text:
    from rich.text import Text  # noqa: PLC0415 - see above

    text = f"{line()} · Ctrl-C cancels"
    return Text(text, style="dim", no_wrap=True, overflow="ellipsis")


class _Display:
    """What is drawn of the last reported progress of queries."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._started_s = time.monotonic()
        self._heard: QueryProgress | None = None
        self._heard_s = self._started_s

    def hear(self, progress: QueryProgress) -> None:
        if self._heard is None or progress.stages != self._heard.stages:
            self._heard_s = time.monotonic()
        self._heard = progress

    def drawn(self) -> Group:
        now = time.monotonic()
        heard = self._heard or QueryProgress((), 0.0)
        quiet_s = now - self._heard_s
        return progress_lines(heard, now - self._started_s, quiet_s, self._nodes(quiet_s))

    def _nodes(self, quiet_s: float) -> Sequence[NodeReport] | None:
        if quiet_s < _QUIET_S:
            return None
        try:
            return self._watched.nodes()
        except ClusterError:  # the session was stopped concurrently
            return None


def progress_lines(
    progress: QueryProgress,
    elapsed_s: float,
    quiet_s: float,
    nodes: Sequence[NodeReport] | None,
) -> Group:
    """A line per running stage, and what the query waits for if it makes no progress."""
    from rich.console import Group  # noqa: PLC0415 - see above
    from rich.text import Text  # noqa: PLC0415

    stages = progress.stages
    # There are no stages while the query is planned, or runs in the front end. `quiet_s` are the
    # seconds since the last progress; `nodes` are those of the cluster if that is a while, else
    # None.
    open_stages = [stage for stage in stages if stage.started and stage.done < stage.tasks]
    lines = [_stage_line(stage) for stage in open_stages[:_STAGES_MAX]]
    if len(open_stages) > _STAGES_MAX:
        lines.append(Text(f"and {len(open_stages) - _STAGES_MAX} more stages", style="dim"))
    done = sum(stage.done == stage.tasks for stage in stages)
    parts = [f"{elapsed_s:.1f} s"]
    parts += [f"{done} of {len(stages)} stages done"] if stages else ["working"]
    if quiet_s >= _QUIET_S and nodes is not None:
        parts.append(waiting_text(quiet_s, nodes, progress.query))
    parts.append("Ctrl-C cancels")
    return Group(*lines, Text(" · ".join(parts), style="dim"))


def waiting_text(quiet_s: float, nodes: Sequence[NodeReport], query: int = 0) -> str:
    """What a query is probably waiting for, judged by the state of the nodes."""
    tasks = [task for node in nodes if node.alive for task in node.tasks]
    own = [task for task in tasks if task.query == query]
    lost = [node.name for node in nodes if not node.alive]
    slots = sum(node.slots for node in nodes if node.alive)
    running = sum(node.running for node in nodes if node.alive)
    waited = f"for {quiet_s:.0f} s"
    if not any(node.alive for node in nodes):
        return f"waiting for a node, {quiet_s:.0f} s"
    if not slots:
        return f"waiting {waited}: no executor is alive"
    gone = f", lost: {', '.join(lost)}" if lost else ""
    busy = f"{running} of {slots} slots are busy"
    if own or running < slots:
        runs = f"{len(own)} of its tasks {'runs' if len(own) == 1 else 'run'}, " if own else ""
        return f"no task has ended {waited}: {runs}{busy}{gone}"
    others = dict.fromkeys(f"query {task.query}" if task.query else task.what for task in tasks)
    behind = ", ".join([*others][:_BEHIND_MAX]) or "other tasks"
    return f"waiting {waited}, behind {behind}: {busy}{gone}"


def _stage_line(stage: StageProgress) -> Text:
    from rich.text import Text  # noqa: PLC0415 - see above

    filled = int(_BAR * min(1.0, (stage.done + stage.running) / stage.tasks))
    line = Text(f"stage {stage.index:<3} ")
    line.append("━" * filled, style="cyan")
    line.append("─" * (_BAR - filled), style="dim")
    share = 100 * (stage.done + stage.running) / stage.tasks
    inside = f"{min(share, 99):.0f} %, " if stage.running else ""
    line.append(f" {stage.done}/{stage.tasks} tasks, {inside}{stage.rows:,} rows")
    return line.append("".join(f", {text}" for text in rare_figures(stage.figures)))
