"""INSERT, DELETE, UPDATE and MERGE as queries for the rows that have to be written. Pure.

Tables are changed by copying: the files with rows that a statement changes are written anew. A
first query tells which files those are; a second one, over these only, gives their rows as they are
from now on. Both read the table with two more columns, `FILE` and `ROW`: where a row is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from minishark.compiler.sql.changes import Change, Changed, Delete, Insert, Merge, Update, When
from minishark.compiler.sql.tokens import (
    Cursor,
    Edit,
    Token,
    edited,
    names_in,
    sql_tokens,
    unquoted,
)
from minishark.errors import QueryError, UnsupportedError
from minishark.model.catalog import PATCH_DELETES, PATCH_SETS, ROW_NUMBER
from minishark.model.expressions import Schema, quote
from minishark.tables.warehouse.writer import CHANGED

FILE, ROW = "_minishark_file", "_minishark_row"
_ACTION, _MATCHED, _MARK = "_minishark_action", "_minishark_matched", "_minishark_mark"
_TIMES = {
    "NOW": "TIMESTAMPTZ",
    "GET_CURRENT_TIMESTAMP": "TIMESTAMPTZ",
    "TRANSACTION_TIMESTAMP": "TIMESTAMPTZ",
    "CURRENT_TIMESTAMP": "TIMESTAMPTZ",
    "CURRENT_DATE": "DATE",
    "TODAY": "DATE",
}
"""Functions that tell the time, which is the statement's, and their types."""
_NOTHING: Mapping[int, str] = {}


def supported(change: Change) -> Change:
    """A change that a table of the warehouse can have.

    Raises:
        UnsupportedError: it has a clause that such a table does not support.
    """
    if isinstance(change, Insert):
        if change.otherwise:
            raise UnsupportedError(
                "Tables of the warehouse have no keys: write INSERT INTO or MERGE."
            )
        if change.on_conflict:
            raise UnsupportedError("Statements on tables of the warehouse have no CONFLICT.")
    if change.returning:
        raise UnsupportedError("Statements on tables of the warehouse have no RETURNING.")
    return change


@dataclass(frozen=True, slots=True)
class Target:
    """A table that is changed."""

    name: str  # what messages call it
    schema: Schema

    def position(self, column: str) -> int:
        for i, own in enumerate(self.schema):
            if own.name.lower() == column.lower():
                return i
        known = ", ".join(own.name for own in self.schema)
        raise QueryError(f"Table {self.name} has no column {column!r}; it has: {known}.")

    def typed(self, values: dict[int, str]) -> str:
        """A list for SELECT: the table's columns, NULL where `values` has none."""
        return ", ".join(
            f"CAST({values.get(i, 'NULL')} AS {column.type}) AS {quote(column.name)}"
            for i, column in enumerate(self.schema)
        )


def at_moment(sql: str, moment: datetime) -> str:
    """Part of a statement in which functions that tell the time tell this one.

    Statements run as several queries, all of which must find the same rows.
    """
    now = f"(TIMESTAMPTZ '{moment.isoformat()}')"

    def edits() -> Iterator[Edit]:
        tokens = sql_tokens(sql)
        for at, token in enumerate(tokens):
            type_ = _TIMES.get(token.word)
            following = [each.text for each in tokens[at + 1 : at + 3]]
            if type_ is None or (at and tokens[at - 1].text == "."):
                continue
            if following == ["(", ")"]:
                yield Edit(token.first, tokens[at + 2].last, f"{now}::{type_}")
            elif token.word.startswith("CURRENT_") and following[:1] != ["."]:
                yield Edit(token.first, token.last, f"{now}::{type_}")

    return edited(sql, edits())


def inserted(
    change: Insert, target: Target, names: Sequence[str], defaults: Mapping[int, str] = _NOTHING
) -> str:
    """The rows to be added.

    Args:
        change: the statement.
        target: the table.
        names: the columns of `change.query`.
        defaults: expressions for columns without values, by position; NULL for the others.

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
    values = {**defaults, **{position: f"v{i}" for i, position in enumerate(positions)}}
    given = ", ".join(f"v{i}" for i in range(len(names)))
    return f"{change.ctes}SELECT {target.typed(values)} FROM ({change.query}) AS v({given})"


def _matches(change: Delete | Update) -> str:
    condition = change.condition or "true"
    others = change.using if isinstance(change, Delete) else change.source
    if others:
        return f"EXISTS (SELECT 1 FROM {others} WHERE {condition})"
    return condition


def matching_files(change: Delete | Update, located: str) -> str:
    """The files that have rows to be changed, with their number: columns `FILE` and n."""
    return (
        f"{change.ctes}SELECT {FILE}, count(*) AS n FROM {located} AS {quote(change.alias)} "
        f"WHERE {_matches(change)} GROUP BY {FILE}"
    )


def kept(change: Delete, target: Target, located: str) -> str:
    """The rows that a DELETE leaves of files."""
    columns = ", ".join(_column(change.alias, column.name) for column in target.schema)
    return (
        f"{change.ctes}SELECT {columns} FROM {located} AS {quote(change.alias)} "
        f"WHERE ({_matches(change)}) IS NOT TRUE"
    )


def updated(change: Update, target: Target, located: str) -> str:
    """The rows of files after an UPDATE, with the column CHANGED."""
    alias = quote(change.alias)
    new = {target.position(column): value for column, value in change.values}
    if len(new) != len(change.values):
        raise QueryError("A column is set twice.")
    columns = []
    for i, column in enumerate(target.schema):
        old = f"{alias}.{quote(column.name)}"
        value = old
        if i in new:
            value = f"CASE WHEN {_MATCHED} THEN CAST(({new[i]}) AS {column.type}) ELSE {old} END"
        columns.append(f"{value} AS {quote(column.name)}")
    selected = f"SELECT {', '.join(columns)}"
    if not change.source:
        matched = f"({change.condition or 'true'}) IS TRUE"
        return (
            f"{change.ctes}{selected}, {_MATCHED} AS {CHANGED} "
            f"FROM (SELECT *, {matched} AS {_MATCHED} FROM {located} AS {alias}) AS {alias}"
        )
    # Of several rows that match, DuckDB takes one.
    joined = _joined(located, alias, change.source, change.condition or "true")
    return (
        f"{change.ctes}{selected}, coalesce({_MATCHED}, false) AS {CHANGED} FROM {joined} "
        f"QUALIFY row_number() OVER (PARTITION BY {alias}.{FILE}, {alias}.{ROW}) = 1"
    )


def _joined(located: str, alias: str, source: str, condition: str, kind: str = "LEFT") -> str:
    """A join in which `_MATCHED` is true for rows with a partner."""
    others = " CROSS JOIN ".join(Cursor(source).parts())
    marked = f"({others} CROSS JOIN (SELECT true AS {_MATCHED}) AS {_MARK})"
    return f"{located} AS {alias} {kind} JOIN {marked} ON ({condition})"


def _column(alias: str, name: str) -> str:
    return f"{quote(alias)}.{quote(name)}"


# Rows in memory


def words(sql: str) -> list[str]:
    """All words of a text, names without their quotes."""
    return [unquoted(token.text) for token in sql_tokens(sql)]


def mentions(sql: str, name: str) -> int:
    """How often a statement names a table, or something else of that name, without a dot."""
    tokens = [*sql_tokens(sql), Token(len(sql), "", None)]
    return sum(
        each.key[-1] == name.lower() and tokens[each.after].text != "." for each in names_in(tokens)
    )


def concerned(change: Change, numbered: str, columns: str) -> str:
    """The rows of a table that a statement may change.

    Args:
        change: the statement; no INSERT, and no MERGE that changes rows without a partner.
        numbered: the relation with the rows of the table.
        columns: which columns are wanted.
    """
    assert not isinstance(change, Insert), "it changes no rows"
    alias = quote(change.alias)
    wanted = f"{alias}.*" if columns == "*" else columns
    selected = f"{change.ctes}SELECT {wanted} FROM {numbered} AS {alias}"
    source = change.using if isinstance(change, Delete) else change.source
    condition = change.condition or "true"
    if not source:
        return f"{selected} WHERE {condition}"
    others = " CROSS JOIN ".join(Cursor(source).parts())
    return f"{selected} SEMI JOIN ({others}) ON ({condition})"


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
        change: the statement; no MERGE that changes rows without a partner.
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
    values = [f"CAST(({new[i]}) AS {target.schema[i].type})" for i in sorted(new)]
    source = f", {change.source}" if change.source else ""
    # Of several rows that match, DuckDB takes one.
    once = f"DISTINCT ON ({alias}.{ROW_NUMBER}) " if change.source else ""
    columns = ", ".join((*fixed, *values, bucket))
    return (
        f"{change.ctes}SELECT {once}{columns} FROM {numbered} AS {alias}{source} "
        f"WHERE {change.condition or 'true'}"
    )


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
    inner = ", ".join(
        (f"{alias}.{ROW_NUMBER}", f"{_action(change, 'MATCHED')} AS {_ACTION}", *values)
    )
    kind = f"CAST(CASE {_ACTION} {' '.join(whens)} END AS TINYINT)"
    outer = ", ".join((ROW_NUMBER, kind, *(f"v{i}" for i in columns), bucket))
    return (
        f"{change.ctes}SELECT {outer} FROM (SELECT {inner} FROM {numbered} AS {alias} "
        f"JOIN {change.source} ON ({change.condition})) WHERE {_ACTION} <> 0"
    )


def all_columns(change: Insert) -> Insert:
    """The same INSERT of rows that have all columns of the table."""
    return replace(change, columns=None, by_name=False)


def of_rows(change: Insert, rows: str) -> str:
    """An INSERT of the rows of a relation, which its query has given."""
    how = "BY NAME " if change.by_name else ""
    if change.columns is not None:
        how = f"({', '.join(map(quote, change.columns))}) "
    verb = f"INSERT OR {change.otherwise}" if change.otherwise else "INSERT"
    alias = f"AS {quote(change.alias)} " if change.alias else ""
    return f"{verb} INTO {quote(change.target[-1])} {alias}{how}FROM {rows} {change.clauses}"


def search_of(change: Change) -> str:
    """The parts of a statement that decide which rows it changes."""
    match change:
        case Insert():
            return ""
        case Delete():
            return f"{change.ctes} {change.using} {change.condition}"
        case _:
            return f"{change.ctes} {change.source} {change.condition}"


def reads_others(change: Change) -> bool:
    """Whether a statement may read other tables than the one that it changes."""
    texts = [search_of(change)]
    match change:
        case Update():
            texts += [value for _, value in change.values]
        case Merge():
            return True
    is_query = any(token.word in ("SELECT", "FROM") for t in texts for token in sql_tokens(t))
    return is_query or bool(change.ctes or getattr(change, "using", getattr(change, "source", "")))


# MERGE

_DELETED = "DELETE"


def _action(change: Merge, *kinds: str) -> str:
    """The number of the clause that applies to a row, from 1; 0 if none does."""
    cases = []
    for number, clause in enumerate(change.clauses, 1):
        if clause.kind in kinds:
            result = 0 if clause.action == "DO NOTHING" else number
            cases.append(f"WHEN {clause.condition or 'true'} THEN {result}")
    return f"CASE {' '.join(cases)} ELSE 0 END" if cases else "0"


def _row_action(change: Merge) -> str:
    """The number of the clause that applies to a row of the table."""
    matched, alone = _action(change, "MATCHED"), _action(change, "NOT MATCHED BY SOURCE")
    return f"CASE WHEN {_MATCHED} THEN {matched} ELSE {alone} END"


def merged_files(change: Merge, located: str) -> str:
    """The files with rows to be changed: `FILE`, n rows, and the most clauses and partners of one.

    DuckDB refuses a MERGE in which several rows change one.
    """
    alias = quote(change.alias)
    kind = "LEFT" if change.changes_alone else "INNER"
    joined = _joined(located, alias, change.source, change.condition, kind)
    return (
        f"{change.ctes}SELECT {FILE}, sum(changes) AS n, max(changes) AS changes, "
        f"max(partners) AS partners FROM (SELECT {FILE}, {ROW}, "
        f"count(*) FILTER (({_row_action(change)}) <> 0) AS changes, count(*) AS partners "
        f"FROM {joined} GROUP BY {FILE}, {ROW}) GROUP BY {FILE} HAVING sum(changes) > 0"
    )


def merged(change: Merge, target: Target, located: str, *, several: bool) -> str:
    """The rows of files after a MERGE, with the column CHANGED.

    Args:
        change: the statement.
        target: the table.
        located: the relation with the rows of the files.
        several: whether rows may have several partners, of which at most one changes them.
    """
    alias = quote(change.alias)
    columns = []
    for i, column in enumerate(target.schema):
        old = f"{alias}.{quote(column.name)}"
        cases = _set_cases(change, target, i)
        value = f"CASE {_ACTION} {' '.join(cases)} ELSE {old} END" if cases else old
        columns.append(f"{value} AS {quote(column.name)}")
    joined = _joined(located, alias, change.source, change.condition)
    one = (
        f" QUALIFY row_number() OVER (PARTITION BY {alias}.{FILE}, {alias}.{ROW} "
        f"ORDER BY {_ACTION} = 0) = 1"
        if several
        else ""
    )
    inner = f"SELECT {_row_action(change)} AS {_ACTION}, {', '.join(columns)} FROM {joined}{one}"
    gone = [str(n) for n, c in enumerate(change.clauses, 1) if c.action == _DELETED]
    where = f" WHERE {_ACTION} NOT IN ({', '.join(gone)})" if gone else ""
    names = ", ".join(quote(column.name) for column in target.schema)
    return f"{change.ctes}SELECT {names}, {_ACTION} <> 0 AS {CHANGED} FROM ({inner}){where}"


def _set_cases(change: Merge, target: Target, position: int) -> list[str]:
    """What clauses set a column to, by their numbers."""
    cases = []
    for number, clause in enumerate(change.clauses, 1):
        value = _value(clause, change, target, position) if clause.action == "UPDATE" else None
        if value is not None:
            cases.append(f"WHEN {number} THEN CAST(({value}) AS {target.schema[position].type})")
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
    for i, column in enumerate(target.schema):
        cases = []
        for number, clause in inserts:
            value = _value(clause, change, target, i)
            if value is not None:
                cases.append(f"WHEN {number} THEN CAST(({value}) AS {column.type})")
        if cases:
            values[i] = f"CASE {_ACTION} {' '.join(cases)} END"
    action = _action(change, "NOT MATCHED")
    names = ", ".join(quote(column.name) for column in target.schema)
    inner = (
        f"SELECT {action} AS {_ACTION}, {target.typed(values)} FROM {change.source} "
        f"ANTI JOIN {located} AS {quote(change.alias)} ON ({change.condition})"
    )
    return f"{change.ctes}SELECT {names} FROM ({inner}) WHERE {_ACTION} <> 0"
