"""What clients run: statements, prepared ones with values for their parameters, loads of rows."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa

from minishark.adapters.flight.catalog import CATALOG
from minishark.compiler.sql import statements as kinds
from minishark.dataframe import DataFrame
from minishark.dataframe.lazy_query import query_of
from minishark.errors import AlreadyExistsError, CatalogError, OptionError, ResourceError
from minishark.model.expressions import quote
from minishark.session.session import Session

ROWS_OF_VALUES_MAX = 1000  # for which a query runs, one after the other
# Of rows at a time: what fits into a core's cache is encoded, sent and decoded fastest; but each
# column of a message costs as much as some thousand values. Drivers take at most 16 MiB.
_MESSAGE_BYTES, _WIDE_MESSAGE_BYTES = 512 << 10, 4 << 20
_COLUMN_BYTES = 64 << 10
_MESSAGE_MAX_BYTES = 8 << 20
_CREATE, _FAIL_IF_MISSING = 1, 2
_FAIL_IF_EXISTS, _APPEND, _REPLACE = 1, 2, 3

_WITHOUT_ROWS = (*kinds.COUNTED, kinds.FrontEndCommand, kinds.SetVariable, kinds.CreateEnum)
_EXPLAINED = pa.schema([pa.field("explain_value", pa.utf8())])
_NOTHING = pa.schema([])

_parser: duckdb.DuckDBPyConnection | None = None
_parsing = threading.Lock()


def parameters_of(sql: str) -> tuple[str, ...]:
    """The names of a statement's parameters, in order; numbers are those of positional ones."""
    global _parser  # noqa: PLW0603 - made at first use, and kept
    if "?" not in sql and "$" not in sql:
        return ()
    with _parsing:
        if _parser is None:
            _parser = duckdb.connect(config={"threads": "1"})
        try:
            names = {
                name
                for statement in _parser.extract_statements(sql)
                for name in statement.named_parameters
            }
        except duckdb.Error:  # a statement of minishark's own, or none at all: it will be told
            return ()
    return tuple(sorted(names, key=lambda name: (not name.isdecimal(), len(name), name)))


def has_rows(session: Session, sql: str) -> bool:
    """Whether a text ends with a statement that answers with rows, not with their number."""
    last = session.parse(sql)[-1]
    if isinstance(last, kinds.Execute):
        return True
    if isinstance(last, kinds.Write) and "returning" in last.sql.lower():
        return True
    return not isinstance(last, _WITHOUT_ROWS)


def columns_of(session: Session, sql: str, parameters: Sequence[str] = ()) -> pa.Schema:
    """The columns of a text's answer, without running it, as far as that can be known.

    No columns stand for a statement that answers with a number of rows, as tools expect of updates.
    """
    statements = session.parse(sql)
    match statements[-1]:
        case kinds.Query() if len(statements) == 1:
            return session.sql(sql, _nulls(parameters) if parameters else None).schema
        case kinds.Explain() | kinds.ExplainChange():
            return _EXPLAINED
        case kinds.Show() if len(statements) == 1 and not parameters:
            return session.sql(sql).schema
    # Others are to be run to know: a column says that there are rows.
    return pa.schema([pa.field("rows", pa.null())]) if has_rows(session, sql) else _NOTHING


def _nulls(parameters: Sequence[str]) -> Sequence[None] | Mapping[str, None]:
    if all(name.isdecimal() for name in parameters):
        return [None] * len(parameters)
    return dict.fromkeys(parameters)


def parameter_schema(parameters: Sequence[str]) -> pa.Schema:
    """What values of parameters look like; as text, they are taken for values of any type."""
    return pa.schema([pa.field(name, pa.utf8()) for name in parameters])


def bound_values(parameters: Sequence[str], batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    """The values of parameters that a client sends: for `Session.sql`, row by row.

    Raises:
        OptionError: there are as many columns as parameters.
    """
    is_named = not all(name.isdecimal() for name in parameters)
    for batch in batches:
        if batch.num_columns != len(parameters):
            raise OptionError(
                f"The statement has {len(parameters)} parameters, not {batch.num_columns}."
            )
        names = [name.lstrip("$:") for name in batch.schema.names]
        by_name = is_named and set(names) == set(parameters)
        columns = [column.to_pylist() for column in batch.columns]
        for row in zip(*columns, strict=True) if columns else ():
            yield dict(zip(names if by_name else parameters, row, strict=True)) if is_named else row


Answer: TypeAlias = DataFrame | pa.Table
"""A query, which runs when its rows are fetched, or the rows of what has run."""


def answers_of(session: Session, sql: str, values: Sequence[Any] | None) -> list[Answer]:
    """The answers of a text, one for each row of values; what is no query runs now."""
    if values is None:
        return [_answer(session.sql(sql))]
    if len(values) > ROWS_OF_VALUES_MAX:
        raise ResourceError(
            f"A query runs for at most {ROWS_OF_VALUES_MAX:,} rows of values: load them as a "
            "table, and join it."
        )
    return [_answer(session.sql(sql, row)) for row in values]


def _answer(frame: DataFrame) -> Answer:
    return frame if query_of(frame).is_distributed else frame.to_arrow()


def counted(session: Session, sql: str, values: Iterator[Any] | None = None) -> int:
    """Run a statement for the number of rows that it changes; -1 if that is not known."""
    frames = (session.sql(sql, row) for row in values) if values is not None else [session.sql(sql)]
    return sum(_count(frame.to_arrow()) for frame in frames)


def _count(answer: pa.Table) -> int:
    if answer.column_names == ["Count"] and answer.num_rows == 1:
        return int(answer.column(0)[0].as_py())
    rows: int = answer.num_rows
    return rows


def batches_of(answers: Sequence[Answer]) -> pa.Table | tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The rows of answers in batches of a size that drivers take; runs the first of them now.

    One small batch is given as it is: it is sent without a turn of Python for every message.
    """
    rows = (batch for answer in answers for batch in answer.to_batches())
    first = next(rows, None)
    if first is None:
        return answers[0].schema.empty_table()
    known = [first]
    if len(answers) == 1 and first.nbytes <= _MESSAGE_BYTES:
        second = next(rows, None)
        if second is None:
            return pa.Table.from_batches(known)
        known.append(second)
    return first.schema, _pieces(itertools.chain(known, rows))


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        size = min(_COLUMN_BYTES * batch.num_columns, _WIDE_MESSAGE_BYTES)
        pieces = max(1, -(-batch.nbytes // max(_MESSAGE_BYTES, size)))
        rows = max(1, -(-batch.num_rows // pieces))
        if batch.num_rows <= rows:
            yield from _halved(batch)
            continue
        for start in range(0, batch.num_rows, rows):
            yield from _halved(batch.slice(start, rows))


def _halved(piece: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows that may be much larger than the others of their batch."""
    if piece.num_rows > 1 and piece.nbytes > _MESSAGE_MAX_BYTES:
        half = piece.num_rows // 2
        yield from _halved(piece.slice(0, half))
        yield from _halved(piece.slice(half))
    else:
        yield piece


def ingest(session: Session, command: Any, rows: pa.RecordBatchReader) -> int:
    """Load rows into a table, as `CommandStatementIngest` says; their number.

    Raises:
        CatalogError: there is a table of that name, or none.
    """
    options, name = command.table_definition_options, command.table
    if not name:
        raise OptionError("Name the table to load rows into.")
    total = 0

    def passing() -> Iterator[pa.RecordBatch]:
        nonlocal total
        for batch in rows:
            total += batch.num_rows
            yield batch

    reader = pa.RecordBatchReader.from_batches(rows.schema, passing())
    place = _place(command)
    exists = _exists(session, place, name)
    if exists and options.if_exists not in (_APPEND, _REPLACE):
        raise AlreadyExistsError(f"There is a table called {name!r} already.")
    if not exists and options.if_not_exist == _FAIL_IF_MISSING:
        raise CatalogError(f"There is no table called {name!r}.")
    replaces = exists and options.if_exists == _REPLACE
    if place == (CATALOG, "main") and (not exists or replaces):
        session.create_table(name, reader, replace=replaces)
        return total
    target = ".".join(map(quote, (*place, name))) if place[0] != "temp" else quote(name)
    frame = session.create_dataframe(reader)  # whose rows are kept as long as it is
    query = frame.sql()
    if exists and not replaces:
        session.sql(f"INSERT INTO {target} BY NAME {query}")
    else:
        what = "TEMP TABLE" if place[0] == "temp" else "TABLE"
        session.sql(f"CREATE {'OR REPLACE ' * replaces}{what} {target} AS {query}")
    del frame
    return total


def _place(command: Any) -> tuple[str, str]:
    """The catalog and schema of the table that rows are loaded into."""
    catalog, schema = command.catalog or CATALOG, command.schema or "main"
    if command.temporary:
        if command.HasField("schema") or command.HasField("catalog"):
            raise OptionError("A temporary table has no catalog or schema.")
        return "temp", "main"
    return catalog, schema


def _exists(session: Session, place: tuple[str, str], name: str) -> bool:
    tables = session.sql(
        "SELECT table_name FROM information_schema.tables "
        "WHERE table_catalog = ? AND table_schema = ? AND lower(table_name) = lower(?)",
        [*place, name],
    )
    return tables.count() > 0
