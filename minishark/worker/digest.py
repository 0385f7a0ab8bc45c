"""Digests of rows, by what they are: wherever they lie, and whatever else their files have."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import numpy as np
import pyarrow as pa

from minishark.worker.columns import integers


class _Hashing(io.RawIOBase):
    """A file that hashes what is written to it."""

    def __init__(self) -> None:
        self.hashed = hashlib.blake2b(digest_size=16)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.hashed.update(data)
        return len(data)


def rows_digest(rows: pa.Table) -> bytes:
    """A digest of the values of rows, and of the names and types of their columns."""
    sink = _Hashing()
    rows = rows.replace_schema_metadata(None).combine_chunks()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), rows.schema) as stream:
        # Copies: parts of a batch are written with what is beside them, NULLs with what is below.
        for batch in rows.to_batches():
            every = integers(np.arange(batch.num_rows))
            columns = [column.take(every) for column in batch.columns]
            stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=batch.schema))
    return sink.hashed.digest()
