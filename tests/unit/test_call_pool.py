"""How calls become jobs: what a cluster is asked to run, and that no call is forgotten."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from minishark.cluster.backend import JobEvent, Placement
from minishark.errors import ClusterError
from minishark.session.tasks import functions
from minishark.session.tasks.call import CallOptions
from minishark.session.tasks.executor import mapped, submit
from minishark.session.tasks.files import Files
from minishark.session.tasks.future import Future
from minishark.session.tasks.pool import CallPool
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import ProblemDetail, PythonOutcome, TaskProblem, Value, encode
from minishark.worker.store import Store
from minishark.worker.values import write_file
from sparrow_core import ClusterClosed, JobId, JobSpec, TaskCompleted, TaskId

PLACEMENT = Placement(policy="sparrow", probe_ratio=2.0, nodes=("node-1",))


class Cluster:
    """A cluster whose IO thread is called by the test, and which runs nothing."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.jobs: list[JobSpec] = []
        self.tell: list[Callable[[JobEvent], None]] = []  # by job
        self.withdrawn: list[tuple[JobId, tuple[TaskId, ...]]] = []
        self.is_closed = False

    def submit(self, job: JobSpec, on_event: Callable[[JobEvent], None]) -> JobId:
        if self.is_closed:
            raise ClusterClosed("closed")
        self.jobs.append(job)
        self.tell.append(on_event)
        return JobId(f"job-{len(self.jobs)}")

    def cancel(self, job_id: JobId) -> None:
        raise AssertionError(f"{job_id}: calls are withdrawn")

    def withdraw(self, job_id: JobId, tasks: Sequence[TaskId], *, stop: bool) -> None:
        assert stop
        self.withdrawn.append((job_id, tuple(tasks)))

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        """The IO thread does what it was asked to."""
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def _pool(
    cluster: Cluster, folder: Path, placing: Callable[[], Placement] = lambda: PLACEMENT
) -> CallPool:
    store = Store(StorePaths(folder / "memory", folder / "disk"), "node-1")
    return CallPool(cluster, placing, Files("tasks", lambda: store, lambda: None))


def _submitted(pool: CallPool, count: int = 1) -> list[Future[int]]:
    return [submit(pool, CallOptions(), (abs, (i,), {})) for i in range(count)]


def test_calls_that_come_together_are_one_job(cluster: Cluster, tmp_path: Path) -> None:
    """The IO thread is woken once for all of them."""
    _submitted(_pool(cluster, tmp_path), 10)
    assert 1 == len(cluster.soon)
    cluster.turn()
    assert [10] == [len(job.tasks) for job in cluster.jobs]


def test_calls_fail_if_they_can_not_be_placed(cluster: Cluster, tmp_path: Path) -> None:
    """Nobody else would end them."""

    def no_node() -> Placement:
        raise ClusterError("No node answers.")

    (future,) = _submitted(_pool(cluster, tmp_path, no_node))
    cluster.turn()
    with pytest.raises(ClusterError, match="No node answers"):
        future.result(0)


def test_calls_fail_if_the_cluster_is_closed(cluster: Cluster, tmp_path: Path) -> None:
    cluster.is_closed = True
    (future,) = _submitted(_pool(cluster, tmp_path))
    cluster.turn()
    with pytest.raises(ClusterError, match="closed"):
        future.result(0)


def test_calls_cancelled_before_they_are_sent_are_not_sent(
    cluster: Cluster, tmp_path: Path
) -> None:
    first, second = _submitted(_pool(cluster, tmp_path), 2)
    assert first.cancel()
    cluster.turn()
    assert [1] == [len(job.tasks) for job in cluster.jobs]
    assert not second.done()


def test_calls_cancelled_while_they_are_sent_are_withdrawn(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Whatever the moment: a call that goes on in spite of it would hold its slot."""
    futures: list[Future[int]] = []

    def cancelling() -> Placement:
        futures[0].cancel()
        return PLACEMENT

    pool = _pool(cluster, tmp_path, cancelling)
    futures += _submitted(pool, 2)
    cluster.turn()
    cluster.turn()
    assert [("job-1", (0,))] == cluster.withdrawn
    with pytest.raises(concurrent.futures.CancelledError):
        futures[0].result(0)
    futures += _submitted(pool)  # there is room again
    cluster.turn()
    assert 2 == len(cluster.jobs)
    assert not any(future.done() for future in futures[1:])


def test_large_results_of_cancelled_calls_are_removed(cluster: Cluster, tmp_path: Path) -> None:
    """Of a call that had ended before the cluster heard that it is not wanted."""
    pool = _pool(cluster, tmp_path)
    (future,) = _submitted(pool)
    cluster.turn()
    (tmp_path / "memory" / "node-1" / "tasks").mkdir(parents=True)
    stored = write_file(memoryview(b"result"), "tasks/result", pool.files.store())
    assert pool.files.store().has_copy(stored)
    future.cancel()
    result = encode(PythonOutcome(Value(b"", stored)))
    ended = TaskCompleted(
        task_id=0, result=result, node="node-1", executor="e", attempt=1, queue_s=0.0, run_s=0.1
    )
    cluster.tell[0](ended)
    assert not pool.files.store().has_copy(stored)


def test_a_call_that_would_be_tried_again_fails_if_the_pool_is_closed(
    cluster: Cluster, tmp_path: Path
) -> None:
    """`close` fails what is pending or sent; this call is neither when its event comes."""
    pool = _pool(cluster, tmp_path)
    future = submit(pool, CallOptions(retries=1), (abs, (1,), {}))
    call = future.call
    cluster.turn()
    assert call is not None
    call.task = None
    for sent in pool._open:
        sent.calls.clear()  # as `_ended` does, on the IO thread
    pool.close()
    problem = ProblemDetail(problem=TaskProblem.FUNCTION, message="no")
    pool.completed(call, encode(PythonOutcome(None, problem)), "node-1", 0.1)
    with pytest.raises(ClusterError, match="stopped"):
        future.result(0)


def test_defaults_that_are_replaced_are_sent() -> None:
    """Also if the new ones lie where the old ones were."""

    def with_default(x: int = 0) -> int:
        return x

    with_default.__defaults__ = (int("1000"),)
    state = functions._State(with_default)
    assert state.is_current()
    for number in range(1_001, 1_010):
        with_default.__defaults__ = (number,)
        assert not state.is_current()


def test_results_closed_by_another_thread_end(cluster: Cluster, tmp_path: Path) -> None:
    """Nobody tells of cancelled calls: who waits for one would wait forever."""
    pool = _pool(cluster, tmp_path)
    results = mapped(pool, CallOptions(), abs, ([1, 2],), chunksize=1, slots=1)
    found: list[list[int]] = []
    waiting = threading.Thread(target=lambda: found.append(list(results)), daemon=True)
    waiting.start()
    while results._awaited is None:
        time.sleep(0.001)
    results.close()
    waiting.join(5.0)
    assert [[]] == found
