"""Rows of a table by what they are divided by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from minishark.worker.columns import integers

Coded: TypeAlias = tuple[np.ndarray[Any, np.dtype[np.int64]], list[Any]]
"""The partition value of each row, as an index into the list of all of them."""


def coded(column: pa.Array, transform: Callable[[pa.Array], Sequence[Any]]) -> Coded:
    """The partition values of a column, which are transformed once for all equal ones."""
    encoded = column.dictionary_encode(null_encoding="encode")
    numbers: dict[Any, int] = {}
    of_value = np.array(
        [numbers.setdefault(value, len(numbers)) for value in transform(encoded.dictionary)],
        np.int64,
    )
    return of_value[encoded.indices.to_numpy(zero_copy_only=False)], list(numbers)


def grouped(rows: pa.Table, columns: Sequence[Coded]) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """The rows of each partition, with its values."""
    combined = np.stack([codes for codes, _ in columns], axis=1)
    kept, number = np.unique(combined, axis=0, return_inverse=True)
    number = number.reshape(-1)
    order = np.argsort(number, kind="stable")
    ends = np.cumsum(np.bincount(number, minlength=len(kept))).tolist()
    for codes, first, last in zip(kept.tolist(), [0, *ends[:-1]], ends, strict=True):
        key = tuple(values[code] for code, (_, values) in zip(codes, columns, strict=True))
        yield key, rows.take(integers(order[first:last]))
