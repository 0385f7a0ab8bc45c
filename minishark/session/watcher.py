"""Watches a session's nodes, tables, programs and jobs, and tells events when they change.

What happens to queries and calls is told where it happens; what has a state instead is looked at
once a second, while somebody wants to know: a page, or files of events.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from minishark.cluster.jobs.watching import JobsSeen
from minishark.cluster.running import RunningTasks
from minishark.cluster.status import node_changes, node_reports
from minishark.cluster.wire import own_user, own_versions
from minishark.errors import MinisharkError, QueryCancelledError
from minishark.model.catalog import Table
from minishark.model.events import kinds
from minishark.model.events.history import HistoryWriter
from minishark.model.events.traces import Spans
from minishark.session.engine import Engine
from minishark.session.programs.program import Program
from minishark.session.programs.run import ProgramRun

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

_LOOK_S = 1.0
_WRITE_S = 0.25


class Watcher:
    """A thread that looks at a session; it starts when somebody wants to know."""

    def __init__(self, engine: Engine, name: str, cluster: str) -> None:
        """Watch a session called `name` on a cluster, whose address is "" for its own."""
        self._engine = engine
        self.began = kinds.SessionStarted(
            at=time.time(),
            session=name,
            user=own_user(),
            host=socket.gethostname(),
            pid=os.getpid(),
            version=own_versions()["minishark"],
            cluster=cluster,
            slots=engine.cluster.total_slots,
        )
        self._nodes: dict[str, kinds.NodeReport] = {}
        self._tables: dict[str, Table] = {}
        self._programs: dict[int, kinds.ProgramReport] = {}
        self._running = RunningTasks()
        self._jobs = JobsSeen()
        self._history: HistoryWriter | None = None
        self._spans: Spans | None = None
        self._written = 0
        self._looked_s = 0.0
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._ending = threading.Lock()  # taken once, for good

    def start(self) -> None:
        """Begin to look, if it does not yet; tells all that there is."""
        with self._lock:
            self._forget()
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="minishark-watcher", daemon=True
                )
                self._thread.start()

    def _forget(self) -> None:
        """Tell all states again."""
        self._nodes, self._tables, self._programs = {}, {}, {}
        self._running.forget()
        self._jobs.forget()

    def write_to(self, folder: str | Path) -> None:
        """Write all events to files in a folder.

        Raises:
            DataError: it can't be written.
        """
        self._history = HistoryWriter(folder, self.began)
        self.start()

    def trace(self, provider: TracerProvider | None) -> None:
        """Make spans of what happens from now on.

        Raises:
            OptionError: opentelemetry is not installed.
        """
        spans = Spans(self.began, provider)
        if self._history is None:
            self._written = self._engine.events.since(self._written).last
        self._spans = spans
        self.start()

    def stop(self) -> None:
        """Look no more, and write what is left; only the first call does."""
        if not self._ending.acquire(blocking=False):
            return
        self._stopped.set()
        self._engine.events.emit(kinds.SessionEnded(at=time.time()))
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2.0)
        if self._is_followed:
            self._write()
        if self._history is not None:
            self._history.close()
        if self._spans is not None:
            self._spans.close()

    @property
    def _is_followed(self) -> bool:
        """Whether all events go somewhere from here."""
        return self._history is not None or self._spans is not None

    def _run(self) -> None:
        while not self._stopped.wait(_WRITE_S if self._is_followed else _LOOK_S):
            now = time.monotonic()
            if now >= self._looked_s + _LOOK_S - _WRITE_S / 2:
                self._looked_s = now
                # The cluster may be closing, or a node gone meanwhile: look again later.
                with contextlib.suppress(MinisharkError, OSError, RuntimeError), self._lock:
                    for event in self._changes():
                        self._engine.events.emit(event)
            if self._is_followed:
                self._write()

    def _write(self) -> None:
        batch = self._engine.events.since(self._written)
        self._written = batch.last
        events = list(batch.events)
        if batch.dropped and events:
            events.insert(0, kinds.EventsDropped(at=events[0].at, count=batch.dropped))
        if self._spans is not None:
            try:
                self._spans.record(events)
            except Exception as error:  # noqa: BLE001 - of users' samplers and span processors
                self._spans = None
                self._engine.warn(f"Spans are not made any more: {kinds.message(error)}")
        try:
            if self._history is not None and self._history.write(events):
                with self._lock:
                    self._forget()
        except OSError as error:
            self._history = None
            self._engine.warn(f"Events are not written any more: {error.strerror}.")

    def _changes(self) -> Iterator[kinds.AnyEvent]:
        yield from self._node_changes()
        yield from self._table_changes()
        yield from self._program_changes()
        if self._engine.cluster.has_jobs:
            yield from self._jobs.changes(self._engine.cluster.jobs(), time.time())

    def _node_changes(self) -> Iterator[kinds.AnyEvent]:
        cluster, now = self._engine.cluster, time.time()
        statuses = cluster.status()
        reports = node_reports(statuses, cluster.paths, cluster.usage(statuses))
        before, self._nodes = self._nodes, {report.name: report for report in reports}
        yield from node_changes(before, self._nodes, now)
        yield from self._running.changes(statuses, now)

    def _table_changes(self) -> Iterator[kinds.AnyEvent]:
        engine, now = self._engine, time.time()
        tables = {table.name: table for table in engine.tables.catalog}
        for name, table in tables.items():
            if table is not self._tables.get(name):
                yield _table_report(table, now, is_cached=name in engine.cached)
        for name in self._tables.keys() - tables.keys():
            yield kinds.TableDropped(at=now, table=name)
        self._tables = tables

    def _program_changes(self) -> Iterator[kinds.AnyEvent]:
        runs = self._engine.programs.known()
        for number, run in runs.items():
            progress, error = Program(run.name, run).progress, run.failure
            report = kinds.ProgramReport(
                at=time.time(),
                program=number,
                name=run.name,
                state=_state(run),
                error="" if error is None else kinds.message(error),
                **asdict(progress),
            )
            before = self._programs.get(number)
            if before is None or before.state == "running":
                self._programs[number] = report
                yield report
        for number in self._programs.keys() - runs.keys():  # over, and nobody holds it any more
            last = self._programs.pop(number)
            if last.state == "running":
                yield structs.replace(last, at=time.time(), state="ended")


def _state(run: ProgramRun) -> str:
    if not run.over.is_set():
        return "running"
    if run.failure is None:
        return "done"
    return "cancelled" if isinstance(run.failure, QueryCancelledError) else "failed"


def _table_report(table: Table, now: float, *, is_cached: bool) -> kinds.TableReport:
    return kinds.TableReport(
        at=now,
        table=table.name,
        rows=table.rows,
        bytes=table.bytes,
        replicas=table.replicas,
        partitions=tuple(
            kinds.PartitionReport(part.rows, part.bytes, part.locations)
            for part in table.partitions
        ),
        keys=table.partition_by,
        is_cached=is_cached,
        is_computed=table.is_computed,
        columns=tuple((column.name, str(column.type)) for column in table.schema)[:500],
    )
