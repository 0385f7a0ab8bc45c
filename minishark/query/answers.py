"""Compares two answers to one query. Pure: Arrow tables in, sentences out.

Rules:
- Columns must agree in number, name and type. Physical layouts of one type (string and
  string_view, decimal64 and decimal128, dictionary-encoded or not) count as the same type.
- The rows must be the same multiset. If the query has ORDER BY, its key columns must also be equal
  row by row. Together this allows what SQL allows: any order among rows with equal keys.
- Floats may differ by rounding, as sums in another order do; all other values must be equal, NULL
  and NaN included. This applies inside lists, structs and maps too.

Limitation: where LIMIT cuts through rows with equal keys, SQL allows either row; this does not.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

# A sum of n doubles in another order has a relative error of about n * 1e-16.
RELATIVE = 1e-9
# For sums whose terms cancel out.
ABSOLUTE = 1e-12
_SHOWN = 3
# Rows that are equal but for floats are matched pairwise up to this number (quadratic), and by
# sort order above it.
_MATCHED_MAX = 500

Floats = tuple[float, ...]
Row = tuple[Hashable, Floats]


def differences(
    expected: pa.Table, actual: pa.Table, *, ordered_by: Sequence[int] = ()
) -> list[str]:
    """The differences between two answers, one sentence each; empty if they agree."""
    # `ordered_by` has the positions of the ORDER BY columns, or of the first of them.
    return (
        _schema_differences(expected.schema, actual.schema)
        or _count_differences(expected, actual)
        or _row_differences(_rows(expected), _rows(actual))
        or _order_differences(expected, actual, ordered_by)
    )


def _schema_differences(expected: pa.Schema, actual: pa.Schema) -> list[str]:
    if expected.names != actual.names:
        return [f"Columns are {actual.names}, expected {expected.names}."]
    return [
        f"Column {wanted.name} is of type {actual_column.type}, expected {wanted.type}."
        for wanted, actual_column in zip(expected, actual, strict=True)
        if _plain_type(wanted.type) != _plain_type(actual_column.type)
    ]


def _count_differences(expected: pa.Table, actual: pa.Table) -> list[str]:
    if expected.num_rows == actual.num_rows:
        return []
    return [f"There are {actual.num_rows} rows, expected {expected.num_rows}."]


def _row_differences(expected: Sequence[Row], actual: Sequence[Row]) -> list[str]:
    wanted_by_key, found_by_key = _floats_by_key(expected), _floats_by_key(actual)
    missing: list[Row] = []
    surplus: list[Row] = []
    for key in wanted_by_key | found_by_key:
        wanted, unexpected = _unmatched(wanted_by_key.get(key, []), found_by_key.get(key, []))
        missing += [(key, floats) for floats in wanted]
        surplus += [(key, floats) for floats in unexpected]
    return [*_examples("missing", missing), *_examples("not expected", surplus)]


def _floats_by_key(rows: Sequence[Row]) -> dict[Hashable, list[Floats]]:
    groups: dict[Hashable, list[Floats]] = defaultdict(list)
    for key, floats in rows:
        groups[key].append(floats)
    return groups


def _unmatched(expected: list[Floats], actual: list[Floats]) -> tuple[list[Floats], list[Floats]]:
    """The rest of two multisets of float tuples after close ones are paired."""
    expected, actual = sorted(expected), sorted(actual)
    if len(expected) == len(actual) and all(map(_close, expected, actual)):
        return [], []
    if max(len(expected), len(actual)) > _MATCHED_MAX:
        pairs = zip(expected, actual, strict=False)
        differing = [(wanted, row) for wanted, row in pairs if not _close(wanted, row)]
        common = min(len(expected), len(actual))
        return (
            [wanted for wanted, _ in differing] + expected[common:],
            [row for _, row in differing] + actual[common:],
        )
    missing = []
    for wanted in expected:
        index = next((i for i, row in enumerate(actual) if _close(wanted, row)), None)
        if index is None:
            missing.append(wanted)
        else:
            del actual[index]
    return missing, actual


def _order_differences(
    expected: pa.Table, actual: pa.Table, ordered_by: Sequence[int]
) -> list[str]:
    expected_rows = _rows(expected.select(list(ordered_by)))
    actual_rows = _rows(actual.select(list(ordered_by)))
    for index, (left, right) in enumerate(zip(expected_rows, actual_rows, strict=True)):
        if left[0] != right[0] or not _close(left[1], right[1]):
            keys = f"its keys are {_shown(right)}, expected {_shown(left)}"
            return [f"Row {index + 1} is out of order: {keys}."]
    return []


def _close(expected: Floats, actual: Floats) -> bool:
    return len(expected) == len(actual) and all(
        math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        for one, other in zip(expected, actual, strict=True)
    )


def _examples(which: str, rows: list[Row]) -> list[str]:
    if not rows:
        return []
    shown = ", ".join(_shown(row) for row in rows[:_SHOWN])
    more = ", ..." if len(rows) > _SHOWN else ""
    return [f"{len(rows)} rows are {which}: {shown}{more}"]


# A row is split into a hashable key, in which a marker replaces each finite float, and these
# floats. Rows are equal if their keys are equal and their floats are close.


_FLOAT = object()  # replaces a float in a row's key


def _rows(table: pa.Table) -> list[Row]:
    if not table.num_columns:
        return [((), ())] * table.num_rows
    rows: list[Row] = []
    for values in zip(*map(_plain_values, table.columns), strict=True):
        floats: list[float] = []
        key = tuple(_frozen(value, floats) for value in values)
        rows.append((key, tuple(floats)))
    return rows


def _frozen(value: object, floats: list[float]) -> Hashable:
    match value:
        case float():
            if math.isfinite(value):
                floats.append(value)
                return _FLOAT
            return str(value)  # so that NaN equals NaN
        case dict():
            return tuple((name, _frozen(item, floats)) for name, item in value.items())
        case list() | tuple():
            return tuple(_frozen(item, floats) for item in value)
        case _:
            # None, bool, int, str, bytes, Decimal, UUID or MonthDayNano: all are hashable.
            assert isinstance(value, Hashable)
            return value


def _shown(row: Row) -> str:
    floats = iter(row[1])

    def restored(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(restored(item) for item in value)
        return next(floats) if value is _FLOAT else value

    assert isinstance(row[0], tuple)
    return f"({', '.join(str(restored(value)) for value in row[0])})"


def _plain_values(column: pa.ChunkedArray) -> list[object]:
    """A column's values as Python objects that are equal where SQL's values are."""
    target = _plain_type(column.type, temporal=_integer_of)
    values: list[object] = []
    for chunk in column.chunks:
        array = chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
        values += (array if array.type == target else array.cast(target)).to_pylist()
    return values


def _integer_of(kind: pa.DataType) -> pa.DataType:
    """Temporal values as integers: Python's lack nanoseconds and years after 9999."""
    return pa.int32() if kind.bit_width == 32 else pa.int64()


def _plain_type(
    kind: pa.DataType, temporal: Callable[[pa.DataType], pa.DataType] = lambda kind: kind
) -> pa.DataType:
    """The canonical type of all physical layouts of a type, nested types included."""
    types = pa.types
    if types.is_dictionary(kind):
        return _plain_type(kind.value_type, temporal)
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_type(kind.storage_type, temporal)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_decimal(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_temporal(kind) and not types.is_interval(kind):
        return temporal(kind)
    return _plain_nested_type(kind, temporal)


def _plain_nested_type(
    kind: pa.DataType, temporal: Callable[[pa.DataType], pa.DataType]
) -> pa.DataType:
    types = pa.types
    if types.is_map(kind) and not types.is_null(kind.key_type):  # no key of an empty map is null
        return pa.map_(_plain_type(kind.key_type, temporal), _plain_type(kind.item_type, temporal))
    if types.is_struct(kind):
        return pa.struct([(field.name, _plain_type(field.type, temporal)) for field in kind])
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(kind.value_type, temporal), kind.list_size)
    if hasattr(kind, "value_type"):  # lists and list views, of either size
        return pa.list_(_plain_type(kind.value_type, temporal))
    return kind


def output_order(
    connection: duckdb.DuckDBPyConnection, text: str, names: Sequence[str]
) -> tuple[int, ...]:
    """Positions of the answer's columns in the top-level ORDER BY, first key first."""
    # Stops at the first key that is no column of the answer (an expression, a column that is not
    # selected, an ambiguous name): the keys before it still determine an order to check.
    # fetchall, as a pending result would block the connection.
    ((serialized,),) = connection.execute("SELECT json_serialize_sql($1)", [text]).fetchall()
    tree = msgspec.json.decode(serialized)
    if tree["error"]:
        return ()
    modifiers = tree["statements"][0]["node"].get("modifiers", [])
    orders = [item["orders"] for item in modifiers if item["type"] == "ORDER_MODIFIER"]
    indices: list[int] = []
    for key in itertools.chain.from_iterable(orders):
        index = _output_index(key["expression"], [name.lower() for name in names])
        if index is None:
            break
        indices.append(index)
    return tuple(indices)


def _output_index(expression: dict[str, Any], names: list[str]) -> int | None:
    match expression:
        # A bare name resolves to a select alias before a table's column.
        case {"class": "COLUMN_REF", "column_names": [str(name)]} if names.count(name.lower()) == 1:
            return names.index(name.lower())
        case {"class": "CONSTANT", "literal": {"kind": "INTEGER", "text": str(position)}}:
            return int(position) - 1
        case _:
            return None
