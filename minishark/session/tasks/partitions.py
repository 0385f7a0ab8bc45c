"""Items over partitions: what is recorded of them, and how an action runs it.

Transformations are chains of functions over the items of a partition. What needs items of several
partitions runs what is before it when an action asks for what is after it: calls pickle their items
by buckets, and the front end, which does not look into them, makes the new partitions of those.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from minishark.dataframe.applied import check_callable
from minishark.dataframe.doors import doors
from minishark.errors import OptionError
from minishark.session.tasks import algebra
from minishark.session.tasks.accumulators import counted, counting
from minishark.session.tasks.call import CallOptions
from minishark.session.tasks.pool import CallPool
from minishark.session.tasks.results import MapPlan, Results
from minishark.worker.protocol import Value
from minishark.worker.python_tasks import SCOPE, EachOf
from minishark.worker.values import dump, load, unsendable

Transformation = Callable[[Iterator[Any]], Iterable[Any]]
Action = Callable[[Iterator[Any]], Any]
Bucket = Callable[[Any], int]


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """What a call runs for a partition: the transformations, then the action."""

    transformations: tuple[Transformation, ...]
    action: Action

    def __call__(self, numbered: tuple[int, Value]) -> Any:
        scope = SCOPE.get()
        assert scope is not None
        number, partition = numbered
        items: Iterator[Any] = iter(load(partition, scope.tasks.store))
        for transformation in self.transformations:
            if isinstance(transformation, algebra.WithIndex):
                items = iter(transformation.of(number, items))
            else:
                items = iter(transformation(items))
        return counting(partial(self.action, items))


@dataclass(frozen=True, slots=True)
class Context:
    """Where items are computed.

    Attributes:
        pool: runs calls over them.
        slots: how many calls run at once.
        frame: makes a DataFrame of rows and a schema; None within calls.
    """

    pool: CallPool
    slots: int
    frame: Callable[[list[Any], Any], Any] | None = None


class Partitions:
    """Pickled items; their files are removed when nobody refers to them any more.

    Attributes:
        values: the items of each partition, a list.
    """

    def __init__(self, pool: CallPool, values: tuple[Value, ...]) -> None:
        self.values = values
        files = [file for value in values for file in value.files]
        if files:
            weakref.finalize(self, partial(pool.files.release, files)).atexit = False


class Source:
    """Partitions that are made when they are first needed."""

    def __init__(self, count: int, make: Callable[[], Partitions]) -> None:
        """`count` partitions, which `make` makes."""
        self.count = count
        self._make: Callable[[], Partitions] | None = make
        self._made: Partitions | None = None
        self._lock = threading.Lock()

    def partitions(self) -> Partitions:
        with self._lock:
            if self._made is None:
                assert self._make is not None
                self._made, self._make = self._make(), None
            return self._made


@dataclass(frozen=True, slots=True)
class Part:
    """Partitions and what is done with each of them."""

    source: Source
    transformations: tuple[Transformation, ...] = ()


@doors
class Partitioned:
    """Python objects in partitions, and what all that is done with them is made of."""

    def __init__(self, context: Context, parts: tuple[Part, ...]) -> None:
        self._context = context
        self._parts = parts

    # One item at a time

    def map(self, fn: Callable[[Any], Any]) -> Self:
        """`fn(item)` for each item."""
        check_callable("map", fn)
        return self.then(partial(map, fn))

    def filter(self, fn: Callable[[Any], Any]) -> Self:
        """The items for which `fn(item)` is true."""
        check_callable("filter", fn)
        return self.then(partial(filter, fn))

    def flat_map(self, fn: Callable[[Any], Iterable[Any]]) -> Self:
        """The elements of `fn(item)`, for each item."""
        check_callable("flat_map", fn)
        return self.then(lambda items: itertools.chain.from_iterable(map(fn, items)))

    def map_partitions(self, fn: Callable[[Iterator[Any]], Iterable[Any]]) -> Self:
        """The elements of `fn(iterator of items)`, for each partition."""
        check_callable("map_partitions", fn)
        return self.then(fn)

    def map_partitions_with_index(self, fn: Callable[[int, Iterator[Any]], Iterable[Any]]) -> Self:
        """The elements of `fn(number of the partition, iterator of items)`, for each partition."""
        check_callable("map_partitions_with_index", fn)
        firsts = [0, *itertools.accumulate(part.source.count for part in self._parts)]
        parts = [
            Part(part.source, (*part.transformations, algebra.WithIndex(fn, first)))
            for part, first in zip(self._parts, firsts, strict=False)
        ]
        return type(self)(self._context, tuple(parts))

    def key_by(self, fn: Callable[[Any], Any]) -> Self:
        """`(fn(item), item)` for each item."""
        check_callable("key_by", fn)
        return self.map(lambda item: (fn(item), item))

    # All items

    def union(self, other: Self) -> Self:
        """The items of both, with duplicates."""
        return type(self)(self._context, (*self._parts, *other._parts))

    __add__ = union

    def sort_by(
        self,
        keyfunc: Callable[[Any], Any],
        ascending: bool = True,
        num_partitions: int | None = None,
    ) -> Self:
        """The items sorted by `keyfunc(item)`; reads a sample of them now."""
        check_callable("sort_by", keyfunc)
        count = num_partitions or self.num_partitions
        sample = sorted(self.chained("sort_by", algebra.Sample(keyfunc)))
        limits = [sample[len(sample) * i // count] for i in range(1, count)] if sample else []
        bucket = algebra.Range(keyfunc, tuple(limits), ascending, count)
        moved = self.exchanged("sort_by", count, bucket)
        return moved.then(lambda items: sorted(items, key=keyfunc, reverse=not ascending))

    # Actions

    def collect(self) -> list[Any]:
        """All items."""
        return self.chained("collect", list)

    @property
    def num_partitions(self) -> int:
        """The number of partitions."""
        return sum(part.source.count for part in self._parts)

    # For what is made of them

    def then(self, transformation: Transformation) -> Self:
        """The same with one more transformation of each partition."""
        parts = [Part(p.source, (*p.transformations, transformation)) for p in self._parts]
        return type(self)(self._context, tuple(parts))

    def exchanged(self, label: str, count: int, bucket: Bucket | None) -> Self:
        """The items in `count` partitions, in those that `bucket` says; None to stay in theirs."""
        if count < 1:
            raise OptionError(f"{label}() takes a positive number of partitions.")

        def make() -> Partitions:
            if bucket is None:
                pieces = [[piece] for piece in self.actions(label, algebra.Pickled())]
            else:
                pieces = [[] for _ in range(count)]
                for buckets in self.actions(label, algebra.Divided(bucket, count)):
                    for place, piece in enumerate(buckets):
                        pieces[place] += [piece] * bool(piece)
            pool = self._context.pool
            with pool.files.storing() as put:
                return Partitions(pool, tuple([dump(algebra.Pieces(held), put) for held in pieces]))

        return type(self)(self._context, (Part(Source(count, make)),))

    def actions(self, label: str, action: Action) -> Iterator[Any]:
        """The result of an action for each partition."""
        context = self._context
        pool = context.pool
        for part in self._parts:
            values = part.source.partitions().values
            plan = MapPlan(
                function=pool.functions.pickled(
                    EachOf(_Pipeline(part.transformations, action), noted=False),
                    f"the function of {label}",
                ),
                options=CallOptions(),
                items=enumerate(values),
                chunksize=1,
                total=len(values),
                slots=context.slots,
            )
            with Results[Any](pool, plan) as results:
                yield from map(counted, results)

    def chained(self, label: str, action: Callable[[Iterator[Any]], list[Any]]) -> list[Any]:
        """The lists that an action makes of each partition, as one."""
        return list(itertools.chain.from_iterable(self.actions(label, action)))


def stored(context: Context, parts: Sequence[Any]) -> Partitions:
    """Iterables of items as partitions.

    Raises:
        OptionError: an item can't be pickled.
    """
    try:
        with context.pool.files.storing() as put:
            values = tuple([dump(part, put) for part in parts])
    except Exception as error:
        raise unsendable("An item", error) from error
    return Partitions(context.pool, values)
