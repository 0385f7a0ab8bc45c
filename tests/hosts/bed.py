"""Hosts on one machine: each with its own network, name, processes, shared memory and `/run`.

    with hosts(3, rate="200mbit", delay_ms=10, loss=0.01) as bed:
        bed.start_node(0), bed.start_node(1)
        print(bed.run(2, "import minishark ..."))
        bed.cut(0, 1)

A host is a set of namespaces, held by a process that lives as long as a pipe from this one is open.
So nothing is left of the hosts, even after SIGKILL: their processes, devices and memory end with
that process. The network is a bridge, with the token buckets of `tc` for bandwidth; delay and loss
are made by `relay.py`. All hosts see the files of this machine except `/run` and `/dev/shm`.

Needs root, iproute2, and nftables for `cut`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import psutil

from minishark.cluster.launch import make_keys

ROOT = Path(__file__).resolve().parents[2]
_RELAY = Path(__file__).with_name("relay.py")
_PREFIX = "minishark-bed-"
_PORT = 7077
_START_S = 60.0
_CGROUPS = Path("/sys/fs/cgroup")
_PERIOD_US = 10_000
_TOOLS = ("unshare", "nsenter", "ip", "tc", "nft")
# Whoever ignores SIGCHLD need not wait for the orphans that it inherits.
_HOLDER = """
trap "" CHLD
mount -t tmpfs -o mode=755 tmpfs /run && mkdir -m 700 /run/user /run/tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
hostname "$0"; ip link set lo up; echo ready; exec cat
"""


def why_not() -> str | None:
    """Why hosts can't be made here, as a sentence; None if they can."""
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"hosts need {', '.join(missing)}: install iproute2, nftables and util-linux"
    try:
        with hosts(1) as bed:
            bed.bytes_sent(0)
    except (OSError, subprocess.SubprocessError, psutil.Error, AssertionError) as error:
        return f"namespaces are not allowed here ({error})"
    return None


class Held:
    """A process that lives until its standard input is closed, and has said that it is ready."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            message = f"{command[0]}: {self.process.communicate(timeout=10)[1].strip()}"
            raise AssertionError(message)

    def end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.communicate(timeout=10)
        self.process.kill()
        self.process.wait()


class Bed:
    """Hosts, numbered from 0, and the network between them."""

    def __init__(self, folder: Path, holders: Sequence[int], groups: Sequence[Path] = ()) -> None:
        """Use namespaces of the processes `holders`; files go to `folder`.

        `groups` are the control groups in which their programs run, if in any.
        """
        self.folder = folder
        self.keys = folder / "keys"
        self._holders = holders
        self.groups = groups
        self._cuts: set[tuple[int, int]] = set()  # (to, from)
        self._programs: list[subprocess.Popen[str]] = []
        make_keys(self.keys)

    def __len__(self) -> int:
        return len(self._holders)

    # Addresses

    def ip(self, host: int) -> str:
        """The host's address in the network of the bed."""
        return f"10.77.0.{host + 1}"

    def address(self, host: int) -> str:
        """Where the node on a host listens."""
        return f"tcp://{self.ip(host)}:{_PORT}"

    # Programs

    def command(self, host: int, *command: str) -> list[str]:
        """The command line that runs `command` on a host."""
        spaces = ("--net", "--uts", "--mount", "--pid")
        enter = ("nsenter", "-t", str(self._holders[host]), *spaces, "--")
        inside = [*enter, "env", f"--chdir={ROOT}", *command]  # the namespaces begin at the root
        if not self.groups:
            return inside
        joins = 'echo $$ > "$0"; exec "$@"'
        return ["sh", "-c", joins, str(self.groups[host] / "cgroup.procs"), *inside]

    def environment(self, changes: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a host's programs."""
        own = {
            "TMPDIR": "/run/tmp",
            "XDG_RUNTIME_DIR": "/run/user",
            "PYTHONPATH": str(ROOT),
            "MINISHARK_KEYS": str(self.keys),
        }
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("MINISHARK_", "PYTEST"))}
        return kept | own | dict(changes or {})

    def spawn(self, host: int, *command: str, **changes: str) -> subprocess.Popen[str]:
        """Start a program on a host, with pipes; `changes` are environment variables."""
        started = subprocess.Popen(
            self.command(host, *command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, env=self.environment(changes),
        )  # fmt: skip
        self._programs.append(started)
        return started

    def run(self, host: int, code: str, *arguments: str, timeout_s: float = 300.0) -> str:
        """Run Python code on a host, with `sys.argv[1:]`; what it prints."""
        done = subprocess.run(
            self.command(host, sys.executable, "-c", code, *arguments),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s,
            env=self.environment(), check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"status {done.returncode} on host {host}\n{done.stderr}"
        return done.stdout

    def start_node(
        self, host: int, *options: str, executors: int = 1, heads: int = 2
    ) -> subprocess.Popen[str]:
        """Start a node, named `host-<number>`, and wait until it listens.

        The first `heads` hosts run schedulers. Others than those need one that answers.
        """
        joins = [f"--join={self.address(i)}" for i in range(min(heads, len(self)))]
        node = self.spawn(
            host, sys.executable, "-m", "minishark.cli", "cluster", "node", f"--name=host-{host}",
            f"--listen={self.address(host)}", f"--executors={executors}", *joins, *options,
        )  # fmt: skip
        assert node.stdout is not None
        seen = []
        for line in node.stdout:
            seen.append(line)
            if line.startswith("node "):
                # What it says later must not fill the pipe.
                threading.Thread(target=node.stdout.read, daemon=True).start()
                return node
        message = f"The node on host {host} did not start:\n{''.join(seen)}"
        raise AssertionError(message)

    def start_nodes(self, *options: str, executors: int = 1, heads: int = 2) -> None:
        """Start a node on each host."""
        for host in range(len(self)):
            self.start_node(host, *options, executors=executors, heads=heads)

    def kill(self, host: int) -> None:
        """End all programs of a host at once, as if its power failed; the host itself stays."""
        with contextlib.suppress(subprocess.CalledProcessError):
            _do(*self.command(host, "sh", "-c", "kill -9 -1"))

    def terminate(self, node: subprocess.Popen[str]) -> int:
        """SIGTERM to a program of `spawn`; its status."""
        for child in psutil.Process(node.pid).children():
            child.send_signal(signal.SIGTERM)
        return node.wait(30)

    # The network

    def cut(self, host: int, other: int | None = None) -> None:
        """Drop all packets between two hosts, or between one and all others, without notice."""
        self._set_cuts(self._cuts | self._links(host, other))

    def heal(self, host: int | None = None, other: int | None = None) -> None:
        """Undo `cut`; of all hosts without arguments."""
        self._set_cuts(set() if host is None else self._cuts - self._links(host, other))

    def _links(self, host: int, other: int | None) -> set[tuple[int, int]]:
        others = range(len(self)) if other is None else (other,)
        return {link for i in others if i != host for link in ((host, i), (i, host))}

    def _set_cuts(self, cuts: set[tuple[int, int]]) -> None:
        for host in sorted({to for to, _ in cuts ^ self._cuts}):
            rules = "".join(
                f"add rule inet cut in ip saddr {self.ip(i)} drop\n"
                for to, i in sorted(cuts)
                if to == host
            )
            table = "add table inet cut\ndelete table inet cut\nadd table inet cut\n"
            chain = "add chain inet cut in { type filter hook input priority 0; }\n"
            _do(*_net(self._holders[host]), "nft", "-f", "-", text=f"{table}{chain}{rules}")
        self._cuts = cuts

    def set_rate(self, host: int, rate: str) -> None:
        """Limit what a host sends, in the words of `tc`: `200mbit`."""
        _limit(self._holders[host], "eth0", rate)

    def bytes_sent(self, host: int) -> int:
        """What a host has sent to the others so far, in bytes, headers included."""
        for line in Path(f"/proc/{self._holders[host]}/net/dev").read_text().splitlines():
            device, _, figures = line.strip().partition(":")
            if device == "eth0":
                return int(figures.split()[8])
        message = f"host {host} has no network"
        raise AssertionError(message)

    def close(self) -> None:
        """End all programs."""
        for host in range(len(self)):
            self.kill(host)
        for program in self._programs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(10)
            program.kill()
            program.wait()
            assert program.stdout is not None
            program.stdout.close()


@contextlib.contextmanager
def hosts(
    count: int,
    *,
    rate: str | None = None,
    delay_ms: float = 0.0,
    loss: float = 0.0,
    seed: int = 0,
    cores: float | None = None,
) -> Iterator[Bed]:
    """Make hosts, and remove them with all that runs there.

    Args:
        count: how many, up to 200.
        rate: the bandwidth of each host's connection in either direction, in the words of `tc`
            (`200mbit`); by default as fast as the machine.
        delay_ms: of each packet, so a round trip takes twice as long.
        loss: the share of packets that are lost on their way.
        seed: of that choice.
        cores: how many cores the programs of a host may use together, by control groups; by
            default all that there are.
    """
    _sweep()
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        pids = [_held(stack, f"host-{i}") for i in range(count)]
        if delay_ms or loss:
            figures = (str(delay_ms / 1e3), str(loss), str(seed))
            command = (sys.executable, str(_RELAY), *figures, *map(str, pids))
            stack.callback(Held(command).end)
        else:
            _bridge(_held(stack, "switch"), pids, rate)
        groups: list[Path] = []
        if cores is not None:
            for i in range(count):
                groups.append(_group(f"{_PREFIX}{os.getpid()}-{i}", cores))
                stack.callback(until, partial(_is_gone, groups[-1]), 10.0)
        bed = Bed(folder, pids, groups)
        stack.callback(bed.close)
        for host, pid in enumerate(pids):
            _do(*_net(pid), "ip", "address", "add", f"{bed.ip(host)}/24", "dev", "eth0")
            _do(*_net(pid), "ip", "link", "set", "eth0", "up")
            if rate is not None:
                bed.set_rate(host, rate)
        yield bed


def _group(name: str, cores: float) -> Path:
    """Make a control group with so many cores, by version 1 or 2 of them."""
    quota_us = str(round(cores * _PERIOD_US))
    old = _CGROUPS / "cpu"
    if not old.is_dir():
        (_CGROUPS / "cgroup.subtree_control").write_text("+cpu")
        group = _CGROUPS / name
        group.mkdir()
        (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        return group
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    known = {
        kind: path
        for _, kinds, path in (s.split(":", 2) for s in lines)
        for kind in kinds.split(",")
    }
    group = old / known["cpu"].lstrip("/") / name
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
    (group / "cpu.cfs_quota_us").write_text(quota_us)
    return group


def _is_gone(group: Path) -> bool:
    """Remove a control group, if its processes have ended."""
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def _held(stack: contextlib.ExitStack, name: str) -> int:
    """The first process of a new host."""
    spaces = ("--net", "--uts", "--mount", "--pid", "--mount-proc", "--propagation=private")
    holder = Held(("unshare", *spaces, "--fork", "sh", "-c", _HOLDER, name))
    stack.callback(holder.end)
    return int(psutil.Process(holder.process.pid).children()[0].pid)


def _bridge(switch: int, pids: Sequence[int], rate: str | None) -> None:
    _do(*_net(switch), "ip", "link", "add", "br0", "type", "bridge")
    _do(*_net(switch), "ip", "link", "set", "br0", "up")
    for i, pid in enumerate(pids):
        port = f"port{i}"
        pair = ("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns")
        _do(*_net(switch), *pair, str(pid))
        _do(*_net(switch), "ip", "link", "set", port, "master", "br0", "up")
        if rate is not None:
            _limit(switch, port, rate)


def _limit(pid: int, device: str, rate: str) -> None:
    bucket = ("tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
    _do(*_net(pid), "tc", "qdisc", "replace", "dev", device, "root", *bucket)


def _net(pid: int) -> tuple[str, ...]:
    return ("nsenter", "-t", str(pid), "--net", "--")


def _do(*command: str, text: str | None = None) -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)


def _sweep() -> None:
    """Remove the files and control groups of beds whose process was killed."""
    left = f"{_PREFIX}*"
    for folder in filter(_is_orphan, Path("/tmp").glob(left)):
        shutil.rmtree(folder, ignore_errors=True)
    for group in filter(_is_orphan, (*_CGROUPS.glob(left), *(_CGROUPS / "cpu").rglob(left))):
        _is_gone(group)


def _is_orphan(made: Path) -> bool:
    """Whether the process that made something named after it is dead."""
    pid = made.name.removeprefix(_PREFIX).partition("-")[0]
    return pid.isdecimal() and not psutil.pid_exists(int(pid))


def until(ready: object, seconds: float = 30.0, pause_s: float = 0.1) -> bool:
    """Wait until `ready()` is true; whether it became so in time."""
    assert callable(ready)
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True
