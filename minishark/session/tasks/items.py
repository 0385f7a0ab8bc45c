"""Python objects over partitions: `session.parallelize(items).map(fn).reduce(fn)`.

Transformations are only recorded; an action sends them together, and each call runs them as a chain
of iterators over the items of a partition. Items are pickled once. Small partitions travel with the
calls, large ones stay in one file, which executors map.

    Items ──► Pairs, Figures   what is done with pairs, and with numbers
                   │
              Partitioned      records transformations, moves items, runs actions
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from minishark.dataframe.applied import check_callable
from minishark.dataframe.doors import doors
from minishark.dataframe.names import CamelCase
from minishark.dataframe.writer import new_folder
from minishark.errors import OptionError, UnsupportedError
from minishark.session.tasks import algebra
from minishark.session.tasks.figures import Figures
from minishark.session.tasks.pairs import Pairs
from minishark.session.tasks.partitions import Context, Part, Source, stored


@doors
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

    def glom(self) -> Items:
        """The items of each partition as a list."""
        return self.then(lambda items: [list(items)])

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

    def distinct(self, num_partitions: int | None = None) -> Items:
        """Each item once."""
        pairs = self.map(lambda item: (item, None))
        return pairs.reduce_by_key(lambda left, _: left, num_partitions).keys()

    def intersection(self, other: Items) -> Items:
        """The items that both have, each once."""
        pairs, others = self.map(lambda item: (item, None)), other.map(lambda item: (item, None))
        return pairs.cogroup(others).filter(lambda pair: all(pair[1])).keys()

    def subtract(self, other: Items, num_partitions: int | None = None) -> Items:
        """The items that the other does not have, with duplicates."""
        pairs, others = self.map(lambda item: (item, item)), other.map(lambda item: (item, None))
        return pairs.subtract_by_key(others, num_partitions).values()

    def cartesian(self, other: Items) -> Items:
        """All pairs of an item of this and one of the other, which every call gets whole."""
        others: list[list[Any]] = []

        def pairs(items: Iterator[Any]) -> Iterator[Any]:
            return itertools.product(items, others[0])

        others.append(other.collect())
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

    def repartition(self, num_partitions: int) -> Items:
        """The same items in another number of partitions of about equal size."""
        return self.exchanged("repartition", num_partitions, algebra.RoundRobin(num_partitions))

    def coalesce(self, num_partitions: int, shuffle: bool = False) -> Items:
        """The same items in at most so many partitions."""
        del shuffle
        return self if num_partitions >= self.num_partitions else self.repartition(num_partitions)

    # Actions

    def to_local_iterator(self) -> Iterator[Any]:
        """All items, one after another."""
        return itertools.chain.from_iterable(self.actions("to_local_iterator", list))

    def reduce(self, fn: Callable[[Any, Any], Any]) -> Any:
        """All items as one: `fn(fn(a, b), c)`, in their order, partition by partition.

        Raises:
            OptionError: there is no item.
        """
        check_callable("reduce", fn)
        partial_results = self.chained("reduce", partial(_reduce, fn))
        if not partial_results:
            raise OptionError("There is nothing to reduce: no item is left.")
        return functools.reduce(fn, partial_results)

    tree_reduce = reduce

    def fold(self, zero: Any, fn: Callable[[Any, Any], Any]) -> Any:
        """As `reduce`, beginning with `zero` in each partition, and once more."""
        check_callable("fold", fn)
        partial_results = self.actions("fold", algebra.Folded(zero, fn))
        return functools.reduce(fn, partial_results, algebra.fresh(zero))

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
        partial_results = self.actions("aggregate", algebra.Folded(zero, seq_op))
        return functools.reduce(comb_op, partial_results, algebra.fresh(zero))

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
        taken: list[Any] = []
        for first in self.actions("take", lambda items: list(itertools.islice(items, count))):
            taken += first
            if len(taken) >= count:
                break
        return taken[:count]

    def count_approx_distinct(self, relativeSD: float = 0.05) -> int:  # noqa: N803
        """The number of distinct items; exact, whatever `relativeSD` is."""
        del relativeSD
        return self.distinct().count()

    def take_sample(self, with_replacement: bool, num: int, seed: int | None = None) -> list[Any]:
        """`num` items at random, or all if there are fewer.

        Raises:
            UnsupportedError: `with_replacement` is true.
        """
        import random  # noqa: PLC0415 - few need it

        items = self.sample(with_replacement, 1.0).collect()
        return random.Random(seed).sample(items, min(num, len(items)))

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


def _reduce(fn: Callable[[Any, Any], Any], items: Iterator[Any]) -> list[Any]:
    """One value, or none for an empty partition, which must not be an error."""
    return [functools.reduce(fn, items, first) for first in itertools.islice(items, 1)]


def parallelize(context: Context, items: Iterable[Any], count: int) -> Items:
    """Items in at most `count` partitions of about equal size.

    Raises:
        OptionError: an item can't be pickled.
    """
    listed = list(items)
    count = max(1, min(count, len(listed)))
    ends = [len(listed) * (i + 1) // count for i in range(count)]
    parts = [listed[first:end] for first, end in zip([0, *ends[:-1]], ends, strict=True)]
    made = stored(context, parts)
    return Items(context, (Part(Source(count, lambda: made)),))


def lazily(context: Context, count: int, make: Callable[[], Sequence[Any]]) -> Items:
    """The items of the iterables that `make` returns, in `count` partitions, when needed."""
    return Items(context, (Part(Source(count, lambda: stored(context, make()))),))
