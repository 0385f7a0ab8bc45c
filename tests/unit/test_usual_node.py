"""A fragment that comes again goes to the node that has prepared it, if that is free."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs
from toy_cluster import ToyTable

from minishark.cluster.backend import Placement
from minishark.compiler.logical.operators import Scan, Statement
from minishark.compiler.logical.plan import LogicalPlan, make_plan
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.planner import plan_physical
from minishark.compiler.stages.split import split
from minishark.compiler.stages.stage import Stage
from minishark.model.catalog import Catalog
from minishark.model.expressions import Column
from minishark.query.job_builder import Environment, JobBuilder
from minishark.query.sinks import Output
from minishark.query.stage_graph import StageGraph, StageNode, Submission
from minishark.worker.protocol import OutputKind

NODES = ("n0", "n1", "n2")
PLACEMENT = Placement(policy="sparrow", probe_ratio=2.0, nodes=NODES, wait_s=30.0)
PARTITIONS = 3
LONG = "-" * 1_000
WHOLE = ToyTable("t", (("a", "INTEGER"),), (), (), PARTITIONS).catalog_table()
TABLE = replace(
    WHOLE,
    partitions=tuple(
        replace(part, locations=(node,)) for part, node in zip(WHOLE.partitions, NODES, strict=True)
    ),
)
SCAN = make_plan(Scan("t", ("a",), (Column("a", "INTEGER"),)))
IN_ONE_TASK = PlannerOptions(partitions=PARTITIONS)


def stage(plan: LogicalPlan = SCAN, options: PlannerOptions = IN_ONE_TASK) -> Stage:
    """The one stage of a plan."""
    catalog = Catalog()
    catalog.add(TABLE)
    (only,) = split(plan_physical(plan, catalog, options))
    return replace(only, sql=f"{only.sql} /*{LONG}*/")


def wishes(
    made: Stage, placement: Placement = PLACEMENT, *, is_alone: bool = True
) -> list[tuple[tuple[str, ...], float | None]]:
    """The nodes that the tasks of a stage prefer, and for how long."""
    node = StageNode(index=0, tasks=made.tasks)
    builder = JobBuilder(
        graph=StageGraph([node]),
        last=0,
        output=Output(kind=OutputKind.RESULT, columns=("a",)),
        folder="q",
        working_folder="",
        environment=Environment(),
        threads=1,
        traced=False,
        profiled=False,
        is_alone=is_alone,
    )
    submission = Submission(1, 0, tuple(range(made.tasks)))
    job, _ = builder.job(made, submission, {"t": TABLE}, placement)
    return [(task.preferred_nodes, task.wait_s) for task in job.tasks]


def test_one_task_goes_to_the_same_node_each_time() -> None:
    """Any node will do after a few milliseconds; who stores the rows is asked as before."""
    one = stage()
    ((nodes, wait_s),) = wishes(one)
    assert (1, True) == (len(nodes), wait_s is not None and wait_s < 0.1)
    assert [(nodes, wait_s)] == wishes(one)
    assert [(nodes, wait_s)] == wishes(one, replace(PLACEMENT, nodes=NODES[::-1]))


def test_fragments_are_spread_over_the_nodes() -> None:
    """Each has a node by its text, and nearly all keep theirs when another one leaves."""
    stages = [replace(stage(), sql=f"SELECT {i} /*{LONG}*/") for i in range(60)]
    before = [wishes(each)[0][0][0] for each in stages]
    assert set(NODES) == set(before)
    left = replace(PLACEMENT, nodes=NODES[:2])
    after = [wishes(each, left)[0][0][0] for each in stages]
    assert [b for b in before if b != "n2"] == [
        a for a, b in zip(after, before, strict=True) if b != "n2"
    ]


def test_what_any_node_may_run_as_well_has_no_usual_one() -> None:
    """Several tasks, statements, short ones, what is not prepared, beside others, on one node."""
    one = stage()
    anywhere = [((), 30.0)]
    assert anywhere == wishes(replace(one, sql="SELECT 1"))
    assert anywhere == wishes(one, is_alone=False)
    assert anywhere == wishes(replace(one, hints=structs.replace(one.hints, prepares=False)))
    assert anywhere == wishes(one, replace(PLACEMENT, nodes=("n0",)))
    whole = make_plan(Statement("SELECT a FROM t", ("t",), "", (Column("a", "INTEGER"),)))
    assert anywhere == wishes(stage(whole))
    several = stage(SCAN, PlannerOptions.eager(PARTITIONS))
    assert [(("n0",), 30.0), (("n1",), 30.0), (("n2",), 30.0)] == wishes(several)


@pytest.mark.parametrize("policy", ["batch", "per_task", "random"])
def test_policies_that_bind_at_once_are_not_asked_to_wait(policy: str) -> None:
    """A task would wait in the queue of its node, although others are free."""
    placement = replace(PLACEMENT, policy=policy)
    assert [((), 30.0)] == wishes(stage(), placement)
