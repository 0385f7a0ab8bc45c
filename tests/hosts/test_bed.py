"""The bed itself: hosts are apart, their network is as asked for, and nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from bed import ROOT, Bed, hosts, until

_SERVER = """
import socket
server = socket.create_server(("0.0.0.0", 7000))
while True:
    peer, _ = server.accept()
    while data := peer.recv(1 << 20):
        if data.endswith(b"!"):
            peer.sendall(b"k")
"""
_CLIENT = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[3]))
began = time.monotonic()
peer.sendall(b"y" * int(sys.argv[2]) + b"!")
peer.recv(1)
print(time.monotonic() - began)
"""


def _exchange_s(bed: Bed, count: int, timeout_s: float = 10.0) -> float:
    """How long host 0 takes to send `count` bytes to host 1 and to hear of it."""
    return float(bed.run(0, _CLIENT, bed.ip(1), str(count), str(timeout_s)))


def _serve(bed: Bed) -> None:
    bed.spawn(1, sys.executable, "-c", _SERVER)
    assert until(lambda: _answers(bed), 10), "no server on host 1"


def _answers(bed: Bed) -> bool:
    try:
        return _exchange_s(bed, 1, 0.3) < 10
    except AssertionError:
        return False


def test_hosts_are_apart() -> None:
    """Each has a name, an address, shared memory and processes of its own, and files in common."""
    look = (
        "import os, socket; print(socket.gethostname(), os.listdir('/dev/shm'), "
        "sorted(int(p) < 100 for p in os.listdir('/proc') if p.isdecimal())[0])"
    )
    with hosts(2) as bed:
        bed.run(1, "open('/dev/shm/mine', 'w')")
        assert ["host-0", "[]", "True"] == bed.run(0, look).split()
        assert ["host-1", "['mine']", "True"] == bed.run(1, look).split()
        bed.run(1, "import sys; open(sys.argv[1], 'w')", str(bed.folder / "common"))
        assert (bed.folder / "common").exists()
        folder = bed.folder
    assert not folder.exists()


@pytest.mark.slow
def test_a_slow_link() -> None:
    """Bandwidth, counted bytes, and a cut that neither side is told of, until it is healed."""
    with hosts(2, rate="80mbit") as bed:
        _serve(bed)
        before = bed.bytes_sent(0)
        assert 0.15 < _exchange_s(bed, 2_000_000) < 5
        assert 2_000_000 < bed.bytes_sent(0) - before < 2_300_000
        bed.cut(0, 1)
        assert not _answers(bed)
        bed.heal()
        assert until(lambda: _answers(bed), 10)


@pytest.mark.slow
def test_a_long_link() -> None:
    """Each packet is late, some are lost, and all bytes come nevertheless."""
    with hosts(2, delay_ms=10, loss=0.02) as bed:
        _serve(bed)
        assert 0.02 < min(_exchange_s(bed, 1) for _ in range(3)) < 1
        assert 0.02 < _exchange_s(bed, 500_000) < 10


@pytest.mark.slow
def test_hosts_with_few_cores() -> None:
    """Programs of a host have together what they were given, and their group is removed."""
    spin = (
        "import time; end = time.monotonic() + 0.5\n"
        "while time.monotonic() < end: pass\n"
        "print(time.process_time())"
    )
    try:
        with hosts(1, cores=0.2) as bed:
            used = float(bed.run(0, spin))
            (group,) = bed.groups
    except OSError as error:
        pytest.skip(f"control groups are not allowed here ({error})")
    assert used < 0.4
    assert not group.exists()


@pytest.mark.slow
def test_nothing_is_left_after_a_kill() -> None:
    """Hosts end with the process that made them, with all that runs there; files at the next."""
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); from bed import hosts\n"
        "with hosts(1) as bed:\n"
        "    bed.spawn(0, 'sleep', '1234567'); print(bed.folder, flush=True); time.sleep(60)"
    )
    command = (sys.executable, "-c", code, str(Path(__file__).parent))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        assert until(lambda: _sleepers() == 1, 10)
        os.kill(owner.pid, signal.SIGKILL)
    assert until(lambda: _sleepers() == 0, 10)
    assert folder.exists()
    with hosts(1):
        assert not folder.exists()


def _sleepers() -> int:
    found = 0
    for process in psutil.process_iter(["cmdline"]):
        found += process.info["cmdline"] == ["sleep", "1234567"]
    return found
