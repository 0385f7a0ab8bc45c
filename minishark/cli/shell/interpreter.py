"""Splits texts into statements and dot-commands, and runs them: the shell without the prompt."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from rich.console import Console

from minishark.cli.output import Output
from minishark.compiler.sql.statements import COUNTED, Explain, ExplainChange, Query
from minishark.compiler.sql.tokens import sql_tokens
from minishark.dataframe import DataFrame
from minishark.errors import MinisharkError, OptionError, QueryError
from minishark.session.progress import shown_progress

if TYPE_CHECKING:
    from minishark.adapters.flight.client import RemoteFrame
    from minishark.session.session import Session


_READ_DEPTH_MAX = 16
_BARE = ("help", "exit", "quit")  # commands that are typed without their dot, as in other shells
_PLACE = re.compile(r"\nLINE (\d+): ")
_CHANGES_ROWS = re.compile(r"(INSERT|UPDATE|DELETE|MERGE|COPY)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Entry:
    """A statement with its semicolon, or a dot-command."""

    text: str
    line: int  # the line number of its start, from 1
    is_command: bool  # whether it is a dot-command, which is a single line
    is_complete: bool = True  # False for a statement without its semicolon


def split(text: str) -> tuple[Entry, ...]:
    """The statements and dot-commands in a text, in order, without comments between them."""
    # A line that starts with a dot where a statement could start is a command. Only the last entry
    # can be incomplete.
    return tuple(_entries(text))


def is_complete(text: str) -> bool:
    return all(entry.is_complete for entry in split(text))


def _entries(text: str) -> Iterator[Entry]:
    if (word := text.strip().rstrip("; ").lower()) in _BARE:
        yield Entry(f".{word}", 1, is_command=True)
        return
    position = 0
    while True:
        start = next((position + token.first for token in sql_tokens(text[position:])), None)
        if start is None:
            return
        if text[start] == ".":
            end = text.find("\n", start)
            end = len(text) if end < 0 else end
            yield Entry(text[start:end].rstrip(), _line(text, start), is_command=True)
            position = end
            continue
        position, entries = _statements(text, start)
        yield from entries


def _statements(text: str, start: int) -> tuple[int, list[Entry]]:
    """The end of the statements before the next dot-command, and the statements."""
    entries: list[Entry] = []
    first: int | None = None
    for token in sql_tokens(text[start:]):
        position = start + token.first
        if text[position] == ";":
            if first is not None:
                line = _line(text, first)
                entries.append(Entry(text[first : position + 1], line, is_command=False))
            first = None
        elif first is None:
            if text[position] == "." and _starts_line(text, position):
                return position, entries
            first = position
    if first is not None:
        rest = text[first:].rstrip()
        entries.append(Entry(rest, _line(text, first), is_command=False, is_complete=False))
    return len(text), entries


def _starts_line(text: str, position: int) -> bool:
    return not text[text.rfind("\n", 0, position) + 1 : position].strip()


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


@dataclass(frozen=True, slots=True)
class Last:
    """The last query."""

    frame: DataFrame | RemoteFrame  # as it was entered
    ran: DataFrame | RemoteFrame  # what ran of it: its first rows, if nobody sees the others
    table: pa.Table  # the rows of `ran`
    more: bool  # whether the query has more rows

    def rows(self) -> pa.Table:
        """All of its rows; it runs again if only some are here."""
        return self.frame.to_arrow() if self.more else self.table


@dataclass(kw_only=True)
class Interpreter:
    """Runs entries sequentially."""

    session: Session
    output: Output
    errors: Console  # for progress and warnings
    confirm: Callable[[str], bool] | None = None  # asks a yes/no question; None if not interactive
    timer: bool = False
    last: Last | None = None
    is_over: bool = False  # whether `.quit` was entered
    _reading: list[Path] = field(default_factory=list)
    _warned: int = 0

    def __post_init__(self) -> None:
        self._warned = len(self.session.warnings)  # these were printed when the session started

    def run_text(self, text: str, source: str) -> None:
        """Run all entries of a text, until an error or `.quit`; errors name its `source`."""
        entries = split(text)
        for entry in entries:
            if self.is_over:
                return
            try:
                self.run(entry)
            except MinisharkError as error:
                if source and len(entries) > 1:
                    place = None if entry.is_command else _PLACE.search(str(error))
                    line = entry.line + (int(place[1]) - 1 if place else 0)
                    error.add_note(f"({source}, line {line})")
                raise

    def run(self, entry: Entry) -> None:
        if entry.is_command:
            from minishark.cli.shell.commands import run_command

            run_command(self, entry.text)
        else:
            self._run_statement(entry.text)

    def _run_statement(self, text: str) -> None:
        started_s = time.perf_counter()
        more = False
        with shown_progress(self.session, self.errors):
            parsed = self.session.parse(text)[-1]
            frame = self.session.sql(text)
            if isinstance(parsed, Query):
                self.last = self._first_rows(frame)
                table, more = self.last.table, self.last.more
            else:
                table = frame.to_arrow()
        took = f" in {duration_text(time.perf_counter() - started_s)}" if self.timer else ""
        if isinstance(parsed, Explain | ExplainChange):
            self.output.print(table.column(0)[0].as_py())
        elif isinstance(parsed, COUNTED) and table.column_names == ["Count"]:
            self.output.say(f"{_changed(parsed.sql, table)}{took}")
        else:
            self.output.write(table, types=types_of(frame), more=more, note=took)
        for warning in self.session.warnings[self._warned :]:
            self.errors.print(f"Warning: {warning}", style="yellow", markup=False)
        self._warned = len(self.session.warnings)

    def _first_rows(self, frame: DataFrame | RemoteFrame) -> Last:
        """The rows that the output shows; others are not computed."""
        count = self.output.rows_shown
        if count is None or not isinstance(frame, DataFrame) or frame.is_local():
            return Last(frame, frame, frame.to_arrow(), more=False)
        first = frame.limit(count + 1)  # one more tells whether there are more
        rows = first.to_arrow()
        return Last(frame, first, rows.slice(0, count), more=rows.num_rows > count)

    def show_last(self) -> None:
        """Write all rows and columns of the last query."""
        last = self._last()
        with shown_progress(self.session, self.errors):
            rows = last.rows()
        self.output.write_all(rows, types=types_of(last.frame))

    def read(self, path: Path) -> None:
        if len(self._reading) >= _READ_DEPTH_MAX:
            raise OptionError(f"{path}: .read is nested more than {_READ_DEPTH_MAX} levels deep.")
        self._reading.append(path)
        try:
            self.run_text(read_script(path), str(path))
        finally:
            self._reading.pop()

    def run_last(self, action: Callable[[Last], str]) -> None:
        """Print a text about the last query."""
        last = self._last()
        with shown_progress(self.session, self.errors):
            text = action(last)
        self.output.print(text)

    def _last(self) -> Last:
        if self.last is None:
            raise QueryError("No query has run yet.")
        return self.last


def types_of(frame: DataFrame | RemoteFrame) -> list[str]:
    """The types of a query's columns; none of a server's, which does not tell."""
    return [type_ for _, type_ in frame.dtypes] if isinstance(frame, DataFrame) else []


def table_columns(session: Session) -> Mapping[str, list[tuple[str, str]]]:
    """The columns of each table and view, as (name, type), by table."""
    described = session.sql(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() "
        "WHERE NOT internal ORDER BY table_name, column_index"
    ).to_arrow()
    columns: dict[str, list[tuple[str, str]]] = {}
    for table, column, type_ in zip(*(c.to_pylist() for c in described.columns), strict=True):
        columns.setdefault(table, []).append((column, type_))
    return columns


def read_script(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise OptionError(f"Can't read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"{path} is not UTF-8 text: {error.reason}.") from error


def error_text(error: BaseException) -> str:
    text = re.sub(r"\n\n(?=LINE \d+: )", "\n", str(error)).rstrip()
    return "\n".join([text, *getattr(error, "__notes__", ())])


def duration_text(seconds: float) -> str:
    """A duration for people: 12 ms, 1.23 s, 2 min 3 s."""
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f} min {rest:.0f} s" if minutes else f"{rest:.2f} s"


def _changed(sql: str, table: pa.Table) -> str:
    count = sum(table.column(0).to_pylist())
    if count == 0 and not _CHANGES_ROWS.match(sql):
        return "Done"
    return f"{count:,} {'row' if count == 1 else 'rows'}"
