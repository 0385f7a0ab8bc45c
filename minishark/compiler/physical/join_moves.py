"""How the rows of a join come together: the cheapest of the possible moves. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from minishark.compiler.logical.operators import Join, JoinKind
from minishark.compiler.physical.joins import (
    KEEPS_LEFT,
    KEEPS_RIGHT,
    can_hash,
    matching_keys,
    never_null,
)
from minishark.compiler.physical.plan import Distribution, in_one_task

BROADCAST_COST = 0.5  # work per row that is broadcast; all costs are relative to `BUILD_COST`
BUILD_COST = 1.0  # work per row that is built into a hash table
SHUFFLE_COST = 2.5  # work per row that is shuffled
_FEWER = 4
"""A side this many times smaller stays smaller: DuckDB assumes that a filter keeps a fifth."""


class JoinMove(StrEnum):
    """The exchanges that let a join run partition by partition."""

    # Where costs are equal, the first in the order of these texts is chosen.
    BROADCAST_LEFT = "broadcast left"
    BROADCAST_RIGHT = "broadcast right"
    GATHER = "gather"
    SHUFFLE_BOTH = "shuffle both"
    SHUFFLE_LEFT = "shuffle left"
    SHUFFLE_RIGHT = "shuffle right"


@dataclass(frozen=True, slots=True)
class Side:
    """An input of a join: its distribution and estimated rows."""

    distribution: Distribution
    rows: float

    @property
    def in_one_task(self) -> bool:
        return in_one_task(self.distribution)


@dataclass(frozen=True, slots=True)
class JoinCosts:
    """The costs of the moves that bring the rows of a join together."""

    left: Side
    right: Side  # the right input, from which hash tables are built
    partitions: int  # how many partitions a shuffle makes
    stage_cost: float  # what one more stage costs, in rows built into a hash table
    tasks_max: float = math.inf  # the most tasks that read what is broadcast

    def cheapest(self, join: Join) -> JoinMove:
        _, move = min(self.candidates(join))
        return move

    def counting_pays(self, built: Side, probed: Side) -> bool:
        if built.in_one_task or probed.in_one_task:
            return False
        tasks = probed.distribution.partitions
        saved = (probed.rows - built.rows) / tasks * BUILD_COST
        stored = 2 * self.stage_cost + built.rows / tasks * SHUFFLE_COST
        return probed.rows > _FEWER * built.rows and saved > stored

    def candidates(self, join: Join) -> Iterator[tuple[float, JoinMove]]:
        """The moves that are possible, each with its cost."""
        return ((self.cost(move), move) for move in self._possible(join))

    def cost(self, move: JoinMove) -> float:
        left, right = self.left, self.right
        built = right.rows * BUILD_COST
        match move:
            case JoinMove.GATHER:
                return self._gather()
            case JoinMove.BROADCAST_RIGHT:
                return self._broadcast(right, left)
            case JoinMove.BROADCAST_LEFT:
                return self._broadcast(left, right)
            case JoinMove.SHUFFLE_BOTH:
                return self._shuffle(left) + self._shuffle(right) + built
            case JoinMove.SHUFFLE_RIGHT:
                return self._shuffle(right) + built
            case JoinMove.SHUFFLE_LEFT:
                return self._shuffle(left) + built

    def _possible(self, join: Join) -> Iterator[JoinMove]:
        yield JoinMove.GATHER
        if join.kind in KEEPS_LEFT and not self.left.in_one_task:
            yield JoinMove.BROADCAST_RIGHT
        if join.kind in KEEPS_RIGHT and not self.right.in_one_task:
            yield JoinMove.BROADCAST_LEFT
        keys = tuple(c for c in join.conditions if can_hash(c))
        # A mark that may be NULL depends on all right rows, not only on those with equal keys.
        if not keys or (join.kind is JoinKind.MARK and not never_null(join)):
            return
        yield JoinMove.SHUFFLE_BOTH
        if matching_keys(self.left.distribution, [c.left for c in keys]) is not None:
            yield JoinMove.SHUFFLE_RIGHT
        if matching_keys(self.right.distribution, [c.right for c in keys]) is not None:
            yield JoinMove.SHUFFLE_LEFT

    def _gather(self) -> float:
        """One core does all the work, so it counts as often as there are partitions."""
        moves = [
            self.stage_cost + side.rows * BROADCAST_COST
            for side in (self.left, self.right)
            if not side.in_one_task
        ]
        return sum(moves) + (self.left.rows + self.right.rows) * BUILD_COST * self.partitions

    def _broadcast(self, moved: Side, kept: Side) -> float:
        copies = min(kept.distribution.partitions, self.tasks_max)
        return self.stage_cost + moved.rows * (BROADCAST_COST + copies * BUILD_COST)

    def _shuffle(self, side: Side) -> float:
        return self.stage_cost + side.rows * SHUFFLE_COST
