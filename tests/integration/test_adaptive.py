"""Queries whose plans are revised while they run: the answers, what is lost, what users see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import duckdb
import pytest
from oracle import answer, divergences, frame_divergences

import minishark
from minishark.cluster.backend import JobEvent
from minishark.compiler.rules.collapse import CollapseOptions
from minishark.compiler.rules.join_switch import JoinSwitchOptions
from minishark.compiler.rules.skew_split import SkewSplitOptions
from minishark.query.run import QueryRun
from minishark.query.stage_graph import Submission
from minishark.session.session import Session
from sparrow_core import JobFinished

RULES = ("empty_inputs", "join_switch", "collapse", "skew_split")
# Rules apply to tables of a few thousand rows.
SMALL = {
    "join_switch": JoinSwitchOptions(gain_min=1_000.0),
    "collapse": CollapseOptions(rows_max=2_000),
    "skew_split": SkewSplitOptions(rows_min=1_000, ratio_min=2.0),
}
TABLES = {
    "facts": (
        "SELECT CASE WHEN i % 5 < 4 THEN 7 ELSE (i * 7919) % 30000 END AS k, i % 100 AS v, "
        "'x' || i AS tag FROM range(60000) r(i)"
    ),
    "items": (
        "SELECT i AS k, i % 10 AS w, i AS id, CASE WHEN i % 900 = 7 THEN 'rare' ELSE 'x' || i END "
        "AS tag FROM range(30000) r(i)"
    ),
}
FIRED = {
    "empty_inputs": (
        "SELECT f.tag, i.id FROM facts f JOIN items i ON f.v = i.w "
        "WHERE i.id % 7 > 10 AND f.v + 1 > 0 ORDER BY ALL"
    ),
    "join_switch": (
        "SELECT f.v, max(f.tag) AS t, count(*) AS n FROM facts f JOIN items i ON f.k = i.k "
        "WHERE NOT contains(i.tag, 'x') GROUP BY f.v ORDER BY ALL"
    ),
    "collapse": "SELECT v, count(DISTINCT tag) AS n FROM facts WHERE k = 8 GROUP BY v ORDER BY v",
    "skew_split": (
        "SELECT f.k, count(*) AS n, sum(f.v * i.w) AS s FROM facts f JOIN items i ON f.k = i.k "
        "GROUP BY f.k ORDER BY f.k"
    ),
}


KEYS = {"empty_inputs": "id", "join_switch": "v", "collapse": "v", "skew_split": "k"}
"""A column of each answer to partition it by."""


@pytest.fixture(scope="module")
def judge() -> Iterator[duckdb.DuckDBPyConnection]:
    """The tables in plain DuckDB."""
    with duckdb.connect() as connection:
        for name, sql in TABLES.items():
            connection.execute(f"CREATE TABLE {name} AS {sql}")
        yield connection


@pytest.fixture(scope="module")
def whole(judge: duckdb.DuckDBPyConnection) -> Iterator[Session]:
    """A session that distributes even the smallest query, by files."""
    with minishark.connect(
        in_process=True,
        nodes=2,
        partitions=4,
        single_task_rows=0,
        disabled_optimizations=["inline_outputs", "coalesced_tasks", "eager_aggregation"],
    ) as session:
        for name in TABLES:
            session.create_table(name, judge.table(name), partitions=16)
        yield session


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest) -> str:
    """The one adaptive rule that is on."""
    return str(request.param)


@pytest.fixture
def session(whole: Session, rule: str, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The session with one adaptive rule, and joins that are shuffled if they can be."""
    planner = whole._runtime.engine.planner
    options = planner.options.without(*(other for other in RULES if other != rule))
    options = replace(options, rules=SMALL, partitions=16 if rule == "join_switch" else 4)
    monkeypatch.setattr(planner, "options", options)
    if rule == "skew_split":
        monkeypatch.setattr("minishark.compiler.physical.join_moves.BROADCAST_COST", 1e6)
    return whole


@pytest.mark.sample(4)
def test_revised_answers_are_duckdbs(
    session: Session, judge: duckdb.DuckDBPyConnection, rule: str
) -> None:
    """The rule has its turn, says why, and EXPLAIN ANALYZE shows both plans."""
    sql = FIRED[rule]
    frame = session.sql(sql)
    assert [] == frame_divergences(frame, answer(judge, FIRED[rule]))
    (found, *_) = frame.metrics().revisions
    assert rule == found.rule
    assert found.reason[-1] != "."
    assert () == frame.metrics().plans
    text = frame.plan_text("analyze")
    assert f"  {rule}: {found.reason}" in text
    planned, ran = text.partition("Planned\n")[2].split("As it ran\n")
    assert planned != ran
    assert "Exchange" not in ran or "Output of stage" in ran


@pytest.mark.sample(4)
def test_a_rule_that_is_off_revises_nothing(
    session: Session,
    judge: duckdb.DuckDBPyConnection,
    rule: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its switch is that of all rules."""
    planner = session._runtime.engine.planner
    monkeypatch.setattr(planner, "options", planner.options.without(rule))
    frame = session.sql(FIRED[rule])
    assert [] == frame_divergences(frame, answer(judge, FIRED[rule]))
    assert () == frame.metrics().revisions


@pytest.mark.sample(4)
def test_losses_after_a_revision_change_nothing(
    session: Session,
    judge: duckdb.DuckDBPyConnection,
    rule: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outputs of each stage are gone as soon as it ends: the decision stands."""
    heard, lost = QueryRun.on_event, []

    def hooked(run: QueryRun, submission: Submission, event: JobEvent) -> None:
        heard(run, submission, event)
        if isinstance(event, JobFinished) and submission.stage not in lost and len(lost) < 3:
            lost.append(submission.stage)
            memory = session._runtime.cluster.store()._paths.memory
            for file in memory.glob(f"node-*/{run.folder}/{submission.stage}-[01]-*.arrow"):
                file.unlink()

    monkeypatch.setattr(QueryRun, "on_event", hooked)
    frame = session.sql(FIRED[rule])
    assert [] == frame_divergences(frame, answer(judge, FIRED[rule]))
    assert lost
    reasons = [each.reason for each in frame.metrics().revisions]
    assert len(reasons) == len(set(reasons)) > 0
    # Nobody reads the output of an empty stage again.
    remade = sum(stage.remade_tasks for stage in frame.metrics().by_stage)
    assert bool(remade) == (rule != "empty_inputs")


@pytest.mark.sample(4)
def test_tables_keep_the_partitions_that_they_declare(
    session: Session, judge: duckdb.DuckDBPyConnection, rule: str
) -> None:
    """However the query that computes them was revised."""
    session.create_table(
        "kept", session.sql(FIRED[rule]), partition_by=KEYS[rule], partitions=3, replace=True
    )
    table = session._runtime.tables.catalog.get("kept")
    assert (3, (KEYS[rule],)) == (len(table.partitions), table.partition_by)
    judge.execute(f"CREATE OR REPLACE VIEW kept AS {FIRED[rule]}")
    again = f"SELECT count(*) AS n FROM kept a JOIN kept b USING ({KEYS[rule]})"
    assert [] == divergences(session, judge, again)
