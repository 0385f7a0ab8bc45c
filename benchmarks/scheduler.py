"""Overhead of the scheduler on this machine, with empty and sleeping tasks.

    python benchmarks/scheduler.py [SECTION ...] [--failovers 50] [--json FILE]

latency     one empty task at a time, from `submit` to its result
throughput  one job of many empty tasks, 2 nodes of 1, 4 and 16 slots, from `submit` to the end; and
            CPU time per task and process, which is more robust on a busy machine
schedulers  several jobs at once, 4 nodes of 4 slots, 1 to 4 schedulers
decisions   tasks per second that 1 to 4 schedulers place, each alone in its own process: jobs of
            100 tasks on 100 simulated nodes, every message encoded and decoded
failover    from SIGKILL of a scheduler's process until its job runs again at the other one
stalls      SIGSTOP of a scheduler for 0.2, 1 and 5 s, and its death, while tasks of 10 s run:
            starts beyond one a task, and the job's time beyond that of one that is left alone
delay       100 nodes of 4 slots emulated in this process, in real time and with the real machines:
            how long a task of ten 100 ms tasks waits at 80 % load
peers       latency and throughput of Ray and Dask, where they are installed, on as many slots
simulated   messages per task, effect of cancellation, and delays by placement: see simulated.py
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Annotated, Any

import msgspec
import psutil

from machine_kit.addresses import Address, address, name_of
from machine_kit.local_driver import LocalDriver
from machine_kit.machine import Message
from minishark_lab.harness.clocks import timed
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import Options, described, run_script, run_sections
from minishark_lab.simulator.cluster import SimulatedSlot, payload_of
from sparrow_core import (
    InProcessCluster,
    JobEvent,
    JobFailed,
    JobFinished,
    JobSpec,
    LocalCluster,
    NodeConfig,
    RemoteCluster,
    TaskCompleted,
    TaskSpec,
)
from sparrow_core.machines.executor import Executor
from sparrow_core.machines.scheduler import Scheduler, SchedulerConfig
from sparrow_core.observe.report import quantiles
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import (
    PROTOCOL_VERSION,
    AssignTasks,
    EndJob,
    GetTasks,
    RegisterNode,
    ReportTasks,
    Reserve,
    SlotReady,
    SubmitJob,
)
from sparrow_core.protocol.types import ExecutorInfo, JobReport
from sparrow_core.runtime.specs import ExecutorGroup

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # children load the runner from here
LATENCY_REPETITIONS = 500
_SETTLED_S = 1.2  # by then a scheduler has heard from its node, and knows that it has
TASKS = 20_000
DELAY_S = 5.0
DECISIONS_S = 3.0
Row = dict[str, Any]


class EmptyRunner:
    """Sleeps for as long as the payload says, or not at all; notes it in the shared file."""

    def run(self, job_id: str, shared: bytes, payload: bytes) -> bytes:
        if shared:
            with Path(shared.decode()).open("a", encoding="utf-8") as starts:
                starts.write(f"{job_id}\n")
        if payload:
            time.sleep(float(payload))
        return b""

    def cancel(self) -> None: ...

    def forget(self, job_id: str) -> None: ...

    def close(self) -> None: ...


def make_runner(config: dict[str, str], slot: int) -> EmptyRunner:
    del config, slot
    return EmptyRunner()


def nodes_of(count: int, slots: int) -> list[NodeConfig]:
    return [
        NodeConfig(name=f"n{i}", executors=1, slots=slots, runner="scheduler:make_runner")
        for i in range(count)
    ]


@contextmanager
def local(nodes: int, slots: int, schedulers: int = 1) -> Iterator[LocalCluster]:
    with (
        tempfile.TemporaryDirectory() as run_dir,
        LocalCluster(nodes_of(nodes, slots), schedulers=schedulers, run_dir=Path(run_dir)) as it,
    ):
        yield it


def job_of(tasks: int, payload: bytes = b"") -> JobSpec:
    return JobSpec(tasks=tuple(TaskSpec(task_id, payload) for task_id in range(tasks)))


def run_s(cluster: LocalCluster | InProcessCluster, *jobs: JobSpec) -> float:
    """Seconds from the submission of some jobs to the end of all."""
    over: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
    started = time.perf_counter()
    for job in jobs:
        cluster.submit(job, partial(_put_last, over))
    for _ in jobs:
        last = over.get()
        assert last == JobFinished(), last
    return time.perf_counter() - started


def _put_last(over: queue.SimpleQueue[JobEvent], event: JobEvent) -> None:
    if isinstance(event, JobFinished | JobFailed):
        over.put(event)


def latency(_: SchedulerOptions) -> Iterator[Row]:
    with local(2, 4) as cluster:
        run_s(cluster, job_of(1000))
        single = job_of(1)
        yield {"latency_ms": spread(run_s(cluster, single) for _ in range(LATENCY_REPETITIONS))}


def spread(seconds: Iterator[float]) -> dict[str, float]:
    """Quantiles in milliseconds."""
    found = quantiles(1000 * each for each in seconds)
    return {"median": found.median, "p95": found.p95, "max": found.max}


def throughput(_: SchedulerOptions) -> Iterator[Row]:
    """Empty tasks a second, the best of five jobs; and CPU time by process."""
    for slots in (1, 4, 16):
        with local(2, slots) as cluster:
            run_s(cluster, job_of(1000))
            before = _cpu_s(cluster)
            best_s = min(run_s(cluster, job_of(TASKS)) for _ in range(5))
            cpu_us = {
                name: round(1e6 * (after_s - before[name]) / (5 * TASKS), 1)
                for name, after_s in _cpu_s(cluster).items()
            }
            rate = round(TASKS / best_s)
            total_us = sum(cpu_us.values())
            yield {"slots": slots, "tasks_per_s": rate, "cpu_us": total_us, "of": cpu_us}


def _cpu_s(cluster: LocalCluster) -> dict[str, float]:
    """CPU time so far: of this process, of nodes (the first has the scheduler), of executors."""
    pids = {"client": os.getpid()}
    for node in cluster.nodes():
        pids[node.name] = node.pid
        pids |= {each.name: each.pid for each in node.executors}
    return {name: sum(psutil.Process(pid).cpu_times()[:2]) for name, pid in pids.items()}


def schedulers(_: SchedulerOptions) -> Iterator[Row]:
    for count in (1, 2, 4):
        with local(4, 4, count) as cluster:
            run_s(cluster, *[job_of(500)] * 4)
            best_s = min(run_s(cluster, *[job_of(TASKS // 4)] * 4) for _ in range(5))
            yield {"schedulers": count, "tasks_per_s": round(TASKS / best_s)}


def decisions(_: SchedulerOptions) -> Iterator[Row]:
    """Schedulers share nothing, so that throughput scales with cores."""
    for count in (1, 2, 4):
        with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
            rates = list(pool.map(placed_a_second, range(count)))
        yield {
            "schedulers": count,
            "tasks_per_s": round(sum(rate for rate, _ in rates)),
            "tasks_per_cpu_s": round(statistics.mean(rate for _, rate in rates)),
        }


def placed_a_second(seed: int) -> tuple[float, float]:
    """Drive one scheduler for a while with jobs, and with nodes that ask and report.

    Returns:
        Tasks a second, and tasks a second of CPU time.
    """
    me, client = Address("s#scheduler"), Address("c#client")
    config = SchedulerConfig(settle_s=0.0)
    scheduler = Scheduler(me, Random(seed), config)
    decoder = msgspec.msgpack.Decoder(Scheduler.inputs)
    encode = msgspec.msgpack.Encoder().encode

    def say(msg: Message) -> list[Message]:
        out = [each.msg for each in scheduler.on_message(decoder.decode(encode(msg)), 0.0)]
        for each in out:
            encode(each)
        return out

    names = [NodeName(f"n{number}") for number in range(100)]
    for name in names:
        say(
            RegisterNode(
                version=PROTOCOL_VERSION, name=name, address=Address(f"{name}#monitor"),
                executors=(ExecutorInfo(Address(f"{name}#e"), 1, 4),), held=(), running=(),
            )
        )  # fmt: skip
    tasks = tuple(TaskSpec(task_id, b"") for task_id in range(100))
    rng, placed = Random(seed), 0
    started, cpu_started = time.perf_counter(), time.process_time()
    while time.perf_counter() < started + DECISIONS_S:
        job_id = JobId(f"{seed}.{placed}")
        submit = SubmitJob(
            version=PROTOCOL_VERSION, job_id=job_id, client=client, user="u", tasks=tasks
        )
        reserved = sum(isinstance(each, Reserve) for each in say(submit))
        waiting = len(tasks)
        for name in rng.sample(names, reserved):
            answers = say(GetTasks(job_id=job_id, node=name, request=1, count=2, reports=()))
            given = next(each.tasks for each in answers if isinstance(each, AssignTasks))
            say(ReportTasks((JobReport(job_id, tuple(task.task_id for task in given)),)))
            waiting -= len(given)
            if not waiting:
                break
        assert not waiting
        say(EndJob(job_id, finished=True))
        placed += len(tasks)
    elapsed_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    return placed / elapsed_s, placed / cpu_s


# --- failover ----------------------------------------------------------------------------------


class Daemons:
    """Two schedulers and a node, each a process of `sparrow`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.endpoints = [f"ipc://{folder}/s{number}.sock" for number in range(2)]
        self.schedulers = [self.start_scheduler(number) for number in range(2)]
        self.node = self._start(
            "node-monitor",
            f'[node]\nname = "n0"\nlisten = "ipc://{folder}/n0.sock"\nlogs = "{folder}"\n'
            '[[node.executors]]\nrunner = "scheduler:make_runner"\nslots = 4\n',
        )

    def start_scheduler(self, number: int) -> subprocess.Popen[str]:
        return self._start("scheduler", f'[scheduler]\nlisten = "{self.endpoints[number]}"\n')

    def _start(self, kind: str, text: str) -> subprocess.Popen[str]:
        file = self.folder / "sparrow.toml"
        file.write_text(f"schedulers = {json.dumps(self.endpoints)}\n{text}")
        path = os.pathsep.join([str(HERE), *sys.path])
        daemon = subprocess.Popen(
            [sys.executable, "-m", "sparrow_core.cli", kind, str(file)],
            env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert daemon.stdout is not None
        assert daemon.stdout.readline()
        return daemon

    @contextmanager
    def connect(self, first: int) -> Iterator[RemoteCluster]:
        """A client whose first job goes to that scheduler, when both know the node."""
        order = [self.endpoints[1 - first], self.endpoints[first]]  # it begins with the second
        with RemoteCluster([address(each, "scheduler") for each in order]) as cluster:
            while not all(cluster.schedulers().values()):
                time.sleep(0.01)
            yield cluster

    def close(self) -> None:
        for daemon in (*self.schedulers, self.node):
            daemon.send_signal(signal.SIGCONT)
            daemon.kill()
            daemon.communicate()


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions(Options):
    sections: Annotated[tuple[str, ...], described(choices=SECTIONS, positional=True)] = ()
    failovers: Count = 50


def failover(options: SchedulerOptions) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        daemons = Daemons(Path(folder))
        try:
            gaps = [failover_s(daemons, number % 2) for number in range(options.failovers)]
        finally:
            daemons.close()
    yield {"failovers": len(gaps), "runs_again_ms": spread(iter(gaps))}


def failover_s(daemons: Daemons, victim: int) -> float:
    """Seconds from the death of a job's scheduler to the first result by way of the other one."""
    moved, running, again, over = (threading.Event() for _ in range(4))
    times: list[float] = []

    def on_event(event: JobEvent) -> None:
        if isinstance(event, TaskCompleted):
            running.set()
            if moved.is_set() and not again.is_set():
                times.append(time.perf_counter())
                again.set()
        elif isinstance(event, JobFinished):
            over.set()

    with daemons.connect(victim) as cluster:
        time.sleep(_SETTLED_S)
        # What the dead one had bound has ended when the client notices: tasks are short.
        cluster.on_scheduler_silent(lambda _, silent: moved.set() if silent else None)
        cluster.submit(job_of(400, b"0.005"), on_event)
        running.wait()
        time.sleep(0.05)
        killed = time.perf_counter()
        daemons.schedulers[victim].send_signal(signal.SIGKILL)
        assert over.wait(30)
    daemons.schedulers[victim].communicate()
    daemons.schedulers[victim] = daemons.start_scheduler(victim)
    return times[0] - killed


def stalls(_: SchedulerOptions) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        daemons = Daemons(Path(folder))
        try:
            alone_s, _ = stalled(daemons, 0.0)
            for stall_s in (0.2, 1.0, 5.0, None):
                took_s, again = stalled(daemons, stall_s)
                row = {
                    "stall_s": stall_s,
                    "run_again": again,
                    "longer_ms": 1000 * (took_s - alone_s),
                }
                yield row
        finally:
            daemons.close()


def stalled(daemons: Daemons, stall_s: float | None) -> tuple[float, int]:
    """Seconds that a job of four tasks of 10 s takes, and starts beyond four.

    Its scheduler is stopped for so long when the tasks have almost ended, or killed if None.
    """
    starts = daemons.folder / f"starts-{stall_s}"
    ended: queue.SimpleQueue[float] = queue.SimpleQueue()

    def on_event(event: JobEvent) -> None:
        if isinstance(event, JobFinished):
            ended.put(time.perf_counter())

    with daemons.connect(0) as cluster:
        time.sleep(_SETTLED_S)
        job = msgspec.structs.replace(job_of(4, b"10"), shared=str(starts).encode())
        began = time.perf_counter()
        cluster.submit(job, on_event)
        time.sleep(8.9)
        if stall_s is None:
            daemons.schedulers[0].kill()
        elif stall_s:
            daemons.schedulers[0].send_signal(signal.SIGSTOP)
            time.sleep(stall_s)
            daemons.schedulers[0].send_signal(signal.SIGCONT)
        took_s = ended.get(timeout=60) - began
    return took_s, len(starts.read_text().splitlines()) - 4


# --- an emulated cluster --------------------------------------------------------------------


class Emulated(InProcessCluster):
    """Real machines in real time, but slots that sleep: hundreds of threads would convoy."""

    def _host_executor(
        self, driver: LocalDriver, node: NodeName, executor: str, group: ExecutorGroup
    ) -> None:
        at = driver.address(executor)
        slots = [driver.address(f"{executor}-slot-{slot}") for slot in range(group.slots)]
        driver.host(executor, Executor(at, node, driver.address(f"monitor-{node}"), slots))
        for slot in slots:
            driver.host(name_of(slot), SimulatedSlot(slot, at, lambda _: None, 1.0))
            driver.post(at, SlotReady(slot))


def delay(_: SchedulerOptions) -> Iterator[Row]:
    waits_s: list[float] = []

    def on_event(event: JobEvent) -> None:
        if isinstance(event, TaskCompleted):
            waits_s.append(event.queue_s)

    rng, job = Random(1), job_of(10, payload_of(0.1))
    with Emulated(nodes_of(100, 4), schedulers=2) as cluster:
        due = time.perf_counter()
        end = due + DELAY_S
        while due < end:
            due += rng.expovariate(0.8 * 400 / (10 * 0.1))
            time.sleep(max(0.0, due - time.perf_counter()))
            cluster.submit(job, on_event)
        run_s(cluster, job)
    yield {"tasks": len(waits_s), "delay_ms": spread(iter(waits_s))}


# --- peers -------------------------------------------------------------------------------------


def nothing(_: int) -> None:
    """An empty task."""


def stores(_: SchedulerOptions) -> Iterator[Row]:
    """Ray and Dask beside sparrow, each with 2 processes of 4 threads, or 8 of one (Ray)."""
    with local(2, 4) as cluster:
        own = _peer(
            "sparrow", lambda: run_s(cluster, job_of(1)), lambda n: run_s(cluster, job_of(n))
        )
    yield own
    for name, measure in (("distributed", _dask), ("ray", _ray)):
        if importlib.util.find_spec(name):
            row = measure()
            yield row | {
                "latency_of_sparrow": own["latency_median_ms"] / row["latency_median_ms"],
                "throughput_of_sparrow": own["tasks_per_s"] / row["tasks_per_s"],
            }


def _peer(name: str, one: Callable[[], object], many: Callable[[int], object]) -> Row:
    many(500)
    single_s = [timed(one) for _ in range(200)]
    best_s = min(timed(partial(many, 5000)) for _ in range(2))
    return {
        "system": name,
        "latency_median_ms": 1000 * statistics.median(single_s),
        "tasks_per_s": round(5000 / best_s),
    }


def _dask() -> Row:
    from distributed import Client
    from distributed import LocalCluster as DaskCluster

    with (
        DaskCluster(n_workers=2, threads_per_worker=4, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        return _peer(
            "dask",
            lambda: client.submit(nothing, 0, pure=False).result(),
            lambda n: client.gather(client.map(nothing, range(n), pure=False)),
        )


def _ray() -> Row:
    import ray

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    remote = ray.remote(nothing)
    try:
        return _peer(
            "ray",
            lambda: ray.get(remote.remote(0)),
            lambda n: ray.get([remote.remote(i) for i in range(n)]),
        )
    finally:
        ray.shutdown()


def simulated(_: SchedulerOptions) -> Iterator[Row]:
    from simulated import figures

    yield from figures()


SECTIONS: dict[str, Callable[[SchedulerOptions], Iterator[Row]]] = {
    "latency": latency,
    "throughput": throughput,
    "schedulers": schedulers,
    "decisions": decisions,
    "failover": failover,
    "stalls": stalls,
    "delay": delay,
    "peers": stores,
    "simulated": simulated,
}


def main(options: SchedulerOptions) -> None:
    run_sections(SECTIONS, options.sections, options)


if __name__ == "__main__":
    run_script(main, quick={"failovers": 1})
