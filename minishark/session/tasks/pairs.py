"""Items that are pairs of a key and a value: the algebra that brings equal keys together."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from minishark.dataframe.applied import check_callable
from minishark.dataframe.doors import doors
from minishark.errors import UnsupportedError
from minishark.session.tasks import algebra
from minishark.session.tasks.partitions import Partitioned


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class _Tagged:
    """The value of a pair with the number of its side."""

    place: int

    def __call__(self, pair: Any) -> Any:
        return pair[0], (self.place, pair[1])


@doors
class Pairs(Partitioned):
    """The methods of items that are pairs."""

    # A pair at a time

    def keys(self) -> Self:
        """The first of each pair."""
        return self.map(lambda pair: pair[0])

    def values(self) -> Self:
        """The second of each pair."""
        return self.map(lambda pair: pair[1])

    def map_values(self, fn: Callable[[Any], Any]) -> Self:
        """`(key, fn(value))` for each pair."""
        check_callable("map_values", fn)
        return self.map(lambda pair: (pair[0], fn(pair[1])))

    def flat_map_values(self, fn: Callable[[Any], Iterable[Any]]) -> Self:
        """`(key, element)` for each element of `fn(value)`."""
        check_callable("flat_map_values", fn)
        return self.flat_map(lambda pair: ((pair[0], value) for value in fn(pair[1])))

    def sample_by_key(
        self, with_replacement: bool, fractions: Mapping[Any, float], seed: int | None = None
    ) -> Self:
        """Each pair with the probability of its key; a seed repeats the choice.

        Raises:
            UnsupportedError: `with_replacement` is true.
        """
        if with_replacement:
            raise UnsupportedError("minishark does not sample with replacement.")
        chosen = algebra.SampledByKey(dict(fractions), seed)
        return self.map_partitions_with_index(chosen)

    # By key

    def combine_by_key(
        self,
        create_combiner: Callable[[Any], Any],
        merge_value: Callable[[Any, Any], Any],
        merge_combiners: Callable[[Any, Any], Any],
        num_partitions: int | None = None,
    ) -> Self:
        """One pair for each key; values are combined in their partitions first.

        Args:
            create_combiner: makes a combiner of a key's first value.
            merge_value: merges a combiner and a further value.
            merge_combiners: merges two combiners.
            num_partitions: how many result; None for as many as there are.

        Examples:
            >>> pairs = session.parallelize([("a", 1), ("b", 2), ("a", 3)], 2)
            >>> def more(values, value):
            ...     return [*values, value]
            >>> lists = pairs.combine_by_key(lambda v: [v], more, lambda a, b: a + b)
            >>> sorted(lists.collect())
            [('a', [1, 3]), ('b', [2])]
        """
        count = num_partitions or self.num_partitions

        def combine(pairs: Iterator[Any]) -> Iterable[Any]:
            by_key: dict[Any, Any] = {}
            for key, value in pairs:
                seen = key in by_key
                by_key[key] = merge_value(by_key[key], value) if seen else create_combiner(value)
            return by_key.items()

        def merge(pairs: Iterator[Any]) -> Iterable[Any]:
            by_key: dict[Any, Any] = {}
            for key, value in pairs:
                by_key[key] = merge_combiners(by_key[key], value) if key in by_key else value
            return by_key.items()

        combined = self.then(combine)
        return combined.exchanged("combine_by_key", count, algebra.ByKey(count)).then(merge)

    def reduce_by_key(
        self, fn: Callable[[Any, Any], Any], num_partitions: int | None = None
    ) -> Self:
        """One pair for each key: its values reduced by `fn(a, b)`, in their partitions first."""
        check_callable("reduce_by_key", fn)
        return self.combine_by_key(_same, fn, fn, num_partitions)

    def fold_by_key(
        self, zero: Any, fn: Callable[[Any, Any], Any], num_partitions: int | None = None
    ) -> Self:
        """As `reduce_by_key`, beginning with `zero` in each partition."""
        check_callable("fold_by_key", fn)
        return self.aggregate_by_key(zero, fn, fn, num_partitions)

    def aggregate_by_key(
        self,
        zero: Any,
        seq_fn: Callable[[Any, Any], Any],
        comb_fn: Callable[[Any, Any], Any],
        num_partitions: int | None = None,
    ) -> Self:
        """One pair for each key: values into accumulators by `seq_fn`, these into one by `comb_fn`.

        An accumulator begins as a copy of `zero`.
        """
        return self.combine_by_key(
            lambda value: seq_fn(algebra.fresh(zero), value), seq_fn, comb_fn, num_partitions
        )

    def group_by_key(self, num_partitions: int | None = None) -> Self:
        """`(key, list of its values)` for each key."""
        count = num_partitions or self.num_partitions

        def group(pairs: Iterator[Any]) -> Iterable[Any]:
            by_key: dict[Any, list[Any]] = {}
            for key, value in pairs:
                by_key.setdefault(key, []).append(value)
            return by_key.items()

        moved = self.exchanged("group_by_key", count, algebra.ByKey(count))
        return moved.then(group)

    def group_by(self, fn: Callable[[Any], Any], num_partitions: int | None = None) -> Self:
        """`(key, list of items)` for each value of `fn(item)`."""
        return self.key_by(fn).group_by_key(num_partitions)

    def partition_by(
        self, num_partitions: int, partition_func: Callable[[Any], int] | None = None
    ) -> Self:
        """Pairs of equal keys in one partition: the one that `partition_func(key)` says."""
        bucket: Callable[[Any], int] = algebra.ByKey(num_partitions)
        if partition_func is not None:
            bucket = algebra.ByFunction(num_partitions, partition_func)
        return self.exchanged("partition_by", num_partitions, bucket)

    def sort_by_key(
        self,
        ascending: bool = True,
        num_partitions: int | None = None,
        keyfunc: Callable[[Any], Any] = _same,
    ) -> Self:
        """Pairs sorted by `keyfunc(key)`."""
        return self.sort_by(lambda pair: keyfunc(pair[0]), ascending, num_partitions)

    def repartition_and_sort_within_partitions(
        self,
        num_partitions: int | None = None,
        partition_func: Callable[[Any], int] | None = None,
        ascending: bool = True,
        keyfunc: Callable[[Any], Any] = _same,
    ) -> Self:
        """As `partition_by`; each partition is sorted by `keyfunc(key)`."""
        count = num_partitions or self.num_partitions
        moved = self.partition_by(count, partition_func)
        return moved.then(
            lambda pairs: sorted(pairs, key=lambda pair: keyfunc(pair[0]), reverse=not ascending)
        )

    # Several

    def cogroup(self, other: Self, num_partitions: int | None = None) -> Self:
        """`(key, (list of this one's values, list of the other's))` for each key of either."""
        return self.group_with(other, num_partitions=num_partitions)

    def group_with(self, *others: Self, num_partitions: int | None = None) -> Self:
        """`(key, (list of values, list of the next one's values ...))` for each key of any."""
        sides = (self, *others)
        tagged = [side.map(_Tagged(place)) for place, side in enumerate(sides)]
        whole = tagged[0]
        for side in tagged[1:]:
            whole = whole.union(side)

        count = len(sides)  # a closure over `sides` could not be sent

        def divided(values: list[Any]) -> tuple[list[Any], ...]:
            lists: tuple[list[Any], ...] = tuple([] for _ in range(count))
            for place, value in values:
                lists[place].append(value)
            return lists

        return whole.group_by_key(num_partitions or self.num_partitions).map_values(divided)

    def join(self, other: Self, num_partitions: int | None = None) -> Self:
        """`(key, (value, the other's value))` for each pair of values of a key."""
        return self._joined(other, num_partitions, left=False, right=False)

    def left_outer_join(self, other: Self, num_partitions: int | None = None) -> Self:
        """As `join`, with None where the other has no value of a key."""
        return self._joined(other, num_partitions, left=True, right=False)

    def right_outer_join(self, other: Self, num_partitions: int | None = None) -> Self:
        """As `join`, with None where this one has no value of a key."""
        return self._joined(other, num_partitions, left=False, right=True)

    def full_outer_join(self, other: Self, num_partitions: int | None = None) -> Self:
        """As `join`, with None where one side has no value of a key."""
        return self._joined(other, num_partitions, left=True, right=True)

    def _joined(self, other: Self, num_partitions: int | None, *, left: bool, right: bool) -> Self:
        def pairs(values: tuple[list[Any], list[Any]]) -> Iterable[Any]:
            mine, theirs = values
            return itertools.product(
                mine or ([None] if right else []), theirs or ([None] if left else [])
            )

        return self.cogroup(other, num_partitions).flat_map_values(pairs)

    def subtract_by_key(self, other: Self, num_partitions: int | None = None) -> Self:
        """The pairs whose keys the other does not have."""
        return self.cogroup(other, num_partitions).flat_map_values(
            lambda values: [] if values[1] else values[0]
        )

    # Actions

    def collect_as_map(self) -> dict[Any, Any]:
        """All pairs as a dictionary; of several values of a key, the last."""
        return dict(self.collect())

    def lookup(self, key: Any) -> list[Any]:
        """The values of a key."""
        return self.filter(lambda pair: pair[0] == key).values().collect()

    def count_by_key(self) -> dict[Any, int]:
        """How many pairs each key has."""
        return self.keys().count_by_value()

    def reduce_by_key_locally(self, fn: Callable[[Any, Any], Any]) -> dict[Any, Any]:
        """`reduce_by_key` as a dictionary."""
        return self.reduce_by_key(fn).collect_as_map()

    def count_by_value(self) -> dict[Any, int]:
        """How often each item occurs."""
        counts: Counter[Any] = Counter()
        for part in self.actions("count_by_value", Counter):
            counts.update(part)
        return dict(counts)
