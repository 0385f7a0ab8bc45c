"""A session whose planner is made to choose one way of moving rows."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator

import pytest

from minishark.compiler.physical import join_moves
from minishark.compiler.physical.options import PlannerOptions
from minishark.session.session import Session

# What moving rows costs, to make the planner choose each way of it.
_COSTS: dict[str, dict[str, float]] = {
    "as planned": {},
    "shuffle": {"BROADCAST_COST": 1e6},
    "broadcast": {"SHUFFLE_COST": 1e9, "BROADCAST_COST": 0.0, "BUILD_COST": 0.0},
}


@contextlib.contextmanager
def rows_moved_by(session: Session, way: str) -> Iterator[Session]:
    """The session as it plans where rows are moved one way: as planned, shuffle, or broadcast."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _COSTS[way].items():
            patch.setattr(join_moves, name, value)
        options = PlannerOptions.eager(3)
        if way == "as planned":
            options = PlannerOptions(partitions=3).in_stages()
        patch.setattr(session._runtime.engine.planner, "options", options)
        patch.setattr(session._runtime.engine.planner, "plans", OrderedDict())
        yield session
