"""Profiles and verification: what a query did, and whether its answer is DuckDB's."""

from __future__ import annotations

import html
import json
import pickle

import pyarrow as pa
import pytest

from minishark import functions as F
from minishark.errors import OptionError, VerificationError
from minishark.session.session import Session


def test_a_profile_tells_of_every_stage_and_task(toy_session: Session) -> None:
    """Figures add up, go to JSON, and tell for each task why it ran where it did."""
    frame = toy_session.table("skew").group_by("k").agg(F.sum("x").alias("x")).order_by("k")
    profile = frame.profile()
    metrics = profile.metrics
    assert metrics.stages == len(metrics.by_stage) > 1
    for stage in metrics.by_stage:
        assert stage.tasks == len(stage.by_task)
        assert stage.rows == sum(task.rows for task in stage.by_task)
        assert stage.run_s == tuple(task.run_s for task in stage.by_task)
        assert 0 == stage.retries
        assert stage.skew is None or stage.skew >= 1
    first = metrics.by_stage[0]
    assert first.local_tasks == sum(task.local is True for task in first.by_task)
    assert f"task 0 ran on {first.by_task[0].executor}, attempt 1" in profile.why(0, 0)
    assert "reservation(s)" in profile.why(0, 0)
    assert frame.count() == json.loads(json.dumps(profile.to_dict()))["by_stage"][-1]["rows"]
    with pytest.raises(OptionError, match="no task 99"):
        profile.why(0, 99)


def test_skew_compares_the_largest_task_with_the_median(toy_session: Session) -> None:
    """1 where rows are spread evenly; as EXPLAIN ANALYZE and JSON say, too."""
    toy_session.create_table("even", pa.table({"a": range(3000)}), partitions=3, replace=True)
    frame = toy_session.sql("FROM even WHERE a < 1000 OR a % 10 = 0")
    profile = frame.profile()
    (stage,) = profile.metrics.by_stage
    assert [1000, 100, 100] == [task.rows for task in stage.by_task]
    assert 10.0 == stage.skew == profile.to_dict()["by_stage"][0]["skew"]
    assert "10.0" in str(profile)
    toy_session.drop_table("even")


def test_a_profile_is_text_and_a_page(toy_session: Session) -> None:
    """The text has a line a stage, with tasks a line a task; the page is one document."""
    profile = toy_session.table("skew").group_by("k").count().profile()
    tasks = profile.metrics.tasks
    operators = [stage.operators for stage in profile.metrics.by_stage]
    lines = 1 + profile.metrics.stages + 1 + sum(2 + len(each) for each in operators)
    assert lines == len(str(profile).splitlines())
    assert tasks == sum(" node-" in line for line in profile.text(tasks=True).splitlines())
    document = profile.to_html()
    shown = json.loads(document.partition('type="application/json">')[2].partition("</script>")[0])
    assert profile.to_dict()["elapsed_s"] == shown["query"]["elapsed_s"]
    for stage, found in zip(profile.metrics.by_stage, shown["query"]["stage_list"], strict=True):
        assert (stage.tasks, stage.rows, stage.bytes, stage.elapsed_s) == tuple(
            found[name] for name in ("tasks", "rows", "bytes", "elapsed_s")
        )
    assert profile.why(0, 0) == "\n".join(shown["why"]["0.0"]["why"])
    assert document == pickle.loads(pickle.dumps(profile)).to_html()


def test_a_notebook_shows_the_page_of_a_profile(toy_session: Session) -> None:
    """In a frame that reaches neither the notebook nor the network, and as text besides."""
    profile = toy_session.sql('SELECT count(*) AS "<b>\'&" FROM t').profile()
    shown = profile._repr_html_()
    frame = shown.partition('srcdoc="')[2].partition('"')[0]
    assert profile.to_html() == html.unescape(frame)
    assert 'sandbox="allow-scripts"' in shown
    assert "connect-src" not in profile.to_html()
    assert "default-src 'none'" in html.unescape(profile.to_html())
    assert html.escape(str(profile)) in shown
    assert "<b>" not in shown


def test_only_queries_of_the_cluster_have_a_profile(toy_session: Session) -> None:
    with pytest.raises(OptionError, match="have a profile"):
        toy_session.sql("SHOW TABLES").profile()


def test_answers_can_be_verified(toy_session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right answer passes; one that differs from DuckDB's raises and says in what."""
    sql = "SELECT k, count(*) AS n FROM t GROUP BY k ORDER BY k"
    right = toy_session.sql(sql, verify=True).to_arrow()
    assert right == toy_session.sql(sql).to_arrow(verify=True)
    wrong = right.set_column(1, "n", pa.array([0] * right.num_rows, pa.int64()))
    monkeypatch.setattr(toy_session._runtime, "query_in_front_end", lambda sql: wrong)
    with pytest.raises(VerificationError, match="rows are missing"):
        toy_session.sql(sql, verify=True).collect()
    shuffled = right.take(pa.array(range(right.num_rows - 1, -1, -1)))
    monkeypatch.setattr(toy_session._runtime, "query_in_front_end", lambda sql: shuffled)
    with pytest.raises(VerificationError, match="out of order"):
        toy_session.sql(sql).to_arrow(verify=True)
