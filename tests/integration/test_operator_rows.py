"""Rows of operators, as EXPLAIN ANALYZE tells them, are those that the operators have alone.

For each operator whose rows are said to be known, the part of the plan below it runs as a query of
its own, and its rows are counted.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest
from corpus import CORPUS
from moving import rows_moved_by

import minishark
from minishark.cli.tpch.queries import QUERY_COUNT, load_queries
from minishark.cli.tpch.tables import TABLES
from minishark.compiler.logical.operators import Cte, Statement
from minishark.compiler.physical.plan import Exchange, PhysicalPlan
from minishark.compiler.stages.split import split
from minishark.model.events.figures import OperatorFigures
from minishark.query.operators import own_operators
from minishark.query.planner import QueryPlan, QueryPlanner
from minishark.query.sinks import CollectRows, Output
from minishark.session.session import Session

_STATEMENTS = list(itertools.chain.from_iterable(CORPUS.values()))
_PARTS = 8
_TPCH = load_queries(range(1, QUERY_COUNT + 1))

# Rules that change the plan while it runs, or the number of tasks, which partial groups depend on.
_CHANGING = ("empty_inputs", "join_switch", "collapse", "skew_split", "coalesced_tasks")


class _CountRows(CollectRows):
    """Takes rows of any columns."""

    def output(self, plan: PhysicalPlan, columns: tuple[str, ...]) -> Output:
        return super().output(plan, tuple(f"c{i}" for i in range(len(plan.schema))))


@contextmanager
def planned(session: Session, way: str) -> Iterator[None]:
    """Move rows one way, without rules that would change the plan."""
    with rows_moved_by(session, way):
        planner = session._runtime.engine.planner
        planner.options = planner.options.without(*_CHANGING)
        yield


@pytest.fixture(params=["shuffle", "as planned"])
def way(request: pytest.FixtureRequest) -> str:
    """How rows are moved."""
    found: str = request.param
    return found


def parts(
    plan: PhysicalPlan, ctes: tuple[PhysicalPlan, ...] = ()
) -> Iterator[tuple[int, PhysicalPlan]]:
    """Every node by its identity, as a plan of its own with the expressions that it reads."""
    own = plan
    for cte in reversed(ctes):
        children = (cte.children[0], own)
        own = PhysicalPlan(cte.operator, children, own.schema, own.distribution, own.rows)
    yield id(plan), own
    for i, child in enumerate(plan.children):
        defined = (plan,) if isinstance(plan.operator, Cte) and i == 1 else ()
        yield from parts(child, ctes + defined)


def count(
    session: Session, plan: QueryPlan, part: PhysicalPlan, monkeypatch: pytest.MonkeyPatch
) -> int:
    """The rows of a part of a plan."""
    stages = split(part, plan.options.disabled)
    part_plan = replace(plan, physical=part, stages=stages)
    runtime = session._runtime
    with monkeypatch.context() as patch:
        patch.setattr(QueryPlanner, "plan", lambda *_, **__: part_plan)
        rows: pa.Table = runtime.engine.run("SELECT 1", _CountRows(), runtime.scope)[0]
    return rows.num_rows


def divergences(
    session: Session, sql: str, monkeypatch: pytest.MonkeyPatch, seen: Counter[str]
) -> list[str]:
    """Operators with other rows than they have alone; counts how many are known."""
    planner, engine = session._runtime.planner, session._runtime.engine
    _, metrics = engine.run(sql, CollectRows(), session._runtime.scope, explained=True)
    if metrics.warnings:  # it ran as a whole statement
        return []
    plan = planner.plan(sql, CollectRows(), on_hosts=engine.on_hosts)
    alone = dict(parts(plan.physical))
    stages = {stage.index: stage for stage in plan.stages}
    wrong = []
    for figures in metrics.by_stage:
        if stages[figures.index].enough_rows is not None:
            continue  # how many of its tasks run depends on how fast they are
        nodes = own_operators(stages[figures.index])
        for (node, _), found in zip(nodes, figures.operators, strict=True):
            if isinstance(node.operator, Exchange | Statement):
                continue
            seen["all"] += 1
            seen["timed"] += found.run_s is not None
            if found.rows is None:
                continue
            seen["known"] += 1
            rows = count(session, plan, alone[id(node)], monkeypatch)
            if not _agrees(found, rows):
                wrong.append(f"{found.rows} instead of {rows}: {found.label}; {sql}")
    return wrong


def _agrees(found: OperatorFigures, rows: int) -> bool:
    assert found.rows is not None
    return found.rows <= rows if found.ended_early else found.rows == rows


def _checked(
    session: Session, statements: list[str], way: str, monkeypatch: pytest.MonkeyPatch
) -> Counter[str]:
    seen: Counter[str] = Counter()
    with planned(session, way):
        for sql in statements:
            assert [] == divergences(session, sql, monkeypatch, seen)
    return seen


@pytest.mark.sample(2)
def test_known_rows_are_right(
    toy_session: Session, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For some statements of the corpus, and most rows are known."""
    seen = _checked(toy_session, _STATEMENTS[7::140], way, monkeypatch)
    assert seen["known"] > 0.8 * seen["all"] > 12
    assert seen["timed"] > 0.5 * seen["all"]


@pytest.mark.slow
def test_rows_are_known_where_text_is_grouped_by_its_codes() -> None:
    """DuckDB joins the groups with the dictionary, for which the plan has no operator."""
    with minishark.connect(in_process=True) as session:
        session.sql("CREATE TABLE o AS SELECT i AS k, 'p' || i % 5 AS p FROM range(120000) r(i)")
        session.sql("CREATE TABLE l AS SELECT i AS k, 'm' || i % 7 AS m FROM range(240000) r(i)")
        sql = "SELECT p, m, count(*) FROM o JOIN l USING (k) WHERE m <> 'm1' GROUP BY ALL"
        (stage,) = session.sql(sql).profile().metrics.by_stage
    assert any("p#code" in each.label for each in stage.operators)
    known = {each.label.split()[0]: each.rows for each in stage.operators}
    groups, joined = 5 * 6, 120_000 - len(range(1, 120_000, 7))
    assert (groups, joined) == (known["Aggregate"], known["Join"])
    assert [] == [each.label for each in stage.operators if each.rows is None]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
def test_known_rows_are_right_in_the_whole_corpus(
    toy_session: Session, way: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every statement of it."""
    seen = _checked(toy_session, _STATEMENTS[part::_PARTS], way, monkeypatch)
    assert seen["known"] > 0.8 * seen["all"]


@pytest.mark.slow
def test_known_rows_are_right_in_tpch(
    tpch_files: dict[str, str], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All queries of the benchmark, with semi-join filters and runs of groups among the rules."""
    with minishark.connect(in_process=True, nodes=2, partitions=3) as session:
        for name, key in TABLES.items():
            partitions = 3 if key else None
            session.create_table(name, tpch_files[name], partition_by=key, partitions=partitions)
        seen = _checked(session, list(_TPCH.values()), way, monkeypatch)
    assert seen["known"] > 0.85 * seen["all"]
