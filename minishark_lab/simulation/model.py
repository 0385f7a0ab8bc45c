"""The model: what the tables of a session hold after each write, and which answers are right.

A query may see any version of the tables that was current while it ran, all tables at one moment. A
write that failed has changed nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from minishark_lab.simulation.queries import Query
from minishark_lab.simulation.script import FILE, KEPT, Statement
from minishark_lab.simulation.work import Row, Rows, joined, summed

_Tables = Mapping[str, Rows | None]
"""Rows by table. Those of kept rows are None that are to be computed when somebody needs them."""


@dataclass(slots=True)
class Seen:
    """What a query returned, and the versions that were current: None for the table's absence."""

    statement: Statement
    first: int
    last: int
    rows: Rows


@dataclass(slots=True)
class Model:
    """The versions of a session's tables, one for each write, and the answers to judge."""

    versions: list[_Tables] = field(default_factory=lambda: [{}])
    answers: list[Seen] = field(default_factory=list)
    writing: Statement | None = None  # one that runs: its version may be seen already
    rewritten: list[int] = field(default_factory=list)  # the versions in which the file is new

    @property
    def now(self) -> _Tables:
        """The last version."""
        return self.versions[-1]

    @property
    def number(self) -> int:
        """Of the last version."""
        return len(self.versions) - 1

    def may_lack(self, names: Collection[str], first: int) -> bool:
        """Whether one of these tables may not have been there since version `first`."""
        writing = self.writing
        if writing is not None and writing.kind in ("drop", "release") and writing.table in names:
            return True
        return any(name not in tables for tables in self.versions[first:] for name in names)

    def rewrites(self, first: int) -> int:
        """How often the file was replaced, at most, since version `first`."""
        is_now = self.writing is not None and self.writing.kind == "rewrite"
        return is_now + sum(number > first for number in self.rewritten)

    def is_open(self, name: str, first: int) -> bool:
        """Whether rows that are kept may not have been computed since version `first`."""
        return any(tables.get(name, ()) is None for tables in self.versions[first:])

    def end(self, statement: Statement | None) -> None:
        """A write has ended; None if it has changed nothing."""
        self.writing = None
        if statement is not None and statement.kind == "rewrite":
            self.rewritten.append(self.number + 1)
        self.versions.append(self.now if statement is None else changed(self.now, statement))

    def seen(self, statement: Statement, first: int, rows: Rows) -> None:
        """A query that began at version `first` returned rows."""
        self.answers.append(Seen(statement, first, self.number + (self.writing is not None), rows))

    def wrong(self) -> list[str]:
        """Answers that no version gives; to be asked when all writes have ended."""
        return [self._complaint(seen) for seen in self.answers if not self._is_right(seen)]

    def _is_right(self, seen: Seen) -> bool:
        query: Query = seen.statement.query
        candidates = self._candidates(seen) if KEPT in query.tables else self._current(seen)
        for tables in candidates:
            if any(name not in tables for name in query.tables):
                continue
            rows = {name: tables[name] for name in query.tables}
            if None in rows.values() or query.is_answer(seen.rows, rows):  # type: ignore[arg-type]
                return True
        return False

    def _current(self, seen: Seen) -> Sequence[_Tables]:
        return self.versions[seen.first : seen.last + 1]

    def _candidates(self, seen: Seen) -> Iterator[_Tables]:
        """The versions, also with the kept rows of earlier ones: a query holds them to its end."""
        versions = self._current(seen)
        for last, tables in enumerate(versions):
            for before in versions[: last + 1]:
                if KEPT in before:
                    yield {**tables, KEPT: before[KEPT]}

    def _complaint(self, seen: Seen) -> str:
        tables = self.versions[seen.last] if seen.last < len(self.versions) else self.now
        held = {name: sorted(tables.get(name) or ()) for name in seen.statement.query.tables}
        return f"{seen.statement}: {sorted(seen.rows)} of {held}, versions {seen.first}-{seen.last}"


def changed(tables: _Tables, statement: Statement) -> _Tables:
    """The tables after a statement that succeeded."""
    name, old = statement.table, list(tables.get(statement.table) or ())
    match statement.kind:
        case "create" | "rewrite":
            new = list(statement.rows)
        case "load":
            new = list(tables[FILE] or ())
        case "store" | "keep" | "refresh":
            new = list(_stored(statement.query, tables))
        case "forget":
            return {**tables, name: None}
        case "insert":
            new = [*old, *statement.rows]
        case "delete":
            new = [row for row in old if not statement.goes(row)]
        case "update":
            new = [*(row for row in old if not statement.goes(row)), *updated(old, statement)]
        case "empty":
            new = []
        case _:
            return {key: rows for key, rows in tables.items() if key != name}
    return {**tables, name: new}


def updated(rows: Rows, statement: Statement) -> list[Row]:
    """The rows that an UPDATE puts in the place of others."""
    return [(row[0], row[1] + 1) for row in rows if statement.goes(row)]


def _stored(query: Query, tables: _Tables) -> Rows:
    rows = [tables[name] or () for name in query.tables]
    match query.kind:
        case "rows":
            return rows[0]
        case "grouped":
            return summed(rows[0])
    return summed(joined(rows[0], rows[1]))
