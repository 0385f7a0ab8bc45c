"""The physical plan: operators, where their rows are, and the exchanges that move rows.

Every node has a *distribution*: how its rows are divided over the partitions of the stage that
computes them. An exchange stands only where a child is not distributed as its parent needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import TypeAlias

from minishark.compiler.logical.operators import (
    Aggregate,
    BaseOperator,
    Cte,
    Distinct,
    DistinctOn,
    Operator,
    column_names,
)
from minishark.model.expressions import Expression, Schema, SortKey, render, render_sort_keys


@dataclass(frozen=True, slots=True)
class Hashed:
    """Rows are in the partition of their key's hash.

    `keys` holds one entry per key of the hash function, in its order: the output columns that
    are equal to that key in every row. An entry may be empty (a key that is no output column).
    """

    keys: tuple[frozenset[int], ...]
    partitions: int

    def label(self, schema: Schema) -> str:
        names = ("=".join(schema[i].name or f"#{i}" for i in sorted(k)) or "?" for k in self.keys)
        return f"hashed by {', '.join(names)} in {self.partitions}"


@dataclass(frozen=True, slots=True)
class Ranged:
    """In the order of some sort keys, all rows of a partition come before those of the next one."""

    partitions: int

    def label(self, schema: Schema) -> str:
        return f"in ranges in {self.partitions}"


@dataclass(frozen=True, slots=True)
class Spread:
    """Rows are anywhere in a number of partitions."""

    partitions: int

    def label(self, schema: Schema) -> str:
        return f"spread over {self.partitions}"


@dataclass(frozen=True, slots=True)
class Single:
    """All rows in one partition."""

    partitions: int = 1

    def label(self, schema: Schema) -> str:
        return "single"


@dataclass(frozen=True, slots=True)
class Replicated:
    """Every task can have all rows, without an exchange."""

    partitions: int = 1

    def label(self, schema: Schema) -> str:
        return "replicated"


Distribution: TypeAlias = Hashed | Ranged | Spread | Single | Replicated


class Exchange(BaseOperator):
    """Where a plan is cut into stages: the child is stored, and read by another stage."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Shuffle(Exchange):
    """Rows go to partition `hash(keys) % partitions`."""

    keys: tuple[Expression, ...]
    partitions: int

    def label(self, inputs: Sequence[Schema]) -> str:
        names = column_names(*inputs)
        keys = ", ".join(render(key, names) for key in self.keys)
        return f"Exchange shuffle by {keys} to {self.partitions} partitions"


@dataclass(frozen=True, slots=True)
class RangeShuffle(Exchange):
    """Rows go to the partition whose range of sort keys they are in; equal keys to the same one.

    Children: the rows, and the `Boundaries` between the ranges.
    """

    keys: tuple[SortKey, ...]
    partitions: int

    def label(self, inputs: Sequence[Schema]) -> str:
        keys = render_sort_keys(self.keys, column_names(inputs[0]))
        return f"Exchange range shuffle by {keys} to {self.partitions} partitions"


@dataclass(frozen=True, slots=True)
class Broadcast(Exchange):
    """Every task of the consumer reads all rows."""

    def label(self, inputs: Sequence[Schema]) -> str:
        return "Exchange broadcast"


@dataclass(frozen=True, slots=True)
class Gather(Exchange):
    """One task reads all rows, in the order of the producer's partitions."""

    def label(self, inputs: Sequence[Schema]) -> str:
        return "Exchange gather"


@dataclass(frozen=True, slots=True)
class Materialize(Exchange):
    """Rows stay where they are, but are stored: the reader then knows how many there are."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a task reads of a shuffle's output."""

    first: int  # the first bucket
    last: int  # the one after the last bucket
    # Of the tasks that put the buckets out, the first whose rows it reads and the one after the
    # last; None for all.
    tasks: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class StageOutput(Exchange):
    """The output of a stage that has started, in the plan of what is left of a query."""

    stage: int  # its number
    # How its rows are distributed if a task reads the bucket, or the piece, of its number.
    home: Distribution
    has_buckets: bool  # whether its tasks divide their output
    estimated_rows: float  # the number of rows that it was planned with
    shares: tuple[Share, ...] = ()  # what each task reads, if that is not one bucket each

    def label(self, inputs: Sequence[Schema]) -> str:
        return f"Output of stage {self.stage}"


@dataclass(frozen=True, slots=True)
class SampleKeys(BaseOperator):
    """The sort keys of at most `rows` rows of a partition, and for how many rows each stands."""

    keys: tuple[SortKey, ...]
    rows: int

    def label(self, inputs: Sequence[Schema]) -> str:
        keys = render_sort_keys(self.keys, column_names(*inputs))
        return f"SampleKeys {keys} of {self.rows:,} rows"


@dataclass(frozen=True, slots=True)
class Boundaries(BaseOperator, order_matters=False):
    """One row: the first sort key of each range but the first, so that ranges are about equal.

    NULLs where there is no sample.
    """

    partitions: int

    def label(self, inputs: Sequence[Schema]) -> str:
        return f"Boundaries of {self.partitions} ranges"


@dataclass(frozen=True, slots=True)
class PartialAggregate(BaseOperator):
    """The first phase of `complete` on one partition; its output are groups and states."""

    complete: Aggregate

    def label(self, inputs: Sequence[Schema]) -> str:
        return f"Partial{self.complete.label(inputs)}"

    def expressions(self) -> Iterator[Expression]:
        return self.complete.expressions()

    def source(self, position: int) -> tuple[int, int] | None:
        return self.complete.source(position)


@dataclass(frozen=True, slots=True)
class FinalAggregate(BaseOperator):
    """The second phase of `complete`, over groups and states."""

    complete: Aggregate

    def label(self, inputs: Sequence[Schema]) -> str:
        groups = column_names(*inputs)[: len(self.complete.groups)]
        return f"FinalAggregate by {', '.join(groups)}" if groups else "FinalAggregate"

    def source(self, position: int) -> tuple[int, int] | None:
        is_group = position < len(self.complete.groups) and not self.complete.grouping_sets
        return (0, position) if is_group else None


PhysicalOperator: TypeAlias = (
    Operator
    | Shuffle
    | RangeShuffle
    | Broadcast
    | Gather
    | Materialize
    | StageOutput
    | PartialAggregate
    | FinalAggregate
    | SampleKeys
    | Boundaries
)

GROUPING = (Aggregate, PartialAggregate, FinalAggregate, Distinct, DistinctOn)
"""Operators that give a row for each of several: there are at most as many as values."""


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """An operator or exchange with its inputs, where its rows are, and the estimated row count."""

    operator: PhysicalOperator
    children: tuple[PhysicalPlan, ...]
    schema: Schema
    distribution: Distribution
    rows: float

    @property
    def label(self) -> str:
        operator = self.operator.label([child.schema for child in self.children])
        return f"{operator}  [{self.distribution.label(self.schema)}, ~{self.rows:,.0f} rows]"

    def with_children(self, children: tuple[PhysicalPlan, ...]) -> PhysicalPlan:
        """The node over other children; the same object if they are the same objects."""
        # Rules rely on that: a rule that finds nothing to do returns the plan that it got.
        unchanged = all(map(is_, children, self.children))
        return self if unchanged else replace(self, children=children)

    def nodes(self) -> Iterator[PhysicalPlan]:
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(node.children)

    def own_nodes(self) -> Iterator[PhysicalPlan]:
        """All nodes of the same stage, with the exchanges that it reads but nothing below them."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            if not isinstance(node.operator, Exchange):
                waiting += reversed(node.children)


def aggregate_of(operator: PhysicalOperator) -> Aggregate | None:
    """The aggregate that an operator computes, wholly or one phase of it; None for others."""
    match operator:
        case Aggregate():
            return operator
        case PartialAggregate(complete=aggregate) | FinalAggregate(complete=aggregate):
            return aggregate
        case _:
            return None


def free_cte_index(plan: PhysicalPlan) -> int:
    """A number above those of all common table expressions of a plan."""
    taken = [node.operator.index for node in plan.nodes() if isinstance(node.operator, Cte)]
    return max(taken, default=-1) + 1


def in_one_task(distribution: Distribution) -> bool:
    return isinstance(distribution, Single | Replicated)


def positions_of(sources: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Input column -> the output columns that are it; `sources` holds -1 for computed columns."""
    positions: dict[int, tuple[int, ...]] = {}
    for position, source in enumerate(sources):
        positions[source] = (*positions.get(source, ()), position)
    positions.pop(-1, None)
    return positions


def moved(distribution: Distribution, positions: Mapping[int, tuple[int, ...]]) -> Distribution:
    """`distribution` after columns moved; hashed on a column that is gone, rows are just spread."""
    if not isinstance(distribution, Hashed):
        return distribution
    keys = tuple(
        frozenset(place for column in sorted(key) for place in positions.get(column, ()))
        for key in distribution.keys
    )
    return Hashed(keys, distribution.partitions) if all(keys) else Spread(distribution.partitions)


def hashed_alike(left: Distribution, right: Distribution) -> bool:
    """Whether equal rows of two relations are in partitions with the same number."""
    if not isinstance(left, Hashed) or not isinstance(right, Hashed):
        return False
    pairs = zip(left.keys, right.keys, strict=False)
    return len(left.keys) == len(right.keys) and all(a & b for a, b in pairs)


def set_distribution(left: Distribution, right: Distribution) -> Distribution:
    """The distribution of a set operation whose inputs are side by side."""
    if isinstance(left, Replicated) and isinstance(right, Replicated):
        return Replicated()
    if isinstance(left, Single | Replicated):
        return Single()
    if isinstance(left, Hashed) and isinstance(right, Hashed) and hashed_alike(left, right):
        keys = tuple(a & b for a, b in zip(left.keys, right.keys, strict=True))
        return Hashed(keys, left.partitions)
    return Spread(left.partitions)
