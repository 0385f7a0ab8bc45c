"""Metrics in Prometheus' text format, and the dashboard that reads them."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs
from page_events import BEGAN, node_report, query_events, task
from prometheus_client.parser import text_string_to_metric_families

from minishark.model.events import kinds
from minishark.session.page.board import Board
from minishark.session.page.metrics import CONTENT_TYPE, Totals, exposition
from minishark.session.page.server import PageServer
from sparrow_core import ExecutorStatus

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def _samples(text: str) -> Samples:
    """The samples of a text, which must be well-formed."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        assert family.type != "unknown", family.name
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def _told(*events: kinds.AnyEvent) -> Samples:
    board, totals = Board(), Totals()
    for event in (BEGAN, *events):
        board.apply(event, BEGAN.session)
        totals.apply(event)
    return _samples(exposition(totals, board))


def _report(node: str, *, alive: bool = True) -> kinds.NodeReport:
    executor = ExecutorStatus(f"{node}-e0", 7, 2)
    usage = kinds.NodeUsage(memory={7: 1000}, stored_bytes=50)
    return node_report(node, alive=alive, executors=(executor,), running=1, queued=3, usage=usage)


def test_counters_count_all_that_was_told() -> None:
    found = _told(
        *query_events(1, tasks=3),
        *query_events(2, state="failed"),
        *query_events(3, state="running"),
    )
    assert 1 == found["minishark_queries_total", (("state", "done"),)]
    assert 1 == found["minishark_queries_total", (("state", "failed"),)]
    assert 0 == found["minishark_queries_total", (("state", "cancelled"),)]
    assert 1 == found["minishark_running_queries", ()]
    assert 5 == found["minishark_tasks_total", (("local", "any"), ("node", "node-0"))]
    assert 50 == found["minishark_task_output_rows_total", ()]
    assert 500 == found["minishark_task_output_bytes_total", ()]


def test_histograms_are_cumulative() -> None:
    found = _told(
        task(1, 0, 0, run_s=0.0005), task(1, 0, 1, run_s=0.001), task(1, 0, 2, run_s=99.0)
    )
    buckets = [
        (dict(labels)["le"], count)
        for (name, labels), count in found.items()
        if name == "minishark_task_seconds_bucket"
    ]
    assert ("0.001", 2) == buckets[0]
    assert ("30", 2) == buckets[-2]
    assert ("+Inf", 3) == buckets[-1]
    assert 3 == found["minishark_task_seconds_count", ()]
    assert pytest.approx(99.0015) == found["minishark_task_seconds_sum", ()]


def test_missing_replicas_are_those_on_no_live_node() -> None:
    parts = tuple(kinds.PartitionReport(1, 10, nodes) for nodes in (("a", "b"), ("b", "c"), ("c",)))
    table = kinds.TableReport(at=1.0, table="t", rows=3, bytes=30, replicas=2, partitions=parts)
    nodes = _report("a"), _report("b"), _report("c", alive=False)
    assert 0 + 1 + 2 == _told(*nodes, table)["minishark_missing_replicas", ()]
    # More replicas than nodes can't be had.
    assert 0 + 0 + 1 == _told(nodes[1], nodes[2], table)["minishark_missing_replicas", ()]


def test_labels_are_escaped() -> None:
    name = 'a"b\\c\nd'
    assert 1 == _told(_report(name))["minishark_node_up", (("node", name),)]


def test_a_death_and_lost_events_are_counted() -> None:
    died = kinds.NodeDied(at=1.0, node="node-1", reason="killed by SIGKILL")
    found = _told(died, died, kinds.EventsDropped(at=1.0, count=7))
    assert 2 == found["minishark_deaths_total", (("node", "node-1"),)]
    assert 7 == found["minishark_events_dropped_total", ()]


def _scrape(server: PageServer, **headers: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def test_prometheus_needs_the_token(server: PageServer, emit: Callable[..., None]) -> None:
    emit(*query_events(1))
    server.site.poll()
    status, kind, text = _scrape(server, Authorization=f"Bearer {server.token}")
    assert (200, CONTENT_TYPE) == (status, kind)
    assert 1 == _samples(text)["minishark_queries_total", (("state", "done"),)]
    for wrong in ({}, {"Authorization": "Bearer x"}, {"Authorization": server.token}):
        assert 403 == _scrape(server, **wrong)[0]
    elsewhere = {"Host": "evil.example", "Authorization": f"Bearer {server.token}"}
    assert 421 == _scrape(server, **elsewhere)[0]


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    asked = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"minishark_\w+", target["expr"])
    }
    known = {name for name, _ in _told(*query_events(1), _report("node-0"))}
    died = kinds.NodeDied(at=1.0, node="node-0", reason="")
    known |= {name for name, _ in _told(died)}
    assert asked
    assert set() == asked - known
    ids = [panel["id"] for panel in panels]
    assert len(ids) == len(set(ids))
    for panel in panels:
        place = panel["gridPos"]
        assert panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]


def test_nodes_of_several_clusters_are_told_apart() -> None:
    """A folder of histories has a node-0 of each session; a sample must not come twice."""
    board = Board(is_history=True)
    for session in ("abc", "def"):
        board.apply(structs.replace(BEGAN, session=session), session)
        board.apply(_report("node-0"), session)
    found = _samples(exposition(Totals(), board))
    for session in ("abc", "def"):
        assert 1 == found["minishark_node_up", (("cluster", session), ("node", "node-0"))]
