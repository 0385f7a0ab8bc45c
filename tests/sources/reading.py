"""A source read as executors do, and compared with the rows of another reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import cloudpickle
import duckdb
import pyarrow as pa

from minishark.model.expressions import quote
from minishark.model.predicates import Comparison, Predicate, Pushed
from minishark.sources.contract import FileSplit, Snapshot
from minishark.sources.formats import OwnReach
from minishark.worker.scans import Scans, SplitRead

EVERYTHING = Pushed()


@cache
def database() -> duckdb.DuckDBPyConnection:
    """DuckDB, which takes a while to open."""
    connection = duckdb.connect()
    connection.execute(
        "SET threads = 1; SET arrow_lossless_conversion = true; SET TimeZone = 'America/New_York'"
    )
    return connection


def read(snapshot: Snapshot, pushed: Pushed = EVERYTHING, tasks: int = 3) -> pa.Table:
    """The rows of all splits, each after its journey to an executor, in DuckDB's types."""
    names = [column.name for column in snapshot.schema]
    kinds = {column.name: column.type for column in snapshot.schema}
    wanted = names if pushed.columns is None else list(pushed.columns)
    columns = ", ".join(f"CAST(NULL AS {kinds[name]}) AS {quote(name)}" for name in wanted)
    tables = [database().sql(f"SELECT {columns} WHERE false").to_arrow_table()]
    for split in snapshot.splits(pushed, tasks):
        travelled = cloudpickle.loads(cloudpickle.dumps(split))
        if isinstance(travelled, FileSplit):
            relation = travelled.relation([file.path for file in travelled.files()]).sql
            found = database().sql(f"SELECT {', '.join(map(quote, wanted))} FROM {relation}")
        else:
            found = database().from_arrow(travelled.read(pushed).read_all())
        assert found.columns == wanted
        assert [kinds[name] for name in wanted] == list(map(str, found.types))
        tables.append(found.to_arrow_table())
    return pa.concat_tables(tables)


def read_at_once(snapshot: Snapshot, pushed: Pushed = EVERYTHING) -> pa.Table:
    """The rows of all splits in one task, which reads as many files as it can in one scan."""
    splits = tuple(snapshot.splits(pushed, 3))
    names = [column.name for column in snapshot.schema]
    schema = {column.name: column for column in snapshot.schema}
    columns = tuple(schema[name] for name in pushed.columns or names)
    reads = {"rows": (SplitRead(columns, splits, pushed).pickled(),)}
    with Scans(reads=reads, hold=lambda files, *_: OwnReach().held(files, ())).open() as scans:
        for name, stream in scans.streams.items():
            database().register(name, stream)
        return database().sql(f"FROM {scans.relations['rows']}").to_arrow_table()


def types(table: pa.Table) -> list[str]:
    """DuckDB's types of the columns."""
    return [str(type_) for type_ in database().from_arrow(table).types]


def rows(table: pa.Table, where: str = "true") -> Counter[str]:
    """The rows as text, each with how often it is there."""
    found = database().from_arrow(table).filter(where).to_arrow_table()
    return Counter(map(repr, found.to_pylist()))


def condition(predicates: Iterable[Predicate], table: pa.Table) -> str:
    """SQL of predicates, for DuckDB over a table."""
    kinds = dict(zip(table.column_names, types(table), strict=True))
    return " AND ".join(_sql(each, kinds[each.column]) for each in predicates) or "true"


def _sql(predicate: Predicate, type_: str) -> str:
    column = quote(predicate.column)
    values = [_literal(value, type_) for value in predicate.values]
    match predicate.comparison:
        case Comparison.IS_NULL | Comparison.IS_NOT_NULL:
            return f"{column} {predicate.comparison}"
        case Comparison.IN:
            return f"{column} IN ({', '.join(values)})"
        case _:
            return f"{column} {predicate.comparison} {values[0]}"


def _literal(value: Any, type_: str) -> str:
    if isinstance(value, bytes):
        return f"from_hex('{value.hex()}')"
    text = str(value).replace("'", "''")
    return f"CAST('{text}' AS {type_})"


def assert_equal(snapshot: Snapshot, expected: pa.Table, predicates: Sequence[Predicate]) -> None:
    """The snapshot has the types and rows of another reader, whatever is pushed down."""
    found = read(snapshot)
    assert [column.name for column in snapshot.schema] == expected.column_names
    kinds = [column.type for column in snapshot.schema]
    assert kinds == ["VARCHAR" if kind == '"NULL"' else kind for kind in types(expected)]
    assert rows(expected) == rows(found)
    for predicate in predicates:
        pushed = Pushed(predicates=(predicate,))
        where = condition([predicate], expected)
        assert rows(expected, where) == rows(read_at_once(snapshot, pushed), where), predicate
    if expected.num_columns > 1:
        names = tuple(reversed(expected.column_names[1:]))
        assert rows(expected.select(names)) == rows(read_at_once(snapshot, Pushed(columns=names)))
    limited = read(snapshot, Pushed(limit=3))
    assert min(3, expected.num_rows) <= limited.num_rows
    assert rows(limited) <= rows(expected)
