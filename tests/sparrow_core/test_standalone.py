"""The `sparrow` commands: a cluster of separate processes, over ipc and over tcp with keys."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from click.testing import CliRunner, Result
from harness import LIMIT_S, until

from machine_kit.addresses import Address, address
from machine_kit.local_driver import LocalDriver
from sparrow_core import JobEvent, JobFailed, JobFinished, JobSpec, TaskSpec, __version__
from sparrow_core.cli import main
from sparrow_core.observe.metrics import Metrics
from sparrow_core.protocol.errors import ClusterStartError, ConfigError
from sparrow_core.protocol.messages import PROTOCOL_VERSION
from sparrow_core.runtime.config import read_config
from sparrow_core.runtime.remote import RemoteCluster
from sparrow_core.runtime.transport.folders import socket_folder
from sparrow_core.runtime.transport.http_metrics import HttpMetrics

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE.parents[1]), str(HERE)))}
_LIMITS = "limits = { node_timeout_s = 1.5 }\n"
COMMAND = (sys.executable, "-m", "sparrow_core.cli")


class Standalone:
    """Daemons and the files that configure them, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemons: dict[str, subprocess.Popen[str]] = {}

    def sparrow(self, *arguments: str) -> Result:
        """Run a command to its end, in this process."""
        with contextlib.chdir(self.folder):
            return CliRunner().invoke(main, arguments)

    def start(self, kind: str, name: str, text: str) -> str:
        """Start a daemon with a file of its own; its first line, without what it is."""
        (self.folder / f"{name}.toml").write_text(text)
        daemon = subprocess.Popen(
            [*COMMAND, kind, f"{name}.toml"], cwd=self.folder,
            env={**ENVIRONMENT, "XDG_STATE_HOME": str(self.folder), "TMPDIR": str(self.folder)},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.daemons[name] = daemon
        assert daemon.stdout is not None
        return daemon.stdout.readline().rpartition(" at ")[2].strip()

    def start_node(self, name: str, listen: str, schedulers: list[str], more: str = "") -> None:
        """Start a node of one executor with two slots."""
        self.start(
            "node-monitor",
            name,
            f"""
            schedulers = {json.dumps(schedulers)}
            {more}
            [node]
            name = "{name}"
            listen = "{listen}"
            attributes = ["name={name}"]
            [[node.executors]]
            runner = "sparrow_test_runners:make"
            runner_config = {{ node = "{name}" }}
            slots = 2
            """,
        )

    def end(self) -> None:
        """End all daemons that still run."""
        for daemon in self.daemons.values():
            daemon.send_signal(signal.SIGCONT)
            daemon.kill()
            daemon.communicate()


@pytest.fixture
def standalone(run_dir: Path) -> Iterator[Standalone]:
    """No daemon yet; none is left."""
    made = Standalone(run_dir)
    yield made
    made.end()


def observe(folder: Path) -> str:
    """A table of the configuration: where to log."""
    return f'[observe]\naudit = "{folder}/audit"\n'


def start_over_ipc(standalone: Standalone, schedulers: int, nodes: int) -> list[str]:
    """Start schedulers and nodes with sockets in the folder; and a file for clients."""
    folder = standalone.folder
    endpoints = [f"ipc://{folder}/s{number}.sock" for number in range(schedulers)]
    listed = f"schedulers = {json.dumps(endpoints)}\n"
    for number, endpoint in enumerate(endpoints):
        text = f'{listed}[scheduler]\nlisten = "{endpoint}"\n{_LIMITS}{observe(folder)}'
        standalone.start("scheduler", f"s{number}", text)
    for number in range(nodes):
        listen = f"ipc://{folder}/n{number}.sock"
        standalone.start_node(f"n{number}", listen, endpoints, observe(folder))
    (folder / "client.toml").write_text(listed + observe(folder))
    until(lambda: len(nodes_of(standalone)) == nodes, "the nodes")
    return endpoints


def nodes_of(standalone: Standalone) -> list[dict[str, Any]]:
    """Nodes with an executor."""
    done = standalone.sparrow("status", "client.toml", "--json")
    nodes = json.loads(done.stdout)["nodes"] if done.exit_code == 0 else []
    return [node for node in nodes if node["executors"]]


@pytest.mark.slow
def test_a_cluster_of_its_own(standalone: Standalone) -> None:
    """Jobs run, constraints hold; status, metrics and audit tell of it; draining ends a node."""
    start_over_ipc(standalone, 1, 2)
    done = standalone.sparrow("submit", "client.toml", "echo a", "echo b", "--user", "ann")
    assert ("a\nb\n", "", 0) == (done.stdout, done.stderr, done.exit_code)
    done = standalone.sparrow("submit", "client.toml", "whoami", "--require", "name=n1", "--json")
    completed, finished = map(json.loads, done.stdout.splitlines())
    assert ("n1", "JobFinished") == (completed["node"], finished["type"])
    done = standalone.sparrow("submit", "client.toml", "fail on purpose")
    assert (1, "") == (done.exit_code, done.stdout)
    assert "on purpose" in done.stderr
    done = standalone.sparrow("submit", "client.toml", "echo", "--require", "name=n9")
    assert done.stderr.startswith("unsatisfiable: ")
    text = standalone.sparrow("status", "client.toml").stdout
    assert re.search(r"n0 +1 +2 +0 +0 +name=n0", text)
    text = standalone.sparrow("status", "client.toml", "--metrics").stdout
    assert 'sparrow_messages_total{machine="scheduler",direction="in",type="SubmitJob"} 4' in text
    assert 'machine="monitor-n1"' in text
    check_audit(standalone)
    assert 0 == standalone.sparrow("weights", "client.toml", "ann=2", "bob=0.5").exit_code
    assert 0 == standalone.sparrow("drain", "client.toml", "n0").exit_code
    assert 0 == standalone.daemons["n0"].wait(LIMIT_S)
    assert ["n1"] == [node["name"] for node in nodes_of(standalone)]
    assert 1 == standalone.sparrow("drain", "client.toml", "n0").exit_code
    for name in ("n1", "s0"):
        standalone.daemons[name].terminate()
        assert 0 == standalone.daemons[name].wait(LIMIT_S)


def check_audit(standalone: Standalone) -> None:
    """What was submitted above, as the log tells it."""

    def derived() -> dict[str, Any]:
        report: dict[str, Any] = json.loads(standalone.sparrow("audit", "audit", "--json").stdout)
        return report

    until(lambda: derived()["response_ms"]["count"] == 4, "the end of the jobs in the log")
    until(lambda: derived()["run_ms"]["count"] == 4, "the end of the tasks in the log")
    report = derived()
    assert 4 == report["jobs"]
    assert {"ann", "default"} == set(report["shares"])
    assert 0 < report["utilization"] < 1
    text = standalone.sparrow("audit", "audit").stdout
    assert "jobs          4 (1 x" in text
    listed = standalone.sparrow("audit", "audit", "--jobs").stdout
    job = next(line.split()[0] for line in listed.splitlines() if " ann " in line)
    story = standalone.sparrow("audit", "audit", "--why", job, "1").stdout
    for words in ("may run anywhere", "probes n", "asks for", "gives the task to", "done"):
        assert words in story
    assert 1 == standalone.sparrow("audit", "audit", "--why", "nosuch", "1").exit_code


@pytest.mark.slow
def test_jobs_survive_a_stopped_and_a_killed_scheduler(standalone: Standalone) -> None:
    """The client is told of the silence, moves the jobs, and no task counts twice."""
    start_over_ipc(standalone, 2, 2)
    config = read_config(standalone.folder / "client.toml")
    for sent in (signal.SIGSTOP, signal.SIGKILL):
        silent: list[str] = []
        with RemoteCluster(config.scheduler_addresses) as cluster:
            until(lambda: all(cluster.schedulers().values()), "both schedulers")
            cluster.on_scheduler_silent(lambda at, gone: silent.append(at) if gone else None)  # noqa: B023
            events: list[list[object]] = [[] for _ in range(4)]
            tasks = tuple(TaskSpec(number, b"sleep 0.05") for number in range(20))
            for own in events:
                cluster.submit(JobSpec(tasks=tasks), own.append)
            until(lambda: any(events), "the first result")  # noqa: B023
            standalone.daemons["s0"].send_signal(sent)
            for own in events:
                until(lambda: own and isinstance(own[-1], JobFinished | JobFailed), "the end")  # noqa: B023
                assert JobFinished() == own[-1]
                ids = [event.task_id for event in own[:-1]]  # type: ignore[attr-defined]
                assert list(range(20)) == sorted(ids)
        assert any("s0.sock" in each for each in silent)
        if sent == signal.SIGSTOP:
            _check_that_status_waits(standalone, config.scheduler_addresses)


def _check_that_status_waits(standalone: Standalone, schedulers: tuple[Address, ...]) -> None:
    """A scheduler that does not answer is silent; one that is slow to answer is not."""
    with RemoteCluster(schedulers) as cluster:
        assert [None, 2] == sorted(cluster.schedulers(0.2).values(), key=str, reverse=True)
        standalone.daemons["s0"].send_signal(signal.SIGCONT)
        assert [2, 2] == list(cluster.schedulers(LIMIT_S).values())


@pytest.mark.slow
def test_nodes_recover_when_a_scheduler_restarts(standalone: Standalone) -> None:
    """A scheduler that is killed and started again learns of the nodes and runs jobs."""
    start_over_ipc(standalone, 1, 1)
    daemon = standalone.daemons["s0"]
    daemon.kill()
    daemon.communicate()
    standalone.start("scheduler", "s0", (standalone.folder / "s0.toml").read_text())
    done = standalone.sparrow("submit", "client.toml", "echo again")
    assert ("again\n", 0) == (done.stdout, done.exit_code)


@pytest.mark.slow
def test_a_node_may_join_and_die_while_jobs_run(standalone: Standalone) -> None:
    """What ran on a killed node runs on one that joined later."""
    (endpoint,) = start_over_ipc(standalone, 1, 1)
    config = read_config(standalone.folder / "client.toml")
    with RemoteCluster(config.scheduler_addresses) as cluster:
        events: list[Any] = []
        killed = standalone.folder / "killed"
        payloads = [b"echo", *[f"wait_for {killed}".encode()] * 20]
        tasks = tuple(TaskSpec(number, payload) for number, payload in enumerate(payloads))
        cluster.submit(JobSpec(tasks=tasks), events.append)
        until(lambda: events, "a result")
        standalone.start_node("late", f"ipc://{standalone.folder}/late.sock", [endpoint])
        until(lambda: len(cluster.nodes()) == 2, "the other node")
        standalone.daemons["n0"].kill()
        standalone.daemons["n0"].wait()
        killed.touch()
        until(lambda: isinstance(events[-1], JobFinished | JobFailed), "the end")
        assert JobFinished() == events[-1]
        assert ["n0"] + ["late"] * 20 == [event.node for event in events[:-1]]


@pytest.mark.slow
def test_a_stopped_node_monitor_gives_its_tasks_back(standalone: Standalone) -> None:
    """What it had queued runs elsewhere; when it goes on it is a node like others."""
    start_over_ipc(standalone, 1, 2)
    config = read_config(standalone.folder / "client.toml")
    with RemoteCluster(config.scheduler_addresses) as cluster:
        events: list[Any] = []
        tasks = tuple(TaskSpec(number, b"sleep 0.05") for number in range(120))
        cluster.submit(JobSpec(tasks=tasks), events.append)
        until(lambda: events, "a result")
        standalone.daemons["n0"].send_signal(signal.SIGSTOP)
        until(lambda: isinstance(events[-1], JobFinished | JobFailed), "the end")
        assert JobFinished() == events[-1]
        assert list(range(120)) == sorted(event.task_id for event in events[:-1])
        until(lambda: len(cluster.nodes()) == 1, "the scheduler's notice")
        standalone.daemons["n0"].send_signal(signal.SIGCONT)
        until(lambda: len([node for node in cluster.nodes() if node.executors]) == 2, "its return")
        again: list[Any] = []
        cluster.submit(JobSpec(tasks=(TaskSpec(0, b"echo back", ("n0",)),)), again.append)
        until(lambda: again and isinstance(again[-1], JobFinished | JobFailed), "a job on it")
        assert JobFinished() == again[-1]
        assert (b"back", "n0") == (again[0].result, again[0].node)


def test_a_scheduler_of_another_version_is_told_apart(run_dir: Path) -> None:
    """Nobody waits for a scheduler that speaks another protocol: the error names both."""
    with zmq.Context() as context, context.socket(zmq.PULL) as inbox:
        endpoint = f"ipc://{run_dir}/old.sock"
        inbox.bind(endpoint)
        answered = threading.Thread(target=answer_in_another_version, args=(inbox, endpoint))
        answered.start()
        cluster = RemoteCluster([address(endpoint, "scheduler")])
        with pytest.raises(ClusterStartError, match=f"speaks protocol {PROTOCOL_VERSION + 1}"):
            cluster.start(LIMIT_S)
        answered.join()


def answer_in_another_version(inbox: zmq.Socket[bytes], endpoint: str) -> None:
    """Be a scheduler of the future, for one frame."""
    _, sender, _ = msgspec.msgpack.decode(inbox.recv())
    with zmq.Context() as context, context.socket(zmq.PUSH) as out:
        out.connect(sender)
        out.send(msgspec.msgpack.encode((PROTOCOL_VERSION + 1, endpoint, [])))


def test_over_tcp_with_keys(standalone: Standalone) -> None:
    """Keys by `sparrow keygen`; who is on the lists works together, a stranger gets no answer."""
    public = {
        name: standalone.sparrow("keygen", f"{name}.key").stdout
        for name in ("scheduler", "node", "client", "stranger")
    }
    friends = "".join(text for name, text in public.items() if name != "stranger")
    (standalone.folder / "allowed.keys").write_text(friends)

    def security(name: str) -> str:
        return f'[security]\nkey = "{name}.key"\nallowed = "allowed.keys"\n'

    local = "tcp://127.0.0.1:*"
    endpoint = standalone.start(
        "scheduler",
        "s0",
        f'schedulers = []\n[scheduler]\nlisten = "{local}"\n[observe]\nhttp = "127.0.0.1:0"\n'
        + security("scheduler"),
    )
    assert endpoint.endswith("/" + public["scheduler"].strip())
    standalone.start_node("n0", local, [endpoint], security("node"))
    for name in ("client", "stranger"):
        client = f'[client]\nlisten = "{local}"\nanswer_s = 1.0\n'
        text = f'schedulers = ["{endpoint}"]\n{client}{security(name)}'
        (standalone.folder / f"{name}.toml").write_text(text)
    done = standalone.sparrow("submit", "client.toml", "echo secret", "whoami")
    assert (0, "secret") == (done.exit_code, done.stdout.split()[0]), done.stderr
    done = standalone.sparrow("submit", "stranger.toml", "echo secret")
    assert (1, "") == (done.exit_code, done.stdout)
    assert "no scheduler answers" in done.stderr
    assert "[client] listen" in sparrow_without_listen(standalone, endpoint)


def sparrow_without_listen(standalone: Standalone, endpoint: str) -> str:
    """What `submit` says if it has nowhere to hear results."""
    (standalone.folder / "deaf.toml").write_text(f'schedulers = ["{endpoint}"]\n')
    return standalone.sparrow("submit", "deaf.toml", "echo x").stderr


def test_metrics_over_http(standalone: Standalone) -> None:
    """GET /metrics answers in the format of Prometheus, other paths are not found."""
    driver = LocalDriver("memory")
    driver.host("metrics", Metrics("p", driver.machines, driver.counters))
    server = HttpMetrics(driver, "127.0.0.1:0")
    thread = threading.Thread(target=driver.run)
    thread.start()
    where = f"http://127.0.0.1:{server.port}"
    with urllib.request.urlopen(f"{where}/metrics") as answer:
        text = answer.read().decode()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(where)
    server.close()
    driver.stop()
    thread.join()
    assert 'sparrow_messages_undeliverable_total{process="p"} 0\n' in text
    with pytest.raises(ConfigError, match="cannot serve"):
        HttpMetrics(driver, "nowhere")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schedulers = 1", "Expected `array`"),
        ("schedulers = []\nsurprise = 1", "unknown field `surprise`"),
        ("schedulers = [", "unclosed|Unclosed|invalid|Invalid"),
        ("schedulers = []\n[node]\nname = 'n'\nlisten = 'ipc:///x'", "executors"),
    ],
)
def test_senseless_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    """With the file and what is wrong in it."""
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config(file)
    with pytest.raises(ConfigError, match="missing"):
        read_config(tmp_path / "missing.toml")


def test_commands_say_what_is_missing(standalone: Standalone) -> None:
    """One line on stderr, no traceback."""
    (standalone.folder / "c.toml").write_text("schedulers = []")
    for arguments, message in (
        (("scheduler", "c.toml"), "no [scheduler] table"),
        (("node-monitor", "c.toml"), "no [node] table"),
        (("submit", "c.toml", "x"), "no scheduler to submit to"),
        (("weights", "c.toml", "ann=0"), "USER=NUMBER"),
        (("weights", "c.toml", "ann"), "USER=NUMBER"),
    ):
        done = standalone.sparrow(*arguments)
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert done.exit_code > 0


def test_every_command_explains_itself(standalone: Standalone) -> None:
    """By -h as by --help; --version tells the protocol's as well."""
    for command in ("", *main.commands):
        arguments = [command] if command else []
        short, long = (standalone.sparrow(*arguments, option) for option in ("-h", "--help"))
        assert (0, long.stdout) == (short.exit_code, short.stdout)
        assert "Usage: " in short.stdout
    told = standalone.sparrow("--version").stdout
    assert f"sparrow {__version__}, protocol {PROTOCOL_VERSION}\n" == told


@pytest.mark.slow
def test_folders_of_sockets_and_logs_are_made(standalone: Standalone) -> None:
    """Nobody else may enter the first; the second outlives the node."""
    folder = standalone.folder / "sockets" / "own"
    endpoint = f"ipc://{folder}/s.sock"
    standalone.start(
        "scheduler", "s", f'schedulers = ["{endpoint}"]\n[scheduler]\nlisten = "{endpoint}"'
    )
    assert 0o700 == folder.stat().st_mode & 0o777
    standalone.start_node("n0", f"ipc://{folder}/n0.sock", [endpoint])
    (standalone.folder / "client.toml").write_text(f'schedulers = ["{endpoint}"]')
    until(lambda: nodes_of(standalone), "the node")
    standalone.daemons["n0"].kill()
    standalone.daemons["n0"].wait()
    assert (standalone.folder / "sparrow" / "n0" / "n0-e0.log").exists()


def test_a_killed_process_leaves_no_folder_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who makes the next folder removes those whose processes are dead, and no other."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket_folder() as living:
        abandoned = tmp_path / "sparrow-run-dead"
        abandoned.mkdir(0o700)
        (abandoned / "lock").touch()
        (abandoned / "front.sock").touch()
        with socket_folder() as other:
            assert {living, other} == set(tmp_path.iterdir())
            assert 0o700 == other.stat().st_mode & 0o777
    assert [] == list(tmp_path.iterdir())


def test_limits_are_read(tmp_path: Path) -> None:
    """Limits and policies of machines are tables of the file."""
    file = tmp_path / "c.toml"
    file.write_text(
        """
        schedulers = ["ipc:///tmp/s.sock"]
        [scheduler]
        listen = "ipc:///tmp/s.sock"
        limits = { max_attempts = 2 }
        [node]
        name = "n"
        listen = "ipc:///tmp/n.sock"
        limits = { policy = "fair" }
        executors = [{ runner = "m:f" }]
        """
    )
    config = read_config(file)
    assert config.scheduler is not None
    assert config.node is not None
    assert (2, "fair") == (config.scheduler.limits.max_attempts, config.node.limits.policy)
    assert msgspec.structs.asdict(config)["folder"] == str(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("stall_s", [0.2, 1.0, 5.0, None])
def test_no_task_runs_again_because_a_scheduler_was_silent(
    standalone: Standalone, stall_s: float | None
) -> None:
    """Stopped for so long, or killed, when its tasks have almost ended: the job takes as long."""
    start_over_ipc(standalone, 2, 2)
    config = read_config(standalone.folder / "client.toml")
    starts = standalone.folder / "starts"
    silent: list[str] = []
    ended: queue.SimpleQueue[float] = queue.SimpleQueue()

    def on_event(event: JobEvent) -> None:
        if isinstance(event, JobFinished | JobFailed):
            ended.put(time.monotonic())

    with RemoteCluster(config.scheduler_addresses) as cluster:
        until(lambda: all(cluster.schedulers().values()), "both schedulers")
        cluster.on_scheduler_silent(lambda at, gone: silent.append(at) if gone else None)
        time.sleep(1.2)  # as if they had run for long
        tasks = tuple(TaskSpec(number, f"note_and_sleep {starts}".encode()) for number in range(4))
        began = time.monotonic()
        cluster.submit(JobSpec(tasks=tasks), on_event)
        until(lambda: starts.exists() and len(starts.read_text()) == 4, "four starts")
        time.sleep(3.6)
        its_own = standalone.daemons["s1"]  # jobs take turns, beginning with the second
        its_own.send_signal(signal.SIGKILL if stall_s is None else signal.SIGSTOP)
        if stall_s is not None:
            time.sleep(stall_s)
            its_own.send_signal(signal.SIGCONT)
        assert ended.get(timeout=30) - began < 4.5
    assert 4 == len(starts.read_text())
    assert stall_s == 0.2 or "s1.sock" in silent[0]
