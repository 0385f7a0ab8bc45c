"""Python objects over partitions: `session.parallelize(items).map(fn).reduce(fn)`.

Transformations are only recorded; an action sends them together, and each call runs them as a chain
of iterators over the items of a partition. Items are pickled once. Small partitions travel with the
calls, large ones stay in one file, which executors map.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from minishark.dataframe.applied import check_callable
from minishark.dataframe.names import CamelCase
from minishark.errors import OptionError
from minishark.tasks.call import CallOptions
from minishark.tasks.pool import CallPool
from minishark.tasks.results import MapPlan, Results
from minishark.worker.protocol import Value
from minishark.worker.python_tasks import SCOPE, EachOf
from minishark.worker.values import dump, load, unsendable

Transformation = Callable[[Iterator[Any]], Iterable[Any]]
Action = Callable[[Iterator[Any]], Any]


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """What a call runs for a partition: the transformations, then the action."""

    transformations: tuple[Transformation, ...]
    action: Action

    def __call__(self, partition: Value) -> Any:
        scope = SCOPE.get()
        assert scope is not None
        items: Iterator[Any] = iter(load(partition, scope.tasks.store))
        for transformation in self.transformations:
            items = iter(transformation(items))
        return self.action(items)


class Partitions:
    """Pickled items; their files are removed when nobody refers to them any more.

    Attributes:
        pool: runs calls over them.
        slots: how many calls run at once.
        values: the items of each partition, a list.
    """

    def __init__(self, pool: CallPool, slots: int, values: tuple[Value, ...]) -> None:
        self.pool = pool
        self.slots = slots
        self.values = values
        files = [file for value in values for file in value.files]
        if files:
            weakref.finalize(self, partial(pool.files.release, files)).atexit = False


class Items(CamelCase):
    """Python objects in the partitions of a cluster; lazy, and always in their order.

    Examples:
        >>> numbers = session.parallelize(range(10), 4)
        >>> numbers.map(lambda x: x * x).filter(lambda x: x % 2).reduce(lambda a, b: a + b)
        165
    """

    def __init__(
        self, partitions: Partitions, transformations: tuple[Transformation, ...] = ()
    ) -> None:
        self._partitions = partitions
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
        found: list[Any] = []
        for first in self._run("take", lambda items: list(itertools.islice(items, count))):
            found += first
            if len(found) >= count:
                break
        return found[:count]

    @property
    def num_partitions(self) -> int:
        """The number of partitions."""
        return len(self._partitions.values)

    def _then(self, transformation: Transformation) -> Items:
        return Items(self._partitions, (*self._transformations, transformation))

    def _run(self, label: str, action: Action) -> Iterator[Any]:
        """The result of an action for each partition."""
        partitions = self._partitions
        pool = partitions.pool
        plan = MapPlan(
            function=pool.functions.pickled(
                EachOf(_Pipeline(self._transformations, action)), f"the function of {label}"
            ),
            options=CallOptions(),
            items=iter(partitions.values),
            chunksize=1,
            total=len(partitions.values),
            slots=partitions.slots,
        )
        with Results[Any](pool, plan) as results:
            yield from results

    def _chained(self, label: str, action: Callable[[Iterator[Any]], list[Any]]) -> list[Any]:
        return list(itertools.chain.from_iterable(self._run(label, action)))


def _reduce(fn: Callable[[Any, Any], Any], items: Iterator[Any]) -> list[Any]:
    """One value, or none for an empty partition, which must not be an error."""
    return [functools.reduce(fn, items, first) for first in itertools.islice(items, 1)]


def parallelize(pool: CallPool, slots: int, items: Iterable[Any], count: int) -> Items:
    """Items in at most `count` partitions of about equal size.

    Raises:
        OptionError: an item can't be pickled.
    """
    found = list(items)
    count = max(1, min(count, len(found)))
    ends = [len(found) * (i + 1) // count for i in range(count)]
    parts = [found[first:end] for first, end in zip([0, *ends[:-1]], ends, strict=True)]
    try:
        with pool.files.storing() as put:
            values = tuple([dump(part, put) for part in parts])
    except Exception as error:
        raise unsendable("An item", error) from error
    return Items(Partitions(pool, slots, values))
