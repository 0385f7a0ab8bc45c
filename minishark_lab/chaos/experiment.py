"""A chaos run: threads run statements while processes of their cluster are killed and stopped.

A watchdog turns a hang into a failure: a statement that takes too long ends the run, with the
stacks of all processes on stderr.
"""

from __future__ import annotations

import contextlib
import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import psutil

import minishark
from minishark.cli.tpch.tables import load_tables, tpch_tables
from minishark.errors import MinisharkError, OptionError
from minishark.session.session import Session
from minishark_lab.chaos.findings import FIGURES, Findings, verdict
from minishark_lab.chaos.injector import KINDS, Attacked, Injector, plan_faults
from minishark_lab.chaos.testbed import ClusterKind, SeenNode, Testbed, open_testbed
from minishark_lab.chaos.work import Done, Work, Worker, work_list
from minishark_lab.harness.experiment import Advance, Chart, Experiment
from minishark_lab.harness.rows import Row
from minishark_lab.tpch.data import Silent, tpch_folder

_WATCH_S = 0.25
_STACKS_S = 2.0
_STOP_S = 60.0
_LOG_TAIL_CHARS = 20_000


@dataclass(frozen=True, kw_only=True)
class Chaos:
    """A chaos run."""

    faults: int = 150
    seconds: float = 300.0
    kinds: tuple[str, ...] = KINDS
    # "own" (the session's) or "hosts" (nodes that share nothing but the network, here the loopback
    # with keys, and that an operator restarts).
    cluster: ClusterKind = "own"
    scale: float = 0.01  # TPC-H's scale factor; 0 for the bundled sample
    data: str = ""  # folder of generated data; "" for the default
    queries: tuple[int, ...] = tuple(range(1, 23))  # of TPC-H; statements that write come on top
    nodes: int = 3  # of the cluster, two of them with a scheduler
    executors: int = 1  # of each node
    partitions: int = 4  # of each large table, on `replicas` nodes
    replicas: int = 2
    threads: int = 3  # that run one statement after the other
    stop_max_s: float = 4.0  # maximum time that a process is stopped
    calm_s: float = 3.0  # how long a node is not killed after its start
    hang_s: float = 120.0  # statements that take longer count as hanging


def chaos(parameters: Chaos, seed: int, advance: Advance) -> Sequence[Row]:
    return run_chaos(parameters, seed, advance).rows()


def run_chaos(parameters: Chaos, seed: int, advance: Advance) -> Findings:
    if min(parameters.nodes, parameters.executors, parameters.threads) < 1:
        raise OptionError("Set nodes, executors and threads to 1 or more.")
    faults = plan_faults(
        seed, parameters.faults, parameters.seconds, parameters.kinds, parameters.stop_max_s
    )
    tables = tpch_tables(tpch_folder(parameters.scale, parameters.data))
    with open_testbed() as testbed:
        works = work_list(tables, parameters.queries, testbed.folder / "written")
        with _session(testbed, parameters) as (session, address):
            load_tables(
                session, tables, Silent(), partitions=parameters.partitions,
                replicas=parameters.replicas,
            )  # fmt: skip
            run = _Run(
                testbed=testbed, session=session, works=works, parameters=parameters, seed=seed
            )
            attacked = Attacked(
                nodes=partial(_nodes, session),
                is_whole=partial(_is_whole, session, parameters),
                busy_s=run.busy_s,
                address=address,
                calm_s=parameters.calm_s,
            )
            injector = Injector(testbed, faults, attacked, advance)
            run.under(injector)
        testbed.close()
        return run.findings(injector, testbed.left_behind())


@contextlib.contextmanager
def _session(testbed: Testbed, parameters: Chaos) -> Iterator[tuple[Session, str | None]]:
    """A session, and the address of its cluster unless that is its own."""
    nodes, executors = parameters.nodes, parameters.executors
    address = testbed.start_hosts(nodes, executors) if parameters.cluster == "hosts" else None
    session = minishark.connect(
        address,
        keys=testbed.keys,
        nodes=None if address else nodes,
        executors_per_node=None if address else executors,
        partitions=parameters.partitions,
        single_task_rows=0,
        disabled_optimizations=["coalesced_tasks"],  # many tasks, though the tables are small
    )
    try:
        yield session, address
    finally:
        thread = threading.Thread(target=session.stop, daemon=True)
        thread.start()
        thread.join(_STOP_S)  # not longer, even if it hangs


def _nodes(session: Session) -> tuple[SeenNode, ...]:
    """Like `session.nodes`, which also asks other hosts what they use: one may be stopped."""
    return tuple(
        SeenNode(
            name=node.name,
            pid=node.pid,
            alive=node.alive,
            executors={each.name: each.pid for each in node.executors},
            home=node.attributes,
        )
        for node in session._runtime.cluster.status()  # noqa: SLF001
    )


def _is_whole(session: Session, parameters: Chaos) -> bool:
    """Whether the loss of a node leaves a replica of every partition."""
    wanted = min(parameters.replicas, parameters.nodes)
    try:
        tables = session.catalog.list_tables()
    except MinisharkError:
        return False
    return all(table.replicas is None or table.replicas >= wanted for table in tables)


@dataclass(kw_only=True)
class _Run:
    """The work of a run: before, while and after faults happen."""

    testbed: Testbed
    session: Session
    works: Sequence[Work]
    parameters: Chaos
    seed: int
    hung: list[str] = field(default_factory=list)
    phases: dict[str, list[Done]] = field(default_factory=dict)
    _during: Sequence[Worker] = ()

    def under(self, injector: Injector) -> None:
        """Run statements before, during and after the faults; raises the injector's errors."""
        self._all_work("quiet")
        if self.hung:
            return
        workers = self._during = self._workers("during")
        injector.start()
        for worker in workers:
            worker.start()
        while injector.is_alive() and not self.hung:
            self._watch(workers)
            time.sleep(_WATCH_S)
        for worker in workers:
            worker.finish()
        self._join(workers, injector)
        injector.finish()
        self.phases["during"] = [done for worker in workers for done in worker.done]
        if injector.errors:
            raise injector.errors[0]
        if not self.hung:
            self._all_work("after", injector)

    def busy_s(self) -> float:
        """How long the oldest running statement has been running."""
        return max((worker.busy_for()[1] for worker in self._during), default=0.0)

    def findings(self, injector: Injector, left: Sequence[str]) -> Findings:
        quiet, during, after = (self.phases.get(n, []) for n in ("quiet", "during", "after"))
        return Findings(
            injected=injector.injected,
            skipped=injector.skipped,
            quiet=quiet,
            done=during,
            after=after,
            hung=self.hung,
            left=left,
        )

    def _workers(self, phase: str) -> list[Worker]:
        rngs = [Random(f"{self.seed} {phase} {n}") for n in range(self.parameters.threads)]
        return [Worker(n, self.session, self.works, rng) for n, rng in enumerate(rngs)]

    def _all_work(self, phase: str, injector: Injector | None = None) -> None:
        workers = self._workers(phase)
        for worker in workers:
            worker.once(self.works[worker.number :: len(workers)])
            worker.start()
        self._join(workers, injector)
        self.phases[phase] = [done for worker in workers for done in worker.done]

    def _join(self, workers: Sequence[Worker], injector: Injector | None) -> None:
        while any(worker.is_alive() for worker in workers) and not self.hung:
            if injector is not None and not injector.is_alive():
                injector.mend()
            self._watch(workers)
            time.sleep(_WATCH_S / 10)

    def _watch(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            work, seconds = worker.busy_for()
            if seconds > self.parameters.hang_s:
                self.hung.append(f"{work} did not end within {self.parameters.hang_s:g} s")
        if self.hung:
            _show_stacks(self.testbed)


def _show_stacks(testbed: Testbed) -> None:
    """Print the stacks of all threads of all processes, and their logs, to stderr."""
    faulthandler.dump_traceback(all_threads=True)
    for process in testbed.family():
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGUSR1)
    time.sleep(_STACKS_S)
    for log in sorted(testbed.folder.rglob("*.log")):
        sys.stderr.write(f"\n--- {log}\n{_tail(log)}")
    sys.stderr.flush()


def _tail(log: Path) -> str:
    try:
        return log.read_text(errors="replace")[-_LOG_TAIL_CHARS:]
    except OSError as error:
        return f"{error}\n"


EXPERIMENTS = (
    Experiment(
        name="chaos",
        title="TPC-H and statements that load and write, while processes are killed and stopped",
        source="every answer is DuckDB's, nothing hangs, nothing is left behind",
        kind="live",
        parameters=Chaos(),
        quick=Chaos(
            faults=6,
            seconds=3.0,
            queries=(1, 3, 6),
            scale=0.0,
            partitions=2,
            threads=2,
            stop_max_s=0.5,
            hang_s=60.0,
        ),
        run=chaos,
        chart=Chart(x="Seconds", y="Share of statements", style="steps", figures=FIGURES),
        verdict=verdict,
    ),
)
