"""Programs that a cluster runs for others: what dies, and what goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs
from processes import until

import minishark
from minishark.cli.app import run as run_command
from minishark.cluster.jobs.client import JobsClient, new_terms, program_files
from minishark.cluster.jobs.keeper import LOG_BYTES
from minishark.cluster.jobs.records import JobProgram, JobState, Restart, Status
from minishark.cluster.jobs.visit import jobs_of
from minishark.cluster.launch import ClusterRecord, StartOptions, start_cluster, stop_cluster
from minishark.cluster.sharing import ClusterEvents
from minishark.errors import (
    AlreadyExistsError,
    ClusterError,
    JobError,
    OptionError,
    UnsupportedError,
)
from minishark.model.events.kinds import AnyEvent, JobReport
from minishark.session.session import Session

_LONG = "import time\nprint('began', flush=True)\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of the tests' own for what is known of clusters."""
    folder = tmp_path_factory.mktemp("runtime")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield folder / "minishark"


@pytest.fixture(scope="module")
def running(state: Path) -> Iterator[ClusterRecord]:
    """A cluster of two nodes, which no test harms."""
    record = start_cluster(StartOptions(name="jobs", nodes=2))
    yield record
    stop_cluster("jobs")
    assert [] == list(state.iterdir())


@pytest.fixture
def jobs(running: ClusterRecord) -> Iterator[JobsClient]:
    """Its jobs."""
    with jobs_of(running.address, None) as found:
        yield found


@pytest.fixture
def three(state: Path) -> Iterator[ClusterRecord]:
    """A cluster of three nodes, to be harmed."""
    record = start_cluster(StartOptions(name="harmed", nodes=3))
    yield record
    stop_cluster("harmed")
    assert not any(Path(folder).exists() for node in record.nodes for folder in node.folders)


Submit = Callable[..., JobState]


@pytest.fixture
def submitted(tmp_path: Path) -> Submit:
    """Submits a program, given as text."""

    def submit(
        jobs: JobsClient, name: str, text: str, *arguments: str, **terms: object
    ) -> JobState:
        script = tmp_path / f"{name}.py"
        script.write_text(text)
        found, files = program_files(script, None)
        program = JobProgram(script=found, arguments=arguments, files=files)
        return jobs.submit(structs.replace(new_terms(name, name), **terms), program)

    return submit


def _over(jobs: JobsClient, state: JobState) -> JobState:
    return jobs.wait(state.terms.name, state.terms.uid, 60.0)


def _log(jobs: JobsClient, state: JobState) -> str:
    return jobs.log(jobs.patiently(state.terms.name, state.terms.uid))[1].decode()


def _says(jobs: JobsClient, state: JobState, words: str, times: int = 1) -> None:
    until(lambda: _log(jobs, state).count(words) >= times, f"{words} in the log")


def _processes_of(name: str) -> list[psutil.Process]:
    """The processes of a program and what it has started, by its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MINISHARK_JOB") == name:
                found.append(process)
        except psutil.Error:
            continue
    return found


def _node(record: ClusterRecord, name: str) -> psutil.Process:
    return next(psutil.Process(node.pid) for node in record.nodes if node.name == name)


def test_a_program_runs_on_the_cluster_and_finds_it(jobs: JobsClient, submitted: Submit) -> None:
    """With its arguments, in a folder of its own; what it prints and how it ends is kept."""
    text = """
import os, sys
import minishark
with minishark.connect() as session:
    print(session.sql("SELECT 42 AS answer").collect()[0].answer, len(session.nodes()))
print(sys.argv[1:], os.listdir(), file=sys.stderr)
"""
    state = _over(jobs, submitted(jobs, "finds", text, "--day", "1"))
    assert (Status.DONE, 1, 0) == (state.status, state.starts, state.exit_status)
    assert "42 2\n['--day', '1'] ['finds.py']\n" == _log(jobs, state)
    assert [] == _processes_of("finds")


@pytest.mark.slow
def test_a_program_outlives_the_command_that_submitted_it(
    jobs: JobsClient, running: ClusterRecord, tmp_path: Path
) -> None:
    """The command is killed while it follows the log; another one sees the job's end."""
    script = tmp_path / "outlives.py"
    script.write_text("import time\nprint('began', flush=True)\ntime.sleep(3)\nprint('ended')\n")
    command = [sys.executable, "-m", "minishark.cli", "submit", str(script), "--cluster"]
    with subprocess.Popen([*command, running.name, "--wait"], stdout=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert b"began\n" == follower.stdout.readline()
        follower.kill()
    with jobs_of(running.address, None) as others:  # and removes what the command has left
        state = _over(others, others.find("outlives"))
    assert (Status.DONE, 1) == (state.status, state.starts)
    assert "began\nended\n" == _log(jobs, state)


def test_a_killed_program_is_started_again(jobs: JobsClient, submitted: Submit) -> None:
    """Up to so many times; a guard that is killed takes its program along."""
    state = submitted(jobs, "killed", _LONG, attempts=3)
    for times in (1, 2, 3):
        _says(jobs, state, "began", times)
        (process,) = _processes_of("killed")
        if times == 2:
            guard = process.parent()
            assert guard is not None
            guard.kill()
        else:
            process.kill()
    state = _over(jobs, state)
    assert (Status.FAILED, 3, -signal.SIGKILL) == (state.status, state.starts, state.exit_status)
    assert "killed by SIGKILL" in state.ending
    assert [] == _processes_of("killed")


@pytest.mark.slow
def test_a_failed_program_is_not_started_again_unless_that_is_asked(
    jobs: JobsClient, submitted: Submit
) -> None:
    """An exit status other than 0 is the program's own word."""
    text = "import sys\nprint('x')\nsys.exit(3)\n"
    state = _over(jobs, submitted(jobs, "fails", text))
    assert (Status.FAILED, 1, 3) == (state.status, state.starts, state.exit_status)
    state = _over(jobs, submitted(jobs, "fails", text, restart=Restart.ERROR, attempts=2))
    assert (Status.FAILED, 2, 3) == (state.status, state.starts, state.exit_status)
    again = f"[minishark] Started again on {state.node}: start 2 of at most 2.\n"
    assert f"x\n{again}x\n" == _log(jobs, state)


@pytest.mark.slow
def test_a_cancelled_program_ends_with_all_that_it_has_started(
    jobs: JobsClient, submitted: Submit
) -> None:
    """Also a child that has left its session, and one that ignores SIGTERM."""
    text = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("began", flush=True)
time.sleep(600)
"""
    state = submitted(jobs, "cancelled", text)
    _says(jobs, state, "began")
    assert 2 == len(_processes_of("cancelled"))
    jobs.cancel(state)
    assert Status.CANCELLED is _over(jobs, state).status
    assert [] == _processes_of("cancelled")


@pytest.mark.slow
def test_a_log_is_bounded(jobs: JobsClient, submitted: Submit) -> None:
    """The last bytes are kept; a reader is told from where on."""
    lines = 3 * LOG_BYTES // 100
    text = f"for i in range({lines}):\n    print(f'{{i:099}}')\n"
    state = _over(jobs, submitted(jobs, "talks", text))
    start, data = jobs.log(state)
    assert 100 * lines == start + len(data)
    assert LOG_BYTES // 2 <= len(data) <= LOG_BYTES
    assert f"{lines - 1:099}\n".encode() == data[-100:]
    assert (start + 5, data[5:]) == jobs.log(state, start + 5)


def test_of_two_submits_of_a_name_one_wins(jobs: JobsClient, submitted: Submit) -> None:
    """The other gets a typed error, also if both come at once; afterwards the name is free."""
    got: list[object] = []
    barrier = threading.Barrier(4)

    def submit() -> None:
        barrier.wait()
        try:
            got.append(submitted(jobs, "twice", _LONG))
        except AlreadyExistsError as error:
            got.append(error)

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (state,) = [one for one in got if isinstance(one, JobState)]
    assert 3 == len([one for one in got if isinstance(one, AlreadyExistsError)])
    with pytest.raises(AlreadyExistsError, match="'twice' that is"):
        submitted(jobs, "twice", _LONG)
    jobs.cancel(state)
    _over(jobs, state)
    again = _over(jobs, submitted(jobs, "twice", "print(1)"))
    assert Status.DONE is again.status
    with pytest.raises(JobError, match="followed by another"):
        jobs.find("twice", state.terms.uid)
    with pytest.raises(JobError, match="no job called 'unknown'"):
        jobs.find("unknown")


@pytest.mark.slow
def test_a_time_limit_ends_a_program(jobs: JobsClient, submitted: Submit) -> None:
    """It counts from the first start, and says so."""
    state = _over(jobs, submitted(jobs, "slow", _LONG, time_limit_s=1.0))
    assert (Status.FAILED, []) == (state.status, _processes_of("slow"))
    assert "more than 1 s" in state.ending


@pytest.mark.slow
def test_a_job_is_forgotten_after_its_time(
    jobs: JobsClient, running: ClusterRecord, submitted: Submit
) -> None:
    """With its files, on all nodes."""
    state = _over(jobs, submitted(jobs, "brief", "print(1)", keep_s=1.0))
    until(lambda: "brief" not in jobs.states(), "it to be forgotten")
    folder = f"*/jobs/{state.terms.uid}"
    homes = [Path(home) for node in running.nodes for home in node.folders]
    until(lambda: not any([*home.glob(folder)] for home in homes), "its files to be removed")


def test_files_of_a_folder_travel_along(
    jobs: JobsClient, running: ClusterRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program imports what is in it; without the folder, it is alone."""
    (tmp_path / "tool" / "inner").mkdir(parents=True)
    (tmp_path / "tool" / "inner" / "main.py").write_text("import helper\nprint(helper.X)\n")
    (tmp_path / "tool" / "inner" / "helper.py").write_text("X = 'from the helper'\n")
    script = str(tmp_path / "tool" / "inner" / "main.py")
    on = ("--cluster", running.name)
    assert 0 == run_command(["submit", script, *on, "--wait", "--with", str(tmp_path / "tool")])
    assert "from the helper\n" == capsys.readouterr().out
    assert 1 == run_command(["submit", script, *on, "--wait"])
    assert "ModuleNotFoundError" in capsys.readouterr().out
    with pytest.raises(OptionError, match="must contain"):
        program_files(tmp_path / "tool" / "inner" / "main.py", running_folder(tmp_path))


def running_folder(parent: Path) -> Path:
    """Another folder."""
    (parent / "other").mkdir()
    return parent / "other"


def test_commands_list_show_and_cancel(
    jobs: JobsClient,
    submitted: Submit,
    running: ClusterRecord,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What they say is what clients are told."""
    state = submitted(jobs, "shown", _LONG, priority=2)
    _says(jobs, state, "began")
    on = ("--cluster", running.name)
    assert 0 == run_command(["jobs", "list", *on])
    assert 0 == run_command(["jobs", *on, "list"])
    assert 0 == run_command(["jobs", *on])
    assert any(line.split()[:2] == ["shown", "running"] for line in _lines(capsys))
    assert 0 == run_command(["jobs", "show", "shown", *on])
    shown = _lines(capsys)
    assert "starts:     1 of at most 5" in shown
    (event,) = jobs.find("shown").history
    assert abs(event.at_s - time.time()) < 60
    assert time.strftime("%F %T  ", time.localtime(event.at_s)) + event.sentence == shown[-1]
    assert 0 == run_command(["jobs", "log", "shown", *on])
    assert ["began"] == _lines(capsys)
    assert 0 == run_command(["jobs", "cancel", "shown", *on])
    assert ["shown is cancelled."] == _lines(capsys)
    assert 1 == run_command(["jobs", "show", "nothing", *on])
    assert 2 == run_command(["submit", "--env", "x", __file__, *on])


def test_a_misspelt_option_of_submit_is_no_argument(
    running: ClusterRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that looks like none of submit's is the program's, as is all after --."""
    script = tmp_path / "arguments.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    on = ("--cluster", running.name, "--wait")
    assert 2 == run_command(["submit", str(script), "--prioritty", "3", *on])
    assert "Did you mean --priority?" in capsys.readouterr().err
    given = ["--day", "1", "--", "--prioritty=3"]
    assert 0 == run_command(["submit", str(script), *on, *given])
    assert "['--day', '1', '--prioritty=3']\n" == capsys.readouterr().out


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["owner", "first"])
def test_another_node_takes_over_from_a_killed_one(
    three: ClusterRecord, submitted: Submit, victim: str
) -> None:
    """Its program ends with it, and is started elsewhere; the end of its log is not lost.

    The cluster's first node is one that runs a scheduler.
    """
    with jobs_of(three.nodes[-1].service, None) as jobs:
        state = submitted(jobs, "moves", _LONG)
        _says(jobs, state, "began")
        (before,) = _processes_of("moves")
        until(lambda: _is_known_elsewhere(three, jobs, state), "the log at another node")
        owner = jobs.find("moves").node
        killed = owner if victim == "owner" else three.nodes[0].name
        _node(three, killed).kill()
        if killed == owner:
            until(lambda: jobs.patiently("moves").node != owner, "another node")
            _says(jobs, state, "began", 2)
            assert not before.is_running()
        (process,) = _processes_of("moves")
        found = jobs.patiently("moves", state.terms.uid)
        assert (Status.RUNNING, 1 + (killed == owner)) == (found.status, found.starts)
        jobs.cancel(found)
        assert Status.CANCELLED is _over(jobs, state).status
        assert not process.is_running()


def _is_known_elsewhere(record: ClusterRecord, jobs: JobsClient, state: JobState) -> bool:
    """Whether a node that does not run a job has the end of its log."""
    found = jobs.patiently(state.terms.name)
    others = structs.replace(
        found, holders=tuple(each for each in found.holders if each.home != found.owner)
    )
    return b"began" in jobs.log(others)[1]


@pytest.mark.slow
def test_a_suspended_node_does_not_run_a_program_beside_another(
    three: ClusterRecord, submitted: Submit
) -> None:
    """Its guard ends the program before another node starts it."""
    with jobs_of(three.nodes[0].service, None) as jobs:
        state = submitted(jobs, "asleep", _LONG)
        _says(jobs, state, "began")
        node = _node(three, state.node)
        if node.pid == three.nodes[0].pid:
            pytest.skip("the client asks that one")
        node.suspend()
        try:
            most = 0
            deadline = time.monotonic() + 40
            while jobs.patiently("asleep").starts < 2 and time.monotonic() < deadline:
                most = max(most, len(_processes_of("asleep")))
            _says(jobs, state, "began")
        finally:
            node.resume()
        assert (1, 1) == (most, len(_processes_of("asleep")))
        jobs.cancel(jobs.patiently("asleep"))
        assert Status.CANCELLED is _over(jobs, state).status


@pytest.mark.slow
def test_a_drained_node_lets_its_program_end(state: Path, submitted: Submit) -> None:
    """It leaves afterwards; what waits goes elsewhere."""
    record = start_cluster(StartOptions(name="drained", nodes=2))
    try:
        with jobs_of(record.address, None) as jobs:
            job = submitted(jobs, "last", _LONG.replace("600", "3"))
            _says(jobs, job, "began")
            node = _node(record, job.node)
            os.kill(node.pid, signal.SIGTERM)
            found = _over(jobs, job)
            assert (Status.DONE, 1) == (found.status, found.starts)
            node.wait(30)
    finally:
        stop_cluster("drained")


@pytest.mark.slow
def test_a_stopped_cluster_leaves_no_program_behind(state: Path, submitted: Submit) -> None:
    """Programs end with it, guards and files, too."""
    record = start_cluster(StartOptions(name="ends", nodes=2))
    with jobs_of(record.address, None) as jobs:
        job = submitted(jobs, "remains", _LONG)
        _says(jobs, job, "began")
        (process,) = _processes_of("remains")
        guard = process.parent()
        assert guard is not None
    stop_cluster("ends")
    psutil.wait_procs([process, guard], timeout=10)
    assert [] == _processes_of("remains")
    assert not guard.is_running()
    assert not any(Path(folder).exists() for node in record.nodes for folder in node.folders)


@pytest.fixture
def session(running: ClusterRecord) -> Iterator[Session]:
    """A session on the cluster."""
    with minishark.connect(running.name) as found:
        yield found


def _numbers(folder: Path) -> str:
    """A file that all nodes see, as SQL reads it."""
    pq.write_table(
        pa.table({"k": [i % 3 for i in range(1000)], "x": range(1000)}), folder / "n.parquet"
    )
    return f"read_parquet('{folder}/n.parquet')"


def test_a_query_is_submitted_and_its_rows_fetched_by_another_session(
    session: Session, running: ClusterRecord, tmp_path: Path
) -> None:
    """With the session's settings, variables, views and macros; the session may end meanwhile."""
    session.conf.set("default_null_order", "nulls_first")
    session.sql("SET VARIABLE least = 10")
    session.sql(f"CREATE VIEW numbers AS FROM {_numbers(tmp_path)}")
    session.sql("CREATE MACRO twice(x) AS 2 * x")
    with minishark.connect(running.name) as other:
        text = """
            SELECT nullif(k, 1) AS k, twice(sum(x))::BIGINT AS total FROM numbers
            WHERE x >= getvariable('least') GROUP BY ALL ORDER BY k
        """
        frame = session.sql(text)
        job = frame.submit("query", priority=1)
        session.stop()
        found = other.job("query")
        expected = [
            {
                "k": k,
                "total": 2 * sum(x for x in range(10, 1000) if x % 3 == (1 if k is None else k)),
            }
            for k in (None, 0, 2)
        ]
        table = found.result(60)
        assert table is not None
        assert expected == table.to_pylist()
        assert ("done", 1, job.name) == (found.status, found.starts, found.name)
        assert "query" in [each.name for each in other.jobs()]
        assert "Done, with exit status 0." in found.why()


@pytest.mark.slow
def test_a_result_outlives_the_node_that_computed_it(three: ClusterRecord, tmp_path: Path) -> None:
    """The other holders have copied it."""
    with minishark.connect(three.nodes[-1].service) as session:
        job = session.sql(f"SELECT sum(x)::BIGINT AS s FROM {_numbers(tmp_path)}").submit("kept")
        assert "done" == job.wait(60)
        name = f"jobs/{job._uid}/result.arrow"
        roots = [Path(folder, node.name) for node in three.nodes for folder in node.folders]
        until(lambda: 3 == len([root for root in roots if (root / name).exists()]), "three copies")
        owner = job.node
        _node(three, owner).kill()
        until(lambda: owner not in [node.name for node in session.nodes()], "its node to be gone")
        table = job.result(30)
        assert table is not None
        assert [{"s": 499500}] == table.to_pylist()


@pytest.mark.slow
def test_a_query_that_needs_this_program_is_refused(session: Session, tmp_path: Path) -> None:
    """The error says what is in the way, and what to do."""
    session.create_table("own", pa.table({"a": [1]}))
    session.udf.register("plus", lambda x: x + 1, "BIGINT")
    held = session.create_dataframe([(1,)], ["a"])
    for frame, words in (
        (session.table("own"), "tables of this session: own"),
        (session.sql("SELECT (SELECT max(a) FROM own) AS m"), "tables of this session: own"),
        (held, "rows that this program"),
        (session.range(5).map_partitions(lambda rows: rows, "id BIGINT"), "rows that this program"),
        (session.sql("SELECT plus(range) AS p FROM range(3)"), "Python functions: plus"),
        (session.sql("EXPLAIN SELECT 1"), "rows that this program has already"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            frame.submit("refused")
    with pytest.raises(JobError, match="no job called 'refused'"):
        session.job("refused")
    with minishark.connect(in_process=True) as own:
        with pytest.raises(ClusterError, match="minishark cluster start"):
            own.range(3).submit("refused")
        with pytest.raises(ClusterError, match="minishark cluster start"):
            own.jobs()


@pytest.mark.slow
def test_a_failed_query_says_why(session: Session) -> None:
    """Its log ends with the error; a job that was cancelled has no result either."""
    job = session.sql("SELECT error('so it is') AS e FROM range(3)").submit("wrong")
    no_result = r"'wrong' has no result\. It failed: exit status 1\."
    with pytest.raises(JobError, match=rf"{no_result} .* with:\nDataValueError: .*so it is"):
        job.result(60)
    slow = session.sql("SELECT count(*) AS n FROM range(1000000000000)").submit("endless")
    with pytest.raises(TimeoutError):
        slow.result(0.1)
    slow.cancel()
    with pytest.raises(JobError, match="'endless' has no result"):
        slow.result(60)


@pytest.mark.slow
def test_a_session_submits_a_program_that_leaves_rows(
    session: Session, running: ClusterRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the file that MINISHARK_JOB_RESULT names; it tells how far it is, too."""
    script = tmp_path / "leaves.py"
    script.write_text("""
import os, sys, time
import minishark, pyarrow as pa
with minishark.connect(single_task_rows=0) as session:
    session.create_table("t", session.range(1000), partition_by="id")
    rows = session.sql("SELECT count(*) AS n FROM t").to_arrow()
with pa.ipc.new_file(os.environ["MINISHARK_JOB_RESULT"], rows.schema) as file:
    file.write_table(rows)
print(sys.argv[1:], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
""")
    end = tmp_path / "end"
    job = session.submit_program(script, str(end), environment={"X": "1"}, keep_s=60.0)
    until(lambda: str(end) in job.log(), "the program's last line")
    progress = job.progress()
    assert progress is not None
    assert 0 < progress.tasks
    end.touch()
    table = job.result(60)
    assert table is not None
    assert [{"n": 1000}] == table.to_pylist()
    assert job.progress() is None
    written = tmp_path / "rows.csv"
    on = ("--cluster", running.name)
    assert 0 == run_command(["jobs", "result", "leaves", *on, "--output", str(written)])
    assert "n\n1000\n" == written.read_text()
    capsys.readouterr()
    for wrong in ({"attempts": 0}, {"restart": "often"}, {"priority": "high"}, {"name": "a b"}):
        with pytest.raises(OptionError):
            session.submit_program(script, **wrong)  # type: ignore[arg-type] - on purpose


@pytest.mark.slow
def test_jobs_are_events_for_pages(
    session: Session, running: ClusterRecord, submitted: Submit
) -> None:
    """Of the cluster's page and of a session's; only changes are told."""
    with jobs_of(running.address, None) as jobs:
        job = submitted(jobs, "seen", _LONG)
        _says(jobs, job, "began")
        shared = ClusterEvents(running.address, None)
        try:
            told = _told(shared.poll(is_read=True))
            assert ("running", "began\n") == (told["seen"].status, told["seen"].log)
            assert told["seen"].user
            jobs.cancel(job)
            _over(jobs, job)
            until(lambda: "cancelled" == _status(shared, "seen"), "the news")
        finally:
            shared.close()
        watcher = session._group.watcher
        until(lambda: "seen" in _told(("", event) for event in watcher._changes()), "it")
        assert {} == _told(("", event) for event in watcher._changes())


def _told(events: Iterable[tuple[str, AnyEvent]]) -> dict[str, JobReport]:
    return {event.name: event for _, event in events if isinstance(event, JobReport)}


def _status(shared: ClusterEvents, name: str) -> str:
    told = _told(shared.poll(is_read=True)).get(name)
    return "" if told is None else told.status
