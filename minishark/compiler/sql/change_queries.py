"""INSERT, DELETE, UPDATE and MERGE as queries for what they do to rows. Pure.

Stores number the rows of a table (`ROW_NUMBER`). What a statement does to those that are there is a
patch: the numbers of rows, and what becomes of each (`worker/patches.py`). `tables/changes.py` says
what is done with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from minishark.compiler.sql.changes import Change, Changed, Delete, Insert, Merge, Update, When
from minishark.compiler.sql.tokens import (
    Cursor,
    sql_tokens,
    unquoted,
)
from minishark.errors import QueryError
from minishark.model.catalog import PATCH_DELETES, PATCH_SETS, ROW_NUMBER
from minishark.model.expressions import Schema, quote

CHANGED_TWICE = (
    "Invalid Input Error: MERGE INTO command cannot affect the same target row more than once: "
    "several rows of the source match it. Leave one of them in the source."
)
_ACTION, _MATCHED, _MARK = "_minishark_action", "_minishark_matched", "_minishark_mark"


@dataclass(frozen=True, slots=True)
class Target:
    """A table that is changed."""

    name: str  # what messages call it
    schema: Schema
    # Expressions for columns without values, by position; NULL for the others.
    defaults: Mapping[int, str] = field(default_factory=dict)

    def position(self, column: str) -> int:
        for i, own in enumerate(self.schema):
            if own.name.lower() == column.lower():
                return i
        names = ", ".join(own.name for own in self.schema)
        raise QueryError(f"Table {self.name} has no column {column!r}; it has: {names}.")

    def value(self, position: int, value: str = "DEFAULT") -> str:
        """What a column gets that is given a value, in its type."""
        if value.upper() == "DEFAULT":
            value = self.defaults.get(position, "NULL")
        return f"CAST(({value}) AS {self.schema[position].type})"

    def typed(self, values: Mapping[int, str]) -> str:
        """A list for SELECT: the table's columns, with defaults where `values` has none."""
        return ", ".join(
            f"{self.value(i, values.get(i, 'DEFAULT'))} AS {quote(column.name)}"
            for i, column in enumerate(self.schema)
        )


def inserted(change: Insert, target: Target, names: Sequence[str]) -> str:
    """The rows to be added.

    Args:
        change: the statement.
        target: the table.
        names: the columns of `change.query`.

    Raises:
        QueryError: the columns are not the table's, or more or fewer than the values.
    """
    if not change.query:
        return f"SELECT {target.typed({})}"
    if change.by_name:
        columns: Sequence[str] = names
    elif change.columns is not None:
        columns = change.columns
    else:
        columns = [column.name for column in target.schema]
    if len(columns) != len(names):
        raise QueryError(
            f"Table {target.name} takes {len(columns)} values here, but {len(names)} were given."
        )
    positions = [target.position(column) for column in columns]
    if len({*positions}) != len(positions):
        raise QueryError("A column is named twice.")
    values = {position: f"v{i}" for i, position in enumerate(positions)}
    given = ", ".join(f"v{i}" for i in range(len(names)))
    return f"{change.ctes}SELECT {target.typed(values)} FROM ({change.query}) AS v({given})"


# Rows that are there


def words(sql: str) -> list[str]:
    """All words of a text, names without their quotes."""
    return [unquoted(token.text) for token in sql_tokens(sql)]


def concerned(change: Change, numbered: str, columns: str) -> str:
    """The rows of a table that a statement may change.

    Of a MERGE also those that keep rows of its source from being added.

    Args:
        change: the statement; no INSERT.
        numbered: the relation with the rows of the table.
        columns: which columns are wanted.
    """
    assert not isinstance(change, Insert), "it changes no rows"
    alias = quote(change.alias)
    chosen = f"{alias}.*" if columns == "*" else columns
    selected = f"{change.ctes}SELECT {chosen} FROM {numbered} AS {alias}"
    source = change.using if isinstance(change, Delete) else change.source
    condition = change.condition or "true"
    if not source:
        return f"{selected} WHERE {condition}"
    others = f"({' CROSS JOIN '.join(Cursor(source).parts())}) ON ({condition})"
    matching = f"{selected} SEMI JOIN {others}"
    if not (isinstance(change, Merge) and change.changes_alone):
        return matching
    alone = _action(change, "NOT MATCHED BY SOURCE")
    return (
        f"{matching} UNION ALL SELECT {chosen} FROM {numbered} AS {alias} "
        f"ANTI JOIN {others} WHERE {alone} <> 0"
    )


def set_columns(change: Update | Merge, target: Target) -> tuple[int, ...]:
    """The positions of the columns that a statement may set.

    Raises:
        QueryError: the table has no such column, one is set twice, or a clause has not as many
            values as columns.
    """
    if isinstance(change, Update):
        positions = sorted({target.position(name) for name, _ in change.values})
        if len(positions) < len(change.values):
            raise QueryError("A column is set twice.")
        return tuple(positions)
    updates = [clause for clause in change.clauses if clause.action == "UPDATE"]
    return tuple(
        i
        for i in range(len(target.schema))
        if any(_value(clause, change, target, i) is not None for clause in updates)
    )


def patch(change: Changed, target: Target, numbered: str, bucket: str) -> str:
    """The patch of a table (`worker/patches.py`), and last for each row a `bucket`.

    Args:
        change: the statement.
        target: the table.
        numbered: the relation with its rows and their numbers.
        bucket: an expression over the column ROW_NUMBER.
    """
    alias = quote(change.alias)
    if isinstance(change, Merge):
        return _merge_patch(change, target, numbered, bucket)
    kind = PATCH_DELETES if isinstance(change, Delete) else PATCH_SETS
    fixed = (f"{alias}.{ROW_NUMBER}", f"CAST({kind} AS TINYINT) AS kind")
    if isinstance(change, Delete):
        return concerned(change, numbered, ", ".join((*fixed, bucket)))
    new = {target.position(column): value for column, value in change.values}
    values = [target.value(i, new[i]) for i in sorted(new)]
    source = f", {change.source}" if change.source else ""
    # Of several rows that match, DuckDB takes one.
    once = f"DISTINCT ON ({alias}.{ROW_NUMBER}) " if change.source else ""
    columns = ", ".join((*fixed, *values, bucket))
    return (
        f"{change.ctes}SELECT {once}{columns} FROM {numbered} AS {alias}{source} "
        f"WHERE {change.condition or 'true'}"
    )


def marks(change: Delete | Update, target: Target, relation: str) -> str:
    """For each row of a table, whether a statement that reads no other one changes it.

    Of an UPDATE also what the columns that it sets have afterwards, in each row.
    """
    alias, condition = quote(change.alias), change.condition

    def where(changed: str, kept: str) -> str:
        return f"CASE WHEN {condition} THEN {changed} ELSE {kept} END" if condition else changed

    selected = [f"CAST({where('1', '0')} AS TINYINT) AS marked"]
    if isinstance(change, Update):
        new = {target.position(column): value for column, value in change.values}
        for i in sorted(new):
            old = f"{alias}.{quote(target.schema[i].name)}"
            selected.append(f"{where(target.value(i, new[i]), old)} AS v{i}")
    return f"SELECT {', '.join(selected)} FROM {relation} AS {alias}"


def _merge_patch(change: Merge, target: Target, numbered: str, bucket: str) -> str:
    alias = quote(change.alias)
    kinds = {"UPDATE": PATCH_SETS, "DELETE": PATCH_DELETES}
    whens = [f"WHEN {n} THEN {kinds.get(c.action, 0)}" for n, c in enumerate(change.clauses, 1)]
    columns = set_columns(change, target)
    values = []
    for i in columns:
        cases = _set_cases(change, target, i)
        old = f"{alias}.{quote(target.schema[i].name)}"
        values.append(f"CASE {_ACTION} {' '.join(cases)} ELSE {old} END AS v{i}")
    action, joined = _action(change, "MATCHED"), f"JOIN {change.source}"
    if change.changes_alone:
        alone = _action(change, "NOT MATCHED BY SOURCE")
        action = f"CASE WHEN {_MATCHED} THEN {action} ELSE {alone} END"
        joined = f"LEFT JOIN ({change.source} CROSS JOIN (SELECT true AS {_MATCHED}) AS {_MARK})"
    inner = ", ".join((f"{alias}.{ROW_NUMBER}", f"{action} AS {_ACTION}", *values))
    kind = f"CAST(CASE {_ACTION} {' '.join(whens)} END AS TINYINT)"
    outer = ", ".join((ROW_NUMBER, kind, *(f"v{i}" for i in columns), bucket))
    return (
        f"{change.ctes}SELECT {outer} FROM (SELECT {inner} FROM {numbered} AS {alias} "
        f"{joined} ON ({change.condition})) WHERE {_ACTION} <> 0"
    )


def patched(
    target: Target, columns: Sequence[int], numbered: str, patch: str, names: Sequence[str]
) -> str:
    """The rows of a table, or of some of its files, after a patch.

    Args:
        target: the table.
        columns: the positions of the columns that the patch sets.
        numbered: the relation with its rows and their numbers.
        patch: the relation of the patch.
        names: the patch's columns: numbers, kinds, and what `columns` are set to.
    """
    number, kind, *values = names
    new = dict(zip(columns, values, strict=True))
    selected = ", ".join(
        f"CASE p.{kind} WHEN {PATCH_SETS} THEN p.{new[i]} ELSE t.{name} END AS {name}"
        if i in new
        else f"t.{name}"
        for i, name in enumerate(quote(column.name) for column in target.schema)
    )
    return (
        f"SELECT {selected} FROM {numbered} AS t LEFT JOIN {patch} AS p "
        f"ON t.{ROW_NUMBER} = p.{number} WHERE p.{kind} IS DISTINCT FROM {PATCH_DELETES}"
    )


def all_columns(change: Insert) -> Insert:
    """The same INSERT of rows that have all columns of the table."""
    return replace(change, columns=None, by_name=False)


def of_rows(change: Insert, table: tuple[str, ...], rows: str) -> str:
    """An INSERT of the rows of a relation, which its query has given, into a table of this name."""
    how = "BY NAME " if change.by_name else ""
    if change.columns is not None:
        how = f"({', '.join(map(quote, change.columns))}) "
    verb = f"INSERT OR {change.otherwise}" if change.otherwise else "INSERT"
    alias = f"AS {quote(change.alias)} " if change.alias else ""
    into = ".".join(map(quote, table))
    return f"{verb} INTO {into} {alias}{how}FROM {rows} {change.clauses}"


def search_of(change: Change) -> str:
    """The parts of a statement that decide which rows it changes."""
    match change:
        case Insert():
            return ""
        case Delete():
            return f"{change.ctes} {change.using} {change.condition}"
        case Merge(changes_alone=True):
            conditions = " ".join(clause.condition for clause in change.clauses)
            return f"{change.ctes} {change.source} {change.condition} {conditions}"
        case _:
            return f"{change.ctes} {change.source} {change.condition}"


# MERGE


def _action(change: Merge, *kinds: str) -> str:
    """The number of the clause that applies to a row, from 1; 0 if none does."""
    cases = []
    for number, clause in enumerate(change.clauses, 1):
        if clause.kind in kinds:
            result = 0 if clause.action == "DO NOTHING" else number
            cases.append(f"WHEN {clause.condition or 'true'} THEN {result}")
    return f"CASE {' '.join(cases)} ELSE 0 END" if cases else "0"


def _set_cases(change: Merge, target: Target, position: int) -> list[str]:
    """What clauses set a column to, by their numbers."""
    cases = []
    for number, clause in enumerate(change.clauses, 1):
        value = _value(clause, change, target, position) if clause.action == "UPDATE" else None
        if value is not None:
            cases.append(f"WHEN {number} THEN {target.value(position, value)}")
    return cases


def _value(clause: When, change: Merge, target: Target, position: int) -> str | None:
    """What a clause sets a column to; None if it leaves it."""
    columns = clause.columns or tuple(own.name for own in target.schema)
    values = clause.values
    if values is None:
        values = tuple(f"{quote(change.source_alias)}.{quote(n)}" for n in change.source_names)
        if clause.by_name and clause.columns is None:
            columns = change.source_names
    positions = [target.position(name) for name in columns]
    if len(values) != len(columns):
        raise QueryError(
            f"A clause of the MERGE has {len(columns)} columns but {len(values)} values."
        )
    return values[positions.index(position)] if position in positions else None


def merged_inserts(change: Merge, target: Target, located: str) -> str | None:
    """The rows that a MERGE adds; None if it adds none."""
    inserts = [
        (number, clause)
        for number, clause in enumerate(change.clauses, 1)
        if clause.kind == "NOT MATCHED" and clause.action == "INSERT"
    ]
    if not inserts:
        return None
    values = {}
    for i in range(len(target.schema)):
        cases = []
        for number, clause in inserts:
            value = _value(clause, change, target, i)
            if value is not None:
                cases.append(f"WHEN {number} THEN {target.value(i, value)}")
        if cases:
            values[i] = f"CASE {_ACTION} {' '.join(cases)} ELSE {target.value(i)} END"
    action = _action(change, "NOT MATCHED")
    names = ", ".join(quote(column.name) for column in target.schema)
    inner = (
        f"SELECT {action} AS {_ACTION}, {target.typed(values)} FROM {change.source} "
        f"ANTI JOIN {located} AS {quote(change.alias)} ON ({change.condition})"
    )
    return f"{change.ctes}SELECT {names} FROM ({inner}) WHERE {_ACTION} <> 0"
