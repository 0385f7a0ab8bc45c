"""Mutations of recovery and replication that the simulator has to find.

Each is a bug that somebody could write. `plant` puts it into production code until the test ends.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import pytest

from minishark.bench.simulation.attached import SimulatedAttached
from minishark.bench.simulation.executor import SimulatedSlot, _Task
from minishark.catalog import Catalog, Table
from minishark.query import stage_graph
from minishark.query.stage_graph import StageGraph, TaskOutput
from minishark.query.stage_jobs import StageJobs
from minishark.tables import rebalancing, replication
from minishark.tables.deltas import DeltaWriter
from minishark.tables.rebalancing import Copy, Farewells
from minishark.tables.replication import Replicator
from minishark.tables.tables import Tables
from sparrow_core.machines.client import Client
from sparrow_core.machines.scheduler import Scheduler

Plant = Callable[[pytest.MonkeyPatch], None]


def lost_outputs_stay(patch: pytest.MonkeyPatch) -> None:
    """A stage's lost output isn't recomputed."""
    patch.setattr(StageGraph, "lost", lambda self, files: ())


def readers_of_varying_stages_stay(patch: pytest.MonkeyPatch) -> None:
    """What has read rows that will differ when they are recomputed is kept."""
    patch.setattr(StageGraph, "_retract", lambda self, missing, cancelled: False)


def replicas_count_before_they_are_written(patch: pytest.MonkeyPatch) -> None:
    """A replica is published whether or not its copy succeeded, and the original given up."""
    original = SimulatedAttached.copy_file

    def copied(self: SimulatedAttached, file: str, source: str, target: str) -> bool:
        original(self, file, source, target)
        return True

    patch.setattr(SimulatedAttached, "copy_file", copied)


def writes_to_a_stale_version_pass(patch: pytest.MonkeyPatch) -> None:
    """A change of a version that is not current any more is published: a write is lost."""
    patch.setattr(Tables, "_current", lambda self, old: self.catalog.find(old.name) or old)


def outcomes_count_twice(patch: pytest.MonkeyPatch) -> None:
    """An outcome that the network delivers twice ends another task."""
    original = Client._on_results  # noqa: SLF001

    def twice(self: Client, msg: Any, now: float) -> Any:
        return [*original(self, msg, now), *original(self, msg, now)]

    patch.setattr(Client, "_on_results", twice)


def drained_nodes_leave_at_once(patch: pytest.MonkeyPatch) -> None:
    """A drained node's partitions are dropped before they have moved."""
    patch.setattr(
        Farewells, "released", lambda self, draining, nodes, tables, open_folders: tuple(draining)
    )


def moved_replicas_go_at_once(patch: pytest.MonkeyPatch) -> None:
    """Files of former versions are deleted while queries read them, and nobody plans again."""
    patch.setattr(Farewells, "superfluous", lambda self, open_folders: self._all())


def restarted_nodes_are_believed(patch: pytest.MonkeyPatch) -> None:
    """A node that came back empty counts as a holder of what it had."""
    patch.setattr(Replicator, "_forget_restarted", lambda self: None)


def deleted_rows_come_back(patch: pytest.MonkeyPatch) -> None:
    """A restored partition forgets which of its rows were deleted."""
