"""The ladder of fallbacks: which rung cures what, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from minishark.cluster.backend import FragmentRejectedError
from minishark.errors import DataError, PartitionsLostError, TaskFailedError
from minishark.query.ladder import RESTORES_MAX, climb
from minishark.query.planner import TablesPromisedError


@dataclass
class Script:
    """A query whose plans and runs fail as scripted; it notes what the ladder does.

    Attributes:
        planning: errors of the first plans, in order; None plans.
        running: errors of the first runs; None runs.
        stale: which plans are no longer current when they have run, counted from 0.
    """

    planning: list[Exception | None] = field(default_factory=list)
    running: list[Exception | None] = field(default_factory=list)
    stale: frozenset[int] = frozenset()
    story: list[str] = field(default_factory=list)
    plans: int = -1

    def plan(self, *, whole: bool) -> int:
        """Number the plans."""
        error = self.planning.pop(0) if self.planning else None
        if error is not None:
            raise error
        self.plans += 1
        self.story.append("plan whole" if whole else "plan")
        return self.plans

    def compute(self, tables: Sequence[str]) -> None:
        """Note the tables."""
        self.story.append(f"compute {' '.join(tables)}")

    def execute(self, plan: int, warnings: tuple[str, ...]) -> str:
        """Fail as scripted."""
        error = self.running.pop(0) if self.running else None
        if error is not None:
            raise error
        return f"rows of plan {plan}, {len(warnings)} warnings"

    def is_current(self, plan: int) -> bool:
        """As scripted."""
        return plan not in self.stale

    def restore(self, lost: PartitionsLostError) -> None:
        """Note the table."""
        self.story.append(f"restore {lost.table}")

    def run_in_front_end(self, rejected: FragmentRejectedError) -> str:
        """Note the reason."""
        return f"front end: {rejected}"


def test_a_query_without_trouble_climbs_nothing() -> None:
    """One plan, one run."""
    script = Script()
    assert "rows of plan 0, 0 warnings" == climb(script)
    assert ["plan"] == script.story


def test_promised_tables_are_computed_first() -> None:
    """Then the query is planned again, as their statistics are known now."""
    script = Script(planning=[TablesPromisedError(("a", "b")), TablesPromisedError(("c",))])
    assert "rows of plan 0, 0 warnings" == climb(script)
    assert ["compute a b", "compute c", "plan"] == script.story


def test_a_rejected_fragment_runs_as_a_whole_statement() -> None:
    """With a warning that says so."""
    script = Script(running=[FragmentRejectedError("no such function")])
    assert "rows of plan 1, 1 warnings" == climb(script)
    assert ["plan", "plan whole"] == script.story


def test_a_rejected_statement_runs_in_the_front_end() -> None:
    """It is the last rung."""
    script = Script(running=[FragmentRejectedError("fragment"), FragmentRejectedError("whole")])
    assert "front end: whole" == climb(script)


def test_replaced_tables_are_read_by_a_new_plan_once() -> None:
    """A run fails when the files of its tables are gone; the second time it is another reason."""
    script = Script(running=[TaskFailedError("gone")], stale=frozenset({0}))
    assert "rows of plan 1, 0 warnings" == climb(script)
    script = Script(running=[TaskFailedError("gone")] * 2, stale=frozenset({0, 1}))
    with pytest.raises(TaskFailedError, match="gone"):
        climb(script)
    assert ["plan", "plan"] == script.story


def test_a_fragment_rejected_for_changed_files_is_planned_again() -> None:
    """Its columns are others now; that is no reason to run the statement in one task."""
    script = Script(running=[FragmentRejectedError("no column b")], stale=frozenset({0}))
    assert "rows of plan 1, 0 warnings" == climb(script)
    assert ["plan", "plan"] == script.story


def test_an_error_of_a_current_plan_is_the_users() -> None:
    """Nothing is tried again."""
    script = Script(running=[TaskFailedError("division by zero")])
    with pytest.raises(TaskFailedError, match="division by zero"):
        climb(script)
    assert ["plan"] == script.story


def test_sources_that_change_while_they_are_read_are_read_again_once() -> None:
    """Tasks notice files that were replaced."""
    script = Script(running=[DataError("a.csv was replaced")], stale=frozenset({0}))
    assert "rows of plan 1, 0 warnings" == climb(script)
    script = Script(running=[DataError("a.csv was replaced")] * 2, stale=frozenset({0, 1}))
    with pytest.raises(DataError, match="was replaced"):
        climb(script)


def test_a_table_and_a_source_may_change_in_one_query() -> None:
    errors = [TaskFailedError("gone"), DataError("a.csv was replaced")]
    script = Script(running=errors, stale=frozenset({0, 1}))
    assert "rows of plan 2, 0 warnings" == climb(script)


def test_tables_that_change_while_they_are_read_are_no_matter() -> None:
    """A plan reads one load of a table, or one version of a source, in full, or fails."""
    assert "rows of plan 0, 0 warnings" == climb(Script(stale=frozenset({0})))


def test_all_tables_of_a_query_may_be_lost_at_once() -> None:
    """Each run finds one more; all of them are restored."""
    script = Script(running=[PartitionsLostError(name, (0,)) for name in "abcdefgh"])
    climb(script)
    assert [f"restore {name}" for name in "abcdefgh"] == script.story[1::2]


def test_a_table_that_is_replaced_again_is_not_restored() -> None:
    """The files of its former loads are gone, as they should be: the next plan says what is now."""
    lost = PartitionsLostError("t", (0,))
    script = Script(running=[lost, lost], stale=frozenset({0, 1}))
    assert "rows of plan 2, 0 warnings" == climb(script)
    script = Script(running=[lost] * 10, stale=frozenset(range(10)))
    with pytest.raises(PartitionsLostError):
        climb(script)
    assert ["plan"] * 2 * (1 + RESTORES_MAX) == script.story


def test_a_table_that_is_lost_again_and_again_is_given_up() -> None:
    """Its nodes keep dying."""
    script = Script(running=[PartitionsLostError("t", (0,)) for _ in range(10)])
    with pytest.raises(PartitionsLostError):
        climb(script)
    assert ["restore t"] * RESTORES_MAX == script.story[1::2]
