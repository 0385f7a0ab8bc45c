"""The physical plan: operators, where their rows lie, and the exchanges that move rows.

Every node has a *distribution*, the way in which its rows are spread over the partitions of the
stage that computes them. An exchange stands only where a child does not lie as its parent needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from minishark.compiler.logical.operators import Aggregate, Operator
from minishark.expressions import Expression, Schema, SortKey


@dataclass(frozen=True, slots=True)
class Hashed:
    """A row lies in the partition that the hash of its key gives.

    `keys` holds one entry per key of the hash function, in its order: the output columns that
    are equal to that key in every row. An entry may be empty (a key that is no output column).
    """

    keys: tuple[frozenset[int], ...]
    partitions: int


@dataclass(frozen=True, slots=True)
class Ranged:
    """In the order of some sort keys, all rows of a partition come before those of the next one."""

    partitions: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Rows lie anywhere in a number of partitions."""

    partitions: int


@dataclass(frozen=True, slots=True)
class Single:
    """All rows in one partition."""

    partitions: int = 1


@dataclass(frozen=True, slots=True)
class Replicated:
    """Every task can have all rows, without an exchange."""

    partitions: int = 1


Distribution: TypeAlias = Hashed | Ranged | Spread | Single | Replicated


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Rows go to partition `hash(keys) % partitions`."""

    keys: tuple[Expression, ...]
    partitions: int


@dataclass(frozen=True, slots=True)
class RangeShuffle:
    """Rows go to the partition whose range of sort keys they are in; equal keys to the same one.

    Children: the rows, and the `Boundaries` between the ranges.
    """

    keys: tuple[SortKey, ...]
    partitions: int


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Every task of the consumer reads all rows."""


@dataclass(frozen=True, slots=True)
class Gather:
    """One task reads all rows, in the order of the producer's partitions."""


@dataclass(frozen=True, slots=True)
class Materialize:
    """Rows stay where they lie, but are stored: who reads them knows how many there are."""


Exchange: TypeAlias = Shuffle | RangeShuffle | Broadcast | Gather | Materialize
"""Where a plan is cut into stages."""


@dataclass(frozen=True, slots=True)
class SampleKeys:
    """The sort keys of at most `rows` rows of a partition, and for how many rows each stands."""

    keys: tuple[SortKey, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Boundaries:
    """One row: the first sort key of each range but the first, so that ranges are about equal.

    NULLs where there is no sample.
    """

    partitions: int


@dataclass(frozen=True, slots=True)
class PartialAggregate:
    """The first phase of `complete` on one partition; its output are groups and states."""

    complete: Aggregate


@dataclass(frozen=True, slots=True)
class FinalAggregate:
    """The second phase of `complete`, over groups and states."""

    complete: Aggregate


PhysicalOperator: TypeAlias = (
    Operator | Exchange | PartialAggregate | FinalAggregate | SampleKeys | Boundaries
)


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """An operator or exchange with its inputs, where its rows lie, and about how many there are."""

    operator: PhysicalOperator
    children: tuple[PhysicalPlan, ...]
    schema: Schema
    distribution: Distribution
    rows: float
