"""Bytes, files and functions that nobody would want: each fails alone, and the next query works."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from processes import until

import minishark
from minishark.cluster import wire
from minishark.cluster.connections import MALFORMED, Connections, NoAnswerError
from minishark.cluster.launch import ClusterRecord, StartOptions, start_cluster, stop_cluster
from minishark.errors import ExecutionError, FunctionError, MinisharkError, TaskFailedError
from minishark.session.session import Session
from minishark.worker import protocol as payloads
from minishark.worker.protocol import StoreLocation
from sparrow_core.protocol.messages import ClientIn, ExecutorIn, NodeMonitorIn, SchedulerIn

_ROWS = 4000
_SUM = "SELECT k, count(*) AS n, sum(a)::BIGINT AS s FROM t GROUP BY k ORDER BY k"
_ANSWER = [{"k": k, "n": _ROWS // 4, "s": sum(range(k, _ROWS, 4))} for k in range(4)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRecord]:
    """Two nodes with one executor each, over ipc."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("bad")))
        yield start_cluster(StartOptions(name="bad", nodes=2))
        stop_cluster("bad")


@pytest.fixture(scope="module")
def open_session(cluster: ClusterRecord) -> Iterator[Session]:
    """A session on it, with a table."""
    with minishark.connect(cluster.address, single_task_rows=0, partitions=4) as session:
        rows = pa.table({"k": [i % 4 for i in range(_ROWS)], "a": range(_ROWS)})
        session.create_table("t", rows, partitions=4)
        yield session


@pytest.fixture
def session(open_session: Session) -> Iterator[Session]:
    """The same; still usable afterwards, whatever has happened."""
    yield open_session
    assert _ANSWER == open_session.sql(_SUM).to_arrow().to_pylist()


def test_what_breaks_duckdb_breaks_no_session(session: Session) -> None:
    """TIMESTAMP_S holds what DuckDB can't write: that ends its database, and ours is another."""
    seconds = pa.array([10**14, 1], pa.int64()).cast(pa.timestamp("s"))
    session.create_table("late", pa.table({"t": seconds}), replace=True)
    session.sql("CREATE OR REPLACE TEMP TABLE kept AS SELECT 1 AS a")
    for sql in ("SELECT t::VARCHAR FROM late", "SELECT max(t)::VARCHAR FROM late"):
        with pytest.raises(TaskFailedError, match=r"mistake of its own.*Could not convert Timesta"):
            session.sql(sql).collect()
    assert [{"n": 2}] == session.sql("SELECT count(t) AS n FROM late").to_arrow().to_pylist()
    assert [{"a": 1}] == session.sql("FROM kept").to_arrow().to_pylist()


def test_what_breaks_the_front_end_says_so() -> None:
    """Few rows are searched there: what comes next fails, too, in plain words."""
    seconds = pa.array([10**14, 1], pa.int64()).cast(pa.timestamp("s"))
    with minishark.connect(in_process=True) as session:
        session.create_table("late", pa.table({"t": seconds, "n": [1, 2]}))
        for sql in ("DELETE FROM late WHERE t::VARCHAR = 'x'", "UPDATE late SET n = 3 WHERE n = 1"):
            with pytest.raises(TaskFailedError, match=r"mistake of its own[^\0]*connect again"):
                session.sql(sql)
        assert [{"n": 2}] == session.sql("SELECT count(*) AS n FROM late").to_arrow().to_pylist()


# Bytes


class _Tap:
    """An encoder that keeps what it encodes."""

    def __init__(self, encoder: Any) -> None:
        self.frames: list[bytes] = []
        self._encoder = encoder

    def encode(self, value: Any) -> bytes:
        """Encode, and keep it."""
        self.frames.append(self._encoder.encode(value))
        return self.frames[-1]


@contextlib.contextmanager
def _tapped(session: Session) -> Iterator[list[bytes]]:
    """The frames that the session sends and gets meanwhile."""
    driver = session._runtime.cluster.backend._driver  # type: ignore[attr-defined]
    tap, accept = _Tap(driver._encoder), driver._accept

    def accepted(body: bytes) -> None:
        tap.frames.append(body)
        accept(body)

    driver._encoder, driver._accept = tap, accepted
    yield tap.frames
    driver._encoder, driver._accept = tap._encoder, accept


def _sockets(session: Session, cluster: ClusterRecord) -> list[Path]:
    """All sockets of nodes, schedulers, executors, services and the front end."""
    own = session._runtime.cluster.store()._paths.disk
    roots = [own, *(Path(node.folders[1]) for node in cluster.nodes)]
    return sorted(path for root in roots for path in root.rglob("*.sock"))


def _bent(frame: bytes, rng: random.Random) -> bytes:
    """A frame that is cut short, with bits flipped, halves swapped, doubled, or blown up."""
    at = rng.randrange(len(frame) + 1)
    match rng.randrange(6):
        case 0:
            return frame[:at]
        case 1:
            bent = bytearray(frame)
            for _ in range(rng.randrange(1, 5)):
                bent[rng.randrange(len(bent))] ^= 1 << rng.randrange(8)
            return bytes(bent)
        case 2:
            return frame[at:] + frame[:at]
        case 3:
            return frame[:at] + rng.randbytes(rng.randrange(100)) + frame[at:]
        case 4:
            return frame + b"\x91" * rng.choice((10, 100_000))
        case _:
            return rng.randbytes(rng.randrange(200))


_FRAMES = msgspec.msgpack.Decoder(tuple[int, str, list[tuple[str, msgspec.Raw]]])
_MESSAGES = msgspec.msgpack.Decoder(SchedulerIn | NodeMonitorIn | ExecutorIn | ClientIn)


def _tells(frame: bytes) -> bool:
    """Whether a frame holds a message of Sparrow's that is well-formed."""
    try:
        messages = _FRAMES.decode(frame)[2]
    except MALFORMED:
        return False
    for _, raw in messages:
        with contextlib.suppress(*MALFORMED):
            return _MESSAGES.decode(raw) is not None
    return False


def _family(cluster: ClusterRecord) -> set[int]:
    nodes = [psutil.Process(node.pid) for node in cluster.nodes]
    found = [each for node in nodes for each in (node, *node.children(recursive=True))]
    return {each.pid for each in found if _runs(each)}


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _requests() -> list[bytes]:
    peer = StoreLocation("x", "h", "/m", "/d", "ipc:///none")
    requests = (
        wire.Hello(wire.own_versions()),
        wire.KeepSession(
            session="s-nobody",
            location=peer,
            user="u",
            pid=1,
            started_s=0.0,
            versions=wire.own_versions(),
        ),
        wire.EndSession("s-nobody"),
        wire.MakeFolder("s-nobody/a"),
        wire.RemoveFolder("s-nobody"),
        wire.Fetch(parts=(wire.Part("s-nobody/none.arrow"),), credit=8),
        wire.Credit(1),
        wire.Holds("s-nobody/none.arrow", "ipc:///none", "s-nobody/none.arrow@x"),
        wire.Replicate("s-nobody/none.arrow", peer),
        wire.GetUsage(),
    )
    return [wire.encode_message(request) for request in requests]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_no_bytes_harm_a_living_cluster(
    session: Session, cluster: ClusterRecord, seed: int
) -> None:
    """Bent real frames to every socket: no process ends, and queries are answered meanwhile."""
    rng = random.Random(seed)
    with _tapped(session) as real:
        assert _ANSWER == session.sql(_SUM).to_arrow().to_pylist()
    real += _requests()
    family, targets = _family(cluster), _sockets(session, cluster)
    assert len(targets) >= 2 * 3 + 2, "services, monitors, executors; two of the front end"
    context = zmq.Context()
    try:
        sockets = [_connected(context, path) for path in targets]
        for number in range(400):
            frames = [_bent(rng.choice(real), rng) for _ in range(rng.choice((1, 1, 1, 3)))]
            if any(map(_tells, frames)):
                continue  # a lie in good form; whoever may speak can tell one
            for socket in sockets:
                socket.send_multipart(frames)
            if number % 200 == 0:
                assert _ANSWER == session.sql(_SUM).to_arrow().to_pylist()
        assert all(socket.poll(0, zmq.POLLOUT) for socket in sockets), "none is stuck"
    finally:
        context.destroy(linger=1000)
    assert _ANSWER == session.sql(_SUM).to_arrow().to_pylist()
    assert family == _family(cluster)


def _connected(context: zmq.Context[zmq.Socket[bytes]], path: Path) -> zmq.Socket[bytes]:
    kind = zmq.DEALER if path.name == "service.sock" else zmq.PUSH
    socket = context.socket(kind)
    socket.connect(f"ipc://{path}")
    return socket


_BYTES = st.one_of(
    st.binary(max_size=200),
    st.tuples(st.sampled_from(_requests()), st.integers(0, 2**32)).map(
        lambda drawn: _bent(drawn[0], random.Random(drawn[1]))
    ),
    st.integers(1, 100_000).map(lambda depth: b"\x91" * depth),
)


@given(_BYTES)
def test_decoders_give_a_message_or_say_that_it_is_none(data: bytes) -> None:
    """Whatever the bytes: nothing but those errors that receivers expect comes out."""
    decoders: Sequence[Callable[[bytes], object]] = (
        wire.decode_request,
        wire.decode_reply,
        payloads.decode_job,
        payloads.decode_payload,
        payloads.decode_outcome,
        payloads.decode_value,
        payloads.decode_python_outcome,
        payloads.decode_problem,
    )
    for decode in decoders:
        try:
            assert decode(data) is not None
        except MALFORMED:
            continue
    with contextlib.suppress(NoAnswerError):
        assert Connections.decoded(data) is not None


def test_a_task_that_is_nonsense_fails_alone(session: Session) -> None:
    """A payload that no executor understands ends its own job with an error."""
    from sparrow_core import JobFailed, JobFinished, JobSpec, TaskFailed, TaskSpec

    events: list[Any] = []
    over = threading.Event()

    def hear(event: Any) -> None:
        events.append(event)
        if isinstance(event, JobFailed | JobFinished):
            over.set()

    for shared, payload in ((b"", b"nonsense"), (b"\xc1" * 10, b""), (b"x" * 1_000_000, b"\x91")):
        over.clear()
        tasks = (TaskSpec(0, payload),)
        session._runtime.cluster.backend.submit(JobSpec(tasks=tasks, shared=shared), hear)
        assert over.wait(30)
    assert 3 == sum(isinstance(event, TaskFailed) for event in events)


# Files


@pytest.mark.slow
def test_a_broken_partition_fails_its_queries_only(
    session: Session, cluster: ClusterRecord
) -> None:
    """All replicas of a partition are no Arrow files: a typed error, and other tables answer."""
    session.create_table("broken", pa.table({"a": range(_ROWS)}), partitions=2)
    name = session._runtime.tables.catalog.get("broken").partitions[1].file
    roots = [Path(folder, node.name) for node in cluster.nodes for folder in node.folders]
    files = [root / name for root in roots if (root / name).exists()]
    assert 2 == len(files)
    for path in files:
        content = path.read_bytes()
        spoilt = path.with_suffix(".new")
        spoilt.write_bytes(content[: len(content) // 2])
        spoilt.rename(path)
    with pytest.raises(ExecutionError):
        session.sql("SELECT sum(a) FROM broken").to_arrow()
    session.drop_table("broken")


@pytest.mark.sample(3)
@pytest.mark.parametrize("damage", ["cut", "flipped", "footer", "other schema"])
def test_damaged_parquet_fails_its_query_only(
    session: Session, tmp_path: Path, damage: str
) -> None:
    """Named in a query, with good files beside it: a typed error."""
    files = [tmp_path / f"{name}.parquet" for name in "abc"]
    for path in files:
        pq.write_table(pa.table({"a": range(20_000), "s": ["text"] * 20_000}), path)
    content = bytearray(files[1].read_bytes())
    match damage:
        case "cut":
            content = content[: len(content) // 2]
        case "flipped":
            content[20 : len(content) // 2] = random.Random(1).randbytes(len(content) // 2 - 20)
        case "footer":
            content[-8:-4] = b"\xff\xff\xff\x7f"
        case _:
            pq.write_table(pa.table({"b": [[1]]}), files[1])
            content = bytearray(files[1].read_bytes())
    files[1].write_bytes(content)
    with pytest.raises(MinisharkError):
        session.sql(f"SELECT sum(a), max(s) FROM '{tmp_path}/*.parquet'").to_arrow()
    if damage == "other schema":  # a table has the columns of all files
        session.create_table("damaged", f"{tmp_path}/*.parquet")
        session.drop_table("damaged")
        return
    with pytest.raises(MinisharkError):
        session.create_table("damaged", f"{tmp_path}/*.parquet")
    assert "damaged" not in session.tables


# Functions


def _exits(rows: pa.Table) -> pa.Table:
    raise SystemExit(3)


def _catches_all(rows: pa.Table) -> pa.Table:
    with contextlib.suppress(BaseException):
        sys.exit(3)
    return rows


def _forks(rows: pa.Table) -> pa.Table:
    os.fork()
    return rows


def _starts_threads(rows: pa.Table) -> pa.Table:
    def idle() -> None:
        while True:
            time.sleep(0.1)

    for _ in range(20):
        threading.Thread(target=idle).start()
    return rows


def _prints(rows: pa.Table) -> pa.Table:
    for _ in range(200):
        sys.stdout.write("x" * 10_000 + "\n")
        sys.stderr.write("y" * 10_000 + "\n")
    return rows


def _wants_all_memory(rows: pa.Table) -> pa.Table:
    return pa.table({"a": bytearray(1 << 60)})


def _other_columns(rows: pa.Table) -> pa.Table:
    return pa.table({"b": ["x"]})


def _other_type(rows: pa.Table) -> pa.Table:
    return pa.table({"a": ["no number"]})


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (_exits, FunctionError),
        (lambda rows: 7, FunctionError),
        (_other_columns, FunctionError),
        (_other_type, FunctionError),
        (_wants_all_memory, (MemoryError, MinisharkError)),
    ],
)
def test_functions_that_fail(
    session: Session, fn: Callable[[pa.Table], Any], error: type[Exception]
) -> None:
    """They end their own query with an error that is theirs."""
    with pytest.raises(error):
        session.table("t").select("a").map_partitions(fn, "a BIGINT").count()


@pytest.mark.slow
@pytest.mark.parametrize("fn", [_catches_all, _forks, _starts_threads, _prints])
def test_functions_that_misbehave(
    session: Session, cluster: ClusterRecord, fn: Callable[[pa.Table], pa.Table]
) -> None:
    """Their rows are right, and no process more is there when they are done."""
    family = _family(cluster)
    assert _ROWS == session.table("t").select("a").map_partitions(fn, "a BIGINT").count()
    until(lambda: family == _family(cluster), f"the end of copies, {family}")


@pytest.mark.slow
def test_a_scalar_function_that_forks(session: Session, cluster: ClusterRecord) -> None:
    """In SQL, too, copies of executors end."""
    forked: list[int] = []

    def once(value: int) -> int:
        if not forked:
            forked.append(1)
            os.fork()
        return value + 1

    family = _family(cluster)
    session.udf.register("once", once, "BIGINT")
    expected = [{"s": sum(range(_ROWS)) + _ROWS}]
    found = session.sql("SELECT sum(once(a))::BIGINT AS s FROM t").to_arrow()
    assert expected == found.to_pylist()
    until(lambda: family == _family(cluster), f"the end of copies, {family}")


@pytest.mark.slow
def test_message_types_are_told_apart() -> None:
    """A reply is no request, nor the other way round: a misdirected message is refused."""
    with pytest.raises(msgspec.ValidationError):
        wire.decode_request(wire.encode_message(wire.Done()))
    with pytest.raises(msgspec.ValidationError):
        wire.decode_reply(wire.encode_message(wire.EndSession("s")))
