"""Threads that help a task with work on record batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, TypeVar

import pyarrow as pa

from minishark.worker.cores import usable_cores

Batches: TypeAlias = list[pa.RecordBatch]
_Result = TypeVar("_Result")


class Helpers:
    """A thread pool that stays alive: starting threads takes as long as their work."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max(1, usable_cores() - 1), "helper")

    def each(
        self,
        work: Callable[[Batches], list[_Result]],
        batches: Sequence[pa.RecordBatch],
        threads: int,
    ) -> list[_Result]:
        """The results of `work` over all batches, in their order.

        Each thread calls `work` once, with consecutive batches; one of the `threads` is this one.
        """
        size = -(-len(batches) // threads) or 1
        parts = [list(batches[i : i + size]) for i in range(0, len(batches), size)]
        own, *others = parts or [[]]
        helped = [self._pool.submit(work, part) for part in others]
        results = work(own)
        for future in helped:
            results += future.result()
        return results

    def close(self) -> None:
        self._pool.shutdown(wait=False)
