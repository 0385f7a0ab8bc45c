"""Filters leave out files of Iceberg and Delta tables, but no row: conditions made by chance."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from iceberg_tables import catalog
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)

import minishark
from minishark.model.expressions import quote_text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_LONG = "a common beginning of 32 letters"
_TEXTS = (
    *("", "a", "ab", "b", "B", "Ä", "it's", "100%", "_x", "a\\b", "\U0010ffff", "a\U0010ffff"),
    *(_LONG, _LONG + "!", _LONG + "z", _LONG[:16]),
    *(_LONG[:15] + "\U0010ffff!", _LONG[:31] + "\U0010ffff" * 3, "a/b=c d", "ÿ" * 40),
)  # fmt: skip
_FLOATS = (float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 0.1, -3.25, 1e300, 5e-324)
_MOMENTS = [
    datetime(1969, 12, 31, 23, 59, 59, 999_777),  # noqa: DTZ001 - TIMESTAMP
    datetime(1970, 1, 1),  # noqa: DTZ001
    datetime(1900, 2, 28, 12, 0, 0, 1),  # noqa: DTZ001
    datetime(2024, 2, 29, 23, 59, 59, 999_999),  # noqa: DTZ001
    datetime(2024, 3, 31, 0, 30, 0, 500),  # noqa: DTZ001
]
_DAYS = [date(1969, 12, 31), date(1970, 1, 1), date(1900, 2, 28), date(2024, 2, 29)]
_SMALL = [Decimal(each) for each in ("-0.01", "0.00", "9999999.99", "-12.50")]
_LARGE = [Decimal(f"{each}.000001") for each in (-(10**20), 0, 10**20 + 1)]
_VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    # pyiceberg's truncation of smaller ones overflows, and files have wrong values of partitions.
    "i": (pa.int32(), [20 - 2**31, -11, -10, -1, 0, 1, 9, 10, 2**31 - 1]),
    "l": (pa.int64(), [20 - 2**63, -1, 0, 7, 2**53 + 1, 2**63 - 1]),
    "f": (pa.float32(), [each for each in _FLOATS if each != 1e300]),
    "x": (pa.float64(), list(_FLOATS)),
    "s": (pa.string(), list(_TEXTS)),
    "d": (pa.date32(), _DAYS),
    "t": (pa.timestamp("us"), _MOMENTS),
    "z": (pa.timestamp("us", tz="UTC"), [each.replace(tzinfo=UTC) for each in _MOMENTS]),
    "n": (pa.decimal128(9, 2), _SMALL),
    "m": (pa.decimal128(28, 6), _LARGE),
    "b": (pa.bool_(), [True, False]),
    "y": (pa.binary(), [b"", b"\x00", b"\xff" * 20, b"\xff" * 16 + b"\x00", b"abc"]),
    "c": (pa.time64("us"), [time(0), time(23, 59, 59, 999_999), time(12, 30)]),
}  # fmt: skip
_TYPES = {"i": "INTEGER", "l": "BIGINT", "f": "FLOAT", "x": "DOUBLE", "s": "VARCHAR", "d": "DATE"}
_TYPES |= {"t": "TIMESTAMP", "z": "TIMESTAMPTZ", "n": "DECIMAL(9,2)", "m": "DECIMAL(28,6)"}
_TYPES |= {"b": "BOOLEAN", "y": "BLOB", "c": "TIME"}
_FILES = 14


def rows(chance: random.Random, names: list[str], first: int) -> pa.Table:
    """Rows of one file: few, of near values, so that bounds are narrow; some columns all NULL."""
    count = chance.randrange(1, 5)
    columns: dict[str, Any] = {"id": pa.array(range(first, first + count), pa.int64())}
    for name in names:
        type_, values = _VALUES[name]
        some = chance.sample(values, min(len(values), chance.choice((1, 1, 2, 3))))
        share = chance.choice((0.0, 0.0, 0.4, 1.0))
        found = [None if chance.random() < share else chance.choice(some) for _ in range(count)]
        columns[name] = pa.array(found, type_)
    return pa.table(columns)


def literal(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        return f"from_hex('{value.hex()}')"
    text = value.isoformat() if isinstance(value, (datetime, date, time)) else str(value)
    return f"{quote_text(text)}::{_TYPES[name]}"


def near(chance: random.Random, value: Any) -> Any:
    """The value, or one beside it."""
    step = chance.choice((0, 0, 0, 1, -1))
    match value:
        case bool():
            return value
        case int():
            return max(-(2**31), min(2**31 - 1, value + step)) if abs(value) < 2**32 else value
        case datetime():
            return value + timedelta(microseconds=step)
        case date():
            return value + timedelta(days=step)
        case str():
            return chance.choice((value, value[:16], value[:5], value + "x"))
        case _:
            return value


def condition(chance: random.Random, names: list[str]) -> str:
    """A condition as people write them."""
    name = chance.choice(names)
    values = _VALUES[name][1]
    one, two = (literal(name, near(chance, chance.choice(values))) for _ in range(2))
    text = near(chance, chance.choice(_TEXTS))
    pattern = text.replace("\\", "").replace("%", "").replace("_", "")
    kinds = [
        *(f"{name} {sign} {one}" for sign in ("=", "<>", "<", "<=", ">", ">=")),
        *(f"{one} {sign} {name}" for sign in ("=", "<", ">=")),
        f"{name} BETWEEN {one} AND {two}",
        f"NOT ({name} BETWEEN {one} AND {two})",
        f"{name} IN ({one}, {two})",
        f"{name} NOT IN ({one}, {two})",
        f"{name} IN ({', '.join(literal(name, chance.choice(values)) for _ in range(9))}, NULL)",
        f"{name} IS NULL",
        f"{name} IS NOT NULL",
        f"{name} IS DISTINCT FROM {one}",
        f"{name} IS NOT DISTINCT FROM {one}",
        f"({name} = {one} OR {name} = {two})",
        f"({name} < {one} OR id % 3 = 0)",
        f"coalesce({name}, {one}) = {two}",
        f"NOT ({name} >= {one})",
    ]
    match name:
        case "s":
            kinds += [
                f"s LIKE {quote_text(pattern + '%')}",
                f"s NOT LIKE {quote_text(pattern + '%')}",
            ]
            kinds += [f"starts_with(s, {quote_text(text)})", f"s ILIKE {quote_text(pattern + '%')}"]
            kinds += [f"s LIKE {quote_text('%' + pattern)}", f"lower(s) = {quote_text(text)}"] * 2
        case "i" | "l" | "n" | "m":
            kinds += [f"{name} < {chance.choice((0.5, -0.5, 10.01, 9))}", f"{name} + 1 > 1"]
        case "t" | "z":
            kinds += [f"{name}::DATE = DATE '1969-12-31'", f"{name} < DATE '1970-01-01'"]
        case "d":
            kinds += ["d >= DATE 'infinity'", "d < DATE 'infinity'", "d < TIMESTAMP '1970-01-01'"]
        case "b":
            kinds += ["b", "NOT b", "b IS TRUE", "b IS NOT TRUE"]
    return chance.choice(kinds)


@dataclass(frozen=True)
class Made:
    """A table of a format, and its rows."""

    relation: str
    rows: pa.Table


def iceberg_table(folder: Path, chance: random.Random) -> Made:
    names = chance.sample(sorted(_VALUES), 4)
    parts = [rows(chance, names, 10 * number) for number in range(_FILES)]
    table = catalog(folder).create_table("n.t", parts[0].schema)
    times = [DayTransform(), MonthTransform(), YearTransform()]
    others = [BucketTransform(4), TruncateTransform(10), IdentityTransform()]
    transforms: dict[str, list[Any]] = {
        **dict.fromkeys("dtz", times),
        **dict.fromkeys("ils", others),
        "n": [TruncateTransform(50), IdentityTransform(), BucketTransform(3)],
        "b": [IdentityTransform()],
        "y": [TruncateTransform(2), BucketTransform(3)],
    }
    for name in names[:2]:
        if name in transforms and chance.random() < 0.7:
            kinds = transforms[name] + ([HourTransform()] if name in "tz" else [])
            with table.update_spec() as update:
                update.add_field(name, chance.choice(kinds), f"p_{name}")
    for part in parts:
        table.append(part)
    return Made(f"iceberg_scan('{table.metadata_location}')", pa.concat_tables(parts))


def delta_table(folder: Path, chance: random.Random) -> Made:
    names = chance.sample(sorted({*_VALUES} - {"c"}), 4)  # which Delta has no type for
    parts = [rows(chance, names, 10 * number) for number in range(_FILES)]
    simple = [name for name in names if name in "ilsdtb"]
    keys = chance.sample(simple, min(len(simple), chance.randrange(2)))
    if "s" in keys:  # Delta's protocol has no empty value of a partition
        parts = [part.filter(pa.compute.fill_null(pa.compute.not_equal(part["s"], ""), True))
                 for part in parts]  # fmt: skip
    for part in parts:
        if part.num_rows:
            write_deltalake(str(folder / "t"), part, mode="append", partition_by=keys or None)
    return Made(f"delta_scan('{folder / 't'}')", pa.concat_tables(parts))


@pytest.fixture(scope="module")
def session() -> Iterator[minishark.Session]:
    with minishark.connect(in_process=True, nodes=1, partitions=2) as found:
        found.sql("SET TimeZone = 'America/New_York'")
        yield found


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("make", [iceberg_table, delta_table])
def test_no_row_is_left_out(
    session: minishark.Session, tmp_path: Path, make: Any, seed: int
) -> None:
    """One or two conditions, as DuckDB finds them in the rows that were written."""
    chance = random.Random(seed)
    made = make(tmp_path, chance)
    names = [name for name in made.rows.column_names if name != "id"]
    fewer = 0
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'America/New_York'")
        connection.execute("SET arrow_lossless_conversion = true")
        connection.register("t", made.rows)
        for _ in range(40):
            where = " AND ".join(condition(chance, names) for _ in range(chance.choice((1, 1, 2))))
            expected = connection.sql(f"SELECT id FROM t WHERE {where} ORDER BY id").fetchall()
            query = session.sql(f"SELECT id FROM {made.relation} WHERE {where} ORDER BY id")
            assert expected == [tuple(row) for row in query.collect()], where
            plan = query.plan_text("physical")
            fewer += "% of the bytes" in plan or "Scan" not in plan
    assert fewer > 4
