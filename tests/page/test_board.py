"""The board: what a page shows follows from events, and memory is bounded."""

from __future__ import annotations

from typing import Any

import msgspec
import psutil
import pytest
from page_events import BEGAN, node_report, query_events, task

from minishark.model.events import kinds
from minishark.model.events.figures import OperatorFigures
from minishark.session.page import board as board_module
from minishark.session.page import views
from minishark.session.page.board import STAGE_TASKS_MAX, Board
from minishark.session.page.figures import binding, known_rows, spread, timeline
from sparrow_core import ExecutorStatus, PlacementStep


def _board(*events: kinds.AnyEvent) -> Board:
    board = Board()
    board.apply(BEGAN, "abc")
    for event in events:
        board.apply(event, "abc")
    return board


def _query(board: Board, number: int = 1) -> dict[str, Any]:
    found = views.query(board, f"abc-{number}")
    assert found is not None
    return found


def test_a_query_is_shown_from_its_start_to_its_end() -> None:
    """While it runs with its progress, then with its figures."""
    board = _board(*query_events(1, state="running"))
    running = _query(board)
    assert ("running", 1, 2) == (running["state"], running["done"], running["tasks"])
    assert [[0, 2, 1, True]] == running["progress"]
    assert [None, None] == [node[5] for node in running["plan"]]
    for event in query_events(1)[4:]:
        board.apply(event, "abc")
    done = _query(board)
    assert ("done", 2, 200, 1.1) == tuple(done[k] for k in ("state", "done", "bytes", "elapsed_s"))
    assert [20, 20] == [node[5] for node in done["plan"]]
    assert {"done": 1, "failed": 0, "cancelled": 0, "lost": 0} == board.counts


def _running(began_s: float, task: int, **fields: Any) -> kinds.RunningTask:
    return kinds.RunningTask(executor="node-0-e0", began_s=began_s, task=task, **fields)


def test_tasks_that_run_are_shown_until_they_end() -> None:
    """Of a query on its page, and of all queries and functions for the cluster; longest first."""
    tasks = (
        _running(1001.5, 1, query=1),
        _running(1001.3, 0, query=1),
        _running(990.0, 4, what="f"),
    )
    board = _board(
        *query_events(1, state="running")[:3], kinds.TasksRunning(at=1004.0, tasks=tasks)
    )

    def shown() -> list[tuple[str, int]]:
        return [(t["what"], t["task"]) for t in views.cluster(board)["running_tasks"]]

    assert [("f", 4), ("SELECT 1", 0), ("SELECT 1", 1)] == shown()
    assert [0, 1] == [t["task"] for t in _query(board)["running_tasks"]]
    board.apply(task(1, 0, 0), "abc")
    assert [("f", 4), ("SELECT 1", 1)] == shown()
    for event in query_events(1)[4:]:
        board.apply(event, "abc")
    assert [("f", 4)] == shown(), "although nothing was heard of it since"
    board.apply(kinds.TasksRunning(at=1005.0), "abc")
    assert [] == shown()


def test_a_task_that_runs_again_is_shown_although_it_had_ended() -> None:
    """Its output was lost."""
    again = kinds.TasksRunning(at=1004.0, tasks=(_running(1003.0, 0, query=1),))
    board = _board(*query_events(1, state="running"), again)
    assert [0] == [t["task"] for t in _query(board)["running_tasks"]]


def test_a_lost_query_shows_what_ran_last() -> None:
    """Perhaps that is why it was lost; the cluster runs it no more."""
    last = kinds.TasksRunning(at=1004.0, tasks=(_running(1001.3, 1, query=1),))
    board = _board(*query_events(1, state="running"), last)
    board.end("abc")
    assert [1] == [t["task"] for t in _query(board)["running_tasks"]]
    assert [] == views.cluster(board)["running_tasks"]


def test_loads_are_listed_but_not_counted_as_queries() -> None:
    """With their progress, and as loads."""
    load = kinds.QueryStarted(at=1001.0, query=1, sql="load t", kind="load")
    board = _board(load)
    (line,) = views.listing(board)["queries"]
    assert ("load", "load t", "running") == (line["kind"], line["sql"], line["state"])
    assert 0 == views.listing(board)["counts"]["running"]
    board.apply(kinds.QueryEnded(at=2.0, query=1, state="done", elapsed_s=1, kind="load"), "abc")
    assert 0 == board.counts["done"]


def test_a_task_that_runs_again_replaces_its_figures() -> None:
    board = _board(*query_events(1), task(1, 0, 1, rows=70, attempt=3))
    (stage,) = _query(board)["stage_list"]
    assert (80, 2, 2) == (stage["rows"], stage["done"], stage["attempt"])


def test_tasks_whose_outputs_existed_are_done_and_their_rows_unknown() -> None:
    """A stage of which one task ran shows no rows as all, and one that did not run is done."""
    events = query_events(1, tasks=3)
    reused = [kinds.StageReused(at=1001.2, query=1, stage=0, tasks=count) for count in (2, 3)]
    some = _query(_board(*events[:2], reused[0], *events[2:4], *events[-2:]))
    whole = _query(_board(*events[:2], reused[1], *events[-2:]))
    for query in (some, whole):
        (stage,) = query["stage_list"]
        assert ("done", 3, 3) == (stage["state"], stage["done"], stage["tasks"])
        assert (1, 3, [None, None]) == (
            query["stages_done"],
            query["done"],
            [node[5] for node in query["plan"]],
        )


def test_a_session_that_ends_without_a_word_leaves_lost_queries() -> None:
    board = _board(*query_events(1, state="running"))
    board.end("abc")
    assert "lost" == _query(board)["state"]
    assert [] == board.running()


def test_a_history_keeps_the_nodes_and_tables_of_its_last_session() -> None:
    """A live page forgets those of a session that has ended."""
    states = (
        node_report("node-0"),
        kinds.TableReport(at=1.0, table="t", rows=2, bytes=20, replicas=1),
        kinds.SessionEnded(at=2.0),
    )
    live, history = _board(*states), Board(is_history=True)
    for event in (BEGAN, *states):
        history.apply(event, "abc")
    assert (0, 0, 1, 1) == (
        len(live.nodes),
        len(live.tables),
        len(history.nodes),
        len(history.tables),
    )
    history.apply(msgspec.structs.replace(BEGAN, session="next"), "next")
    assert (0, 0) == (len(history.nodes), len(history.tables))


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "SESSIONS_MAX", 5)
    board = _board()
    for number in range(20):
        name = f"s{number}"
        board.apply(msgspec.structs.replace(BEGAN, session=name), name)
        board.apply(kinds.SessionEnded(at=1.0), name)
    assert 5 + 1 >= len(board.sessions)
    assert "abc" in board.sessions


def test_listing_filters_and_shows_running_queries_first() -> None:
    board = _board(
        *query_events(1, "SELECT shark", state="running"),
        *query_events(2, "SELECT ray"),
        *query_events(3, "SELECT Shark", state="failed"),
    )
    numbers = [line["number"] for line in views.listing(board)["queries"]]
    assert [1, 3, 2] == numbers
    found = views.listing(board, text="SHARK")["queries"]
    assert [1, 3] == [line["number"] for line in found]
    assert [3] == [line["number"] for line in views.listing(board, state="failed")["queries"]]
    short = views.listing(board, limit=1)
    assert (1, 2) == (len(short["queries"]), short["more"])


def test_nodes_die_leave_and_are_counted() -> None:
    executors = (ExecutorStatus("node-0-e0", 5, 2),)
    board = _board(
        node_report("node-10", at=1.0, executors=executors),
        node_report("node-2", at=1.0, executors=executors),
        kinds.NodeDied(at=2.0, node="node-2", reason="killed by signal 9"),
    )
    shown = views.cluster(board)
    assert ["node-2", "node-10"] == [node["name"] for node in shown["nodes"]]
    assert 4 == shown["slots"]
    assert [[2.0, "node-2", "killed by signal 9"]] == shown["deaths"]
    board.apply(kinds.NodeLeft(at=3.0, node="node-2"), "abc")
    assert ["node-10"] == [node["name"] for node in views.cluster(board)["nodes"]]


def test_tables_tell_replicas_kept_against_declared() -> None:
    parts = (
        kinds.PartitionReport(1, 10, ("node-0", "node-1")),
        kinds.PartitionReport(1, 10, ("node-1", "gone")),
    )
    board = _board(
        node_report("node-0"),
        node_report("node-1"),
        kinds.TableReport(at=1.0, table="t", rows=2, bytes=20, replicas=2, partitions=parts),
    )
    (table,) = views.tables(board)["tables"]
    assert (2, 1, 1) == (table["replicas"], table["fewest"], table["healing"])
    board.apply(kinds.TableDropped(at=2.0, table="t"), "abc")
    assert [] == views.tables(board)["tables"]


def test_calls_and_programs_are_counted() -> None:
    board = _board(
        kinds.CallsSubmitted(at=1.0, function="f", count=3),
        kinds.CallEnded(at=2.0, function="f", node="node-0", executor="node-0-e0", run_s=0.5),
        kinds.CallEnded(at=2.0, function="f", node="node-0", run_s=1.5, state="raised", error="x"),
        kinds.CallEnded(at=2.0, function="f", state="lost"),
        kinds.ProgramReport(at=2.0, program=0, name="k-means", state="running", iterations=3),
    )
    shown = views.python(board)
    (function,), (program,) = shown["functions"], shown["programs"]
    assert (3, 1, 1, 1) == tuple(function[k] for k in ("submitted", "done", "raised", "lost"))
    assert (1.0, 1.5, "x") == tuple(function[k] for k in ("mean_s", "longest_s", "error"))
    assert ("k-means", 3) == (program["name"], program["iterations"])


def test_jobs_are_shown_as_last_told_until_they_are_forgotten() -> None:
    """Newest first, with who submitted them, their age, their story and the end of their log."""
    told = {"name": "nightly", "user": "ada", "node": "node-1", "submitted_s": 1000.0}
    board = _board(
        kinds.JobReport(at=1001.0, uid="a", status="running", **told),
        kinds.JobReport(at=1002.0, uid="b", status="waiting", **told | {"submitted_s": 1001.0}),
        kinds.JobReport(at=1004.0, uid="a", status="done", ended_s=1003.0, log="x", **told),
    )
    newer, older = views.python(board)["jobs"]
    assert ("waiting", 1.0) == (newer["state"], newer["took_s"])
    assert ("done", 3.0, "ada", "x") == tuple(older[k] for k in ("state", "took_s", "user", "log"))
    board.apply(kinds.JobReport(at=1005.0, uid="b", name="", status="forgotten"), "abc")
    assert ["done"] == [job["state"] for job in views.python(board)["jobs"]]


def test_every_view_is_json_and_small_with_many_tasks_and_nodes() -> None:
    """10,000 tasks of a stage on 100 nodes make views of at most a few hundred kilobytes."""
    events = query_events(1, tasks=1)[:3]
    board = _board(*events)
    for number in range(10_000):
        node = f"node-{number % 100}"
        at = 1002.0 + number / 1000
        executor = f"{node}-e{number % 4}"
        board.apply(task(1, 0, number, node=node, executor=executor, at=at, run_s=0.05), "abc")
    for node in range(100):
        board.apply(node_report(f"node-{node}", at=1003.0), "abc")
    shown = _query(board)
    assert 3_000 >= len(shown["timeline"]["marks"])
    assert 10_000 == sum(mark[4] for mark in shown["timeline"]["marks"])
    assert 100 == len(shown["by_node"])
    for view in (shown, views.cluster(board), views.listing(board), views.placement(board)):
        assert 400_000 > len(msgspec.json.encode(view))


def test_a_stage_of_more_tasks_than_are_kept_counts_them_all() -> None:
    board = _board(*query_events(1, tasks=1)[:3])
    for number in range(STAGE_TASKS_MAX + 50):
        board.apply(task(1, 0, number), "abc")
    (stage,) = _query(board)["stage_list"]
    assert (STAGE_TASKS_MAX + 50, 50) == (stage["done"], stage["beyond"])
    assert 10 * (STAGE_TASKS_MAX + 50) == stage["rows"]


def test_old_queries_are_reduced_to_a_line_then_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_module, "QUERIES_MAX", 100)
    monkeypatch.setattr(board_module, "WEIGHT_MAX", 300)
    board = _board()
    for number in range(110):
        for event in query_events(number, tasks=10):
            board.apply(event, "abc")
    assert (100, 110) == (len(board.queries), board.counts["done"])
    assert views.query(board, "abc-0") is None
    old, new = _query(board, 10), _query(board, 109)
    assert (True, 10, []) == (old["is_reduced"], old["done"], old["stage_list"])
    assert (False, 1) == (new["is_reduced"], len(new["stage_list"]))
    assert 30 > sum(not query.is_reduced for query in board.queries.values())


@pytest.mark.slow
def test_a_hundred_thousand_queries_fit_into_fifty_megabytes() -> None:
    """With long texts and plans of some thirty operators; measured of this process as a whole."""
    sql = "SELECT * FROM lineitem JOIN orders ON l_orderkey = o_orderkey WHERE l_tax > 0.05 " * 20
    plan = tuple(_node(None if i == 0 else i - 1, label=f"{i} {'x' * 200}") for i in range(30))
    stages = tuple(kinds.StagePlan(stage=i, tasks=8, sql="y" * 3000) for i in range(6))
    planned = kinds.QueryPlanned(at=1001.0, query=0, plan=plan, stages=stages)
    decode = msgspec.json.Decoder(kinds.AnyEvent).decode
    board, process = _board(), psutil.Process()
    before = process.memory_info().rss
    for number in range(100_000):
        events = [*query_events(number, f"{sql} -- {number}", tasks=8)]
        if number % 10 == 0:
            events.insert(2, msgspec.structs.replace(planned, query=number))
        for event in events:
            # As from a file or the wire: nothing is shared between events.
            board.apply(decode(msgspec.json.encode(event)), "abc")
    used = process.memory_info().rss - before
    assert used < 50e6, f"{used / 1e6:.1f} MB"


def test_events_were_dropped_and_the_page_says_so() -> None:
    board = _board(kinds.EventsDropped(at=1.0, count=12), task(9, 3, 4))
    assert 12 == views.about(board)["sessions"][0]["dropped"]
    assert "running" == _query(board, 9)["state"]  # its beginning was dropped; it is shown at all


# Figures


def test_spread_has_the_median_of_statistics() -> None:
    found = spread([4.0, 1.0, 3.0, 2.0])
    assert found == {"min": 1.0, "p25": 1.0, "median": 2.5, "p75": 3.0, "p95": 4.0, "max": 4.0}
    assert spread([]) is None


def _node(parent: int | None, **others: Any) -> kinds.PlanNode:
    values = {"name": "X", "label": "X", "where": "single", "rows": 1.0, "stage": 0, **others}
    return kinds.PlanNode(parent=parent, **values)


def test_known_rows_pass_operators_that_keep_them() -> None:
    """Up from tables and outputs of stages, and down from outputs; not through filters."""
    plan = (
        _node(None, stage=1, puts_out=True, keeps_rows=True),  # a sort
        _node(0, stage=1),  # a filter below it: its rows are those of the sort
        _node(1, stage=0, puts_out=True, keeps_rows=True),  # the shuffle
        _node(2, stage=0),  # a join
        _node(3, stage=0, keeps_rows=True),  # a projection of a whole table
        _node(4, stage=0, stored_rows=50),
        _node(3, stage=0),  # a filtered scan
    )
    assert [7, 7, 30, 30, 50, 50, None] == known_rows(plan, {0: 30, 1: 7})
    assert [None, None, None, None, 50, 50, None] == known_rows(plan, {})
    figures = [OperatorFigures(rows=rows) for rows in (None, 8, None, 40, None, 49, 60)]
    assert [7, 8, 30, 40, 49, 49, 60] == known_rows(plan, {0: 30, 1: 7}, figures)


def test_a_timeline_merges_neighbours_only_if_there_are_many() -> None:
    few = [task(1, 0, i, at=1000.0 + i, run_s=0.9) for i in range(5)]
    shown = timeline(few, 999.0)
    assert 5 == len(shown["marks"])
    assert [0, 0.1, 1.0, 0, 1, 0] == shown["marks"][0]
    many = [task(1, 0, i, at=1000.0 + i / 1000, run_s=0.001 * (1 + i % 2)) for i in range(9_000)]
    marks = timeline(many, 999.0)["marks"]
    assert len(marks) < 3_000
    assert 9_000 == sum(mark[4] for mark in marks)


def _placed(*steps: PlacementStep) -> kinds.StagePlaced:
    return kinds.StagePlaced(at=1.0, query=1, stage=0, steps=steps)


def test_binding_compares_with_tasks_that_go_to_a_reservation_at_random() -> None:
    """Two tasks, four reservations: node b asks late, node c never has to."""
    steps = (
        PlacementStep(0.0, "a", "probed"),
        PlacementStep(0.0, "a", "reserved", 2),
        PlacementStep(0.0, "b", "reserved", 1),
        PlacementStep(0.0, "c", "reserved", 1),
        PlacementStep(1.0, "a", "asked", 1, (0,)),
        PlacementStep(5.0, "b", "asked", 1, (1,)),
    )
    found = binding(_placed(*steps))
    assert found is not None
    assert (2, 4, 1, 2) == tuple(found[k] for k in ("tasks", "reservations", "probes", "unserved"))
    assert (3.0, (1 + 5 + 5 + 5) / 4) == (found["late_s"], found["random_s"])
    assert [["a", 1, 2, 1], ["b", 0, 1, 1], ["c", 0, 1, 0]] == found["nodes"]
    assert binding(_placed()) is None


def test_queries_whose_end_was_dropped_do_not_stay_forever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(board_module, "QUERIES_MAX", 100)
    board = _board(*(kinds.QueryStarted(at=1.0, query=i, sql="x") for i in range(300)))
    assert 100 == len(board.queries)


def test_a_query_that_ends_after_its_session_counts_once() -> None:
    """A session tells its end first, while its queries are being cancelled."""
    events = query_events(1)
    *rest, end = events
    board = _board(*rest, kinds.SessionEnded(at=end.at), end)
    once = _board(*events)
    assert once.counts == board.counts
    assert once._weight == board._weight
    assert "done" == views.listing(board)["queries"][0]["state"]


_SCAN = (
    kinds.PlanNode(
        parent=None, name="Project", label="Project", where="single", rows=5, stage=1,
        puts_out=True, keeps_rows=True,
    ),
    kinds.PlanNode(
        parent=0, name="Scan", label="Scan t", where="spread", rows=5, stage=0, puts_out=True,
        stored_rows=6_000,
    ),
)  # fmt: skip
_FAILURE = kinds.TaskFailed(
    at=1001.3, query=1, stage=0, task=0, node="n", executor="e", message="bad"
)


@pytest.mark.parametrize("done", [0, 1])
def test_no_rows_are_made_up_for_a_stage_that_has_failed(done: int) -> None:
    """Neither those that its table has, nor those of the tasks that ended before."""
    stages = (kinds.StagePlan(stage=0, tasks=2), kinds.StagePlan(stage=1, tasks=1, reads=(0,)))
    board = _board(
        kinds.QueryStarted(at=1001.0, query=1, sql="SELECT 1"),
        kinds.QueryPlanned(at=1001.1, query=1, planning_s=0.1, plan=_SCAN, stages=stages),
        kinds.StageStarted(at=1001.2, query=1, stage=0, tasks=2),
        *(task(1, 0, number) for number in range(done)),
        _FAILURE,
        kinds.QueryEnded(at=1001.4, query=1, state="failed", elapsed_s=0.4, error="bad"),
    )
    failed = _query(board)
    assert [None, None] == [node[5] for node in failed["plan"]]
    assert ["failed", "not started"] == [stage["state"] for stage in failed["stage_list"]]
    assert (0, 0.1) == (failed["stages_done"], failed["planning_s"])


def _node_report(running: int) -> kinds.NodeReport:
    executors = tuple(ExecutorStatus(f"node-0-e{i}", 1, 1) for i in range(2))
    return node_report("node-0", at=1003.0, executors=executors, running=running)


_CALLS = (
    kinds.CallsSubmitted(at=1001.0, function="slow", count=400),
    kinds.CallEnded(at=1004.5, function="slow", node="node-0", executor="node-0-e0", run_s=0.05),
)
_OTHERS = kinds.TasksRunning(at=1003.0, tasks=(_running(990.0, 4, query=9),))


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ((_node_report(2), *_CALLS), ["slow"]),
        ((_node_report(2), *query_events(9, state="running")[:3], _OTHERS), ["query 9"]),
        ((_node_report(2),), []),
        ((_node_report(1), *_CALLS), None),  # a slot is free
        (
            (_node_report(2), kinds.TasksRunning(tasks=(_running(1.0, 0, query=1),), at=1003.0)),
            None,
        ),
    ],
)
def test_a_query_that_waits_for_slots_says_behind_what(
    others: tuple[kinds.AnyEvent, ...], expected: list[str] | None
) -> None:
    """It waits if all slots are busy, and no task of it runs or has ended for two seconds."""
    board = _board(*query_events(1, state="running")[:3], *others)
    board.tick(1005.0)
    found = _query(board)
    assert expected == found["behind"]
    assert expected == next(
        q["behind"] for q in views.listing(board)["queries"] if q["number"] == 1
    )
    assert ["running" if expected is None else "waiting"] == [
        s["state"] for s in found["stage_list"]
    ]
    board.apply(task(1, 0, 0, at=1004.9), "abc")
    assert None is _query(board)["behind"]
