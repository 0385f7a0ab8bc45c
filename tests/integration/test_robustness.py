"""Sessions survive deaths and shortages, and leave nothing behind however they end."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow as pa
import pytest
from processes import Program, program, until

import minishark
from minishark.cluster import folders, local
from minishark.errors import ClusterError, ResourceError
from minishark.session import connect as connecting
from minishark.session.session import Session
from minishark.worker.run_task import TaskRunner
from sparrow_core import LocalCluster, NodeConfig

_ROWS = 32_000
_SUM = "SELECT k, count(*) AS n, sum(x)::BIGINT AS total FROM t GROUP BY k ORDER BY k"
_ANSWER = [
    {"k": k, "n": _ROWS // 8, "total": sum(range(k, _ROWS, 8))} for k in range(8)
]  # fmt: skip
# About a second of work for one core, and half a second.
_LONGER = "SELECT count(*) AS n FROM t a JOIN t b ON a.x % 2 = b.x % 2 AND a.x + b.x < 1"
_LONG = f"{_LONGER} WHERE a.x < 16_000"
_LONG_ANSWER = [{"n": 1}]


def _fill(session: Session, replicas: int = 2) -> None:
    rows = pa.table({"k": [i % 8 for i in range(_ROWS)], "x": range(_ROWS)})
    session.create_table("t", rows, partition_by="k", partitions=4, replicas=replicas)


def _executors(session: Session) -> list[int]:
    return [e.pid for node in session._runtime.cluster.status() for e in node.executors]


def _are_two(pids: list[int]) -> bool:
    return 2 == len(pids) == sum(map(psutil.pid_exists, pids))


def _two_processes() -> Session:
    """Every query has tasks for both, however few the rows."""
    return minishark.connect(
        nodes=2,
        executors_per_node=1,
        single_task_rows=0,
        disabled_optimizations=["coalesced_tasks", "collapse"],
    )


@pytest.fixture
def own_processes() -> Iterator[Session]:
    """A session of two nodes with one executor process each, and a table."""
    with _two_processes() as session:
        _fill(session)
        yield session


@pytest.fixture(scope="module")
def shared_processes() -> Iterator[Session]:
    """The same, for tests after which it works as before."""
    with _two_processes() as session:
        _fill(session)
        yield session


@pytest.fixture
def processes(shared_processes: Session) -> Iterator[Session]:
    """The shared session; still usable afterwards, with all of its processes."""
    yield shared_processes
    assert _ANSWER == shared_processes.sql(_SUM).collect()
    until(lambda: _are_two(_executors(shared_processes)), "all executors")


@pytest.mark.slow
def test_an_executor_dies_between_queries(processes: Session) -> None:
    """The next query finds what the dead executor held, again and again."""
    killed: list[int] = []
    for _ in range(2):
        until(lambda: _executors(processes)[:1] not in ([], killed[-1:]), "a living executor")
        killed.append(_executors(processes)[0])
        os.kill(killed[-1], signal.SIGKILL)
        assert _ANSWER == processes.sql(_SUM).collect()


@pytest.mark.slow
def test_all_executors_die_between_queries(processes: Session) -> None:
    """Even then the tables are there: they lie in files, not in processes."""
    for pid in _executors(processes):
        os.kill(pid, signal.SIGKILL)
    assert _ANSWER == processes.sql(_SUM).collect()


@pytest.mark.slow
def test_an_executor_dies_in_the_middle_of_a_query(processes: Session) -> None:
    """Its task runs again elsewhere; the answer is right, and so is the next one."""
    victim = psutil.Process(_executors(processes)[0])
    idle_s = victim.cpu_times().user
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(processes.sql(_LONG).collect)
        until(lambda: victim.cpu_times().user > idle_s + 0.05, "the query works")
        assert not running.done()
        victim.kill()
        assert _LONG_ANSWER == running.result(60)


# Ctrl-C and other ends of the program


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, tpch_files: dict[str, str]) -> Path:
    """A folder of generated data as `minishark tpch --scale 0.01` expects it."""
    return Path(tpch_files["lineitem"]).parents[2]


_ONE_NODE = ("--nodes", "1")
_END_MAX_S = 5.0  # the aim is one second; machines that run tests are busy


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        "Making TPC-H data",
        "Starting the cluster",
        "Loading lineitem",
        "Running the queries",
    ],
)
def test_ctrl_c(moment: str, data: Path, tmp_path: Path) -> None:
    """Ctrl-C at any moment ends the main job soon, silently, and with nothing left."""
    made_now = moment.startswith("Making")
    folder = tmp_path if made_now else data
    arguments = ["--scale", "0.5" if made_now else "0.01", "--data", str(folder), *_ONE_NODE]
    with program("-m", "minishark.cli", "tpch", *arguments, "--repetitions", "100") as started:
        started.wait_for(moment)
        took_s = started.interrupt()
        # Python may end itself by the signal, which shells report as 130, too.
        assert started.process.returncode in (130, -signal.SIGINT)
        assert took_s < _END_MAX_S
        assert "Traceback" not in started.seen
        until(lambda: not started.remains(), f"the end of {started.remains()}")
    assert not made_now or [] == list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals(number: signal.Signals, data: Path) -> None:
    """A polite kill ends it just so, with the status that shells expect."""
    arguments = ("tpch", "--scale", "0.01", "--data", str(data), *_ONE_NODE)
    with program("-m", "minishark.cli", *arguments, "--repetitions", "100") as started:
        started.wait_for("Running the queries")
        started.process.send_signal(number)
        started.seen += started.process.communicate(timeout=30)[1]
        assert 128 + number == started.process.returncode
        assert "Traceback" not in started.seen
        until(lambda: not started.remains(), f"the end of {started.remains()}")


def test_the_front_end_is_killed(data: Path) -> None:
    """After SIGKILL nobody is there to tidy up, so the children do: processes, files, sockets."""
    arguments = ("tpch", "--scale", "0.01", "--data", str(data), "--repetitions", "100")
    with program("-m", "minishark.cli", *arguments) as started:
        started.wait_for("Running the queries")
        assert 5 <= len(started.family())
        started.kill()
        assert started.folders
        until(lambda: not started.remains(), f"the end of {started.remains()}")


_SCRIPT_HEAD = """
import sys, minishark, pyarrow as pa
session = minishark.connect(nodes=1, executors_per_node=1, single_task_rows=0)
session.create_table("t", pa.table({"k": [0, 1] * 20_000, "x": range(40_000)}), partitions=4)
def say(*words):
    print(*words, file=sys.stderr)
"""


def _script(tmp_path: Path, text: str) -> str:
    file = tmp_path / "script.py"
    file.write_text(_SCRIPT_HEAD + text)
    return str(file)


@pytest.mark.slow
def test_ctrl_c_in_a_query_leaves_the_session_usable(tmp_path: Path) -> None:
    """KeyboardInterrupt comes out of the call soon; the next query runs."""
    script = f"""
try:
    say("running")
    session.sql({_LONGER!r}).collect()
except KeyboardInterrupt:
    say("interrupted")
print(session.sql("SELECT count(*) AS n FROM t").collect()[0]["n"])
session.stop()
"""
    with program(_script(tmp_path, script)) as started:
        started.wait_for("running")
        idle_s = _spent_s(started)
        until(lambda: _spent_s(started) > idle_s + 0.4, "the query works")
        os.killpg(started.process.pid, signal.SIGINT)
        out, err = started.process.communicate(timeout=30)
        assert (0, "40000\n", "interrupted\n") == (started.process.returncode, out, err)
        until(lambda: not started.remains(), f"the end of {started.remains()}")


def _spent_s(started: Program) -> float:
    spent_s = 0.0
    for pid in started.family():
        with contextlib.suppress(psutil.NoSuchProcess):
            spent_s += psutil.Process(pid).cpu_times().user
    return spent_s


@pytest.mark.slow
def test_exit_without_stop(tmp_path: Path) -> None:
    """A program that forgets stop() ends at once, says nothing, and leaves nothing."""
    script = """
rows = session.sql('FROM t').to_arrow()
frame = session.sql('FROM t')
print(session._runtime.cluster.paths.memory, end="")
sys.exit(session.sql('SELECT 0 AS a').collect()[0]['a'])
"""
    with program(_script(tmp_path, script)) as started:
        out, err = started.process.communicate(timeout=60)
        assert (0, "") == (started.process.returncode, err)
        started.folders.add(Path(out))
        until(lambda: not started.remains(), f"the end of {started.remains()}")


@pytest.mark.slow
def test_an_exception_without_stop(tmp_path: Path) -> None:
    """Only the exception's own traceback is on stderr."""
    with program(_script(tmp_path, "1 / 0\n")) as started:
        _, err = started.process.communicate(timeout=60)
        assert 1 == started.process.returncode
        assert err.endswith("ZeroDivisionError: division by zero\n")
        assert 1 == err.count("Traceback")
        until(lambda: not started.remains(), f"the end of {started.remains()}")


@pytest.mark.slow
def test_a_program_that_ends_without_a_word(tmp_path: Path) -> None:
    """No handler of Python's runs, so the children tidy up, in the middle of a query too."""
    script = f"""
import os, threading
print(session._runtime.cluster.paths.memory, end="", flush=True)
threading.Thread(target=lambda: session.sql({_LONG!r}).collect(), daemon=True).start()
session.sql({_SUM!r}).collect()
os._exit(7)
"""
    with program(_script(tmp_path, script)) as started:
        out, _ = started.process.communicate(timeout=60)
        assert 7 == started.process.returncode
        started.folders.add(Path(out))
        until(lambda: not started.remains(), f"the end of {started.remains()}")


@pytest.mark.slow
def test_a_fork_of_the_front_end_harms_nobody(tmp_path: Path) -> None:
    """The copy ends, with Python's handlers, and the session is still its parent's.

    It can't use it: the threads that it has are not copied.
    """
    script = """
import os
import warnings
frame = session.sql("SELECT count(*) AS n FROM t")
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns where there are threads
child = os.fork()
if not child:
    for use in (frame.collect, lambda: session.sql("SELECT 1"), lambda: session.table("t")):
        try:
            use()
        except minishark.errors.ClusterError as error:
            print("fork" in str(error), flush=True)
    print(session.is_stopped, flush=True)
    sys.exit(0)
os.waitpid(child, 0)
print(frame.collect()[0]["n"])
session.stop()
"""
    with program(_script(tmp_path, script)) as started:
        out, err = started.process.communicate(timeout=60)
        assert (0, "True\n" * 4 + "40000\n", "") == (started.process.returncode, out, err)
        until(lambda: not started.remains(), f"the end of {started.remains()}")


@pytest.mark.slow
def test_a_fork_that_outlives_a_killed_front_end(tmp_path: Path) -> None:
    """It holds neither processes nor files of the session that its parent had."""
    script = """
import os, time
child = os.fork()
if not child:
    time.sleep(600)
say("forked", child)
time.sleep(600)
"""
    with program(_script(tmp_path, script)) as started:
        started.wait_for("forked")
        copy = int(started.seen.split()[-1])
        started.kill()
        until(
            lambda: [f"process {copy}"] == started.remains(),
            f"the end of {started.remains()} but the copy",
        )


# Side by side


@pytest.mark.slow
def test_two_sessions_at_once(processes: Session) -> None:
    """Sessions share nothing: tables of one name differ, and one's end does not touch the other."""
    other = minishark.connect(nodes=1, executors_per_node=1)
    other.create_table("t", pa.table({"a": [2]}))
    assert _ANSWER == processes.sql(_SUM).collect()
    assert [{"a": 2}] == other.sql("FROM t").collect()
    other.stop()
    other.stop()
    assert _ANSWER == processes.sql(_SUM).collect()


def _asked_by_eight_threads(session: Session) -> None:
    barrier = threading.Barrier(8)

    def work(number: int) -> list[object]:
        barrier.wait()
        found: list[object] = []
        for turn in range(4):
            if (number + turn) % 4 == 3:
                with pytest.raises(minishark.errors.TaskFailedError, match="on purpose"):
                    session.sql(f"SELECT error('on purpose ' || k) FROM t -- {turn}").collect()
            elif (number + turn) % 4 == 2:
                name = f"t{number}"
                session.create_table(name, pa.table({"a": [turn]}), replace=True)
                found.append(session.table(name).collect() == [{"a": turn}])
            else:
                found.append(session.sql(_SUM).collect() == _ANSWER)
        return found

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))
    assert all(all(found) for found in results)
    assert 24 == sum(len(found) for found in results)


@pytest.mark.slow
def test_eight_threads_query_one_session(processes: Session) -> None:
    """Queries of many threads, some of which fail, do not disturb each other."""
    _asked_by_eight_threads(processes)


@pytest.mark.slow
def test_eight_threads_query_one_session_on_threads() -> None:
    """The same, where they share a process with the tasks."""
    with minishark.connect(
        in_process=True, nodes=2, executors_per_node=1, single_task_rows=0
    ) as session:
        _fill(session)
        _asked_by_eight_threads(session)


# Short of shared memory


@pytest.mark.slow
def test_no_shared_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without shared memory all lies on disk, the session says so, and answers are right."""
    monkeypatch.setattr(folders, "SHARED_MEMORY", tmp_path / "nowhere")
    with minishark.connect(nodes=2, executors_per_node=1, single_task_rows=0) as session:
        (warning,) = session.warnings
        assert "data is kept on disk" in warning
        _fill(session)
        assert _ANSWER == session.sql(_SUM).collect()
        assert (warning,) == session.warnings, "once is enough"


def _mounted(folder: Path, megabytes: int) -> bool:
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.getuid() != 0:
        return False
    command = [mount, "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    return 0 == subprocess.run(command, check=False, capture_output=True).returncode


@pytest.fixture
def small_memory(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A shared memory of so many MB in place of the real one."""
    folder = tmp_path / "memory"
    if not _mounted(folder, request.param):
        pytest.skip("only root can mount a small file system")
    monkeypatch.setattr(folders, "SHARED_MEMORY", folder)
    yield folder
    # Lazily: a mapping that waits for the garbage collector keeps the file system busy.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("small_memory", [16], indirect=True)
def test_tiny_shared_memory(small_memory: Path) -> None:
    """Shared memory that is too small from the start is not used."""
    with minishark.connect(in_process=True, nodes=2, single_task_rows=0) as session:
        assert f"{small_memory} has only 16 MB free" in session.warnings[0]
        _fill(session)
        assert _ANSWER == session.sql(_SUM).collect()
        assert [] == list(small_memory.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("small_memory", [80], indirect=True)
def test_shared_memory_fills_up(small_memory: Path) -> None:
    """What does not fit goes to disk, which is told once, and all of it is found again."""
    rows = 2_000_000
    table = pa.table(
        {"k": pa.array(range(rows), pa.int64()), "x": pa.array([7] * rows, pa.int64())}
    )
    sums = "SELECT count(*) AS n, sum(k)::BIGINT AS k, sum(x)::BIGINT AS x FROM big"
    shuffled = "SELECT count(*) AS n FROM big a JOIN big b ON a.k = b.k + 1 AND a.x = b.x"
    with minishark.connect(in_process=True, nodes=2, partitions=4) as session:
        session.create_table("big", table, partition_by="k", replicas=2)
        assert any("table big is on disk" in warning for warning in session.warnings)
        assert [{"n": rows, "k": rows * (rows - 1) // 2, "x": 7 * rows}] == session.sql(
            sums
        ).collect()
        assert [{"n": rows - 1}] == session.sql(shuffled).collect()
        assert len(session.warnings) == len(set(session.warnings))
    assert [] == list(small_memory.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("small_memory", [24], indirect=True)
def test_a_full_disk_while_files_are_loaded(
    small_memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The load ends with an error, no table is left, and other queries go on."""
    monkeypatch.setattr(tempfile, "tempdir", str(small_memory))
    file = tmp_path / "large.csv"
    query = "SELECT i, md5(i::VARCHAR) AS a, md5((7 * i)::VARCHAR) AS b FROM range(600_000) t(i)"
    duckdb.execute(f"COPY ({query}) TO '{file}' (HEADER)")
    with minishark.connect(in_process=True, nodes=1) as session:
        with pytest.raises(ResourceError, match=rf"disk is full.*{small_memory}/.*\.arrow"):
            session.create_table("large", file)
        assert [] == session.tables
        assert [{"n": 600_000}] == session.sql(f"SELECT count(*) AS n FROM '{file}'").collect()
    assert [] == list(small_memory.iterdir())


# Nodes of a session's own cluster


def _nodes(session: Session) -> list[int]:
    return [node.pid for node in session._runtime.cluster.status() if node.alive and node.executors]


@pytest.mark.slow
def test_nodes_that_die_come_back(own_processes: Session) -> None:
    """One, the one with the scheduler, and all at once: queries wait, tables are there."""
    deaths = [0, 0]
    for which in ([1], [0], [0, 1]):
        until(lambda: 2 == len(_nodes(own_processes)), "both nodes, to all schedulers")
        before = _nodes(own_processes)
        for number in which:
            os.kill(before[number], signal.SIGKILL)
            deaths[number] += 1
        assert _ANSWER == own_processes.sql(_SUM).collect()
        dead = {before[number] for number in which}
        until(lambda dead=dead: 2 == len({*_nodes(own_processes)} - dead), "both nodes")
        assert {*before} - dead < {*_nodes(own_processes)}, "the others are the same"
        nodes = own_processes.nodes()
        assert deaths == [node.deaths for node in nodes]
        for number in which:
            assert f"node-{number}: killed by SIGKILL, peak memory " in nodes[number].last_death
        assert _ANSWER == own_processes.sql(_SUM).collect()


@pytest.mark.slow
def test_a_node_dies_in_the_middle_of_a_query(processes: Session) -> None:
    """The one with the only scheduler: its query is submitted again, to its successor."""
    victim = psutil.Process(_nodes(processes)[0])
    worker = psutil.Process(_executors(processes)[1])
    idle_s = worker.cpu_times().user
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(processes.sql(_LONG).collect)
        until(lambda: worker.cpu_times().user > idle_s + 0.05, "the query works")
        victim.kill()
        assert _LONG_ANSWER == running.result(60)


@contextlib.contextmanager
def _all_killed(processes: Callable[[], list[psutil.Process]]) -> Iterator[None]:
    """While the block runs, processes are killed as soon as they are there."""
    over = threading.Event()

    def kill_all() -> None:
        while not over.wait(0.02):
            with contextlib.suppress(psutil.Error):
                for process in processes():
                    process.kill()

    with ThreadPoolExecutor(1) as pool:
        killer = pool.submit(kill_all)
        try:
            yield
        finally:
            over.set()
        killer.result(10)


@pytest.mark.slow
def test_a_node_that_can_not_come_back_is_given_up(
    own_processes: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each dies soon after its start, six times: queries end, and say how the last one died."""
    monkeypatch.setattr("sparrow_core.runtime.transport.deaths._DELAY_S", 0.001)
    nodes = own_processes.nodes
    with _all_killed(lambda: [psutil.Process(node.pid) for node in nodes() if node.alive]):
        until(lambda: all(node.deaths == 6 for node in nodes()), "the deaths of both nodes")
    for _ in range(2):
        with pytest.raises(minishark.errors.ClusterError, match=r"no .* is left; .*SIGKILL"):
            own_processes.sql(_SUM).collect()
    assert not any(node.alive for node in nodes())


def _deaths(session: Session) -> int:
    return sum(node.deaths for node in session.nodes())


@pytest.mark.slow
def test_a_function_that_kills_its_executors_is_told_of(processes: Session) -> None:
    """After some attempts the query ends with the reason, and other queries go on."""
    before = _deaths(processes)

    def kill(rows: pa.Table) -> pa.Table:
        os.kill(os.getpid(), signal.SIGKILL)
        return rows

    frame = processes.table("t").map_partitions(kill, "k BIGINT, x BIGINT")
    with pytest.raises(minishark.errors.TasksLostError) as found:
        frame.collect()
    story = str(found.value)
    assert "in stage 0" in story
    assert 4 <= story.count("executor lost (killed by SIGKILL, peak memory ")
    until(lambda: before + 4 <= _deaths(processes), "their count")
    assert any("while it had task" in node.last_death for node in processes.nodes())


@pytest.mark.slow
def test_a_stopped_executor_is_not_waited_for(processes: Session) -> None:
    """SIGSTOP in mid-query: its task runs elsewhere; when it goes on, nothing breaks."""
    victim = psutil.Process(_executors(processes)[0])
    idle_s = victim.cpu_times().user
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(processes.sql(_LONG).collect)
        until(lambda: victim.cpu_times().user > idle_s + 0.05, "the query works")
        victim.suspend()
        assert _LONG_ANSWER == running.result(60)
    victim.resume()
    until(lambda: victim.pid in _executors(processes), "its return")
    for _ in range(3):
        assert _ANSWER == processes.sql(_SUM).collect()


@pytest.mark.slow
def test_executors_that_never_come_up_are_not_waited_for(own_processes: Session) -> None:
    """All of them are killed again and again: the query ends, and says how they died."""
    nodes = [psutil.Process(pid) for pid in _nodes(own_processes)]
    with (
        _all_killed(lambda: [child for node in nodes for child in node.children()]),
        pytest.raises(minishark.errors.MinisharkError, match="SIGKILL"),
    ):
        own_processes.sql(_SUM).collect()
    assert _ANSWER == own_processes.sql(_SUM).collect()


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_nothing_is_left_of_a_start_that_fails_half_way(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster starts while the session is made; what becomes of one the other hears.

    An interruption comes as soon as the processes run, when the session knows nothing of them.
    """

    def fails(*_: object, **__: object) -> None:
        raise error

    made: list[folders.ClusterFolders] = []

    def making() -> folders.ClusterFolders:
        made.append(folders.make_folders())
        return made[-1]

    monkeypatch.setattr(local, "make_folders", making)
    processes = psutil.Process().children(recursive=True)
    monkeypatch.setattr(connecting, "planner_options", fails)
    if error is KeyboardInterrupt:
        launch = LocalCluster.launch
        monkeypatch.setattr(
            LocalCluster, "launch", lambda self, *given: (launch(self, *given), fails())
        )
    with pytest.raises(error):
        minishark.connect(nodes=1)
    assert processes == psutil.Process().children(recursive=True)
    (its,) = made
    assert not its.memory.exists()
    assert not its.disk.exists()


def _interrupted(step: Callable[..., Any], number: int) -> Callable[..., Any]:
    """A function that is interrupted at the end of its call of that number."""
    calls = itertools.count()

    def run(*args: Any, **options: Any) -> Any:
        result = step(*args, **options)
        if next(calls) == number:
            raise KeyboardInterrupt
        return result

    return run


def test_a_start_that_is_interrupted_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes after each of its steps in turn; what is started is ended before."""
    ended: list[bool] = []

    class NoCluster:
        def __init__(self, configs: Sequence[NodeConfig], **_: object) -> None:
            self.folder = Path(configs[0].orphaned_folders[-1])

        def start(self) -> None:
            """Nothing to start."""

        def close(self) -> None:
            ended.append(self.folder.exists())

    for name in ("memory", "disk"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(folders, "SHARED_MEMORY", tmp_path / "memory")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "disk"))
    monkeypatch.setattr(local, "InProcessCluster", NoCluster)
    options = local.ClusterOptions(nodes=1, executors_per_node=1, in_process=True)
    steps: tuple[tuple[Any, str, int], ...] = (
        (fcntl, "flock", 2), (Path, "rename", 2), (shutil, "disk_usage", 1),
        (local, "StorePaths", 1), (local, "node_meter", 1), (local, "runner_config", 1),
        (NoCluster, "__init__", 1), (NoCluster, "start", 1), (atexit, "register", 1),
    )  # fmt: skip
    for owner, name, times in steps:
        for number in range(times):
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, _interrupted(getattr(owner, name), number))
                with pytest.raises(KeyboardInterrupt):
                    local.OwnCluster(options)
            assert [] == list(tmp_path.glob("*/*")), (name, number)
    assert [True, True] == ended, "the last two have something to end"


@pytest.mark.slow
def test_a_cluster_that_does_not_come_up_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what its processes wrote; the session that was made for it is closed."""
    monkeypatch.setattr(local, "RUNNER", "minishark.nosuch:make")
    with pytest.raises(ClusterError, match=r"(?s)did not start.*nosuch"):
        minishark.connect(nodes=1)


def test_what_is_dropped_is_released_after_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that tidies up shares its connection with tasks, which are interrupted."""
    came: list[None] = []

    def interrupted(_: TaskRunner) -> None:
        came.append(None)
        if len(came) == 1:
            raise duckdb.InterruptException("INTERRUPT Error: Interrupted!")

    monkeypatch.setattr(TaskRunner, "forget_removed", interrupted)
    monkeypatch.setattr("minishark.cluster.executor._TIDY_S", 0.0)
    with minishark.connect(nodes=1, executors_per_node=1, in_process=True):
        until(lambda: len(came) > 1, "another look")
