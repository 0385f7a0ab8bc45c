"""What only real processes can show: deaths, signals, and that nothing is left."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq
from harness import appears, configs, run, task, until

from machine_kit.addresses import Address
from sparrow_core import (
    ClusterClosed,
    ClusterStartError,
    JobOptions,
    LocalCluster,
    SparrowError,
    TaskCompleted,
    TaskFailed,
)
from sparrow_core.machines.node_monitor import NodeMonitorConfig
from sparrow_core.protocol.messages import GetNodes, KnownNodes
from sparrow_core.runtime.transport.child import _is_dying, has_lost_parent
from sparrow_core.runtime.transport.zmq_driver import ZmqDriver


def processes(run_dir: Path) -> list[int]:
    """Processes of a cluster: nodes and executors, whose command lines name their logs."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
        except psutil.Error:
            continue
        if "sparrow_core.runtime.transport.process" in command and str(run_dir) in command[-1]:
            found.append(process.pid)
    return found


@pytest.mark.slow
def test_a_node_that_dies_before_it_is_awaited_is_told_of(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not be started anew, and what is known of nodes is some milliseconds old."""
    cluster = LocalCluster(configs(2), schedulers=1, run_dir=run_dir, restarts=5)
    with pytest.raises(ClusterClosed):
        cluster.await_start()
    cluster.launch()
    until(cluster._complete, "all nodes")
    monkeypatch.setattr(cluster, "_complete", lambda: True)
    os.kill(cluster.nodes()[1].pid, signal.SIGKILL)
    until(lambda: cluster._given_up, "its death")
    with pytest.raises(ClusterStartError, match="n1 died"):
        cluster.await_start()
    until(lambda: not processes(run_dir), "the end of all")
    with pytest.raises(ClusterClosed):
        cluster.await_start()


def test_closing_leaves_no_process_and_no_socket(run_dir: Path) -> None:
    """Two nodes of two executors are six processes; then there is none, and no socket file."""
    with LocalCluster(configs(2, executors=2), schedulers=3, run_dir=run_dir) as cluster:
        assert {0: b"x"} == run(cluster, task(0, "echo x")).results()
        assert 6 == len(processes(run_dir))
    assert [] == processes(run_dir)
    assert [] == list(run_dir.glob("*.sock"))
    assert {b""} == {log.read_bytes() for log in run_dir.glob("*.log")}, "and nothing to tell"


def test_a_task_survives_the_death_of_its_executor(run_dir: Path) -> None:
    """SIGKILL in mid-task: the task runs again, and the executor is replaced."""
    with LocalCluster(configs(2), run_dir=run_dir) as cluster:
        before = {each.executors[0].pid for each in cluster.nodes()}
        job = run(cluster, task(0, f"die_once {run_dir / 'died'}"))
        assert {0: b"survived"} == job.results()
        assert isinstance(job.events[0], TaskCompleted)
        assert 2 == job.events[0].attempt
        until(
            lambda: (
                all(node.executors for node in cluster.nodes())
                and {each.executors[0].pid for each in cluster.nodes()} != before
            ),
            "the replacement",
        )
        assert 1 == len({each.executors[0].pid for each in cluster.nodes()} & before)
        assert {0: b""} == run(cluster, task(0, "echo", "n0")).results()
        assert {0: b""} == run(cluster, task(0, "echo", "n1")).results()


@pytest.mark.slow
def test_a_task_that_kills_every_executor_fails_its_job(run_dir: Path) -> None:
    """After four attempts the job fails with their story, and the cluster still works."""
    with LocalCluster(configs(2), run_dir=run_dir) as cluster:
        failure = run(cluster, task(0, "die")).failure()
        assert "task_lost" == failure.kind
        assert 4 == len(failure.story)
        assert all("SIGKILL" in line for line in failure.story)
        assert {0: b"x"} == run(cluster, task(0, "echo x")).results()


@pytest.mark.slow
def test_a_task_survives_a_stopped_executor(run_dir: Path) -> None:
    """SIGSTOP in mid-job: its tasks run elsewhere, and when it goes on it is used again."""
    limits = NodeMonitorConfig(executor_timeout_s=1.2)
    with LocalCluster(configs(2, limits=limits), run_dir=run_dir) as cluster:
        job = run(cluster, *(task(i, "sleep 0.02") for i in range(40)))
        pid = cluster.nodes()[0].executors[0].pid
        until(lambda: job.events, "a result")
        os.kill(pid, signal.SIGSTOP)
        assert set(range(40)) == set(job.results())
        os.kill(pid, signal.SIGCONT)
        until(lambda: cluster.nodes()[0].executors, "its return")
        assert {0: b"back"} == run(cluster, task(0, "echo back", "n0")).results()


QUICK = NodeMonitorConfig(executor_timeout_s=1.2, kill_wait_s=0.6)


@pytest.mark.slow
def test_a_suspended_executor_is_used_again(run_dir: Path) -> None:
    """If it resumes before it is killed: SIGCONT within the time of grace."""
    patient = msgspec.structs.replace(QUICK, kill_wait_s=30.0)
    with LocalCluster(configs(1, limits=patient), run_dir=run_dir) as cluster:
        (executor,) = cluster.nodes()[0].executors
        os.kill(executor.pid, signal.SIGSTOP)
        until(lambda: not cluster.nodes()[0].executors, "it is given up")
        os.kill(executor.pid, signal.SIGCONT)
        until(lambda: (executor,) == cluster.nodes()[0].executors, "its return")
        assert {0: b"back"} == run(cluster, task(0, "echo back")).results()


@pytest.mark.slow
def test_an_executor_that_stays_suspended_is_replaced(run_dir: Path) -> None:
    """SIGSTOP from outside, while it has nothing to do."""
    with LocalCluster(configs(1, limits=QUICK), run_dir=run_dir) as cluster:
        before = cluster.nodes()[0].executors[0].pid
        os.kill(before, signal.SIGSTOP)
        until(lambda: not psutil.pid_exists(before), "its death")
        assert {0: b"on"} == run(cluster, task(0, "echo on")).results()
        until(lambda: 1 == cluster.nodes()[0].deaths, "its count")


@pytest.mark.slow
@pytest.mark.parametrize(("command", "nodes"), [("hold", 2), ("freeze", 1)])
def test_a_task_that_silences_executors_is_given_up(
    run_dir: Path, command: str, nodes: int
) -> None:
    """After two, which are replaced, though copies of them live: others work as before."""
    with LocalCluster(configs(nodes, limits=QUICK), run_dir=run_dir) as cluster:
        failure = run(cluster, task(0, command)).failure()
        assert "task_lost" == failure.kind
        assert 2 == len(failure.story)
        assert all("silent for" in line for line in failure.story)
        rest = run(cluster, *(task(i, "sleep 0.01") for i in range(8)))
        assert set(range(8)) == set(rest.results())
        until(lambda: all(node.executors for node in cluster.nodes()), "all executors")


@pytest.mark.slow
def test_a_task_that_holds_the_lock_beyond_its_limit_has_timed_out(run_dir: Path) -> None:
    """The node says so in place of the executor, which it kills; it is not tried again."""
    limits = msgspec.structs.replace(QUICK, executor_timeout_s=30.0)
    with LocalCluster(configs(1, limits=limits), run_dir=run_dir) as cluster:
        options = JobOptions(independent=True, limit_s=0.2)
        job = run(cluster, task(0, "hold"), options=options)
        (failed,) = [each for each in job.wait() if isinstance(each, TaskFailed)]
        assert failed.timed_out
        assert {0: b"on"} == run(cluster, task(0, "echo on")).results()


@pytest.mark.slow
def test_an_executor_whose_slot_breaks_ends(run_dir: Path) -> None:
    """Its task could never end there; it is tried again, some times. Its log has what broke."""
    with LocalCluster(configs(2), run_dir=run_dir) as cluster:
        failure = run(cluster, task(0, "break")).failure()
        assert 4 == len(failure.story)
        assert all("exit status 72" in line for line in failure.story)
        told = [log for log in run_dir.glob("*.log") if "Traceback" in log.read_text()]
        assert 4 == len(told)
        assert {0: b"on"} == run(cluster, task(0, "echo on")).results()


@pytest.mark.usefixtures("forgiving_nothing")
def test_jobs_go_on_when_a_node_dies(run_dir: Path) -> None:
    """Its tasks run elsewhere, its scheduler's jobs move to the other one."""
    with LocalCluster(configs(3, slots=2), schedulers=2, run_dir=run_dir) as cluster:
        jobs = [run(cluster, *(task(i, "sleep 0.01") for i in range(60))) for _ in range(4)]
        victim = cluster.nodes()[0]
        os.kill(victim.pid, signal.SIGKILL)
        for job in jobs:
            assert set(range(60)) == set(job.results())
        until(lambda: not cluster.nodes()[0].alive, "the notice of its death")
        assert [False, True, True] == [node.alive for node in cluster.nodes()]
        assert () == cluster.nodes()[0].executors
        assert "unsatisfiable" == run(cluster, task(0, "echo", "n0")).failure().kind
        pid = victim.executors[0].pid
        until(lambda: pid not in processes(run_dir), "the end of the dead node's executor")
    assert [] == processes(run_dir)
    assert [] == list(run_dir.glob("*.sock"))


@pytest.mark.slow
def test_a_node_that_has_come_back_has_no_executors_of_its_predecessor(run_dir: Path) -> None:
    """Although the schedulers have not been asked since: with its process, its executors died."""
    with LocalCluster(configs(2), schedulers=1, run_dir=run_dir, restarts=5) as cluster:
        cluster._actor.ticks.interval_s = 60.0
        heard_at = dict(cluster._actor._heard._heard_at)
        until(lambda: heard_at != cluster._actor._heard._heard_at, "the last answer")
        before = cluster.nodes()
        os.kill(before[1].pid, signal.SIGKILL)
        until(lambda: cluster.nodes()[1].pid != before[1].pid, "its successor")
        assert () == cluster.nodes()[1].executors


@pytest.mark.slow
def test_a_node_that_has_died_may_leave_and_come_again(run_dir: Path) -> None:
    """It leaves also while it waits to be restarted; who comes under its name starts anew."""
    first, second = configs(2)
    with LocalCluster([first], run_dir=run_dir, restarts=5) as cluster:
        pids: set[int] = set()

        def found() -> set[int]:
            nodes = {node.name: node.executors for node in cluster.nodes()}
            return {executor.pid for executor in nodes.get("n1", ())} - pids

        for _ in range(2):
            cluster.add_node(second)
            until(found, "the node")
            pids |= found()
            assert {0: b"up"} == run(cluster, task(0, "echo up", "n1")).results()
            assert (0, "") == (cluster.nodes()[1].deaths, cluster.nodes()[1].last_death)
            os.kill(cluster.nodes()[1].pid, signal.SIGKILL)
            until(lambda: cluster.nodes()[1].deaths, "its death")
            cluster.drain_node("n1")
            until(lambda: ["n0"] == [node.name for node in cluster.nodes()], "its end")
    assert [] == processes(run_dir)
    assert [] == list(run_dir.glob("*.sock"))


@pytest.fixture
def forgiving_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that dies counts as one that can't start, however long that took on a slow machine."""
    monkeypatch.setattr("sparrow_core.runtime.transport.deaths._QUICK_S", math.inf)


@pytest.mark.slow
@pytest.mark.usefixtures("forgiving_nothing")
def test_jobs_fail_when_no_node_is_left(run_dir: Path) -> None:
    """Open jobs and later ones fail with a kind; closing still leaves nothing."""
    with LocalCluster(configs(2), run_dir=run_dir) as cluster:
        job = run(cluster, task(0, f"hang {run_dir / 'hang'}"))
        appears(run_dir / "hang")
        for node in cluster.nodes():
            os.kill(node.pid, signal.SIGKILL)
        assert job.failure().kind in {"no_nodes", "no_scheduler"}
        until(lambda: not any(node.alive for node in cluster.nodes()), "the notice")
        assert run(cluster, task(0, "echo")).failure().kind in {"no_nodes", "no_scheduler"}
    assert [] == processes(run_dir)
    assert [] == list(run_dir.glob("*.sock"))


PARENT = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from harness import configs, run, task
from sparrow_core import LocalCluster
cluster = LocalCluster(configs(2), run_dir=Path(sys.argv[1]))
cluster.start()
run(cluster, task(0, f"hang {sys.argv[1]}/hang"))
{then}
"""


def parent(run_dir: Path, then: str) -> subprocess.Popen[bytes]:
    """Another program with a cluster."""
    script = PARENT.replace("{then}", then)
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", script, str(run_dir), str(Path(__file__).parent)],
        env={**os.environ, "PYTHONPATH": str(root)},
        stderr=subprocess.PIPE,
    )


def test_no_process_outlives_its_parent(run_dir: Path) -> None:
    """SIGKILL of the embedding program ends nodes and executors, and removes their sockets."""
    with parent(run_dir, "time.sleep(60)") as program:
        appears(run_dir / "hang")
        assert 4 == len(processes(run_dir))
        program.kill()
        program.wait()
        until(lambda: not processes(run_dir), "the end of all processes")
    assert [] == list(run_dir.glob("*.sock"))


@pytest.mark.slow
@pytest.mark.parametrize("then", ["pass", "raise SystemExit(0)"])
def test_a_program_may_forget_to_close(run_dir: Path, then: str) -> None:
    """Leaving the interpreter closes the cluster, quickly and quietly."""
    program = parent(run_dir, then)
    _, err = program.communicate(timeout=20)
    assert (0, b"") == (program.returncode, err)
    assert [] == processes(run_dir)
    assert [] == list(run_dir.glob("*.sock"))


def test_interrupts_from_the_terminal_do_not_reach_the_cluster(run_dir: Path) -> None:
    """Children have a session of their own and ignore SIGINT; SIGTERM ends a node cleanly."""
    with LocalCluster(configs(1), run_dir=run_dir) as cluster:
        node = cluster.nodes()[0]
        pids = [node.pid, node.executors[0].pid]
        assert os.getsid(0) not in [os.getsid(pid) for pid in pids]
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        assert {0: b"x"} == run(cluster, task(0, "echo x")).results()
        os.kill(node.pid, signal.SIGTERM)
        until(lambda: not processes(run_dir), "the end of node and executor")


@pytest.mark.slow
def test_a_runner_that_does_not_stop_is_killed_on_closing(run_dir: Path) -> None:
    """Closing does not wait for a task that cannot be interrupted."""
    with LocalCluster(configs(1), run_dir=run_dir) as cluster:
        run(cluster, task(0, f"stuck {run_dir / 'stuck'}"))
        appears(run_dir / "stuck")
    assert [] == processes(run_dir)


def test_a_path_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    """The kernel's limit is found out before anything is started."""
    with pytest.raises(SparrowError, match="too long a path"):
        LocalCluster(configs(1), run_dir=tmp_path / ("x" * 80))


class Recorder:
    """A machine that keeps what it gets and then stops its driver."""

    inputs = KnownNodes | GetNodes

    def __init__(self, driver: ZmqDriver) -> None:
        self.driver = driver
        self.got: list[object] = []

    def on_message(self, msg: KnownNodes | GetNodes, now: float) -> list[object]:
        """Keep the message."""
        del now
        self.got.append(msg)
        self.driver.stop()
        return []

    def check(self) -> None:
        """Nothing to check."""


def test_malformed_frames_are_counted_and_dropped(run_dir: Path) -> None:
    """Noise, unknown machines and misdirected messages do no harm to what follows."""
    driver = ZmqDriver(f"ipc://{run_dir}/a.sock")
    sender = ZmqDriver(f"ipc://{run_dir}/b.sock")
    recorder = Recorder(driver)
    driver.host("recorder", recorder)  # type: ignore[arg-type]
    noise = zmq.Context()
    socket = noise.socket(zmq.PUSH)
    socket.connect(driver.endpoint)
    for body in (b"", b"noise", b"\x92\xa1x\x91\x92\xa8recorder\x91\xa7Unknown"):
        socket.send(body)
    until(lambda: driver._wait(0.01) or driver.malformed == 3, "three malformed frames")
    message = GetNodes(Address("x#y"))
    sender.post(driver.address("nobody"), message)
    sender.post(driver.address("recorder"), message)
    sender._take_posted()
    sender._send()
    driver.run()
    assert [message] == recorder.got
    assert (3, 1) == (driver.malformed, driver.undeliverable)
    noise.destroy(linger=0)
    with pytest.raises(SparrowError, match="cannot listen"):
        ZmqDriver(f"ipc://{run_dir}/no/such/folder.sock")
    driver.close()
    sender.close()
    assert [] == list(run_dir.glob("*.sock"))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, nobody tells")
def test_a_parent_that_is_dying_is_lost() -> None:
    """Its pipes are closed before its children are adopted: they would not tidy up after it."""
    assert not has_lost_parent(os.getppid())
    dead = subprocess.Popen([sys.executable, "-c", ""])  # and not waited for yet
    until(lambda: _is_dying(dead.pid), "its end")
    dead.wait()
    assert not _is_dying(dead.pid)
    assert has_lost_parent(dead.pid)
