"""Python objects over partitions: `session.parallelize(items).map(fn).reduce(fn)`.

Transformations are only recorded; an action sends them together, and each call runs them as a chain
of iterators over the items of a partition. Items are pickled once. Small partitions travel with the
calls, large ones stay in one file, which executors map.

What needs items of several partitions (`reduce_by_key`, `sort_by`, `join` ...) runs what is before
it when an action asks for what is after it: calls pickle their items by buckets, and the front end,
which does not look into them, makes the new partitions of those.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from minishark.dataframe.applied import check_callable
from minishark.dataframe.names import CamelCase
from minishark.dataframe.writer import new_folder
from minishark.errors import OptionError, UnsupportedError
from minishark.tasks import algebra
from minishark.tasks.accumulators import counted, counting
from minishark.tasks.call import CallOptions
from minishark.tasks.figures import Figures
from minishark.tasks.pairs import Pairs
from minishark.tasks.pool import CallPool
from minishark.tasks.results import MapPlan, Results
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
class _Part:
    """Partitions and what is done with each of them."""

    source: Source
    transformations: tuple[Transformation, ...] = ()


class Items(Pairs, Figures, CamelCase):
    """Python objects in the partitions of a cluster; lazy, and always in their order.

    The methods are those of PySpark's RDDs. Keys must be numbers, texts, dates, None, or tuples of
    such, where items are brought together by them.

    Examples:
        >>> numbers = session.parallelize(range(10), 4)
        >>> numbers.map(lambda x: x * x).filter(lambda x: x % 2).reduce(lambda a, b: a + b)
        165
        >>> words = session.parallelize(["b", "a", "b"], 2)
        >>> counts = words.map(lambda word: (word, 1)).reduce_by_key(lambda a, b: a + b)
        >>> counts.sort_by_key().collect()
        [('a', 1), ('b', 2)]
    """

    _hidden = ("exchanged", "actions", "chained", "then")

    def __init__(self, context: Context, parts: tuple[_Part, ...]) -> None:
        self._context = context
        self._parts = parts

    # One item at a time

    def map(self, fn: Callable[[Any], Any]) -> Items:
        """`fn(item)` for each item."""
        check_callable("map", fn)
        return self.then(partial(map, fn))

    def filter(self, fn: Callable[[Any], Any]) -> Items:
        """The items for which `fn(item)` is true."""
        check_callable("filter", fn)
        return self.then(partial(filter, fn))

    def flat_map(self, fn: Callable[[Any], Iterable[Any]]) -> Items:
        """The elements of `fn(item)`, for each item."""
        check_callable("flat_map", fn)
        return self.then(lambda items: itertools.chain.from_iterable(map(fn, items)))

    def map_partitions(self, fn: Callable[[Iterator[Any]], Iterable[Any]]) -> Items:
        """The elements of `fn(iterator of items)`, for each partition."""
        check_callable("map_partitions", fn)
        return self.then(fn)

    def map_partitions_with_index(self, fn: Callable[[int, Iterator[Any]], Iterable[Any]]) -> Items:
        """The elements of `fn(number of the partition, iterator of items)`, for each partition."""
        check_callable("map_partitions_with_index", fn)
        firsts = [0, *itertools.accumulate(part.source.count for part in self._parts)]
        parts = [
            _Part(part.source, (*part.transformations, algebra.WithIndex(fn, first)))
            for part, first in zip(self._parts, firsts, strict=False)
        ]
        return Items(self._context, tuple(parts))

    def glom(self) -> Items:
        """The items of each partition as a list."""
        return self.then(lambda items: [list(items)])

    def key_by(self, fn: Callable[[Any], Any]) -> Items:
        """`(fn(item), item)` for each item."""
        check_callable("key_by", fn)
        return self.map(lambda item: (fn(item), item))

    def sample(self, with_replacement: bool, fraction: float, seed: int | None = None) -> Items:
        """Each item with a probability; a seed repeats the choice.

        Raises:
            UnsupportedError: `with_replacement` is true.
        """
        if with_replacement:
            raise UnsupportedError("minishark does not sample with replacement.")
        return self.map_partitions_with_index(algebra.Sampled(fraction, seed))

    def random_split(self, weights: Sequence[float], seed: int | None = None) -> list[Items]:
        """Each item in one of several, whose sizes are in proportion to `weights`."""
        bounds = algebra.bounds(weights)
        chosen = algebra.seeded(seed)
        return [
            self.map_partitions_with_index(algebra.Sampled(high, chosen, low))
            for low, high in itertools.pairwise(bounds)
        ]

    # All items

    def union(self, other: Items) -> Items:
        """The items of both, with duplicates."""
        return Items(self._context, (*self._parts, *other._parts))

    __add__ = union

    def distinct(self, num_partitions: int | None = None) -> Items:
        """Each item once."""
        pairs = self.map(lambda item: (item, None))
        return pairs.reduce_by_key(lambda left, _: left, num_partitions).keys()

    def intersection(self, other: Items) -> Items:
        """The items that both have, each once."""
        return algebra.present_in(self, other, wanted=(True, True))

    def subtract(self, other: Items, num_partitions: int | None = None) -> Items:
        """The items that the other does not have, with duplicates."""
        pairs, others = self.map(lambda item: (item, item)), other.map(lambda item: (item, None))
        return pairs.subtract_by_key(others, num_partitions).values()

    def cartesian(self, other: Items) -> Items:
        """All pairs of an item of this and one of the other, which every call gets whole."""
        found: list[list[Any]] = []

        def pairs(items: Iterator[Any]) -> Iterator[Any]:
            return itertools.product(items, found[0])

        found.append(other.collect())
        return self.then(pairs)

    def zip(self, other: Items) -> Items:
        """Pairs of the items at each position.

        Raises:
            OptionError: there are more items on one side.
        """
        left, right = self.zip_with_index(), other.zip_with_index()
        if left.count() != right.count():
            raise OptionError("zip() takes as many items on both sides.")
        both = left.map(lambda pair: pair[::-1]).join(right.map(lambda pair: pair[::-1]))
        return both.sort_by_key().values()

    def zip_with_index(self) -> Items:
        """`(item, its position from 0)`; counts the items of the partitions now."""
        counts = list(self.actions("zip_with_index", lambda items: sum(1 for _ in items)))
        starts = (0, *itertools.accumulate(counts))

        def numbered(number: int, items: Iterator[Any]) -> Iterator[Any]:
            return ((item, place) for place, item in enumerate(items, starts[number]))

        return self.map_partitions_with_index(numbered)

    def zip_with_unique_id(self) -> Items:
        """`(item, a number that no other item has)`, without counting them first."""
        step = self.num_partitions

        def numbered(number: int, items: Iterator[Any]) -> Iterator[Any]:
            return ((item, number + step * place) for place, item in enumerate(items))

        return self.map_partitions_with_index(numbered)

    def sort_by(
        self,
        keyfunc: Callable[[Any], Any],
        ascending: bool = True,
        num_partitions: int | None = None,
    ) -> Items:
        """The items sorted by `keyfunc(item)`; reads a sample of them now."""
        check_callable("sort_by", keyfunc)
        count = num_partitions or self.num_partitions
        found = sorted(self.chained("sort_by", algebra.Sample(keyfunc)))
        limits = [found[len(found) * i // count] for i in range(1, count)] if found else []
        bucket = algebra.Range(keyfunc, tuple(limits), ascending, count)
        moved = self.exchanged("sort_by", count, bucket)
        return moved.then(lambda items: sorted(items, key=keyfunc, reverse=not ascending))

    def repartition(self, num_partitions: int) -> Items:
        """The same items in another number of partitions of about equal size."""
        return self.exchanged("repartition", num_partitions, algebra.RoundRobin(num_partitions))

    def coalesce(self, num_partitions: int, shuffle: bool = False) -> Items:
        """The same items in at most so many partitions."""
        del shuffle
        return self if num_partitions >= self.num_partitions else self.repartition(num_partitions)

    # Actions

    def collect(self) -> list[Any]:
        """All items."""
        return self.chained("collect", list)

    def to_local_iterator(self) -> Iterator[Any]:
        """All items, one after another."""
        return itertools.chain.from_iterable(self.actions("to_local_iterator", list))

    def reduce(self, fn: Callable[[Any, Any], Any]) -> Any:
        """All items as one: `fn(fn(a, b), c)`, in their order, partition by partition.

        Raises:
            OptionError: there is no item.
        """
        check_callable("reduce", fn)
        found = self.chained("reduce", partial(_reduce, fn))
        if not found:
            raise OptionError("There is nothing to reduce: no item is left.")
        return functools.reduce(fn, found)

    tree_reduce = reduce

    def fold(self, zero: Any, fn: Callable[[Any, Any], Any]) -> Any:
        """As `reduce`, beginning with `zero` in each partition, and once more."""
        check_callable("fold", fn)
        found = self.actions("fold", algebra.Folded(zero, fn))
        return functools.reduce(fn, found, algebra.fresh(zero))

    def aggregate(
        self, zero: Any, seq_op: Callable[[Any, Any], Any], comb_op: Callable[[Any, Any], Any]
    ) -> Any:
        """Items into accumulators by `seq_op(accumulator, item)`, and these into one by `comb_op`.

        Examples:
            >>> def add(pair, x):
            ...     return pair[0] + x, pair[1] + 1
            >>> def both(a, b):
            ...     return a[0] + b[0], a[1] + b[1]
            >>> session.parallelize(range(5), 2).aggregate((0, 0), add, both)
            (10, 5)
        """
        found = self.actions("aggregate", algebra.Folded(zero, seq_op))
        return functools.reduce(comb_op, found, algebra.fresh(zero))

    tree_aggregate = aggregate

    def count(self) -> int:
        """The number of items."""
        return sum(self.actions("count", lambda items: sum(1 for _ in items)))

    def count_approx(self, timeout: int, confidence: float = 0.95) -> int:
        """The number of items: exact, whatever `timeout` and `confidence` are."""
        del timeout, confidence
        return self.count()

    def sum(self) -> Any:
        """The sum of all items; 0 if there are none."""
        return sum(self.actions("sum", sum))

    def take(self, count: int) -> list[Any]:
        """The first items."""
        found: list[Any] = []
        for first in self.actions("take", lambda items: list(itertools.islice(items, count))):
            found += first
            if len(found) >= count:
                break
        return found[:count]

    def first(self) -> Any:
        """The first item.

        Raises:
            OptionError: there is none.
        """
        for item in self.take(1):
            return item
        raise OptionError("There is no first item: none is left.")

    def is_empty(self) -> bool:
        """Whether there is no item."""
        return not self.take(1)

    def foreach(self, fn: Callable[[Any], Any]) -> None:
        """Call a function with each item, for its side effects."""
        check_callable("foreach", fn)
        self.chained("foreach", algebra.Each(fn))

    def foreach_partition(self, fn: Callable[[Iterator[Any]], Any]) -> None:
        """Call a function with an iterator over each partition's items, for its side effects."""
        check_callable("foreach_partition", fn)
        self.chained("foreach_partition", algebra.OfPartition(fn))

    def to_df(self, schema: Any = None) -> Any:
        """The items, which are tuples, Rows or dictionaries, as a DataFrame.

        Args:
            schema: see `Session.create_dataframe`.

        Raises:
            UnsupportedError: it is called within a call.
        """
        if self._context.frame is None:
            raise UnsupportedError("to_df() makes DataFrames in the front end only.")
        return self._context.frame(self.collect(), schema)

    def save_as_text_file(self, path: str) -> None:
        """Write each item as a line of text, to a file for each partition in a new folder.

        The folder must be one that all nodes have.

        Raises:
            OSError: the folder exists.
            UnsupportedError: the path is the URI of an object store.
        """
        folder = new_folder(path)
        written = self.map_partitions_with_index(algebra.TextFile(folder))
        written.chained("save_as_text_file", list)

    def save_as_pickle_file(self, path: str, batch_size: int = 10) -> None:
        """Write pickled items, to a file for each partition in a new folder.

        The folder must be one that all nodes have. Each file is one pickle after another.

        Raises:
            OSError: the folder exists.
            UnsupportedError: the path is the URI of an object store.
        """
        del batch_size
        folder = new_folder(path)
        written = self.map_partitions_with_index(algebra.PickleFile(folder))
        written.chained("save_as_pickle_file", list)

    def pipe(self, command: str, env: Any = None, check_code: bool = False) -> Items:
        """The lines that a command writes, which reads the items of a partition as lines.

        Args:
            command: run by each task, without a shell, where the partition is.
            env: variables of its environment besides the executor's.
            check_code: whether an exit status other than 0 is an error.
        """
        return self.map_partitions(algebra.Piped(command, dict(env or {}), check_code))

    # Partitions

    @property
    def num_partitions(self) -> int:
        """The number of partitions."""
        return sum(part.source.count for part in self._parts)

    def get_num_partitions(self) -> int:
        """The number of partitions."""
        return self.num_partitions

    def persist(self, *_: Any) -> Items:
        """The same items, computed once, when they are first needed, and kept from then on."""
        return self.exchanged("persist", self.num_partitions, None)

    cache = persist
    checkpoint = persist
    local_checkpoint = persist

    def unpersist(self, *_: Any) -> Items:
        """The same; what `persist` keeps is freed when nobody refers to it any more."""
        return self

    # For the algebra

    def then(self, transformation: Transformation) -> Items:
        """The same with one more transformation of each partition."""
        parts = [_Part(p.source, (*p.transformations, transformation)) for p in self._parts]
        return Items(self._context, tuple(parts))

    def exchanged(self, label: str, count: int, bucket: Bucket | None) -> Items:
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
                return Partitions(pool, tuple([dump(algebra.Pieces(each), put) for each in pieces]))

        return Items(self._context, (_Part(Source(count, make)),))

    def actions(self, label: str, action: Action) -> Iterator[Any]:
        """The result of an action for each partition."""
        context = self._context
        pool = context.pool
        for part in self._parts:
            values = part.source.partitions().values
            plan = MapPlan(
                function=pool.functions.pickled(
                    EachOf(_Pipeline(part.transformations, action)), f"the function of {label}"
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


def _reduce(fn: Callable[[Any, Any], Any], items: Iterator[Any]) -> list[Any]:
    """One value, or none for an empty partition, which must not be an error."""
    return [functools.reduce(fn, items, first) for first in itertools.islice(items, 1)]


def parallelize(context: Context, items: Iterable[Any], count: int) -> Items:
    """Items in at most `count` partitions of about equal size.

    Raises:
        OptionError: an item can't be pickled.
    """
    found = list(items)
    count = max(1, min(count, len(found)))
    ends = [len(found) * (i + 1) // count for i in range(count)]
    parts = [found[first:end] for first, end in zip([0, *ends[:-1]], ends, strict=True)]
    made = stored(context, parts)
    return Items(context, (_Part(Source(count, lambda: made)),))


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


def lazily(context: Context, count: int, make: Callable[[], Sequence[Any]]) -> Items:
    """The items of the iterables that `make` returns, in `count` partitions, when needed."""
    return Items(context, (_Part(Source(count, lambda: stored(context, make()))),))
