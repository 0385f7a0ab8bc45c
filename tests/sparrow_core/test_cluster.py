"""One suite of scenarios over both kinds of cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from harness import Cluster, Submitted, appears, configs, run, task, until

from sparrow_core import (
    ClusterClosed,
    ClusterStartError,
    ExecutorGroup,
    InProcessCluster,
    InvalidJob,
    JobEvent,
    JobFailed,
    JobFinished,
    JobOptions,
    JobSpec,
    LocalCluster,
    NodeConfig,
    SparrowError,
    TaskCompleted,
    TaskFailed,
    explain,
)
from sparrow_core.observe.audit import read_events
from sparrow_core.observe.report import Report, report, why_here

KINDS = (InProcessCluster, LocalCluster)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Three nodes of two slots and two schedulers."""
    run_dir = tmp_path_factory.mktemp("r")
    forgotten = tmp_path_factory.mktemp("forgotten")
    nodes = configs(3, slots=2, forgotten=str(forgotten))
    with request.param(nodes, schedulers=2, run_dir=run_dir, seed=1) as running:
        running.forgotten = forgotten
        yield running


def test_an_empty_job_finishes(cluster: Cluster) -> None:
    """A job without tasks is over at once."""
    assert [JobFinished()] == run(cluster).wait()


def test_every_task_of_a_job_completes_once(cluster: Cluster) -> None:
    """Each result comes once, with where and when it ran."""
    job = run(cluster, *(task(i, f"echo {i}") for i in range(200)), shared=b"s")
    assert {i: b"s%d" % i for i in range(200)} == job.results()
    completed = [event for event in job.events if isinstance(event, TaskCompleted)]
    assert 200 == len(completed)
    for event in completed:
        assert event.node in {"n0", "n1", "n2"}
        assert event.executor == f"{event.node}-e0"
        assert event.attempt == 1
        assert min(event.queue_s, event.run_s) >= 0


def test_constrained_tasks_run_where_they_prefer(cluster: Cluster) -> None:
    """The node of each result is among the task's preferred ones, which the runner confirms."""
    wanted = [(f"n{i % 3}", f"n{(i + 1) % 3}")[: 1 + i % 2] for i in range(60)]
    job = run(cluster, *(task(i, "whoami", *nodes) for i, nodes in enumerate(wanted)))
    for task_id, result in job.results().items():
        assert result.decode().split()[0] in wanted[task_id]


def test_mixed_jobs_finish(cluster: Cluster) -> None:
    """Tasks with and without constraints in one job."""
    tasks = [task(i, "whoami", *(["n1"] if i % 2 else [])) for i in range(40)]
    results = run(cluster, *tasks).results()
    assert 40 == len(results)
    assert {"n1"} == {results[i].decode().split()[0] for i in range(1, 40, 2)}


def test_random_placement_runs_everything(cluster: Cluster) -> None:
    """The baseline uses all nodes."""
    job = run(cluster, *(task(i, "whoami") for i in range(60)), placement="random")
    nodes = {result.decode().split()[0] for result in job.results().values()}
    assert {"n0", "n1", "n2"} == nodes


def test_a_failing_task_fails_the_job(cluster: Cluster) -> None:
    """TaskFailed with message and detail, then JobFailed; tracebacks of unforeseen errors."""
    *_, failed, last = run(cluster, task(0, "fail it is bad")).wait()
    assert isinstance(failed, TaskFailed)
    assert ("it is bad", b"detail", 0) == (failed.message, failed.detail, failed.task_id)
    assert isinstance(last, JobFailed)
    assert "task_failed" == last.kind
    assert "it is bad" in last.message
    failure = run(cluster, task(0, "crash unforeseen")).failure()
    assert "ValueError: unforeseen" in failure.message


def test_a_retryable_failure_is_tried_on_another_node(cluster: Cluster, tmp_path: Path) -> None:
    """The second attempt runs elsewhere and its result counts."""
    job = run(cluster, task(0, f"retry_until {tmp_path / 'tries'}"))
    first, second = job.results()[0].decode().split()
    assert first != second
    assert isinstance(job.events[0], TaskCompleted)
    assert 2 == job.events[0].attempt


def test_attempts_are_limited_and_told(cluster: Cluster) -> None:
    """A task that is lost four times fails its job with the story of all attempts."""
    failure = run(cluster, task(0, "never")).failure()
    assert "task_lost" == failure.kind
    assert 4 == len(failure.story)
    assert all("never" in line for line in failure.story)


def test_unsatisfiable_constraints_fail_at_once(cluster: Cluster) -> None:
    """A task that prefers only unknown nodes is an error with a kind."""
    assert "unsatisfiable" == run(cluster, task(0, "echo", "elsewhere")).failure().kind


def test_a_cancelled_job_stops_what_runs(cluster: Cluster, tmp_path: Path) -> None:
    """The running task is interrupted, queued ones go, and the cluster is free again."""
    file = tmp_path / "hang"
    job = run(cluster, task(0, f"hang {file}"), *(task(i, "sleep 0.01") for i in range(1, 50)))
    appears(file)
    cluster.cancel(job.job_id)
    cluster.cancel(job.job_id)
    assert "cancelled" == job.failure().kind
    until(lambda: file.read_text() == "cancelled", "the interrupt")
    assert 6 == len(run(cluster, *(task(i, "echo") for i in range(6))).results())


def test_runners_forget_jobs_that_are_over(cluster: Cluster) -> None:
    """`forget` is called with the id that `run` had, after the job has ended."""
    job = run(cluster, task(0, "whoami"))
    job_id = job.results()[0].decode().split()[-1]
    assert job.job_id == job_id
    until((cluster.forgotten / job_id).exists, "forget")  # type: ignore[union-attr]


def test_many_jobs_at_once(cluster: Cluster) -> None:
    """Jobs of several schedulers share the nodes; none is starved."""
    jobs = [run(cluster, *(task(i, f"echo {i}") for i in range(10))) for _ in range(60)]
    for job in jobs:
        assert 10 == len(job.results())


def test_impossible_jobs_are_refused_at_submission(cluster: Cluster) -> None:
    """What no cluster could run raises in `submit`."""
    for spec in (
        JobSpec(tasks=(task(0, "echo"), task(0, "echo"))),
        JobSpec(tasks=(task(0, "echo"),), placement="elsewhere"),
        JobSpec(tasks=(task(0, "echo"),), probe_ratio=0.5),
    ):
        with pytest.raises(InvalidJob):
            Submitted(cluster, spec)


def test_a_submission_that_is_interrupted_is_cancelled(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose id nobody gets to know, as Ctrl-C came first, does not go on."""
    calls, events = iter([True, None]), list[JobEvent]()

    def is_running() -> bool:
        if next(calls, True) is None:
            raise KeyboardInterrupt
        return True

    with monkeypatch.context() as patch:
        patch.setattr(cluster, "_is_running", is_running)
        with pytest.raises(KeyboardInterrupt):
            cluster.submit(JobSpec(tasks=(task(0, "sleep 60"),)), events.append)
    until(lambda: bool(events), "the end")
    (last,) = events
    assert isinstance(last, JobFailed)
    assert "cancelled" == last.kind


def test_a_broken_callback_harms_nobody(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a callback raises is printed; the cluster goes on."""

    def on_event(event: JobEvent) -> None:
        raise RuntimeError(f"broken callback: {event}")

    cluster.submit(JobSpec(tasks=(task(0, "echo"),)), on_event)
    assert {0: b"x"} == run(cluster, task(0, "echo x")).results()
    printed = [""]

    def seen() -> bool:
        printed[0] += capfd.readouterr().err
        return "broken callback: JobFinished()" in printed[0]

    until(seen, "the traceback")


def test_nodes_are_described(cluster: Cluster) -> None:
    """Names in order, executors with their slots, all alive."""
    nodes = cluster.nodes()
    assert ["n0", "n1", "n2"] == [node.name for node in nodes]
    assert all(node.alive for node in nodes)
    assert [("n0-e0", 2)] == [(each.name, each.slots) for each in nodes[0].executors]


@pytest.mark.parametrize("kind", KINDS)
def test_closing_fails_open_jobs(kind: type[Cluster], run_dir: Path) -> None:
    """Jobs under way end with "cancelled", their tasks are interrupted; closing is idempotent."""
    running = kind(configs(1), run_dir=run_dir)
    running.start()
    file = run_dir / "hang"
    job = run(running, task(0, f"hang {file}"))
    appears(file)
    running.close()
    running.close()
    assert "cancelled" == job.failure().kind
    assert "cancelled" == file.read_text()
    with pytest.raises(ClusterClosed):
        run(running, task(0, "echo"))
    with pytest.raises(ClusterClosed):
        running.start()


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runner", ["broken", "missing"])
def test_a_broken_runner_fails_the_start(kind: type[Cluster], runner: str, run_dir: Path) -> None:
    """The error says why, soon, and nothing is left running."""
    running = kind(configs(2, runner=runner), run_dir=run_dir)
    text = {"broken": "no runner today", "missing": "cannot load runner"}[runner]
    with pytest.raises(ClusterStartError, match=text):
        running.start()
    assert [] == list(run_dir.glob("*.sock"))


def _report(audit_dir: Path) -> Report:
    return report(read_events(list(audit_dir.iterdir())))


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_an_embedded_cluster_can_be_audited(
    kind: type[Cluster], run_dir: Path, tmp_path: Path
) -> None:
    """Its log has the jobs as their client saw them, and as schedulers and nodes did."""
    with kind(configs(2), run_dir=run_dir, audit_dir=tmp_path) as cluster:
        job = run(cluster, *(task(i, "echo") for i in range(5)))
        job.wait()
        until(lambda: 5 == _report(tmp_path).run_ms.count, "nodes that have heard of the ends")
    events = read_events(list(tmp_path.iterdir()))
    assert 5 == sum(event.event == "client_task_result" for event in events)
    assert (1, 5) == (_report(tmp_path).jobs, _report(tmp_path).run_ms.count)
    assert any("echo" not in line and "done" in line for line in why_here(events, job.job_id, 3))


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_frameworks_share_a_node(kind: type[Cluster], run_dir: Path) -> None:
    """Jobs run on the executors of their framework, and nowhere else."""
    (config,) = configs(1)
    other = ExecutorGroup(config.runner, {"node": "other"}, framework="other")
    with kind([msgspec.structs.replace(config, others=(other,))], run_dir=run_dir) as cluster:
        assert {"n0-e0", "n0-e1"} == {each.name for each in cluster.nodes()[0].executors}
        for framework, expected in (("", "n0"), ("other", "other")):
            options = JobOptions(framework=framework)
            job = Submitted(cluster, JobSpec(tasks=(task(0, "whoami"),), options=options))
            assert expected == job.results()[0].decode().split()[0]
        unknown = JobSpec(tasks=(task(0, "echo"),), options=JobOptions(framework="nosuch"))
        assert "unsatisfiable" == Submitted(cluster, unknown).failure().kind


@pytest.mark.parametrize("kind", KINDS)
def test_senseless_clusters_are_refused(kind: type[Cluster], run_dir: Path) -> None:
    """No node, doubled or odd names, no executor, no scheduler."""
    good = configs(1)[0]
    odd = [
        [NodeConfig(name=name, executors=1, slots=1, runner="m:f")]
        for name in ("", "../n", "client", "n0-e1")
    ]
    for nodes, schedulers in (
        ([], 1),
        ([good, good], 1),
        *((nodes, 1) for nodes in odd),
        ([good], 0),
        (configs(1, executors=0), 1),
        (configs(1, slots=0), 1),
    ):
        with pytest.raises(SparrowError):
            kind(nodes, schedulers=schedulers, run_dir=run_dir)


def test_a_job_explains_its_placement(cluster: Cluster) -> None:
    """Each task was given to its node by a step of its story; other jobs tell nothing."""
    tasks = (*(task(i, "echo x") for i in range(6)), task(6, "echo x", "n1"))
    job = JobSpec(tasks=tasks, options=JobOptions(explain=True))
    submitted = Submitted(cluster, job)
    found = explain(job, submitted.wait())
    assert list(range(7)) == sorted(found)
    for task_id, why in found.items():
        assert (why.node, "asked") == (why.steps[-1].node, why.steps[-1].what)
        assert task_id in why.steps[-1].tasks
        assert why.node in why.probed
    assert "it may run only on n1" == found[6].constraint
    assert JobFinished() == run(cluster, task(0, "echo x")).wait()[-1]
