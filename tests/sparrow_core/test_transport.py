"""What the ZeroMQ driver refuses, survives and counts."""

from __future__ import annotations

import math
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest
import zmq
from harness import until

from machine_kit import keys
from machine_kit.addresses import Address, address
from machine_kit.errors import InsecureTransport
from machine_kit.local_driver import LocalDriver
from machine_kit.machine import Envelope, Message
from sparrow_core.protocol.errors import SparrowError
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.messages import (
    PROTOCOL_VERSION,
    CancelReservations,
    EndJob,
    GetNodes,
    KnownNodes,
    Reserve,
)
from sparrow_core.protocol.types import Claim
from sparrow_core.runtime.transport import zmq_driver
from sparrow_core.runtime.transport.zmq_driver import ZmqDriver


class Recorder:
    """A machine that keeps what it gets, and answers to clients."""

    inputs = KnownNodes | GetNodes | EndJob | Reserve | CancelReservations

    def __init__(self, at: Address) -> None:
        self.at = at
        self.got: list[object] = []

    def on_message(self, msg: Message, now: float) -> list[Envelope]:
        """Keep the message."""
        del now
        self.got.append(msg)
        return [Envelope(msg.client, KnownNodes(self.at, ()))] if isinstance(msg, GetNodes) else []

    def check(self) -> None:
        """Nothing to check."""


def _refused(process: Process) -> int:
    return process.driver.counters()["connections_refused"]


class Process:
    """A driver with a recorder, turned by hand."""

    def __init__(self, driver: ZmqDriver) -> None:
        self.driver = driver
        self.at = driver.address("recorder")
        self.recorder = Recorder(self.at)
        driver.host("recorder", self.recorder)

    def turn(self) -> None:
        """One turn of the loop that waits for hardly anything."""
        self.driver._wait(0.001)
        self.driver._take_posted()
        self.driver._deliver()
        self.driver._send()


@pytest.fixture
def drivers() -> Iterator[list[ZmqDriver]]:
    """Drivers that are closed in the end."""
    made: list[ZmqDriver] = []
    yield made
    for driver in made:
        driver.close()


def over_tcp(drivers: list[ZmqDriver], *own_keys: keys.Keys) -> list[Process]:
    """Processes on the loopback, with these keys."""
    drivers += [ZmqDriver("tcp://127.0.0.1:*", each) for each in own_keys]
    return [Process(driver) for driver in drivers]


def over_ipc(drivers: list[ZmqDriver], run_dir: Path, *names: str) -> list[Process]:
    """Processes with sockets in a folder."""
    drivers += [ZmqDriver(f"ipc://{run_dir}/{name}.sock") for name in names]
    return [Process(driver) for driver in drivers]


def ask(asker: Process, asked: Process) -> None:
    """Let one ask the other."""
    asker.driver.post(asked.at, GetNodes(asker.at))


def turn_until(processes: list[Process], condition: object, what: str) -> None:
    """Turn all loops until something holds."""

    def holds() -> bool:
        for each in processes:
            each.turn()
        return condition()  # type: ignore[operator,no-any-return]

    until(holds, what)


def pair() -> tuple[keys.Keys, keys.Keys]:
    """Two parties that accept each other."""
    one, two = keys.generate(), keys.generate()
    return (
        msgspec.structs.replace(one, allowed=(two.public,)),
        msgspec.structs.replace(two, allowed=(one.public,)),
    )


def test_tcp_needs_keys(drivers: list[ZmqDriver], run_dir: Path) -> None:
    """Without keys a process neither listens over tcp nor sends anything there."""
    with pytest.raises(SparrowError, match="tcp needs keys"):
        ZmqDriver("tcp://127.0.0.1:*")
    (process,) = over_ipc(drivers, run_dir, "a")
    key = keys.generate().public
    for endpoint in (f"tcp://127.0.0.1:1/{key}", "tcp://127.0.0.1:1", "nonsense"):
        process.driver.post(address(endpoint, "x"), GetNodes(process.at))
    process.turn()
    assert 3 == process.driver.undeliverable


def test_what_may_wait_rides_with_the_next_frame(
    drivers: list[ZmqDriver], run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In front of it; alone after a while, or when the driver stops. Other ends do not wait."""
    monkeypatch.setattr(zmq_driver, "_WAIT_S", 60.0)
    one, two = over_ipc(drivers, run_dir, "a", "b")
    ended = [EndJob(JobId(str(number)), finished=number < 4) for number in range(5)]
    one.driver.post(two.at, ended[0])
    one.turn()
    assert math.inf > one.driver._timeout_s() > 30
    ask(one, two)
    turn_until([one, two], lambda: one.recorder.got, "the answer")
    expected: list[object] = [ended[0], GetNodes(one.at)]
    assert expected == two.recorder.got
    monkeypatch.setattr(zmq_driver, "_WAIT_S", 0.0)
    one.driver.post(two.at, ended[1])
    turn_until([one, two], lambda: ended[1] in two.recorder.got, "what has waited enough")
    monkeypatch.setattr(zmq_driver, "_WAIT_S", 60.0)
    one.driver.post(two.at, ended[2])
    one.turn()
    one.driver.post(two.at, ended[4])
    turn_until([one, two], lambda: ended[4] in two.recorder.got, "the end of an unfinished job")
    one.driver.post(two.at, ended[3])
    one.turn()
    one.driver.stop()
    one.turn()
    turn_until([two], lambda: ended[3] in two.recorder.got, "what was left")
    assert [*expected, ended[1], ended[2], ended[4], ended[3]] == two.recorder.got


def test_what_is_cancelled_in_the_turn_in_which_it_is_reserved_is_not_sent(
    drivers: list[ZmqDriver], run_dir: Path
) -> None:
    """Of that job, at that machine; later cancellations are sent."""
    one, two = over_ipc(drivers, run_dir, "a", "b")
    mine, other = JobId("mine"), JobId("other")
    claim = Claim(user="me", waiting=1)
    for job_id in (mine, other):
        one.driver.post(two.at, Reserve(job_id, one.at, 1, claim))
    one.driver.post(two.at, CancelReservations(mine, 1))
    one.turn()
    one.driver.post(two.at, CancelReservations(other, 1))
    turn_until([one, two], lambda: CancelReservations(other, 1) in two.recorder.got, "the last")
    assert [Reserve(other, one.at, 1, claim), CancelReservations(other, 1)] == two.recorder.got
    one.driver.post(two.at, Reserve(mine, one.at, 1, claim))
    one.driver.post(two.at, CancelReservations(mine, 1))
    one.driver._take_posted()
    assert {} == one.driver._outbox  # not even an empty frame, which would wake the process


def test_a_cancellation_is_sent_to_a_node_that_may_have_asked(
    drivers: list[ZmqDriver], run_dir: Path
) -> None:
    """It had reservations before; its request gets no other answer."""
    one, two = over_ipc(drivers, run_dir, "a", "b")
    job_id, claim = JobId("j"), Claim(user="me", waiting=1)
    one.driver.post(two.at, Reserve(job_id, one.at, 2, claim))
    turn_until([one, two], lambda: two.recorder.got, "the first ones")
    one.driver.post(two.at, Reserve(job_id, one.at, 1, claim))
    one.driver.post(two.at, CancelReservations(job_id, 3))
    turn_until([one, two], lambda: two.recorder.got[2:], "both messages")
    assert CancelReservations(job_id, 3) == two.recorder.got[2]


def test_parties_that_know_each_other_speak_over_tcp(drivers: list[ZmqDriver]) -> None:
    """Question and answer, encrypted both ways; the endpoint carries the key."""
    one, two = over_tcp(drivers, *pair())
    ask(one, two)
    turn_until([one, two], lambda: one.recorder.got, "the answer")
    assert [KnownNodes(two.at, ())] == one.recorder.got
    assert two.driver.endpoint.startswith("tcp://127.0.0.1:")
    assert 0 == _refused(one) + _refused(two)


def test_who_is_not_on_the_allow_list_is_refused(drivers: list[ZmqDriver]) -> None:
    """A stranger with a key of his own and the right address says nothing."""
    known, server = pair()
    stranger = msgspec.structs.replace(keys.generate(), allowed=(server.public,))
    one, two, other = over_tcp(drivers, known, server, stranger)
    ask(other, two)
    turn_until([other, two], lambda: _refused(two), "the refusal")
    ask(one, two)
    turn_until([one, two, other], lambda: one.recorder.got, "the answer to the other one")
    assert [GetNodes(one.at)] == two.recorder.got
    assert two.driver.counters()["connections_refused"] > 0


def test_an_impostor_is_not_spoken_to(drivers: list[ZmqDriver]) -> None:
    """Who listens at an address with another key than it says hears nothing."""
    mine, other = pair()
    one, two = over_tcp(drivers, mine, other)
    where = two.driver.endpoint.rpartition("/")[0]
    wrong = address(f"{where}/{keys.generate().public}", "recorder")
    one.driver.post(wrong, GetNodes(one.at))
    ask(one, two)
    turn_until([one, two], lambda: one.recorder.got, "the answer of the right one")
    assert [GetNodes(one.at)] == two.recorder.got


def test_plain_connections_to_tcp_are_refused(drivers: list[ZmqDriver]) -> None:
    """A peer without encryption gets nothing through."""
    one, two = over_tcp(drivers, *pair())
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(two.driver.endpoint.rpartition("/")[0])
    frame = (PROTOCOL_VERSION, "x", [("recorder", GetNodes(one.at))])
    socket.send(msgspec.msgpack.encode(frame))
    ask(one, two)
    turn_until([one, two], lambda: one.recorder.got, "the answer")
    assert [GetNodes(one.at)] == two.recorder.got
    context.destroy(linger=0)


def test_another_version_is_told_ours(drivers: list[ZmqDriver], run_dir: Path) -> None:
    """Its messages are not looked into; both sides learn of it, once, and do not chatter."""
    told: list[tuple[str, int]] = []
    drivers.append(
        ZmqDriver(
            f"ipc://{run_dir}/a.sock",
            on_incompatible=lambda peer, version: told.append((peer, version)),
        )
    )
    process = Process(drivers[0])
    context = zmq.Context()
    inbox = context.socket(zmq.PULL)
    old = f"ipc://{run_dir}/old.sock"
    inbox.bind(old)
    socket = context.socket(zmq.PUSH)
    socket.connect(process.driver.endpoint)
    for messages in ([("recorder", ["Unknown"])], [("recorder", ["Unknown"])], []):
        socket.send(msgspec.msgpack.encode((PROTOCOL_VERSION + 1, old, messages, "new field")))
    turn_until([process], lambda: inbox.poll(1), "the answer")
    answer = [PROTOCOL_VERSION, process.driver.endpoint, []]
    assert answer == msgspec.msgpack.decode(inbox.recv())
    assert [(old, PROTOCOL_VERSION + 1)] == told
    assert {old: PROTOCOL_VERSION + 1} == process.driver.incompatible
    assert (0, []) == (process.driver.malformed, process.recorder.got)
    context.destroy(linger=0)


def test_no_frame_harms_a_process(drivers: list[ZmqDriver], run_dir: Path) -> None:
    """Noise, frames cut short or with bytes changed: counted, or answered, or taken; no more."""
    (process,) = over_ipc(drivers, run_dir, "a")
    rng = Random(1)
    messages = [("recorder", GetNodes(process.at)), ("recorder", ["Unknown"]), ("nobody", 1)]
    good = msgspec.msgpack.encode((PROTOCOL_VERSION, "ipc:///x", messages))
    nested = b"\x93\x02\xa1x" + b"\x91" * 100_000
    for number in range(5000):
        body = bytearray(good)
        for _ in range(rng.randrange(4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        frame = rng.randbytes(number % 60) if number % 5 == 0 else bytes(body)
        process.driver._accept(frame[: rng.randrange(len(frame) + 1)] if number % 3 else frame)
        process.driver._deliver()
        process.driver._send()
    process.driver._accept(nested)
    taken = len(process.recorder.got)
    process.driver._accept(good)
    process.driver._deliver()
    expected = [GetNodes(process.at), KnownNodes(process.at, ())]
    assert expected == process.recorder.got[taken:], "the good message beside malformed ones"
    assert process.driver.malformed > 1000


def test_sockets_need_a_private_folder(tmp_path: Path) -> None:
    """A folder that others may enter is refused before anything listens in it."""
    tmp_path.chmod(0o755)
    with pytest.raises(SparrowError, match="0700"):
        ZmqDriver(f"ipc://{tmp_path}/a.sock")
    assert [] == list(tmp_path.iterdir())


STOPPED = """
import sys, zmq
inbox = zmq.Context().socket(zmq.PULL)
inbox.setsockopt(zmq.RCVHWM, 10)
inbox.bind(sys.argv[1])
print("up", flush=True)
while True:
    inbox.recv()
"""


def test_a_stopped_peer_harms_nobody(
    drivers: list[ZmqDriver], run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a SIGSTOPped process does not take is bounded and counted; others are served."""
    monkeypatch.setattr(zmq_driver, "_HIGH_WATER_MARK", 10)
    one, two = over_ipc(drivers, run_dir, "a", "b")
    slow = f"ipc://{run_dir}/slow.sock"
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED, slow], stdout=subprocess.PIPE, text=True
    ) as peer:
        assert peer.stdout is not None
        assert "up\n" == peer.stdout.readline()
        os.kill(peer.pid, signal.SIGSTOP)

        def overflowed() -> int:
            one.driver.post(address(slow, "x"), GetNodes(Address("x" * 10_000)))
            return one.driver.overflowed

        turn_until([one], overflowed, "the overflow")
        ask(one, two)
        turn_until([one, two], lambda: one.recorder.got, "the other peer's answer")
        peer.kill()


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_the_end_of_a_process_is_noticed_at_once(
    drivers: list[ZmqDriver], run_dir: Path, transport: str
) -> None:
    """Whoever has been heard is watched; one that is there, and says nothing, is not gone."""
    gone: list[str] = []
    one, two = pair()
    tcp = transport == "tcp"
    places = ["tcp://127.0.0.1:*"] * 2 if tcp else [f"ipc://{run_dir}/{n}.sock" for n in "ab"]
    drivers.append(ZmqDriver(places[0], one, on_gone=gone.append))
    here, there = Process(drivers[0]), Process(ZmqDriver(places[1], two))
    there.driver.post(here.at, KnownNodes(there.at, ()))
    turn_until([here, there], lambda: here.recorder.got, "the message")
    for _ in range(30):
        here.turn()
    assert [] == gone
    there.driver.close()
    turn_until([here], lambda: gone, "the end of the process")
    for _ in range(30):
        here.turn()
    assert [there.driver.endpoint] == gone, "once"


def test_peers_are_bounded(
    drivers: list[ZmqDriver], run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that come and go do not use up sockets: the longest unused is closed."""
    monkeypatch.setattr(zmq_driver, "_PEERS_MAX", 3)
    one, two = over_ipc(drivers, run_dir, "a", "b")
    for number in range(10):
        gone = address(f"ipc://{run_dir}/gone{number}.sock", "x")
        one.driver.post(gone, GetNodes(one.at))
        one.turn()
    assert 3 == len(one.driver._peers)
    ask(one, two)
    turn_until([one, two], lambda: one.recorder.got, "the answer")


def test_keys_are_kept_private(tmp_path: Path) -> None:
    """Mode 0600, never overwritten, and not read when others can."""
    file, allowed = tmp_path / "own.key", tmp_path / "allowed.keys"
    pair = keys.generate()
    peer = keys.generate().public
    keys.write_key_file(file, pair)
    allowed.write_text(f"# who may speak\n{peer} a node\n\n")
    assert 0o600 == stat.S_IMODE(file.stat().st_mode)
    assert msgspec.structs.replace(pair, allowed=(peer,)) == keys.read_keys(file, allowed)
    with pytest.raises(InsecureTransport, match="not overwritten"):
        keys.write_key_file(file, pair)
    file.chmod(0o640)
    with pytest.raises(InsecureTransport, match="read by others"):
        keys.read_keys(file, allowed)


@pytest.mark.parametrize("text", ["short", "g" * 64, "0" * 65])
def test_malformed_keys_are_refused(tmp_path: Path, text: str) -> None:
    """An allow-list with a line that is no key is an error, not a shorter list."""
    file, allowed = tmp_path / "own.key", tmp_path / "allowed.keys"
    keys.write_key_file(file, keys.generate())
    allowed.write_text(text)
    with pytest.raises(InsecureTransport, match="64 hexadecimal"):
        keys.read_keys(file, allowed)
    with pytest.raises(InsecureTransport, match="cannot read"):
        keys.read_keys(file, tmp_path / "missing")


def test_what_a_machine_posts_is_delivered_in_the_same_turn() -> None:
    """A callback on the loop's thread that posts a message needs neither a wake-up nor a turn."""
    driver = LocalDriver("memory")
    turns: list[int] = []
    driver._send = lambda: turns.append(len(turns))  # type: ignore[method-assign]
    seen: list[tuple[str, int]] = []

    class Asker(Recorder):
        def on_message(self, msg: Message, now: float) -> list[Envelope]:
            del now
            seen.append((type(msg).__name__, len(turns)))
            if isinstance(msg, GetNodes):
                driver.post(self.at, KnownNodes(self.at, ()))
            else:
                driver.stop()
            return []

    asker = Asker(driver.address("asker"))
    driver.host("asker", asker)
    driver.post(asker.at, GetNodes(asker.at))
    driver.run()
    assert [("GetNodes", 0), ("KnownNodes", 0)] == seen
    assert [0] == turns


def test_long_timers_fire_together_and_never_early() -> None:
    """Timers of jobs that have ended must not wake the loop one by one; short ones are exact."""
    driver = LocalDriver("memory")
    at = driver.address("recorder")
    before = time.monotonic()
    for delay_s in (0.001, 0.1, 0.1, 0.1, 3.0):
        driver._route(Envelope(at, GetNodes(at), delay_s))
    spent = time.monotonic() - before
    dues = sorted(due - before for due, _, _ in driver._timers)
    assert 0.001 <= dues[0] <= 0.001 + spent
    assert all(0.1 <= due <= 0.11 + spent for due in dues[1:4])
    assert 3.0 <= dues[4] <= 3.01 + spent
    assert len(set(dues[1:4])) <= 1 + math.ceil(spent / 0.01)
