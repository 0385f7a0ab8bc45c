"""Python objects over partitions: `session.parallelize(items).map(fn).reduce(fn)`.

Each partition is one row of a cached table: its items, pickled. Transformations are only recorded;
an action sends them together, and each task runs them as a chain of iterators over its items.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import cloudpickle
import pyarrow as pa

from minishark.dataframe.applied import check_callable, pickled
from minishark.dataframe.names import CamelCase, ident
from minishark.dataframe.runtime import Runtime
from minishark.errors import OptionError
from minishark.tables.cached import CachedRows
from minishark.worker.protocol import TaskFunction

_RESULT = (("result", "BLOB"),)

Transformation = Callable[[Iterator[Any]], Iterable[Any]]
Action = Callable[[Iterator[Any]], Any]


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """What a task runs for each partition: the transformations, then the action."""

    transformations: tuple[Transformation, ...]
    action: Action

    def __call__(self, rows: pa.RecordBatchReader) -> Iterable[pa.Table]:
        return [self._result(row) for batch in rows for row in batch.column(0)]

    def _result(self, row: pa.Scalar) -> pa.Table:
        items: Iterator[Any] = iter(cloudpickle.loads(row.as_py()))
        for transformation in self.transformations:
            items = iter(transformation(items))
        data = cloudpickle.dumps(self.action(items))
        return pa.table({"result": pa.array([data], pa.binary())})


class Items(CamelCase):
    """Python objects in the partitions of a cluster; lazy, and always in their order.

    Examples:
        >>> numbers = session.parallelize(range(10), 4)
        >>> numbers.map(lambda x: x * x).filter(lambda x: x % 2).reduce(lambda a, b: a + b)
        165
    """

    def __init__(
        self, runtime: Runtime, cached: CachedRows, transformations: tuple[Transformation, ...] = ()
    ) -> None:
        self._runtime = runtime
        self._cached = cached
        self._transformations = transformations

    def map(self, fn: Callable[[Any], Any]) -> Items:
        """`fn(item)` for each item."""
        check_callable("map", fn)
        return self._then(partial(map, fn))

    def filter(self, fn: Callable[[Any], Any]) -> Items:
        """The items for which `fn(item)` is true."""
        check_callable("filter", fn)
        return self._then(partial(filter, fn))

    def flat_map(self, fn: Callable[[Any], Iterable[Any]]) -> Items:
        """The elements of `fn(item)`, for each item."""
        check_callable("flat_map", fn)
        return self._then(lambda items: itertools.chain.from_iterable(map(fn, items)))

    def map_partitions(self, fn: Callable[[Iterator[Any]], Iterable[Any]]) -> Items:
        """The elements of `fn(iterator of items)`, for each partition."""
        check_callable("map_partitions", fn)
        return self._then(fn)

    def collect(self) -> list[Any]:
        """All items."""
        return self._chained("collect", list)

    def reduce(self, fn: Callable[[Any, Any], Any]) -> Any:
        """All items as one: `fn(fn(a, b), c)`, in their order, partition by partition.

        Raises:
            OptionError: there is no item.
        """
        check_callable("reduce", fn)
        found = self._chained("reduce", partial(_reduce, fn))
        if not found:
            raise OptionError("There is nothing to reduce: no item is left.")
        return functools.reduce(fn, found)

    def count(self) -> int:
        """The number of items."""
        return sum(self._run("count", lambda items: sum(1 for _ in items)))

    def sum(self) -> Any:
        """The sum of all items; 0 if there are none."""
        return sum(self._run("sum", sum))

    def take(self, count: int) -> list[Any]:
        """The first items."""
        return self._chained("take", lambda items: list(itertools.islice(items, count)))[:count]

    @property
    def num_partitions(self) -> int:
        """The number of partitions."""
        return len(self._runtime.partitions(self._cached.name))

    def _then(self, transformation: Transformation) -> Items:
        return Items(self._runtime, self._cached, (*self._transformations, transformation))

    def _run(self, label: str, action: Action) -> list[Any]:
        """The result of an action for each partition."""
        pipeline = _Pipeline(self._transformations, action)
        function = TaskFunction(label, pickled(label, pipeline), _RESULT)
        rows = self._runtime.apply_function(f"FROM {ident(self._cached.name)}", function)
        return [cloudpickle.loads(row) for row in rows.column("result").to_pylist()]

    def _chained(self, label: str, action: Callable[[Iterator[Any]], list[Any]]) -> list[Any]:
        return list(itertools.chain.from_iterable(self._run(label, action)))


def _reduce(fn: Callable[[Any, Any], Any], items: Iterator[Any]) -> list[Any]:
    """One value, or none for an empty partition, which must not be an error."""
    return [functools.reduce(fn, items, first) for first in itertools.islice(items, 1)]


def chunks(items: Iterable[Any], count: int) -> pa.Table:
    """Items as a table with one row for each of at most `count` partitions.

    Raises:
        OptionError: an item can't be pickled.
    """
    found = list(items)
    count = max(1, min(count, len(found)))
    ends = [len(found) * (i + 1) // count for i in range(count)]
    parts = [found[first:end] for first, end in zip([0, *ends[:-1]], ends, strict=True)]
    data = [pickled("parallelize", part) for part in parts]
    return pa.table({"items": pa.array(data, pa.binary())})
