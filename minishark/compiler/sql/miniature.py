"""Statistical miniatures: small generated tables that lead DuckDB to the real data's join orders.

DuckDB orders joins by each table's row count and each column's distinct count, which it estimates
from a sample of the rows with a HyperLogLog sketch. A miniature has both, scaled down together
by `scaled`, so that the ratios between the tables of one catalog stay. Values are spread between
the column's real bounds, but only the distinct count matters to the plan: optimizers that look at
values must be off in the planning database, or the miniature's values would change the meaning.

All tables of a catalog have the same factor, a power of two (so that a table that grows a little
does not rebuild all others), such that the largest miniature has at most the cap's rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation

import duckdb

from minishark.model.catalog import ColumnStatistics, TableStatistics
from minishark.model.expressions import quote, quote_text

ROWS_CAP = 600_000  # the most rows of a miniature; benchmarks/miniature.py compares other caps

_CHANGE_MAX = 1.5  # how much larger or smaller a table may become than its miniature says
_KNEE = 1_000
_KEY_SHARE = 0.9  # at least this share of distinct values: all differ, within the sketch's error
_VECTOR_ROWS = 2_048
_SAMPLE_SHARE = 0.1  # of each vector, for DuckDB's sketch
_INTEGER_SAMPLE_SHARE = 0.3
_EMPTY = 0.0  # in the place of a factor
_INT64_MAX = 2**63 - 1
_DOUBLE_EXACT_MAX = 2**53

_INTEGERS = {
    "TINYINT": (-(2**7), 2**7 - 1),
    "SMALLINT": (-(2**15), 2**15 - 1),
    "INTEGER": (-(2**31), 2**31 - 1),
    "BIGINT": (-(2**63), 2**63 - 1),
    "HUGEINT": (-(2**127), 2**127 - 1),
    "UTINYINT": (0, 2**8 - 1),
    "USMALLINT": (0, 2**16 - 1),
    "UINTEGER": (0, 2**32 - 1),
    "UBIGINT": (0, 2**64 - 1),
    "UHUGEINT": (0, 2**128 - 1),
}
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")
_TIMESTAMPS = ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")
_ZONED = "TIMESTAMP WITH TIME ZONE"


def scaled(x: int, f: float) -> int:
    return x if x <= _KNEE else int(_KNEE + (x - _KNEE) * f)


def create_miniature(
    con: duckdb.DuckDBPyConnection,
    name: str,
    columns: Sequence[tuple[str, str]],
    statistics: TableStatistics,
    factor: float,
) -> None:
    """Create or replace the native table `name` as a miniature of one with these statistics."""
    rows = scaled(statistics.rows, factor)
    outputs, first_values = [], {}
    for (column_name, type_name), column in zip(columns, statistics.columns, strict=True):
        value = _column(type_name, column, statistics.rows, rows, factor)
        if rows and column.null_fraction <= 0.0 and not column.without_nulls:
            first_values[quote(column_name)] = value
            value = f"CASE WHEN i > 0 THEN {value} END"
        outputs.append(f"{value} AS {quote(column_name)}")
    head = f"CREATE OR REPLACE TABLE {quote(name)} AS SELECT"
    try:
        con.execute(f"{head} {', '.join(outputs)} FROM range({rows}) r(i)")
        if first_values:
            _replace_first_nulls(con, name, first_values)
    except duckdb.Error:
        # Extreme bounds can overflow a type: then only the row count is imitated.
        _create_nulls(con, name, columns, rows)


def _replace_first_nulls(
    con: duckdb.DuckDBPyConnection, name: str, values: Mapping[str, str]
) -> None:
    """Give the first row its values, where it was NULL for a moment.

    DuckDB drops filters that only NULLs don't pass, such as LIKE '%', on a column that never had
    one. The real one may have some: it was sampled, say.
    """
    changes = ", ".join(f"{column} = first.{column}" for column in values)
    outputs = ", ".join(f"{value} AS {column}" for column, value in values.items())
    con.execute(
        f"UPDATE {quote(name)} SET {changes} "
        f"FROM (SELECT {outputs} FROM range(1) r(i)) AS first WHERE rowid = 0"
    )


class Miniatures:
    """The miniatures of a catalog, which apply the collected changes before they are needed.

    `declare` is enough to bind a statement: what it makes of a large table has no rows yet, which
    only planning needs (`fill`), and most statements whose answers are kept come without.

    Attributes:
        version: counts the changes of a table, for caches of what was bound and planned.
    """

    def __init__(self, rows_cap: int = ROWS_CAP) -> None:
        self.version = 0
        self._rows_cap = rows_cap
        self._tables: dict[str, tuple[str, tuple[tuple[str, str], ...], TableStatistics]] = {}
        self._made: dict[str, float] = {}  # the factor of each, or _EMPTY
        self._dropped: dict[str, str] = {}
        self._is_declared = True
        self._is_filled = True

    @property
    def factor(self) -> float:
        """The factor that scales all counts: 1 or a negative power of two."""
        largest = max((entry[2].rows for entry in self._tables.values()), default=0)
        factor = 1.0
        while scaled(largest, factor) > self._rows_cap and factor * largest > 1:
            factor /= 2
        return factor

    def outdate(self) -> None:
        """Have earlier plans made anew."""
        self.version += 1

    def columns(self, name: str) -> tuple[tuple[str, str], ...] | None:
        """The names and types of a table's columns; None if there is none of that name."""
        entry = self._tables.get(name.lower())
        return None if entry is None else entry[1]

    def put(
        self, name: str, columns: Sequence[tuple[str, str]], statistics: TableStatistics
    ) -> None:
        """Add a table, or replace the one of that name (in any case)."""
        key = name.lower()
        self._tables[key] = (name, tuple(columns), statistics)
        self._made.pop(key, None)
        self._dropped.pop(key, None)
        self._is_declared = self._is_filled = False

    def update(
        self, name: str, columns: Sequence[tuple[str, str]], statistics: TableStatistics
    ) -> None:
        """Tell of changed rows or columns: a miniature stays that is nearly as it would be now."""
        _, before_columns, present = self._tables[name.lower()]
        few, many = sorted((present.rows, statistics.rows))
        # Among tables that one vector holds, no plan is better by much; all would be made anew each
        # time that one of them grows.
        is_other = many > _CHANGE_MAX * few and (few == 0 or many > _VECTOR_ROWS)
        has_first_nulls = any(
            before.without_nulls and not now.without_nulls
            for before, now in zip(present.columns, statistics.columns, strict=False)
        )
        if is_other or has_first_nulls or before_columns != tuple(columns):
            self.put(name, columns, statistics)

    def remove(self, name: str) -> None:
        key = name.lower()
        if self._tables.pop(key, None) is not None:
            self._made.pop(key, None)
            self._dropped[key] = name
            self._is_declared = self._is_filled = False

    def forget(self, name: str) -> None:
        """A statement has dropped a table."""
        self._tables.pop(name.lower(), None)
        self._made.pop(name.lower(), None)
        self.outdate()

    def declare(self, con: duckdb.DuckDBPyConnection) -> None:
        """Give the planning database `con` all tables, large new ones without their rows."""
        if self._is_declared:
            return
        self.version += 1
        for name in self._dropped.values():
            con.execute(f"DROP TABLE IF EXISTS {quote(name)}")
        self._dropped.clear()
        for key, (name, columns, statistics) in self._tables.items():
            if key not in self._made:
                is_small = statistics.rows <= _KNEE  # no factor changes it
                if is_small:
                    create_miniature(con, name, columns, statistics, 1.0)
                else:
                    _create_nulls(con, name, columns)
                self._made[key] = 1.0 if is_small else _EMPTY
        self._is_declared = True

    def fill(self, con: duckdb.DuckDBPyConnection) -> None:
        """Give all tables their rows, too."""
        self.declare(con)
        if self._is_filled:
            return
        factor = self.factor
        made = {
            key: self._made[key]
            for key, (_, _, statistics) in self._tables.items()
            if self._made[key] != factor and statistics.rows > _KNEE
        }
        if any(before != _EMPTY for before in made.values()):
            self.version += 1  # nothing was planned over empty ones
        for key in made:
            create_miniature(con, *self._tables[key], factor)
            self._made[key] = factor
        self._is_filled = True


def _create_nulls(
    con: duckdb.DuckDBPyConnection, name: str, columns: Sequence[tuple[str, str]], rows: int = 0
) -> None:
    """Create or replace a table of some rows, which are NULL."""
    nulls = ", ".join(f"CAST(NULL AS {type_}) AS {quote(column)}" for column, type_ in columns)
    con.execute(f"CREATE OR REPLACE TABLE {quote(name)} AS SELECT {nulls} FROM range({rows})")


def _column(
    type_name: str, column: ColumnStatistics, real_rows: int, rows: int, factor: float
) -> str:
    """The SQL expression over the row number `i` for one column's values."""
    if column.distinct is None or column.null_fraction >= 1.0:
        return f"NULL::{type_name}"
    distinct = column.distinct
    if distinct >= _KEY_SHARE * real_rows * (1.0 - column.null_fraction):
        distinct = real_rows
    values = max(1, min(scaled(distinct, factor), rows))
    cycle = _cycle(rows, values, _INTEGER_SAMPLE_SHARE if type_name in _INTEGERS else _SAMPLE_SHARE)
    value = _value(type_name, column, cycle)
    if column.null_fraction <= 0.0:
        return value
    # 7919 is prime: nulls are spread over all values.
    permille = max(1, round(1000 * column.null_fraction))
    return f"CASE WHEN i * 7919 % 1000 >= {permille} THEN {value} END"


def _cycle(rows: int, wanted: int, share: float) -> int:
    """The cycle after which values repeat, so that DuckDB estimates `wanted` distinct ones."""
    # DuckDB sketches a `share` of the rows and, of u distinct values in s sampled rows, infers u +
    # (u/s)^3 (n - s) among n (a Good-Turing estimate). With c values in turn, a sample has c (1 -
    # (1 - share)^(n/c)) of them. An odd cycle can't fall in step with DuckDB's vectors.
    sampled = share * rows
    if wanted >= rows or rows <= _VECTOR_ROWS or wanted < sampled / 20:
        return wanted

    def estimate(cycle: float) -> float:
        seen = cycle * (1.0 - math.pow(1.0 - share, rows / cycle))
        return seen + (seen / sampled) ** 3 * (rows - sampled)

    low, high = 1.0, float(rows)
    while high - low > 0.5:
        middle = (low + high) / 2
        low, high = (middle, high) if estimate(middle) < wanted else (low, middle)
    return min(rows, round(high) | 1)


def _value(type_name: str, column: ColumnStatistics, cycle: int) -> str:
    """An expression with `cycle` different values of the type, between the column's bounds."""
    step = f"(i % {cycle})"
    decimal = _DECIMAL.fullmatch(type_name)
    if type_name in _INTEGERS:
        return _integer(type_name, column, cycle)
    if decimal is not None:
        return _decimal(type_name, int(decimal[1]), int(decimal[2]), column, cycle)
    if type_name == "DATE" or type_name in _TIMESTAMPS or type_name == _ZONED:
        return _instant(type_name, column, cycle)
    match type_name:
        case "FLOAT" | "DOUBLE":
            return _float(type_name, column, cycle)
        case "VARCHAR" | "BIGNUM":  # short text is cheap, and its bounds steer nothing
            return f"{step}::{type_name}"
        case "BLOB":
            return f"{step}::VARCHAR::BLOB"
        case "BOOLEAN":
            return f"({step} % 2 = 1)"
        case "TIME":
            return f"make_timestamp({step} % 86400000000)::TIME"
        case "INTERVAL":
            return f"to_days({step}::INTEGER)"
        case "UUID":
            return f"('00000000-0000-0000-0000-' || lpad({step}::VARCHAR, 12, '0'))::UUID"
        case _ if type_name.startswith("ENUM("):
            members = f"enum_range(NULL::{type_name})"
            return f"{members}[1 + {step} % len({members})]::{type_name}"
        case _ if column.minimum is not None:
            return f"CAST({quote_text(column.minimum)} AS {type_name})"
        case _:
            return f"NULL::{type_name}"


def _integer(type_name: str, column: ColumnStatistics, cycle: int) -> str:
    lowest, highest = _INTEGERS[type_name]
    low, high = _bounds(column, lowest, highest)
    cycle = min(cycle, high - low + 1)
    return f"({_steps(low, high, cycle, type_name)})::{type_name}"


def _steps(low: int, high: int, cycle: int, type_name: str = "") -> str:
    """`cycle` integers from `low` on, evenly spaced up to `high`."""
    step = max(1, (high - low) // max(1, cycle - 1))
    if low >= -_INT64_MAX and high <= _INT64_MAX and high - low <= _INT64_MAX:
        return f"i % {cycle} * {step} + {low}"
    wide = "UHUGEINT" if type_name == "UHUGEINT" else "HUGEINT"
    return f"(i % {cycle})::{wide} * '{step}'::{wide} + '{low}'::{wide}"


def _decimal(type_name: str, width: int, scale: int, column: ColumnStatistics, cycle: int) -> str:
    limit = 10**width - 1
    low, high = _bounds(column, -limit, limit, scale)
    cycle = min(cycle, high - low + 1)
    if max(abs(low), abs(high)) <= _DOUBLE_EXACT_MAX:
        return f"(({_steps(low, high, cycle)}) / {10**scale}::DOUBLE)::{type_name}"
    whole_low, whole_high = low // 10**scale + 1, high // 10**scale
    if whole_high < whole_low:  # no whole number between the bounds
        return f"CAST({quote_text(str(column.minimum))} AS {type_name})"
    cycle = min(cycle, whole_high - whole_low + 1)
    return f"({_steps(whole_low, whole_high, cycle)})::{type_name}"


def _float(type_name: str, column: ColumnStatistics, cycle: int) -> str:
    low, high = float(column.minimum or "nan"), float(column.maximum or "nan")
    if not math.isfinite(high - low):
        low, high = 0.0, float(cycle)
    step = (high - low) / max(1, cycle - 1)
    return f"(i % {cycle} * {step!r}::DOUBLE + {low!r}::DOUBLE)::{type_name}"


def _bounds(column: ColumnStatistics, lowest: int, highest: int, scale: int = 0) -> tuple[int, int]:
    """The column's bounds in units of 10^-scale, or the type's range from 0 if unknown."""
    try:
        low, high = (
            int(Decimal(text or "").scaleb(scale)) for text in (column.minimum, column.maximum)
        )
    except (InvalidOperation, OverflowError, ValueError):
        return max(0, lowest), highest
    return (low, high) if lowest <= low <= high <= highest else (max(0, lowest), highest)


def _instant(type_name: str, column: ColumnStatistics, cycle: int) -> str:
    """Instants from the minimum on; DuckDB folds the constants. Infinite bounds count as none."""
    bounds = (column.minimum or "infinity", column.maximum or "infinity")
    unbounded = any("infinity" in text or "BC" in text for text in bounds)
    low, high = ("1970-01-01", "2070-01-01") if unbounded else bounds
    first, last = (f"CAST({quote_text(text)} AS {type_name})" for text in (low, high))
    if type_name == "DATE":
        return f"({first} + (i % {cycle} * greatest(1, ({last} - {first}) // {cycle}))::INTEGER)"
    span = f"(epoch_us({last}) - epoch_us({first}))"
    finest = 1_000_000 if type_name == "TIMESTAMP_S" else 1_000
    step = f"greatest({finest}, {span} // {cycle})"
    made = f"make_timestamp(epoch_us({first}) + i % {cycle} * {step})"
    if type_name == _ZONED:
        return f"to_timestamp(epoch({made}))"
    return f"{made}::{type_name}"
