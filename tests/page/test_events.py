"""The stream of events and its history in files."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.cluster.sharing import SharedEvents
from minishark.cluster.wire import Events, GetEvents
from minishark.errors import DataError
from minishark.model.events import history, kinds
from minishark.model.events.history import HistoryReader, HistoryWriter
from minishark.model.events.stream import EventStream
from minishark.session.page.board import Board
from sparrow_core import PlacementStep

BEGAN = kinds.SessionStarted(at=1_700_000_000.0, session="abc", format=kinds.FORMAT)


def _died(number: int) -> kinds.NodeDied:
    return kinds.NodeDied(at=float(number), node="node-0", reason="it died")


@given(capacity=st.integers(1, 8), steps=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9))))
def test_a_reader_gets_each_event_once_or_learns_that_it_is_lost(
    capacity: int, steps: list[tuple[int, int]]
) -> None:
    """What a reader got and what it missed add up to what was emitted, in order."""
    stream, emitted, last, seen = EventStream(capacity), 0, 0, 0
    for count, limit in steps:
        for _ in range(count):
            emitted += 1
            stream.emit(_died(emitted))
        batch = stream.since(last, limit)
        numbers = [int(event.at) for event in batch.events]
        assert list(range(last + batch.dropped + 1, batch.last + 1)) == numbers
        assert batch.dropped == max(0, emitted - capacity - last)
        last, seen = batch.last, seen + len(numbers) + batch.dropped
        assert seen == last


def test_old_events_are_packed() -> None:
    """All but the newest take a fraction of the memory, and are given back as they were."""
    stream, plans = EventStream(4_096), "SELECT " + "x + " * 300 + "1"
    emitted = [
        kinds.QueryStarted(at=float(number), query=number, sql=f"{plans} + {number}")
        for number in range(1_000)
    ]
    for event in emitted:
        stream.emit(event)
    assert (*emitted,) == stream.since(0).events
    assert (*emitted[700:703],) == stream.since(700, 3).events
    blocks = [block.events for block in stream._blocks]
    assert sum(map(len, blocks)) < len(plans) * len(emitted) / 10


def test_events_that_can_not_be_packed_are_kept() -> None:
    stream = EventStream(100)
    died = [kinds.NodeDied(at=1.0, node="node-0", reason=f"\udc80 {each}") for each in range(50)]
    for event in died:
        stream.emit(event)
    assert (*died,) == stream.since(0).events


def test_many_threads_emit_without_loss() -> None:
    stream = EventStream(10_000)
    threads = [
        threading.Thread(target=lambda: [stream.emit(_died(1)) for _ in range(1000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batch = stream.since(0)
    assert (4000, 4000, 0) == (len(batch.events), batch.last, batch.dropped)


def test_a_history_is_read_as_it_was_written(tmp_path: Path) -> None:
    """All fields of events survive, and only the user can read the file."""
    step = PlacementStep(0.1, "node-0", "asked", 1, (0,))
    events = [
        _died(1),
        kinds.StagePlaced(
            at=2.0, query=1, stage=0, tasks=(0,), preferred={0: ("node-0",)}, steps=(step,)
        ),
        kinds.TableReport(
            at=3.0, table="t", rows=1, bytes=2, replicas=2,
            partitions=(kinds.PartitionReport(1, 2, ("node-0",)),),
        ),
    ]  # fmt: skip
    writer = HistoryWriter(tmp_path / "log", BEGAN)
    writer.write(events)
    writer.close()
    assert [BEGAN, *events] == list(HistoryReader(tmp_path / "log").read())
    (file,) = (tmp_path / "log").iterdir()
    assert 0o600 == file.stat().st_mode & 0o777


def test_a_torn_line_and_unknown_events_are_left_out(tmp_path: Path) -> None:
    """A process that was killed while it wrote leaves a history; so does a newer version."""
    writer = HistoryWriter(tmp_path, BEGAN)
    writer.write([_died(1)])
    writer.close()
    (file,) = tmp_path.iterdir()
    with file.open("ab") as lines:
        lines.write(b'{"type":"SomethingNew","at":1}\n{"type":"NodeDied","at":2,"no')
    reader = HistoryReader(file)
    assert [BEGAN, _died(1)] == list(reader.read())
    with file.open("ab") as lines:
        lines.write(b'de":"node-0","reason":"it died"}\n')
    assert [BEGAN, _died(2)] == list(reader.read())
    assert [] == list(reader.read())


def test_a_history_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a session the newest files are kept; of the folder the newest bytes."""
    monkeypatch.setattr(history, "FILE_BYTES", 2_000)
    monkeypatch.setattr(history, "FOLDER_BYTES", 10_000)
    old = tmp_path / f"20000101-000000-old-000{history.SUFFIX}"
    old.write_bytes(b"x" * 9_000)
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    writer = HistoryWriter(tmp_path, BEGAN)
    began_anew = [writer.write([_died(number)]) for number in range(400)]
    writer.close()
    files = sorted(tmp_path.glob("*.jsonl"))
    assert any(began_anew)
    assert history.FILES_MAX == len(files)
    assert old not in files
    assert other.exists()
    assert _died(399) in list(HistoryReader(tmp_path).read())


@pytest.mark.parametrize("content", [b"", b"hello\n", b'{"type":"NodeDied","at":1}\n'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(content)
    with pytest.raises(DataError, match="is not a file of minishark's events"):
        HistoryReader(file)


def test_a_history_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    newer = msgspec.structs.replace(BEGAN, format=kinds.FORMAT + 1)
    file = tmp_path / "x.jsonl"
    file.write_bytes(msgspec.json.encode(newer) + b"\n")
    with pytest.raises(DataError, match="newer minishark"):
        HistoryReader(file)


def test_a_folder_without_events_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="event_log"):
        HistoryReader(tmp_path)
    with pytest.raises(DataError, match="can't be written"):
        HistoryWriter("/proc/nothing", BEGAN)


def test_plans_count_for_more_than_tasks() -> None:
    """The ring is bounded in memory, also if each query has thousands of operators."""
    stream = EventStream(1_000)
    node = kinds.PlanNode(parent=None, name="Scan", label="Scan", where="", rows=1.0, stage=0)
    stages = (kinds.StagePlan(stage=0, tasks=1, sql="x" * 4_000),)
    planned = kinds.QueryPlanned(at=1.0, query=1, plan=(node,) * 200, stages=stages)
    for _ in range(50):
        stream.emit(planned)
        stream.emit(_died(1))
    batch = stream.since(0)
    assert (100, 100 - len(batch.events)) == (batch.last, batch.dropped)
    assert 900 < sum(event.weight for event in batch.events) <= 1_000
    stream.emit(kinds.QueryPlanned(at=1.0, query=1, plan=(node,) * 9_000))
    assert 1 == len(stream.since(100).events)


def test_text_that_is_no_unicode_is_written(tmp_path: Path) -> None:
    """Lone surrogates, as in names of files that are no UTF-8, must not end the writing."""
    writer = HistoryWriter(tmp_path, BEGAN)
    text = kinds.shortened("SELECT '\udc80é'")
    writer.write([kinds.QueryStarted(at=1.0, query=1, sql=text)])
    writer.close()
    _, read = HistoryReader(tmp_path).read()
    assert isinstance(read, kinds.QueryStarted)
    assert "SELECT '\\udc80é'" == read.sql


def test_a_session_hears_whether_anybody_looks() -> None:
    """A page of the cluster asks all the time; placements are explained only for readers."""
    heard: list[tuple[bool, bool]] = []
    shared = SharedEvents(BEGAN, EventStream(), lambda _: False, lambda *asked: heard.append(asked))
    for request in (GetEvents(0, is_read=False), GetEvents(3, is_read=True), GetEvents(4, False)):
        assert isinstance(shared.answer(request), Events)
    assert [(True, False), (False, True), (False, False)] == heard


def test_files_of_the_last_format_are_read() -> None:
    """One that 0.2 wrote, with the figures of tasks beside their numbers: nothing is lost."""
    board = Board(is_history=True)
    session = ""
    for event in HistoryReader(Path(__file__).with_name("format_1.events.jsonl")).read():
        session = event.session if isinstance(event, kinds.SessionStarted) else session
        board.apply(event, session)
    queries = {query.sql: query for query in board.queries.values()}
    load = queries["load t"].by_index[1]
    assert (4, 2_000, 32_504) == (load.done, load.rows, load.bytes)
    grouped = next(query for sql, query in queries.items() if "GROUP BY" in sql)
    (stage,) = grouped.by_stage
    (task,) = stage.by_task
    assert ("node-1-e0", 7, True) == (task.executor, task.rows, task.local)
    assert 0.0116 < task.run_s < 0.0117
    assert [7, 7, 7, 2_000] == [each.rows for each in stage.operators]
    assert "node-1 has 1 free slot(s), asks, and is given this task" in stage.why(0)[-1]
    assert {"node-0", "node-1"} == {name for _, name in board.nodes}
