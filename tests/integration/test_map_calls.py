"""Python functions that survive: bad rows, services that fail, executors that die."""

from __future__ import annotations

import asyncio
import functools
import http.client
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

import minishark
from minishark.dataframe import DataFrame, Row
from minishark.errors import DataError, FunctionError, OptionError, TasksLostError
from minishark.model.events.kinds import TaskEnded
from minishark.session.session import Session

ROWS = 20_000
BAD = 17_777


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Two nodes in this process, and a table in four partitions."""
    with minishark.connect(in_process=True, nodes=2, partitions=4) as found:
        rows = {"a": range(ROWS), "s": [None if i % 3 else str(i) for i in range(ROWS)]}
        found.create_table("t", pa.table(rows), partitions=4)
        yield found


@pytest.fixture(scope="module")
def processes() -> Iterator[Session]:
    """Two nodes of one executor process each, and a small table in two partitions."""
    with minishark.connect(nodes=2, executors_per_node=1) as found:
        found.create_table("t", pa.table({"a": range(40)}), partitions=2)
        yield found


@pytest.fixture
def t(session: Session) -> DataFrame:
    """The table."""
    return session.table("t")


# Bad rows


def one_is_bad(row: Row) -> tuple[int, Any]:
    if row.a == BAD:
        raise ValueError("a bad row")
    return row.a, row.s


def test_a_bad_row_is_set_aside(t: DataFrame) -> None:
    """The others are there; the bad one is in a table, with what was raised."""
    found = t.map_rows(one_is_bad, "b BIGINT, s VARCHAR", on_error="quarantine")
    assert [("b", "BIGINT"), ("s", "VARCHAR")] == found.dtypes
    good = found.to_arrow()
    assert t.filter(f"a != {BAD}").to_arrow().rename_columns(["b", "s"]) == good
    assert [(BAD, None, "ValueError", "a bad row", 1)] == found.rejected.collect()
    assert ["a", "s", "error_type", "error", "attempts"] == found.rejected.columns


def test_both_frames_call_nothing_twice(t: DataFrame, tmp_path: Path) -> None:
    """They read one promised table, which the first computes."""
    calls = tmp_path / "calls"

    def counting(row: Row) -> int:
        with calls.open("a") as file:
            file.write("x")
        return 1 // row.a

    found = t.limit(20).map_rows(counting, "b BIGINT", on_error="quarantine")
    assert not calls.exists()
    assert (1, 19, 19) == (found.rejected.count(), found.count(), found.persist().count())
    assert 20 == len(calls.read_text())
    assert [("ZeroDivisionError",)] == found.rejected.select("error_type").collect()


def test_a_bad_row_is_null(t: DataFrame) -> None:
    """All of its declared columns."""
    found = t.map_rows(one_is_bad, "b BIGINT, s VARCHAR", on_error="null")
    assert ROWS == found.count()
    assert 1 == found.filter("b IS NULL").count()


def test_a_bad_row_ends_the_job(t: DataFrame) -> None:
    """By default; with its exception, as for `map_partitions`."""
    with pytest.raises(ValueError, match="a bad row") as found:
        t.map_rows(one_is_bad, "b BIGINT, s VARCHAR").count()
    assert any("in one_is_bad" in note for note in found.value.__notes__)
    with pytest.raises(FunctionError, match="'b'"):
        t.limit(3).map_rows(lambda row: "x", "b BIGINT").collect()


def test_a_bad_batch_is_set_aside_with_all_its_rows(t: DataFrame) -> None:
    """Partitions have 5,000 rows, so batches of 1,000 are those of the table."""

    def picky(rows: pa.Table) -> pa.Table:
        if BAD in rows["a"].to_pylist():
            raise ValueError("a bad batch")
        return rows.select(["a"])

    found = t.map_batches(picky, "a BIGINT", batch_rows=1000, on_error="quarantine")
    assert ROWS - 1000 == found.count()
    bounds = found.rejected.select_expr("min(a)", "max(a)", "count(*)", "max(attempts)")
    assert [(17_000, 17_999, 1000, 1)] == bounds.collect()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "value",
    [
        "-1180591620717411303424::HUGEINT",
        "'x'::ENUM('x', 'y')",
        "{'a': [1, NULL], 'b': MAP {'k': 1.5}}",
        "TIMESTAMPTZ '2024-01-02 03:04:05+00'",
        "INTERVAL 3 DAYS",
        "UUID '00112233-4455-6677-8899-aabbccddeeff'",
        "NULL::BLOB",
        "1.25::DECIMAL(30, 2)",
        "[DATE '2024-01-02']",
    ],
)
def test_rejected_rows_keep_their_types(session: Session, value: str) -> None:
    """As they would in a table; also beside columns of the names that are added."""

    def fails(row: Row) -> int:
        raise KeyError(1)

    query = session.sql(f"SELECT {value} AS v, {value} AS v, 7 AS error")
    found = query.map_rows(fails, "rejected BIGINT", on_error="quarantine").rejected
    assert ["v", "v_1", "error", "error_type", "error_1", "attempts"] == found.columns
    expected = session.sql(f"SELECT {value}, {value}, 7").collect()
    assert expected == [row[:3] for row in found.collect()]


def test_options_are_checked(t: DataFrame) -> None:
    """When they are given, in a sentence."""

    class Dumb:
        """Has no __call__."""

    async def later(row: Row) -> int:
        return 1

    for options, match in (
        ({"on_error": "ignore"}, "'raise', 'null', 'quarantine'"),
        ({"retries": -1}, "retries"),
        ({"retries": 1.5}, "retries"),
        ({"backoff_s": -1}, "backoff_s"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 2}, "async"),
    ):
        with pytest.raises(OptionError, match=match):
            t.map_rows(lambda row: 1, "a BIGINT", **options)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="batch_rows"):
        t.map_batches(later, "a BIGINT", batch_rows=0)
    with pytest.raises(OptionError, match="__call__"):
        t.map_rows(Dumb, "a BIGINT")
    with pytest.raises(OptionError, match="takes a function"):
        t.map_rows(3, "a BIGINT")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="schema"):
        t.map_batches(later, ["a"])
    with pytest.raises(AttributeError, match="quarantine"):
        t.rejected  # noqa: B018 - a property
    named = t.select_expr("a AS rejected")
    assert [(0,)] == named.select(named.rejected).limit(1).collect()


# Services


class Service(ThreadingHTTPServer):
    """Doubles numbers; fails one call of twenty, at first."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.asked: Counter[str] = Counter()
        self.succeeded: Counter[str] = Counter()
        self.now = self.most = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Service

    def do_GET(self) -> None:
        number, service = self.path[1:], self.server
        with service.lock:
            service.asked[number] += 1
            service.now += 1
            service.most = max(service.most, service.now)
            fails = int(number) % 20 == 7 and service.asked[number] == 1
            service.succeeded[number] += not fails
        time.sleep(0.002)
        with service.lock:
            service.now -= 1
        body = str(2 * int(number)).encode()
        self.send_response(503 if fails else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def service() -> Iterator[Service]:
    """On loopback."""
    with Service() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def doubled(url: str, row: Row) -> int:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    try:
        connection.request("GET", f"/{row.a}")
        answer = connection.getresponse()
        if answer.status != 200:
            raise ConnectionError(f"status {answer.status}")
        return int(answer.read())
    finally:
        connection.close()


class Client:
    """Asks the service, side by side."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url)

    async def __call__(self, row: Row) -> int:
        reader, writer = await asyncio.open_connection(self.address.hostname, self.address.port)
        try:
            writer.write(f"GET /{row.a} HTTP/1.0\r\n\r\n".encode())
            status = await reader.readline()
            if b" 200 " not in status:
                raise ConnectionError(status.decode())
            answer = await reader.read()
            return int(answer.rpartition(b"\r\n")[2])
        finally:
            writer.close()
            await writer.wait_closed()


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_service_that_fails_at_times(processes: Session, service: Service, kind: str) -> None:
    """The job ends; what failed is asked again, and nothing that succeeded."""
    fn: Any = functools.partial(doubled if kind == "plain" else Client, service.url)
    found = processes.range(400).select_expr("id AS a").repartition(2)
    options: dict[str, Any] = {"retries": 3, "backoff_s": 0.001}
    if kind == "async":
        options["concurrency"] = 8
    answers = found.map_rows(fn, "b BIGINT", **options).collect()
    assert [(2 * number,) for number in range(400)] == sorted(answers)
    assert {str(number): 1 for number in range(400)} == service.succeeded
    assert 420 == service.asked.total()
    if kind == "async":
        assert 2 < service.most <= 2 * 8  # a bound for each of two executors


def test_what_a_service_refuses_is_set_aside(processes: Session, service: Service) -> None:
    """Without repetitions, one row of twenty; figures tell of them."""
    numbers = processes.range(100).select_expr("id AS a").repartition(2)
    found = numbers.map_rows(
        functools.partial(Client, service.url),
        "b BIGINT",
        on_error="quarantine",
        concurrency=4,
        timeout_s=30,
    )
    assert (95, 5) == (found.count(), found.rejected.count())
    assert 100 == service.asked.total()
    assert [("ConnectionError",)] == found.rejected.select("error_type").distinct().collect()


def test_figures_tell_of_calls(session: Session) -> None:
    """Those of the tasks that make them."""

    def fails(row: Row) -> int:
        return 1 // int(row.a % 10)

    found = (
        session.table("t")
        .limit(100)
        .map_rows(fails, "a BIGINT", on_error="null", retries=2, backoff_s=0.0)
    )
    events = session._group.engine.events
    before = events.since(0).last
    assert 10 == found.filter("a IS NULL").count()
    ended = [each for each in events.since(before).events if isinstance(each, TaskEnded)]
    assert 20 == sum(each.figures.retried_calls for each in ended)
    assert 10 == sum(each.figures.rejected_rows for each in ended)


# Executors


class Model:
    """Notes each instance, and which process made it."""

    def __init__(self, folder: str) -> None:
        with (Path(folder) / "made").open("a") as file:
            file.write(f"{os.getpid()}\n")

    def __call__(self, rows: pa.Table) -> pa.Table:
        return pa.table({"pid": [os.getpid()] * len(rows)})


def test_a_class_is_made_once_per_executor(processes: Session, tmp_path: Path) -> None:
    """For all tasks and queries that call it alike."""
    model = functools.partial(Model, str(tmp_path))
    used = set[int]()
    for _ in range(3):
        frame = processes.range(64).repartition(8).map_batches(model, "pid BIGINT", batch_rows=2)
        used |= {row.pid for row in frame.collect()}
    made = (tmp_path / "made").read_text().split()
    assert sorted(map(str, used)) == sorted(made)


def noted(folder: str, fn: Callable[[int], None], rows: pa.Table) -> pa.Table:
    first = rows["a"][0].as_py()
    with (Path(folder) / f"{first:02}").open("a") as file:
        file.write("x")
    fn(first)
    return rows


def test_batches_that_are_done_are_not_done_again(processes: Session, tmp_path: Path) -> None:
    """An executor dies in the middle of its task: another attempt calls what is left."""

    def dies_once(folder: str, first: int) -> None:
        marker = Path(folder) / "died"
        if first == 30 and not marker.exists():
            marker.touch()
            os._exit(3)

    fn = functools.partial(noted, str(tmp_path), functools.partial(dies_once, str(tmp_path)))
    found = processes.table("t").map_batches(fn, "a BIGINT", batch_rows=2)
    assert list(range(40)) == sorted(row.a for row in found.collect())
    calls = {path.name: path.read_text() for path in tmp_path.iterdir() if path.name != "died"}
    assert {f"{first:02}": "xx" if first == 30 else "x" for first in range(0, 40, 2)} == calls
    assert [] == list(processes._runtime.cluster.store()._paths.disk.rglob("*.calls"))


@pytest.mark.slow
def test_a_batch_that_kills_python_is_set_aside(processes: Session, tmp_path: Path) -> None:
    """After its second death; by default it ends the job, as any such function."""

    def dies(first: int) -> None:
        if first == 6:
            os._exit(3)

    fn = functools.partial(noted, str(tmp_path), dies)
    found = processes.table("t").map_batches(fn, "a BIGINT", batch_rows=2, on_error="quarantine")
    assert 38 == found.count()
    expected = [(n, "minishark.errors.TasksLostError", 2) for n in (6, 7)]
    assert expected == found.rejected.select("a", "error_type", "attempts").collect()
    assert "xx" == (tmp_path / "06").read_text()


@pytest.mark.slow
def test_without_quarantine_a_batch_that_kills_python_ends_the_job(processes: Session) -> None:
    """With how its executors have died."""
    with pytest.raises(TasksLostError, match="executor lost"):
        processes.table("t").map_rows(lambda row: os._exit(3), "a BIGINT").count()


@pytest.mark.parametrize("kind", ["plain", "async", "waits"])
def test_ctrl_c_ends_calls(processes: Session, tmp_path: Path, kind: str) -> None:
    """Whatever they wait for; no policy takes it for an error of a row."""
    started = tmp_path / "started"

    def loops(row: Row) -> int:
        started.touch()
        while True:
            pass

    async def later(row: Row) -> int:
        started.touch()
        await asyncio.sleep(300)
        return 1

    def fails(row: Row) -> int:
        started.touch()
        raise ValueError

    fn = {"plain": loops, "async": later, "waits": fails}[kind]
    frame = processes.table("t").map_rows(fn, "a BIGINT", on_error="null", retries=9, backoff_s=60)

    def interrupt() -> None:
        while not started.exists():
            time.sleep(0.01)
        processes.interrupt_all()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(minishark.errors.QueryCancelledError):
        frame.count()
    thread.join()
    assert 40 == processes.table("t").map_rows(lambda row: row.a, "a BIGINT").count()


@pytest.mark.slow
def test_a_call_that_is_stuck_is_left_behind(processes: Session) -> None:
    """In C, where nothing interrupts it: the others go on, and its process ends later."""

    def sleeps(row: Row) -> int:
        if row.a == 3:
            time.sleep(8)
        return int(row.a)

    found = processes.table("t").map_rows(sleeps, "a BIGINT", on_error="quarantine", timeout_s=0.2)
    assert 39 == found.count()
    assert [(3, "TimeoutError")] == found.rejected.select("a", "error_type").collect()
