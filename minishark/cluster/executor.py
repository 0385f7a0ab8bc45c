"""The runner that Sparrow's executors load: decodes tasks, runs them, encodes their results."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
from msgspec import structs

from minishark.cluster.connections import Connections
from minishark.cluster.folders import SPILL, make_spill_folder, remove_if_orphaned
from minishark.cluster.keys import load_keys
from minishark.cluster.machine import Confinement, node_meter
from minishark.cluster.program_slot import ProgramSlot
from minishark.cluster.remote_files import RemoteFiles
from minishark.errors import ClusterError
from minishark.worker.memory import NodeMemory
from minishark.worker.paths import StorePaths
from minishark.worker.prints import PRINTS, PRINTS_FOLDER
from minishark.worker.protocol import (
    Job,
    ProblemDetail,
    ProgramJob,
    PythonJob,
    StageTask,
    TaskProblem,
    decode_job,
    decode_payload,
    encode,
)
from minishark.worker.python_tasks import PythonTasks
from minishark.worker.run_task import TaskRunner
from minishark.worker.shares import Shares
from minishark.worker.store import Store
from minishark.worker.task_errors import TaskError
from minishark.worker.user_modules import UserModules
from sparrow_core import TaskFailure

_JOBS_MAX = 256
_STUCK_S = 1.0
_STUCK_STATUS = 75
_TIDY_S = 2.0
_FIT_S = 0.25
_REPORT_S = 1.0  # in which outcomes have left the process, also on a busy machine


def make_runner(config: dict[str, str], slot: int) -> ExecutorRunner:
    return ExecutorRunner(config, slot)


class ExecutorRunner:
    """Runs the tasks of one slot."""

    def __init__(self, config: dict[str, str], slot: int) -> None:
        self._paths = StorePaths(Path(config["memory"]), Path(config["disk"]))
        # The slot alone is not unique on a node. The pid tells which folders are of dead processes.
        spill = self._paths.disk / config["node"] / SPILL / f"{os.getpid()}-{slot}"
        make_spill_folder(self._paths.disk / config["node"])
        memory = NodeMemory(int(config["memory_limit_bytes"]), int(config["slots"]))
        meter = node_meter(self._paths, config["node"], memory)
        keys = load_keys(config.get("keys"))
        self._connections = Connections(keys)
        self._remote_files = RemoteFiles(self._connections)
        self._has_hosts = "host" in config
        self._name = config["executor"]
        files = self._remote_files if self._has_hosts else None
        host, has_died = config.get("host", ""), config.get("died", "0") != "0"
        self._store = Store(self._paths, config["node"], host, files, meter, is_wary=has_died)
        self._shares: Shares | None = None
        if (sharing := int(config.get("sharing_slots", "0"))) > 1:
            name = f"{self._name}.{slot}"
            self._shares = Shares(self._paths.memory / "shares", name, sharing)
        self._runner = TaskRunner(
            self._store, memory=memory, spill_folder=str(spill), shares=self._shares
        )
        self._calls = PythonTasks(self._store, self._paths.disk / "run", config.get("keys"))
        self._programs = ProgramSlot(self._store, config, keys)
        self._jobs: dict[str, Job] = {}
        self._own_process = "own_process" in config
        self._modules = UserModules()
        self._confinement: Confinement | None = None
        if self._own_process:
            limit_bytes = memory.limit_bytes * max(1, sharing // memory.slots)
            self._confinement = Confinement(limit_bytes)
            PRINTS.install()
        self._closing = threading.Event()
        self._tidying = threading.Thread(target=self._tidy, name="minishark-tidy", daemon=True)
        self._tidying.start()

    def _tidy(self) -> None:
        """Fit DuckDB's memory limit to what stored files leave; release dropped tables."""
        # Runs on its own thread: also during a task, and between tasks.
        tidy_at_s, told = time.monotonic() + _TIDY_S, ""
        while not self._closing.wait(_FIT_S):
            idle_s = min(self._calls.idle_s, self._runner.idle_s)
            try:
                self._fit(is_idle=idle_s > _REPORT_S)
            except Exception as error:  # noqa: BLE001 - without this thread no limit would hold
                if repr(error) != told:
                    told = repr(error)
                    traceback.print_exc()
            if self._is_doomed() and idle_s > _REPORT_S:
                # The front end has been told; only the end of the process stops that call. Not
                # sooner: who has submitted it may run here, too, and would be lost with it.
                os._exit(_STUCK_STATUS)
            if time.monotonic() >= tidy_at_s:
                with contextlib.suppress(duckdb.Error):  # interrupted with a task: the next time
                    self._runner.forget_removed()
                self._calls.forget_removed()
                with contextlib.suppress(ClusterError):  # it is being closed
                    self._remote_files.remove_unwanted()
                tidy_at_s = time.monotonic() + _TIDY_S

    def _fit(self, *, is_idle: bool) -> None:
        with contextlib.suppress(duckdb.Error):  # its connection is closed or being reopened
            self._runner.fit_memory()
            if self._confinement is not None and not is_idle:  # else nothing takes memory
                self._confinement.fit()
            self._runner.tell_progress()
            self._runner.look_for_spilled()
            PRINTS.write(self._name)

    def _is_doomed(self) -> bool:
        """Whether the process has to end, as a call in it was given up and does not."""
        left = [runner.left_behind() for runner in (self._calls, self._runner)]
        return any(left) and self._own_process

    def run(self, job_id: str, shared: bytes, payload: bytes) -> bytes:
        while self._is_doomed():
            time.sleep(_FIT_S)  # what would begin now would be lost half way
        job = self._job(job_id, shared)
        self._connections.interrupted.clear()
        if self._own_process and job.working_folder:
            _work_in(job.working_folder)
        PRINTS.take()  # of threads that an earlier task has left behind
        if self._own_process and not self._has_hosts and not isinstance(job, ProgramJob):
            # While it runs, what it prints is written for its front end, in its own cluster.
            PRINTS.begin(partial(self._store.in_memory, f"{job.folder}/{PRINTS_FOLDER}"))
        if self._shares is not None:
            self._shares.want(1)
        try:
            return self._result(job, payload)
        except TaskError as error:
            retryable = _may_succeed(job, error.detail)
            detail = structs.replace(error.detail, printed=PRINTS.take())
            raise TaskFailure(str(error), encode(detail), retryable=retryable) from error
        finally:
            if self._shares is not None:
                self._shares.want(0)
            PRINTS.end()
            self._modules.note()

    def _job(self, job_id: str, shared: bytes) -> Job:
        job = self._jobs.get(job_id)
        if job is None:
            if self._own_process and self._modules.drop_changed():
                self._calls.forget_code()
                self._runner.forget_code()
            job = self._jobs[job_id] = decode_job(shared)
            if len(self._jobs) > _JOBS_MAX:
                del self._jobs[next(iter(self._jobs))]
        return job

    def _result(self, job: Job, payload: bytes) -> bytes:
        self._store.meet(job.stores)
        match job:
            case PythonJob():
                return self._calls.call(job, payload)
            case StageTask():
                outcome = self._runner.run(job, decode_payload(payload))
                printed = PRINTS.take()
                return encode(structs.replace(outcome, printed=printed) if printed else outcome)
            case ProgramJob():
                return encode(self._programs.run(job))

    def cancel(self) -> None:
        """Interrupt the running task; called repeatedly from another thread until it ends."""
        # User code blocked in C does not react: the process exits then, and its node restarts it.
        self._connections.interrupted.set()
        runners = (self._runner, self._calls, self._programs)
        ignored_s = max(runner.interrupt() for runner in runners)
        if ignored_s > _STUCK_S and self._own_process:
            os._exit(_STUCK_STATUS)

    def forget(self, job_id: str) -> None:
        job = self._jobs.pop(job_id, None)
        if job is None or isinstance(job, PythonJob):
            return  # files of calls are not kept open
        self._runner.forget(job.folder)
        pa.default_memory_pool().release_unused()

    def close(self) -> None:
        """Stop the runner, and remove the session's folders if the session is dead."""
        self._closing.set()
        self._tidying.join(_TIDY_S)
        self._calls.close()
        self._runner.close()
        if self._shares is not None:
            self._shares.close()
        self._connections.close()
        remove_if_orphaned(self._paths.memory)
        remove_if_orphaned(self._paths.disk)


def _may_succeed(job: Job, detail: ProblemDetail) -> bool:
    """Whether a failed task is worth another attempt, as it is."""
    if isinstance(job, PythonJob):
        # Files that are on their way, or folders that a new node lacks, may be there soon.
        return detail.problem in (TaskProblem.INPUT, TaskProblem.FOLDER)
    # Lost files are not retried here: the front end must have them recomputed first.
    return detail.problem is TaskProblem.INPUT and not detail.missing


def _work_in(folder: str) -> None:
    """Resolve relative paths as the front end does, or against the root if this host lacks it."""
    try:
        # To ask takes half as long, if no call has left it; a Path would take longer.
        if os.getcwd() == folder:  # noqa: PTH109
            return
    except OSError:
        pass  # it is gone
    # A relative path then fails, instead of reading another file of the same name.
    try:
        os.chdir(folder)
    except OSError:
        os.chdir(Path(folder).anchor)
