"""What simulated executors run instead of DuckDB: small operations on rows of integers.

A fragment is a text such as "divide 3". Tables have the columns k and v. Everything around it is as
in production: the messages, what is read and written, and how failures are told.

Fragments of statements that write are SQL, which DuckDB runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from random import Random
from typing import TypeAlias

import duckdb
import pyarrow as pa

from minishark.compiler.stages.fragment import bucket_column
from minishark.model.catalog import ROW_NUMBER
from minishark.model.expressions import Column, ColumnRef
from minishark.worker.duckdb_slot import EXCHANGE_SETTINGS
from minishark.worker.protocol import StageTask
from minishark.worker.run_task import typed

Row: TypeAlias = tuple[int, ...]
Rows: TypeAlias = Sequence[Row]

COLUMNS = (Column("k", "BIGINT"), Column("v", "BIGINT"))
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
CHANCE = "chance"  # a function of users
DRIFT = "drift"  # as what sums floats: it varies, and calls nothing


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": "1"})
    for name, value in EXCHANGE_SETTINGS.items():
        connection.execute(f"SET {name} = {value}")
    return connection


@cache
def _bucket(key: int, buckets: int) -> int:
    keys = [ColumnRef(0, "BIGINT")]
    number = bucket_column(keys, [f"{key}::BIGINT"], buckets)
    ((bucket,),) = _duckdb().execute(f"SELECT {number}").fetchall()
    return int(bucket)


def bucket_of(row: Row, buckets: int) -> int:
    """Where a row lies that is hashed by its first column."""
    return _bucket(row[0], buckets)


def is_simulated(fragment: str) -> bool:
    """Whether a fragment is one of these operations, or stores its input as it is."""
    return fragment.partition(" ")[0] in ("", "divide", *OPERATIONS)


def ran(stage: StageTask, inputs: Mapping[str, pa.Table]) -> pa.Table:
    """The rows of a fragment of SQL."""
    assert not stage.hints.reduces_inputs, "its statement has no join"
    connection = _duckdb()
    for name, table in inputs.items():
        connection.register(name, table)
    try:
        return connection.sql(typed(stage)).to_arrow_table()
    finally:
        for name in inputs:
            connection.unregister(name)


def summed(rows: Rows) -> list[Row]:
    """The sums of the second column, by the first."""
    sums: Counter[int] = Counter()
    for key, value in rows:
        sums[key] += value
    return sorted(sums.items())


def joined(left: Rows, right: Rows) -> list[Row]:
    """An inner join on the first column: the key, and the product of the values."""
    by_key: dict[int, list[int]] = {}
    for key, value in right:
        by_key.setdefault(key, []).append(value)
    return [(key, value * other) for key, value in left for other in by_key.get(key, ())]


def total(rows: Rows) -> list[Row]:
    """The number of rows, and the sum of the second column."""
    return [(len(rows), sum(row[1] for row in rows))]


def totals(rows: Rows) -> list[Row]:
    """The total of totals."""
    return [(sum(row[0] for row in rows), sum(row[1] for row in rows))]


def coarse(rows: Rows) -> list[Row]:
    """Rows with fewer keys."""
    return [(key % 5, value) for key, value in rows]


# By name: takes the inputs and the fragment's number.
OPERATIONS: dict[str, Callable[[Sequence[Rows], int], Rows]] = {
    "rows": lambda inputs, _: inputs[0],
    "total": lambda inputs, _: total(inputs[0]),
    "totals": lambda inputs, _: totals(inputs[0]),
    "sum": lambda inputs, _: summed(inputs[0]),
    "coarse": lambda inputs, _: coarse(inputs[0]),
    "join": lambda inputs, _: summed(joined(inputs[0], inputs[1])),
    "limit": lambda inputs, count: inputs[0][:count],
    CHANCE: lambda inputs, _: inputs[0],
    DRIFT: lambda inputs, _: inputs[0],
}


def evaluated(fragment: str, inputs: Sequence[Rows]) -> Rows:
    """The rows of a fragment; "divide" puts out its input as it is."""
    name, _, number = fragment.partition(" ")
    operation = OPERATIONS.get(name, OPERATIONS["rows"])
    return operation(inputs, int(number) if name in OPERATIONS and number else 0)


def divided(fragment: str, rows: Rows, buckets: int, rng: Random) -> list[list[Row]]:
    """Rows by bucket: by the hash of the key, or by chance."""
    found: list[list[Row]] = [[] for _ in range(buckets)]
    by_chance = fragment.startswith((CHANCE, DRIFT))
    for row in rows:
        found[rng.randrange(buckets) if by_chance else bucket_of(row, buckets)].append(row)
    return found


def rows_of(table: pa.Table) -> list[Row]:
    """The rows of an Arrow table."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def batch_of(rows: Rows, columns: int = 2) -> pa.RecordBatch:
    """Rows as a record batch; the third column, if there is one, has their numbers."""
    values = list(zip(*rows, strict=True)) or [()] * columns
    names = ["k", "v", ROW_NUMBER][:columns]
    return pa.RecordBatch.from_arrays([pa.array(each, pa.int64()) for each in values], names)
