"""The calls of a running call: they can't wait for its slot while it waits for them.

A call that submits calls and waits for them holds its slot. If all slots are held so, nobody would
run what they wait for. So while a call waits, a thread beside it takes those of its *own* calls
that nobody has begun, and runs them one by one. What a call waits for is then begun, here or
elsewhere, and whatever is begun either runs or waits for calls further down the tree. Leaves wait
for nobody, so all of it ends. There are at most as many threads as the tree is deep.

Others' calls are not taken: their end may be far off, and threads would pile up.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from minishark.cluster.backend import task_error
from minishark.cluster.job_events import TaskFailed
from minishark.errors import ExecutionError, QueryCancelledError
from minishark.session.tasks.call import Call
from minishark.worker.functions import UserCode
from minishark.worker.protocol import PythonJob, encode
from minishark.worker.python_tasks import Scope
from minishark.worker.task_errors import TaskError

_GRACE_S = 0.002  # in which an idle slot elsewhere would begin a call
_PAUSE_S = 0.02
_PAUSE_MAX_S = 0.5
_ASKED_MAX = 8


class Pool(Protocol):
    """What calls were submitted to."""

    def claim(self, call: Call) -> bool: ...

    def take_back(self, calls: Sequence[Call]) -> None: ...

    def put_back(self, call: Call) -> None: ...

    def abort(self, calls: Sequence[Call], error: Exception) -> None: ...

    def completed(self, call: Call, result: bytes, node: str, run_s: float) -> None: ...

    def fail(self, call: Call, error: Exception) -> None: ...

    def python_job(self, call: Call) -> PythonJob: ...


class NestedCalls:
    """The calls that a running call has submitted to a pool."""

    def __init__(self, pool: Pool, scope: Scope) -> None:
        self._pool = pool
        self._tasks = scope.tasks
        self._calls: dict[Call, None] = {}  # neither ended nor begun here
        self._returned: deque[Call] = deque()
        self._changed = threading.Condition()
        self._helper: threading.Thread | None = None
        self._over = False
        self._code = UserCode()
        scope.ending.append(self._end)
        scope.stopping.append(self._stop)

    def add(self, calls: Sequence[Call]) -> None:
        with self._changed:
            for call in calls:
                call.nested_in = self
                self._calls[call] = None
            self._changed.notify()

    def ended(self, call: Call) -> None:
        with self._changed:
            self._calls.pop(call, None)
            if not self._calls:
                self._changed.notify()

    def taken_back(self, call: Call) -> None:
        with self._changed:
            over = self._over
            if not over:
                self._returned.append(call)
                self._changed.notify()
        if over:
            self._pool.put_back(call)

    def help(self) -> None:
        """The running call waits for one of these: begin what nobody else does."""
        with self._changed:
            if self._helper is None and self._calls and not self._over:
                self._helper = threading.Thread(
                    target=self._help, name="minishark-nested", daemon=True
                )
                self._helper.start()

    def _help(self) -> None:
        pause_s = _GRACE_S
        while True:
            with self._changed:
                if not self._returned and self._calls:
                    self._changed.wait(pause_s)
                if self._over or not self._calls:
                    self._helper = None
                    return
                returned = self._returned.popleft() if self._returned else None
                candidates = [call for call in self._calls if self._may_run(call)]
            call = returned or next(filter(self._pool.claim, candidates), None)
            if call is not None:
                self._run(call)
                pause_s = 0.0
            elif pause_s < _PAUSE_S:
                self._pool.take_back(candidates[:_ASKED_MAX])
                pause_s = _PAUSE_S
            else:
                # Begun elsewhere, most likely; those that were not are behind them.
                self._pool.take_back(candidates)
                pause_s = min(_PAUSE_MAX_S, 2 * pause_s)

    def _may_run(self, call: Call) -> bool:
        """Whether this node will do; as at the scheduler, after a while any node does."""
        prefers = call.options.prefers
        if not prefers or self._tasks.store.node in prefers:
            return True
        return call.sent_at > 0 and time.monotonic() > call.sent_at + call.wait_s

    def _run(self, call: Call) -> None:
        with self._changed:
            self._calls.pop(call, None)
        started = time.perf_counter()
        try:
            result = self._tasks.call(self._pool.python_job(call), call.payload, self._code)
        except TaskError as error:
            node = self._tasks.store.node
            failed = TaskFailed(0, str(error), encode(error.detail), node, node)
            self._pool.fail(call, task_error(failed))
        except Exception as error:  # noqa: BLE001 - its parent waits, and nobody else would tell it
            self._pool.fail(call, ExecutionError(f"{call.function.label} can't run: {error}"))
        else:
            run_s = time.perf_counter() - started
            self._pool.completed(call, result, self._tasks.store.node, run_s)

    def _end(self) -> None:
        """The call has ended; what it has not waited for goes on without it."""
        with self._changed:
            self._over = True
            returned, self._returned = list(self._returned), deque()
            self._changed.notify()
        for call in returned:
            self._pool.put_back(call)

    def _stop(self) -> None:
        """The call is interrupted, and so are its own; that ends its waiting for them."""
        with self._changed:
            self._over = True
            calls = list(self._calls)
            self._changed.notify()
        self._code.stop()
        self._pool.abort(calls, QueryCancelledError("The call that submitted it was cancelled."))
