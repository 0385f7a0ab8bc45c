"""Python objects over partitions: `session.parallelize(items).map(fn).reduce(fn)`.

The items lie in the cluster, pickled, one row for each partition. Steps are only noted; an action
sends them all at once, and each task runs them over its partition, one item after the other.
"""

from __future__ import annotations

import builtins
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import pyarrow as pa

from minishark.dataframe.actions import KeptRows
from minishark.dataframe.applied import check_callable, pickled
from minishark.dataframe.names import CamelCase, ident
from minishark.dataframe.partitioned import JobRunner
from minishark.errors import OptionError
from minishark.worker.protocol import TaskFunction

_RESULT = (("result", "BLOB"),)

Step = Callable[[Iterator[Any]], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """What a task runs: all steps, and at their end a result that is pickled."""

    steps: tuple[Step, ...]
    end: Callable[[Iterator[Any]], Any]

    def __call__(self, rows: pa.RecordBatchReader) -> Iterable[pa.Table]:
        return [self._result(row) for batch in rows for row in batch.column(0)]

    def _result(self, row: pa.Scalar) -> pa.Table:
        items: Iterator[Any] = iter(cloudpickle.loads(row.as_py()))
        for step in self.steps:
            items = iter(step(items))
        data = cloudpickle.dumps(self.end(items))
        return pa.table({"result": pa.array([data], pa.binary())})


@dataclass(frozen=True, slots=True)
class _Reduced:
    fn: Callable[[Any, Any], Any]

    def __call__(self, items: Iterator[Any]) -> list[Any]:
        """The value, or none where there are no items."""
        for first in items:
            return [functools.reduce(self.fn, items, first)]
        return []


@dataclass(frozen=True, slots=True)
class _Mapped:
    fn: Callable[[Any], Any]

    def __call__(self, items: Iterator[Any]) -> Iterable[Any]:
        return builtins.map(self.fn, items)


@dataclass(frozen=True, slots=True)
class _Filtered:
    fn: Callable[[Any], Any]

    def __call__(self, items: Iterator[Any]) -> Iterable[Any]:
        return builtins.filter(self.fn, items)


@dataclass(frozen=True, slots=True)
class _Flattened:
    fn: Callable[[Any], Iterable[Any]]

    def __call__(self, items: Iterator[Any]) -> Iterable[Any]:
        return itertools.chain.from_iterable(builtins.map(self.fn, items))


@dataclass(frozen=True, slots=True)
class _First:
    count: int

    def __call__(self, items: Iterator[Any]) -> list[Any]:
        return list(itertools.islice(items, self.count))


def _number(items: Iterator[Any]) -> int:
    return builtins.sum(1 for _ in items)


@dataclass(frozen=True, slots=True)
class Items(CamelCase):
    """Python objects in the partitions of a cluster; lazy, and always in their order.

    Examples:
        >>> numbers = session.parallelize(range(10), 4)
        >>> numbers.map(lambda x: x * x).filter(lambda x: x % 2).reduce(lambda a, b: a + b)
        165
    """

    runner: JobRunner
    kept: KeptRows
    steps: tuple[Step, ...] = ()

    def map(self, fn: Callable[[Any], Any]) -> Items:
        """`fn(item)` for each item."""
        check_callable("map", fn)
        return self._then(_Mapped(fn))

    def filter(self, fn: Callable[[Any], Any]) -> Items:
        """The items for which `fn(item)` is true."""
        check_callable("filter", fn)
        return self._then(_Filtered(fn))

    def flat_map(self, fn: Callable[[Any], Iterable[Any]]) -> Items:
        """All that `fn(item)` gives, for each item."""
        check_callable("flat_map", fn)
        return self._then(_Flattened(fn))

    def map_partitions(self, fn: Callable[[Iterator[Any]], Iterable[Any]]) -> Items:
        """What `fn(iterator of items)` gives, for each partition."""
        check_callable("map_partitions", fn)
        return self._then(fn)

    def collect(self) -> list[Any]:
        """All items."""
        return list(itertools.chain.from_iterable(self._run("collect", list)))

    def reduce(self, fn: Callable[[Any, Any], Any]) -> Any:
        """All items as one: `fn(fn(a, b), c)`, in their order, partition by partition.

        Raises:
            OptionError: there is no item.
        """
        check_callable("reduce", fn)
        found = list(itertools.chain.from_iterable(self._run("reduce", _Reduced(fn))))
        if not found:
            raise OptionError("There is nothing to reduce: no item is left.")
        return functools.reduce(fn, found)

    def count(self) -> int:
        """The number of items."""
        return builtins.sum(self._run("count", _number))

    def sum(self) -> Any:
        """The sum of all items; 0 if there are none."""
        return builtins.sum(self._run("sum", builtins.sum))

    def take(self, count: int) -> list[Any]:
        """The first items."""
        found = itertools.chain.from_iterable(self._run("take", _First(count)))
        return list(itertools.islice(found, count))

    @property
    def num_partitions(self) -> int:
        """In how many partitions the items lie."""
        return len(self.runner.table_partitions(self.kept.name))

    def _then(self, step: Step) -> Items:
        return replace(self, steps=(*self.steps, step))

    def _run(self, label: str, end: Callable[[Iterator[Any]], Any]) -> list[Any]:
        """What `end` makes of the items of each partition."""
        pipeline = _Pipeline(self.steps, end)
        function = TaskFunction(label, pickled(label, pipeline), _RESULT)
        rows = self.runner.apply_function(f"FROM {ident(self.kept.name)}", function)
        return [cloudpickle.loads(row) for row in rows.column("result").to_pylist()]


def chunks(items: Iterable[Any], count: int) -> pa.Table:
    """Items as a table with a row for each of at most `count` partitions.

    Raises:
        OptionError: an item can't be pickled.
    """
    found = list(items)
    count = max(1, min(count, len(found)))
    ends = [len(found) * (i + 1) // count for i in range(count)]
    parts = [found[first:end] for first, end in zip([0, *ends[:-1]], ends, strict=True)]
    data = [pickled("parallelize", part) for part in parts]
    return pa.table({"items": pa.array(data, pa.binary())})
