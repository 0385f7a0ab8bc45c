"""A session's page: every number is the profile's, and what happens is seen in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import minishark
from minishark.errors import ClusterError, DataError, MinisharkError, QueryCancelledError
from minishark.model.events import kinds
from minishark.model.events.history import HistoryReader
from minishark.model.events.record import StageRecord
from minishark.session.page.site import READER_S
from minishark.session.session import Session

_ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range = 7"
# Two stages and a shuffle, with several tasks each.
_GROUPED = "SELECT g, count(DISTINCT i) FROM numbers GROUP BY g ORDER BY g"


class Page:
    """What a browser sees of a session's page."""

    def __init__(self, session: Session) -> None:
        self.address = session.ui(open_browser=False)

    def view(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.address}view/{path}", timeout=5) as answer:
            return json.load(answer)["data"]

    def newest(self, **wanted: Any) -> Any:
        """The newest query."""
        for line in self.view("queries")["queries"]:
            if all(line[name] == value for name, value in wanted.items()):
                return self.view(f"query?key={line['key']}")
        return None

    def cancel(self, key: str) -> bool:
        request = urllib.request.Request(
            f"{self.address}cancel",
            json.dumps({"key": key}).encode(),
            {"X-Minishark-Token": self.address.split("/")[3]},
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(json.load(answer)["cancelled"])


def await_(what: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """The first result that is true."""
    deadline = time.monotonic() + timeout_s
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.02)
    return found


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with minishark.connect(
        nodes=2, executors_per_node=1, partitions=4, single_task_rows=0
    ) as opened:
        numbers = opened.sql("SELECT range AS i, range % 10 AS g FROM range(100000)").to_arrow()
        opened.create_table("numbers", numbers, partition_by="i")
        yield opened


@pytest.fixture(scope="module")
def page(session: Session) -> Page:
    return Page(session)


def test_every_number_is_the_profiles(session: Session, page: Page) -> None:
    """Of queries, stages and tasks; why tasks ran where they did, too."""
    profile = session.sql(_GROUPED).profile()
    metrics = profile.metrics
    shown = await_(lambda: page.newest(sql=_GROUPED, state="done"))
    assert (metrics.elapsed_s, metrics.planning_s) == (shown["elapsed_s"], shown["planning_s"])
    assert (metrics.stages, metrics.tasks) == (shown["stages"], shown["tasks"])
    assert sum(stage.bytes for stage in metrics.by_stage) == shown["bytes"]
    assert len(metrics.by_stage) == len(shown["stage_list"]) > 1
    for stage, found in zip(metrics.by_stage, shown["stage_list"], strict=True):
        assert _figures(stage) == {name: found[name] for name in _figures(stage)}
        for name, values in (("run_s", stage.run_s), ("queue_s", stage.queue_s)):
            spread = (min(values), median(values), max(values))
            assert spread == tuple(found[name][each] for each in ("min", "median", "max"))
    by_run_time = sorted(
        (task.run_s for stage in metrics.by_stage for task in stage.by_task), reverse=True
    )
    assert by_run_time[:20] == [task["run_s"] for task in shown["longest"]]
    first = shown["longest"][0]
    query = f"key={shown['key']}&stage={first['stage']}&task={first['task']}"
    with urllib.request.urlopen(f"{page.address}why?{query}", timeout=5) as answer:
        why = json.load(answer)["why"]
    assert profile.why(first["stage"], first["task"]) == "\n".join(why)


def _figures(stage: StageRecord) -> dict[str, Any]:
    return {
        "index": stage.index,
        "tasks": stage.tasks,
        "rows": stage.rows,
        "bytes": stage.bytes,
        "disk_bytes": stage.disk_bytes,
        "elapsed_s": stage.elapsed_s,
        "skew": stage.skew,
        "local": [stage.local_tasks, stage.constrained_tasks],
        "attempt": stage.retries,
        "again": stage.remade_tasks,
        "reads": list(stage.after),
    }


def test_the_plan_has_estimated_and_true_rows(session: Session, page: Page) -> None:
    """Of outputs of stages, whole tables, and what keeps their number."""
    session.sql(_GROUPED).collect()
    shown = await_(lambda: page.newest(sql=_GROUPED, state="done"))
    rows = {node[1]: node[5] for node in shown["plan"]}
    assert (10, 100_000) == (rows["Sort"], rows["Scan"])
    assert all(node[4] >= 0 for node in shown["plan"])
    assert {0, 1} <= {node[6] for node in shown["plan"]}


def test_the_plan_has_what_operators_did(session: Session, page: Page) -> None:
    """Of an explained query, each operator's rows and time as the profile has them."""
    sql = f"{_GROUPED} -- explained"
    profile = session.sql(sql).profile()
    shown = await_(lambda: page.newest(sql=sql, state="done"))
    operators = [
        each
        for stage in profile.metrics.by_stage
        for each in stage.operators
        if each.run_s is not None and not each.label.startswith(("Exchange", "Output"))
    ]
    expected = {(each.label, each.rows, each.run_s) for each in operators}
    found = {(label, rows, run_s) for _, _, label, _, _, rows, _, _, run_s, _ in shown["plan"]}
    names = {each.name for each in operators}
    assert {"Scan", "Sort"} <= names
    assert expected <= found
    assert not any(node[9] for node in shown["plan"])


def test_nodes_and_tables_are_shown(session: Session, page: Page) -> None:
    cluster = await_(lambda: (found := page.view("cluster"))["nodes"] and found)
    assert ["node-0", "node-1"] == [node["name"] for node in cluster["nodes"]]
    assert (2, True) == (cluster["slots"], all(node["alive"] for node in cluster["nodes"]))
    assert all(node["memory_bytes"] > 1e6 for node in cluster["nodes"])
    (table,) = await_(lambda: page.view("tables")["tables"])
    (info,) = session.catalog.list_tables()
    assert ("numbers", 100_000, 4) == (table["name"], table["rows"], len(table["partitions"]))
    assert (2, 2, ["i"]) == (table["replicas"], table["fewest"], table["keys"])
    assert info.bytes == table["bytes"]


def test_calls_of_functions_are_counted(session: Session, page: Page) -> None:
    session.submit(pow, 2, 3).result()
    future = session.submit(int, "x")
    with pytest.raises(ValueError, match="invalid literal"):
        future.result()
    functions = await_(lambda: (f := page.view("python")["functions"]) and len(f) > 1 and f)
    found = {each["name"]: each for each in functions}
    assert (1, 1, 0) == tuple(found["pow"][name] for name in ("submitted", "done", "raised"))
    assert (1, 0, 1) == tuple(found["int"][name] for name in ("submitted", "done", "raised"))
    assert "invalid literal" in found["int"]["error"]


@pytest.mark.slow
def test_a_running_query_is_seen_and_cancelled(session: Session, page: Page) -> None:
    """It is on the page within a second, and over within two after it was cancelled there."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            session.sql(_ENDLESS).collect()
        except QueryCancelledError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    shown = await_(lambda: page.newest(state="running", sql=_ENDLESS), 5.0)
    await_(lambda: page.newest(state="running")["done"] == 0)
    task = await_(lambda: page.newest(state="running")["running_tasks"])[0]
    assert (0, 0, 1) == (task["stage"], task["task"], task["attempt"])
    assert task["executor"] in {"node-0-e0", "node-1-e0"}
    assert shown["began_s"] - 0.5 < task["began_s"] < time.time() - 0.5
    assert [_ENDLESS] == [each["what"] for each in page.view("cluster")["running_tasks"]]
    assert page.cancel(shown["key"])
    thread.join(10.0)
    assert not thread.is_alive()
    assert 1 == len(failures)
    ended = await_(lambda: page.newest(state="cancelled"))
    assert shown["key"] == ended["key"]
    assert not page.cancel(shown["key"])


@pytest.mark.slow
def test_calls_that_run_are_shown(session: Session, page: Page) -> None:
    """By their function's name."""
    future = session.submit(time.sleep, 3.0)
    found = await_(lambda: page.view("cluster")["running_tasks"])
    future.result()
    assert ["sleep"] == [task["what"] for task in found]


def test_loads_are_listed_with_their_progress(session: Session, page: Page) -> None:
    """As work in two stages, whose rows are those of the table."""
    shown = await_(lambda: page.newest(sql="load numbers", state="done"))
    assert ("load", 8, 8) == (shown["kind"], shown["done"], shown["tasks"])
    divide, store = shown["stage_list"]
    assert ("divide rows by hash of i", "store partitions") == (divide["does"], store["does"])
    assert (100_000, 4) == (store["rows"], store["done"])
    with pytest.raises(DataError):
        session.create_table("no", "/nowhere/*.parquet")
    failed = await_(lambda: page.newest(sql="load no"))
    assert ("failed", True) == (failed["state"], "/nowhere" in failed["error"])


@pytest.mark.parametrize("sql", ["SELECT nope FROM numbers", "SELEC 1", "FROM nowhere"])
def test_what_does_not_bind_is_listed_as_failed(session: Session, page: Page, sql: str) -> None:
    with pytest.raises(MinisharkError) as raised:
        session.sql(sql)
    shown = await_(lambda: page.newest(sql=sql))
    assert ("failed", str(raised.value)) == (shown["state"], shown["error"])


@pytest.mark.slow
def test_placements_are_explained_while_somebody_looks(session: Session, page: Page) -> None:
    """Soon after the last one has looked, events are as small as before."""
    page.view("queries")
    engine = session._runtime.engine
    await_(lambda: engine.explains_all)
    assert session._group.page is not None
    site = session._group.page.site
    site._read_s -= READER_S
    assert not site.is_read
    await_(lambda: not engine.explains_all)
    page.view("queries")
    await_(lambda: engine.explains_all)


def test_a_failed_query_tells_why(session: Session, page: Page) -> None:
    sql = "SELECT error('<script>no</script>' || i) FROM numbers"
    with pytest.raises(MinisharkError):
        session.sql(sql).collect()
    shown = await_(lambda: page.newest(sql=sql, state="failed"))
    assert "<script>no</script>" in shown["error"]
    assert sql == shown["sql"]
    assert shown["failed"]


def test_a_page_that_is_opened_later_shows_the_past(session: Session) -> None:
    """Events are kept before anybody looks; a second call serves the same page."""
    assert session.ui(open_browser=False) == session.ui(open_browser=False)


def test_a_page_ends_with_its_session() -> None:
    with minishark.connect(nodes=1, executors_per_node=1, in_process=True) as session:
        session.sql("SELECT 1").collect()
        page = Page(session)
        assert 1 == len(page.view("queries")["queries"])
    with pytest.raises(OSError, match="refused"):
        page.view("queries")
    with pytest.raises(ClusterError, match="stopped"):
        session.ui()


@pytest.mark.slow
def test_a_killed_executor_is_shown_with_its_reason() -> None:
    """Within three seconds on a quiet machine."""
    with minishark.connect(nodes=2, executors_per_node=1) as session:
        page = Page(session)
        nodes = await_(lambda: page.view("cluster")["nodes"])
        os.kill(nodes[0]["executors"][0][1], signal.SIGKILL)
        began = time.monotonic()
        deaths = await_(lambda: page.view("cluster")["deaths"])
        assert time.monotonic() - began < 10.0
        assert "node-0" == deaths[0][1]
        assert "SIGKILL" in deaths[0][2]


@pytest.mark.slow
def test_an_event_log_is_readable_after_a_crash(tmp_path: Path) -> None:
    """The process is killed; what it told until then is there."""
    program = f"""
import minishark, os, signal, time
session = minishark.connect(nodes=1, executors_per_node=1, in_process=True,
                            event_log={str(tmp_path)!r})
session.sql("SELECT 42 AS answer").collect()
time.sleep(1.0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert -signal.SIGKILL == done.returncode
    events = list(HistoryReader(tmp_path).read())
    assert isinstance(events[0], kinds.SessionStarted)
    (ended,) = (event for event in events if isinstance(event, kinds.QueryEnded))
    assert "done" == ended.state
    assert not any(isinstance(event, kinds.SessionEnded) for event in events)


def test_an_event_log_that_cannot_be_written_is_an_error() -> None:
    with pytest.raises(DataError, match="can't be written"):
        minishark.connect(nodes=1, executors_per_node=1, in_process=True, event_log="/proc/x")
