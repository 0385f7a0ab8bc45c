"""A slot of an executor that works on a program, from its start to its end."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import cloudpickle

from machine_kit.addresses import Address, endpoint_of
from machine_kit.keys import Keys
from minishark.cluster.endpoints import own_endpoint
from minishark.worker.functions import FunctionFailedError, Interrupted, UserCode
from minishark.worker.program_files import ProgramFiles, serving
from minishark.worker.protocol import ProgramJob, TaskProblem, WorkerFigures
from minishark.worker.store import Store
from minishark.worker.task_errors import TaskError

if TYPE_CHECKING:
    from canary_core.runtime.mailbox import Mailbox
    from canary_core.runtime.worker import WorkerLoop

_numbers = itertools.count()  # slots of one process may share their folder


class ProgramSlot:
    """Runs one worker at a time."""

    def __init__(self, store: Store, config: Mapping[str, str], keys: Keys | None) -> None:
        """Work in a slot of the executor with this `runner_config`."""
        self._store = store
        self._node = config["node"]
        self._host = config.get("host", "")
        self._folder = Path(config["disk"], "run")
        self._rings = Path(config["memory"])
        self._keys = keys
        self._user_code = UserCode()
        self._worker: WorkerLoop | None = None

    def run(self, job: ProgramJob) -> WorkerFigures:
        """Be a worker of a program until it ends.

        Raises:
            TaskError: the driver can't be unpickled here, or was cancelled.
        """
        # Most executors never run one: what it needs is imported then.
        from canary_core.runtime.mailbox import route_of  # noqa: PLC0415
        from canary_core.runtime.worker import WorkerLoop  # noqa: PLC0415

        try:
            driver = cloudpickle.loads(job.driver)
        except Exception as error:  # it needs a module that is not here, or the like
            failed = FunctionFailedError.of(error)
            raise TaskError(
                TaskProblem.FUNCTION,
                str(failed),
                traceback=failed.traceback,
                pickled=failed.pickled,
            ) from error
        files = ProgramFiles(self._store, job.folder, job.tables)
        controller = Address(job.controller)
        mailbox = self._mailbox(route_of(endpoint_of(controller)).tcp)
        self._worker = worker = WorkerLoop(
            mailbox, controller, driver, source=files.table, host=self._node
        )
        cpu_s = time.thread_time()
        try:
            with serving(files):
                self._user_code.run(worker.run)
        except Interrupted as error:
            raise TaskError(TaskProblem.INTERRUPTED, "The program was cancelled.") from error
        finally:
            self._worker = None
        cpu_s = time.thread_time() - cpu_s
        did = worker.machine
        tasks, busy_s = did.meter.tasks, did.meter.busy_s
        return WorkerFigures(tasks, did.stages, did.iterations, busy_s, cpu_s)

    def _mailbox(self, controller: str) -> Mailbox:
        """A mailbox that is reached as the controller is: over tcp, too, if it has a tcp route."""
        from canary_core.runtime.mailbox import Mailbox  # noqa: PLC0415 - see above

        path = self._folder / f"w{os.getpid()}-{next(_numbers)}.sock"
        tcp = own_endpoint(controller, self._folder, path.name) if controller else ""
        return Mailbox(path, self._host, tcp=tcp, keys=self._keys, rings=self._rings)

    def interrupt(self) -> float:
        """End the worker; may be called from another thread.

        Returns:
            For how many seconds user code has ignored the request.
        """
        worker = self._worker
        if worker is None:
            return 0.0
        worker.stop()
        return self._user_code.stop()
