"""Plans that are revised while they run give DuckDB's answer, whatever sizes rules are told.

Sizes only decide how rows are computed, so made-up ones must not change an answer. That a stage has
no rows is the exception: it is told as it is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_distributed_plans import COLUMNS, LARGE, ORDERED, QUERIES, toy_tables
from toy_cluster import ToyCluster, ToyTable, as_bag, rounded

from minishark.compiler.logical.plan import LogicalPlan
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.sizes import StageSize, TaskSize
from minishark.compiler.rules import RULES
from minishark.compiler.rules.collapse import CollapseOptions
from minishark.compiler.rules.join_switch import JoinSwitchOptions
from minishark.compiler.rules.rule import Phase
from minishark.compiler.rules.skew_split import SkewSplitOptions
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.stages import adapt

ADAPTIVE = [rule.name for rule in RULES if rule.phase is Phase.ADAPTIVE]

EAGER = {
    "collapse": CollapseOptions(rows_max=1_000),
    "join_switch": JoinSwitchOptions(gain_min=0.0, ratio_max=1.0),
    "skew_split": SkewSplitOptions(rows_min=1, ratio_min=0.0),
}
"""Options with which rules apply to toy tables."""

adaptive_options = st.builds(
    PlannerOptions,
    partitions=st.integers(1, 4),
    single_task_rows=st.just(0),
    # One rule alone, or all of them; collapse leaves nothing for the others to do.
    disabled=st.sampled_from(
        [frozenset(ADAPTIVE) - {name} for name in ADAPTIVE] + [frozenset(), frozenset(["collapse"])]
    ).map(lambda disabled: disabled | {"one_task", "coalesced_tasks"}),
    gather_rows=st.sampled_from([0, 50_000]),
    read_whole_rows=st.sampled_from([0, 20_000]),
    stage_cost=st.just(0.0),
    rules=st.just(EAGER),
)


def told(seed: int) -> Callable[[StageSize], StageSize]:
    """Made-up sizes: much larger, much smaller, or with a large bucket."""
    rng = random.Random(seed)

    def size(true: StageSize) -> StageSize:
        factor, extra = rng.choice([(1, 0), (1_000_000, 0), (1, 5_000_000)])
        hot = rng.randrange(64)

        def task(each: TaskSize) -> TaskSize:
            buckets = [rows * factor for rows in each.buckets]
            if buckets:
                buckets[hot % len(buckets)] += extra
                return TaskSize(sum(buckets), sum(buckets) * 16, tuple(buckets))
            return TaskSize(each.rows * factor, each.rows * factor * 16)

        return StageSize(tuple(map(task, true.tasks)))

    return size


check = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
CASES = {"tables": toy_tables(), "options": adaptive_options, "seed": st.integers(0, 2**32)}


@pytest.fixture(scope="module")
def planning() -> Iterator[PlanningDatabase]:
    """A planning database that knows the toy tables."""
    database = PlanningDatabase()
    for name, columns in COLUMNS.items():
        database.put_table(ToyTable(name, columns, ()).catalog_table())
    yield database
    database.close()


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """The oracle, which runs the fragments too."""
    with duckdb.connect(config={"threads": 1}) as connection:
        yield connection


def run(
    planning: PlanningDatabase,
    con: duckdb.DuckDBPyConnection,
    sql: str,
    tables: tuple[ToyTable, ...],
    options: PlannerOptions,
    seed: int,
) -> list[tuple[object, ...]]:
    """The rows of a query with adaptive rules."""
    logical: LogicalPlan = planning.plan(planning.bind(sql))
    cluster = ToyCluster(con, tables)
    rows, _ = cluster.run_adaptive(logical, options, told(seed), random.Random(seed))
    return rows


@check
@given(name=st.sampled_from(list(QUERIES)), **CASES)
def test_revised_answer_is_duckdbs(
    planning: PlanningDatabase,
    con: duckdb.DuckDBPyConnection,
    name: str,
    tables: tuple[ToyTable, ...],
    options: PlannerOptions,
    seed: int,
) -> None:
    """However often and for whatever reason a plan is revised, the rows are DuckDB's."""
    found = run(planning, con, QUERIES[name], tables, options, seed)
    assert as_bag(con.execute(QUERIES[name]).fetchall()) == as_bag(found)


@settings(check, max_examples=settings.default.max_examples // 3)
@given(name=st.sampled_from(list(ORDERED)), **CASES)
def test_revised_answer_keeps_its_order(
    planning: PlanningDatabase,
    con: duckdb.DuckDBPyConnection,
    name: str,
    tables: tuple[ToyTable, ...],
    options: PlannerOptions,
    seed: int,
) -> None:
    """An answer that is ordered totally comes in that order."""
    found = run(planning, con, ORDERED[name], tables, options, seed)
    expected = con.execute(ORDERED[name]).fetchall()
    assert list(map(rounded, expected)) == list(map(rounded, found))


TABLES = tuple(
    ToyTable(
        name,
        columns,
        tuple(
            tuple(None if type_ != "INTEGER" else i % 4 for _, type_ in columns) for i in range(9)
        ),
        partitions=3,
        believed_rows=LARGE,
    )
    for name, columns in COLUMNS.items()
)
TURNS = {
    "empty_inputs": "SELECT t.a, u.c FROM t JOIN u ON t.b = u.c WHERE t.a + t.b > 99",
    "join_switch": "SELECT t.a, u.c FROM t JOIN u ON t.b = u.c WHERE u.a % 2 = 1",
    "collapse": "SELECT a, median(b) FROM t GROUP BY a",
    "skew_split": "SELECT t.b, count(*), sum(u.a * t.a) FROM t JOIN u ON t.b = u.c GROUP BY t.b",
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("rule", ADAPTIVE)
def test_every_rule_has_its_turn(
    rule: str, planning: PlanningDatabase, con: duckdb.DuckDBPyConnection
) -> None:
    """Else the tests above would say nothing about it."""
    options = PlannerOptions(
        partitions=4,
        stage_cost=0.0,
        rules=EAGER,
        disabled=frozenset(ADAPTIVE) - {rule} | {"one_task", "coalesced_tasks"},
    ).in_stages()
    used: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        if rule == "skew_split":
            patch.setattr("minishark.compiler.physical.join_moves.SHUFFLE_COST", 1e-3)
        for seed in range(8):
            cluster = ToyCluster(con, TABLES)
            logical = planning.plan(planning.bind(TURNS[rule]))
            rows, rules = cluster.run_adaptive(logical, options, told(seed), random.Random(seed))
            assert as_bag(con.execute(TURNS[rule]).fetchall()) == as_bag(rows)
            used.update(rules)
    assert {rule} == used


def test_no_fragment_is_written_for_a_plan_that_stays(
    planning: PlanningDatabase, con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task in one stage is all that can be left of a sum, whatever the sizes."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("stages were made in vain")

    monkeypatch.setattr(adapt, "split", never)
    table = ToyTable(
        "t", COLUMNS["t"], ((1, 2, "a", 0.5, None),) * 8, partition_by=("a",), partitions=4
    )
    options = PlannerOptions(
        partitions=4,
        single_task_rows=0,
        gather_rows=0,
        read_whole_rows=0,
        stage_cost=0.0,
        disabled=frozenset({"one_task"}),
    )
    logical = planning.plan(planning.bind("SELECT count(*) AS n FROM t"))
    rows, used = ToyCluster(con, (table,)).run_adaptive(
        logical, options, lambda true: true, random.Random(0)
    )
    assert [(8,)] == list(map(tuple, rows))
    assert [] == used
