"""Groups as runs: aggregates of a stored table whose rows of a group follow one another.

Such a group needs no hash table: it begins where the key changes. That takes a sixth of the time
of a hash table with many groups. A sample tells whether rows are stored in runs; the keys of the
runs tell whether each group is a single run.

Related work: sort-based ("streaming", "ordered") aggregation, here without the need that all rows
are in order.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from minishark.compiler.hints import InputGroupRuns
from minishark.worker.helpers import Batches, Helpers

_Integers: TypeAlias = NDArray[Any]

_SHARE_MAX = 0.5
"""With more runs per row, a hash table is no slower. Planning expects no more."""

_SAMPLES = 32
_SAMPLE_ROWS = 1024
_INT64_MAX = 2**63 - 1
_SEQUENCES_MAX = 64
_SPAN_MAX = 1 << 26
"""Keys are marked in an array with a byte for each integer between their extremes."""

_REDUCE: dict[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}
_TOGETHER: dict[str, Callable[[int, int], int]] = {
    "sum": operator.add,
    "count": operator.add,
    "min": min,
    "max": max,
}


@dataclass(frozen=True, slots=True)
class Runs:
    """A row for each run of rows with the same key."""

    table: pa.Table  # the key as c0, and the aggregates c1, ... over the rows of the run
    are_groups: bool  # whether no key comes again


def runs_of(
    table: pa.Table, runs: InputGroupRuns, helpers: Helpers, *, threads: int, bytes_max: int
) -> Runs | None:
    """The runs of a table, aggregated; they may take `bytes_max`, by estimate.

    Returns:
        None if a hash table is faster, or for types that are not supported.
    """
    table = table.select(list(dict.fromkeys((runs.key, *runs.columns))))
    if not table.num_rows or not all(map(_are_integers, table.columns)):
        return None
    share = _share(table.column(runs.key))
    width = 8 * (1 + len(runs.values))
    if share > _SHARE_MAX or share * len(table) * width > bytes_max:
        return None
    batches = table.to_batches()
    if max(map(len, batches)) * runs.sum_max > _INT64_MAX:
        return None
    try:
        parts = helpers.each(partial(_found, wanted=runs), batches, threads)
        _join_touching(parts, [function for function, _ in runs.values])
    except OverflowError:
        return None
    types = [table.schema.field(runs.key).type]
    types += [_value_type(table.schema, *value) for value in runs.values]
    return Runs(_table(parts, types), _are_groups(parts))


@dataclass(slots=True)
class _Part:
    """The runs of some rows."""

    keys: _Integers  # the key of each run, as an integer
    values: list[_Integers]  # for each aggregate, its values over the runs
    breaks: _Integers  # the runs whose key is not above the one before


def _found(batches: Batches, wanted: InputGroupRuns) -> list[_Part]:
    return [_runs(batch, wanted) for batch in batches if len(batch)]


def _runs(batch: pa.RecordBatch, wanted: InputGroupRuns) -> _Part:
    keys = _integers(batch.column(wanted.key))
    starts = np.flatnonzero(keys[1:] != keys[:-1])
    starts += 1
    starts = np.concatenate((np.zeros(1, starts.dtype), starts))
    values = [_reduced(batch, *value, starts) for value in wanted.values]
    first = keys[starts]
    return _Part(first, values, np.flatnonzero(first[1:] <= first[:-1]) + 1)


def _reduced(batch: pa.RecordBatch, function: str, column: str, starts: _Integers) -> _Integers:
    """One aggregate of each run."""
    if function == "count":
        return np.diff(starts, append=len(batch))
    dtype = np.int64 if function == "sum" else None
    integers = _integers(batch.column(column))
    reduced: _Integers = _REDUCE[function].reduceat(integers, starts, dtype=dtype)
    return reduced


def _join_touching(parts: list[_Part], functions: Sequence[str]) -> None:
    """Merge runs that continue in the next part.

    Raises:
        OverflowError: their sum does not fit into 64 bits.
    """
    for before, after in itertools.pairwise(parts):
        if before.keys[-1] != after.keys[0]:
            continue
        for function, last, first in zip(functions, before.values, after.values, strict=True):
            first[0] = _TOGETHER[function](int(last[-1]), int(first[0]))
        before.keys = before.keys[:-1]
        before.values = [column[:-1] for column in before.values]
    parts[:] = [part for part in parts if len(part.keys)]


def _are_groups(parts: Sequence[_Part]) -> bool:
    """Whether all keys differ: they ascend, or form a few ascending sequences without overlap."""
    if sum(len(part.breaks) for part in parts) >= _SEQUENCES_MAX:
        return False
    sequences: list[list[_Integers]] = []
    for keys in (keys for part in parts for keys in np.split(part.keys, part.breaks) if len(keys)):
        if not sequences or keys[0] <= sequences[-1][-1][-1]:
            sequences.append([])
        sequences[-1].append(keys)
    bounds = sorted((int(some[0][0]), int(some[-1][-1])) for some in sequences)
    if all(one[1] < other[0] for one, other in itertools.pairwise(bounds)):
        return True
    low, high = bounds[0][0], max(last for _, last in bounds)
    if len(sequences) > _SEQUENCES_MAX or high - low >= _SPAN_MAX:
        return False
    marks = np.zeros(high - low + 1, np.bool_)
    for sequence in sequences:
        slots = [keys.astype(np.int64) - low for keys in sequence]
        if any(marks[some].any() for some in slots):
            return False
        for some in slots:
            marks[some] = True
    return True


def _share(keys: pa.ChunkedArray) -> float:
    """The estimated number of runs per row."""
    apart = max(_SAMPLE_ROWS, len(keys) // _SAMPLES)
    samples = (keys.slice(first, _SAMPLE_ROWS) for first in range(0, len(keys), apart))
    chunks = [_integers(chunk) for sample in samples for chunk in sample.chunks]
    changes = sum(int(np.count_nonzero(some[1:] != some[:-1])) for some in chunks)
    return changes / max(1, sum(len(some) - 1 for some in chunks))


def _table(parts: Sequence[_Part], types: Sequence[pa.DataType]) -> pa.Table:
    columns = [[part.keys for part in parts]]
    columns += [[part.values[i] for part in parts] for i in range(len(types) - 1)]
    arrays = [
        pa.chunked_array([_array(chunk, type_) for chunk in chunks], type_)
        for chunks, type_ in zip(columns, types, strict=True)
    ]
    return pa.table(arrays, names=[f"c{i}" for i in range(len(types))])


def _array(values: _Integers, type_: pa.DataType) -> pa.Array:
    """Integers reinterpreted as values of a type, without a copy."""
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(type_, len(values), [None, buffer])


def _value_type(schema: pa.Schema, function: str, column: str) -> pa.DataType:
    """The type of an aggregate of runs."""
    if function == "count":
        return pa.int64()
    type_ = schema.field(column).type
    if function != "sum":
        return type_
    return pa.decimal64(18, type_.scale) if pa.types.is_decimal(type_) else pa.int64()


def _are_integers(column: pa.ChunkedArray) -> bool:
    """Whether values are stored as integers of at most 64 bits, without NULLs."""
    return not column.null_count and column.type.bit_width <= 64


def _integers(column: pa.Array) -> _Integers:
    """The stored integers of a column without NULLs, without a copy."""
    type_ = column.type
    sign = "u" if pa.types.is_unsigned_integer(type_) else "i"
    dtype = np.dtype(f"{sign}{type_.bit_width // 8}")
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)
