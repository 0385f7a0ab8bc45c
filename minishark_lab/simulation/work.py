"""What simulated executors run instead of DuckDB: small operations on rows of integers.

A fragment is a text such as "divide 3". Tables have the columns k and v. Everything around it is as
in production: the messages, what is read and written, and how failures are told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

import pyarrow as pa

from minishark.model.catalog import ROW_NUMBER
from minishark.model.expressions import Column

Row: TypeAlias = tuple[int, ...]
Rows: TypeAlias = Sequence[Row]

COLUMNS = (Column("k", "BIGINT"), Column("v", "BIGINT"))
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
CHANCE = "chance"


def bucket_of(row: Row, buckets: int) -> int:
    """Where a row lies that is hashed by its first column."""
    return (row[0] * 2654435761 >> 7) % buckets


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
}


def evaluated(fragment: str, inputs: Sequence[Rows]) -> Rows:
    """The rows of a fragment; one that is no operation of these stores its input as it is."""
    name, _, number = fragment.partition(" ")
    operation = OPERATIONS.get(name, OPERATIONS["rows"])
    return operation(inputs, int(number) if name in OPERATIONS and number else 0)


def divided(fragment: str, rows: Rows, buckets: int, rng: Random) -> list[list[Row]]:
    """Rows by bucket: by the hash of the key, or by chance."""
    found: list[list[Row]] = [[] for _ in range(buckets)]
    by_chance = fragment.startswith(CHANCE)
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
