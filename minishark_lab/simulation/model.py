"""The oracle: what the tables of a process hold after each write, and which answers are right.

Each publication of tables in the catalog has a number. A statement that succeeds takes effect at
its last one; so the order of writes is known, whoever makes them, and what tables held after each
of them is computed when all have ended. Then answers are judged:

- a query may see any state that was current while it ran, all tables at one moment;
- a transaction sees one state from while it began (snapshot isolation), and what it has done
  since; if it is committed, nobody has changed what it has changed since that state, unless all
  that it did to a table was to add rows;
- what failed has changed nothing, and an error about what tables hold was right in some such state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TypeAlias

from minishark.errors import CatalogError, ConflictError, ConstraintError, MinisharkError
from minishark_lab.simulation.queries import Query
from minishark_lab.simulation.script import FILE, KEPT, KEYED, Statement
from minishark_lab.simulation.work import Row, Rows, joined, summed

State = Mapping[str, Rows | None]
"""Rows by table; None if they are not known: all nodes that had just stored them were away, or they
are kept rows that are to be computed when somebody needs them."""

Done: TypeAlias = tuple[Statement, Rows | None]
"""A statement, and the rows that it has stored if it stores those of a query."""

_number: Callable[[tuple[int, State]], int] = itemgetter(0)
_ADDS, _CHANGES = ("insert",), ("insert", "upsert", "merge", "delete", "update", "empty")


@dataclass(slots=True)
class Seen:
    """What a query returned, and the publications before it began and ended."""

    query: Query
    first: int
    last: int
    rows: Rows

    def __str__(self) -> str:
        query = self.query
        return f"query {query.kind} of {', '.join(query.tables)}: {sorted(self.rows)}"


@dataclass(slots=True)
class Stored:
    """The rows that a statement has stored, of a query that it ran since a publication."""

    statement: Statement
    rows: Rows | None
    first: int
    last: int


@dataclass(slots=True, kw_only=True)
class Said:
    """What a statement that changes rows says about what tables hold."""

    statement: Statement
    told: MinisharkError | Rows | int  # how it failed, or which rows it means, or how many
    first: int
    last: int
    inside: Transaction | None = None
    done: int = 0  # how many statements of the transaction before


@dataclass(slots=True, kw_only=True)
class Transaction:
    """A transaction, and what it has seen and done so far.

    Attributes:
        first: the number of the last publication before it began.
        last: the same, when it had begun.
        done: its statements that have changed something, with the rows of those that store a query.
        seen: what its queries returned, and how many statements were done then.
        committed: at which publication; None if it was not, or has changed nothing.
    """

    first: int
    last: int
    done: list[Done] = field(default_factory=list)
    seen: list[tuple[int, Seen]] = field(default_factory=list)
    committed: int | None = None
    is_aborted: bool = False

    @property
    def tables(self) -> tuple[str, ...]:
        """What it has changed."""
        return tuple(dict.fromkeys(statement.table for statement, _ in self.done))

    def only_adds(self, table: str) -> bool:
        """Whether all that it did to a table is to add rows."""
        kinds = {each.kind for each, _ in self.done if each.table == table}
        return kinds <= {*_ADDS} and table != KEYED


@dataclass(slots=True)
class Effect:
    """What a statement, or a transaction, has changed at a publication."""

    number: int
    done: Sequence[Done]
    by: Transaction | None = None

    def touches(self, table: str, *, replaces: bool = False) -> bool:
        """Whether it changes a table; with `replaces`, by another one in its place."""
        kinds = [each.kind for each, _ in self.done if each.table == table]
        return any(not replaces or kind not in _CHANGES for kind in kinds)


@dataclass(slots=True, kw_only=True)
class Model:
    """All that the sessions of a process have done and seen."""

    number: int = 0  # of the last publication
    effects: list[Effect] = field(default_factory=list)
    answers: list[Seen] = field(default_factory=list)
    failures: list[Said] = field(default_factory=list)
    told: list[Said] = field(default_factory=list)  # of which rows there were to change
    stored: list[Stored] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    excused: Callable[[], bool] = lambda: False  # whether tables may have been loaded again
    rewritten: list[int] = field(default_factory=list)  # at which the file became new
    # At which the engine itself has published something: rows have other numbers when small
    # pieces of a table were merged, so a transaction that has changed it can't be committed.
    merged: list[int] = field(default_factory=list)
    _states: list[tuple[int, State]] = field(default_factory=lambda: [(0, {})])

    def publish(self) -> int:
        """Something was published: its number."""
        self.number += 1
        return self.number

    def effect(self, number: int, *done: Done, by: Transaction | None = None) -> None:
        """Statements have taken effect at a publication."""
        place = len(self.effects)
        while place and self.effects[place - 1].number > number:
            place -= 1
        self.effects.insert(place, Effect(number, done, by))
        del self._states[place + 1 :]
        if any(statement.kind == "rewrite" for statement, _ in done):
            self.rewritten.append(number)

    @property
    def states(self) -> list[tuple[int, State]]:
        """What tables held from each publication on that has changed something."""
        for each in self.effects[len(self._states) - 1 :]:
            self._states.append((each.number, after(self._states[-1][1], each.done)))
        return self._states

    @property
    def now(self) -> State:
        """What tables hold, as far as is known."""
        return self.states[-1][1]

    def between(self, first: int, last: int) -> list[State]:
        """The states that were current at some moment from one publication to another."""
        return [state for _, state in self._numbered(first, last)]

    def _numbered(self, first: int, last: int) -> list[tuple[int, State]]:
        states = self.states
        begin, end = (bisect_right(states, number, key=_number) for number in (first, last))
        return states[begin - 1 : max(begin, end)]

    def rewrites(self, first: int) -> int:
        """How often the file was replaced since a publication."""
        return sum(number > first for number in self.rewritten)

    def is_open(self, name: str, first: int) -> bool:
        """Whether rows that are kept may not have been computed since a publication."""
        return any(state.get(name, ()) is None for state in self.between(first, self.number))

    def wrong(self) -> list[str]:
        """What no state explains; to be asked when all statements have ended."""
        told = [
            f"{each.statement} stores {sorted(each.rows or ())}, versions {each.first}-{each.last}"
            for each in self.stored
            if not any(
                _stores(each.statement.query, state, each.rows)
                for state in self.between(each.first, each.last)
            )
        ]
        told += [
            f"{KEYED} has a key twice since version {number}: {sorted(state[KEYED] or ())}"
            for number, state in self.states
            if _is_twice(state.get(KEYED) or ())
        ]
        told += [self._complaint(seen) for seen in self.answers if not self._is_right(seen)]
        told += [
            f"{failed.statement}: {failed.told}, versions {failed.first}-{failed.last}"
            for failed in self.failures
            if not self._may_fail(failed)
        ]
        told += [
            f"{said.statement} changes {said.told}, versions {said.first}-{said.last}"
            for said in self.told
            if not any(_means(said, state) for state in self._seen_by(said))
        ]
        for transaction in self.transactions:
            told += self._wrong_in(transaction)
        return told

    # Queries

    def _is_right(self, seen: Seen) -> bool:
        states = self.between(seen.first, seen.last)
        candidates = _with_kept(states) if KEPT in seen.query.tables else states
        return any(_answers(seen, state) for state in candidates)

    def _complaint(self, seen: Seen) -> str:
        state = self.between(seen.first, seen.last)[-1]
        held = {name: sorted(state.get(name) or ()) for name in seen.query.tables}
        return f"{seen} of {held}, versions {seen.first}-{seen.last}"

    # Errors

    def _may_fail(self, failed: Said) -> bool:
        statement, inside = failed.statement, failed.inside
        names = statement.names
        if isinstance(failed.told, ConflictError):
            changed = names if inside is None else inside.tables
            first = failed.first if inside is None else inside.first
            others = (each for each in self.effects if first < each.number <= failed.last)
            return (
                self.excused()
                or any(first < number <= failed.last for number in self.merged)
                or any(each.touches(t) for each in others for t in changed)
            )
        states = self._seen_by(failed)
        if isinstance(failed.told, ConstraintError):
            return any(_breaks_key(statement, state) for state in states)
        assert isinstance(failed.told, CatalogError)
        return any(name not in state for state in states for name in names)

    def _seen_by(self, said: Said) -> list[State]:
        """The states that a statement may have read."""
        inside = said.inside
        if inside is None:
            return self.between(said.first, said.last)
        began = self.between(inside.first, inside.last)
        return [after(state, inside.done[: said.done]) for state in began]

    # Transactions

    def _wrong_in(self, transaction: Transaction) -> Iterator[str]:
        explained = [
            (number, state)
            for number, state in self._numbered(transaction.first, transaction.last)
            if all(
                _answers(seen, after(state, transaction.done[:count]))
                for count, seen in transaction.seen
            )
            and all(
                each.kind != "create_as"
                or _stores(each.query, after(state, transaction.done[:count]), rows)
                for count, (each, rows) in enumerate(transaction.done)
            )
        ]
        if not explained:
            told = "; ".join(f"{seen} after {count}" for count, seen in transaction.seen)
            versions = f"{transaction.first}-{transaction.last}"
            yield f"transaction since versions {versions}: no one state gives {told}"
        elif transaction.committed is not None and not any(
            self._may_commit(transaction, transaction.committed, number) for number, _ in explained
        ):
            tables = ", ".join(transaction.tables)
            yield f"transaction of {tables} is committed, though others have changed these"

    def _may_commit(self, transaction: Transaction, committed: int, began: int) -> bool:
        others = [
            each
            for each in self.effects
            if began < each.number < committed and each.by is not transaction
        ]
        return not any(
            each.touches(table, replaces=transaction.only_adds(table))
            for each in others
            for table in transaction.tables
        )


def _with_kept(states: Sequence[State]) -> Iterator[State]:
    """States, also with the kept rows of earlier ones: a query holds them to its end."""
    for last, state in enumerate(states):
        for before in states[: last + 1]:
            if KEPT in before:
                yield {**state, KEPT: before[KEPT]}


def _answers(seen: Seen, state: State) -> bool:
    """Whether a state gives what a query returned."""
    query = seen.query
    if any(name not in state for name in query.tables):
        return False
    rows = {name: state[name] for name in query.tables}
    return None in rows.values() or query.is_answer(seen.rows, rows)  # type: ignore[arg-type]


def _is_twice(rows: Rows) -> bool:
    """Whether two rows have one key."""
    return len({row[0] for row in rows}) < len(rows)


def _means(said: Said, state: State) -> bool:
    """Whether a statement changes in a state the rows that it says."""
    statement, rows = said.statement, state.get(said.statement.table, ())
    if rows is None:
        return True
    match statement.kind:
        case "empty":
            found = list(rows)
        case "delete":
            found = [row for row in rows if statement.goes(row)]
        case _:
            found = updated(rows, statement)
    return said.told == (len(found) if isinstance(said.told, int) else sorted(found))


def _breaks_key(statement: Statement, state: State) -> bool:
    keys = {row[0] for row in state.get(statement.table) or ()}
    return any(row[0] in keys for row in statement.rows)


def after(state: State, done: Sequence[Done]) -> State:
    """The tables after statements."""
    for statement, rows in done:
        state = changed(state, statement, rows)
    return state


def changed(state: State, statement: Statement, stored: Rows | None = ()) -> State:
    """The tables after a statement; those that store a query have stored these rows."""
    name, old = statement.table, list(state.get(statement.table) or ())
    if statement.kind in _CHANGES[:-1] and state.get(name, ()) is None:
        return state
    new: list[Row] | None
    match statement.kind:
        case "create" | "rewrite":
            new = list(statement.rows)
        case "keyed":
            new = []
        case "load":
            new = list(state[FILE] or ())
        case "store" | "create_as" | "keep" | "refresh":
            new = None if stored is None else list(stored)
        case "forget":
            return {**state, name: None}
        case "insert":
            new = [*old, *statement.rows]
        case "upsert":
            keys = {row[0] for row in statement.rows}
            new = [*(row for row in old if row[0] not in keys), *statement.rows]
        case "merge":
            put = {row[0]: row for row in statement.rows}
            new = [put.get(row[0], row) for row in old]
            keys = {row[0] for row in old}
            new += [row for row in statement.rows if row[0] not in keys]
        case "delete":
            new = [row for row in old if not statement.goes(row)]
        case "update":
            new = [*(row for row in old if not statement.goes(row)), *updated(old, statement)]
        case "empty":
            new = []
        case _:
            return {key: rows for key, rows in state.items() if key != name}
    return {**state, name: new}


def updated(rows: Rows, statement: Statement) -> list[Row]:
    """The rows that an UPDATE puts in the place of others."""
    return [(row[0], row[1] + 1) for row in rows if statement.goes(row)]


def _stores(query: Query, state: State, rows: Rows | None) -> bool:
    """Whether a query of a state gives rows."""
    if rows is None or any(state.get(name, ()) is None for name in query.tables):
        return True
    if any(name not in state for name in query.tables):
        return False
    read = [state[name] or () for name in query.tables]
    match query.kind:
        case "rows":
            given: Rows = read[0]
        case "grouped":
            given = summed(read[0])
        case _:
            given = summed(joined(read[0], read[1]))
    return sorted(given) == sorted(rows)
