"""The ladder of fallbacks: what happens when a query can't run as it was planned.

    promised tables      compute them, then plan again
    tables replaced      plan again, once
    partitions lost      restore their table, then plan again; a few times for each table
    fragment rejected    run the whole statement in one task
    statement rejected   run it in the front end

Each rung costs speed, never an answer. The climb is one loop over a small interface, so that it
can be read, and tested, without a cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeVar

from minishark.cluster.backend import FragmentRejectedError
from minishark.errors import DataError, ExecutionError, PartitionsLostError
from minishark.query.planner import TablesPromisedError

RESTORES_MAX = 3  # how often one query restores the same table, whose nodes may keep dying

Plan = TypeVar("Plan")
Result_co = TypeVar("Result_co", covariant=True)


class Rungs(Protocol[Plan, Result_co]):
    """One query, as the ladder needs it."""

    def plan(self, *, whole: bool) -> Plan:
        """Plan the query; `whole` runs the statement as it is written, in one task."""

    def compute(self, tables: Sequence[str]) -> None:
        """Compute promised tables."""

    def execute(self, plan: Plan, warnings: tuple[str, ...]) -> Result_co:
        """Run a plan; the warnings become part of the query's metrics."""

    def is_current(self, plan: Plan) -> bool:
        """Whether what the plan reads is still what it was made for."""

    def restore(self, lost: PartitionsLostError) -> None:
        """Restore a table whose partitions are lost, or raise `lost`."""

    def run_in_front_end(self, rejected: FragmentRejectedError) -> Result_co:
        """Run a statement that no executor accepts."""


def climb(rungs: Rungs[Plan, Result_co]) -> Result_co:
    """Run a query to its end (an error if no rung is left, or none cures the failure)."""
    rejected: FragmentRejectedError | None = None
    restored, planned_again = Counter[str](), set[bool]()
    while True:
        try:
            plan = rungs.plan(whole=rejected is not None)
        except TablesPromisedError as promised:
            rungs.compute(promised.names)
            continue
        try:
            note = f"Ran in a single task, as DuckDB did not accept a fragment: {rejected}"
            return rungs.execute(plan, (note,) if rejected is not None else ())
        except (FragmentRejectedError, ExecutionError, DataError) as error:
            of_source = isinstance(error, DataError)
            if of_source not in planned_again and not rungs.is_current(plan):
                # Its tables were replaced while it ran, and the old files are gone; or a source
                # has another version by now. Once for each: both may happen to one query.
                planned_again.add(of_source)
                rejected = None
                continue
            if isinstance(error, FragmentRejectedError):
                if rejected is not None:
                    return rungs.run_in_front_end(error)
                rejected = error
                continue
            if not isinstance(error, PartitionsLostError):
                raise
            # Each run may find another of its tables lost, so the bound is on each of them.
            restored[error.table] += 1
            if restored[error.table] > RESTORES_MAX:
                raise
            if rungs.is_current(plan):  # else it was replaced once more, or dropped
                rungs.restore(error)
            planned_again.clear()  # restoring took time in which other tables may be replaced
