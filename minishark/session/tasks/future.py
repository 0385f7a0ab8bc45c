"""Futures of calls in the cluster: `concurrent.futures.Future`s, for all that takes those."""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING
from typing import Any, Generic, NoReturn, TypeVar

from minishark.dataframe.doors import door
from minishark.session.tasks.call import Call
from minishark.session.tasks.pool import CallPool
from minishark.worker.protocol import PythonOutcome

T = TypeVar("T")

_NONE: Any = ()
_DONE = frozenset((CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED))
_making = threading.RLock()  # while a condition is made; finalizers may come then


class _Unread(Exception):  # noqa: N818 - never leaves this module
    """Stands for an exception that has not been unpickled."""


class _Waiters(list[Any]):
    """The waiters of a future; `wait` and `as_completed` add to them."""

    def __init__(self, future: Future[Any]) -> None:
        super().__init__()
        self._future = weakref.ref(future)  # a cycle would keep large results too long

    def append(self, waiter: Any) -> None:
        super().append(waiter)
        future = self._future()
        if future is not None:
            future.awaited()


class Future(concurrent.futures.Future[T], Generic[T]):
    """The result of a call in the cluster.

    It works wherever a future of Python's `concurrent.futures` does: `wait`, `as_completed`,
    `asyncio.wrap_future`. Values and exceptions are unpickled when they are asked for. `running()`
    is False until the call is done: nobody reports that a call has begun.

    Attributes:
        node: the name of the node that ran the call; None before it is done.
    """

    def __init__(
        self, pool: CallPool, label: str, on_done: Callable[[Future[Any]], None] | None = None
    ) -> None:
        # Instead of the base's, which makes a condition for each future. That is ten objects for
        # the garbage collector, and most futures are done before anybody waits for them.
        self._state = PENDING
        self._result = None
        self._exception = None
        self._waiters = _NONE
        self._done_callbacks = _NONE
        self._made: threading.Condition | None = None
        self.node: str | None = None
        self.call: Call | None = None  # set before it is submitted
        self._label = label
        self._pool = pool
        self._on_done = on_done
        self._outcome: PythonOutcome | None = None

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]  # it is a variable there
        """What the base class and its module wait for and lock; made when first needed."""
        if self._made is None:
            with _making:
                if self._made is None:
                    self._done_callbacks = []
                    self._waiters = _Waiters(self)
                    self._made = threading.Condition()
        return self._made

    def awaited(self) -> None:
        """Somebody wants to know: a call that waits for its own calls helps to run them."""
        call = self.call
        if call is not None and call.nested_in is not None:
            call.nested_in.help()

    # As a receiver, on the cluster's thread

    def returned(self, outcome: PythonOutcome, node: str) -> None:
        error = None if outcome.problem is None else _Unread()
        self.node, self._outcome = node, outcome
        with _making:
            alone = self._made is None  # nobody waits, has a callback, or has cancelled it
            if alone:
                self._exception = error
                self._state = FINISHED
        if not alone:
            try:
                if error is None:
                    self.set_result(None)  # type: ignore[arg-type]  # `result` reads the outcome
                else:
                    self.set_exception(error)
            except concurrent.futures.InvalidStateError:  # it was cancelled just now
                self._pool.discard(outcome)
        self._over()

    def failed(self, error: Exception) -> None:
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.set_exception(error)
        self._over()

    def _over(self) -> None:
        self.call = None  # which refers to this future: a cycle would keep results too long
        if self._on_done is not None:
            self._on_done(self)

    # As users know it

    def cancel(self) -> bool:
        """Cancel the call, also if it runs already; whether it is cancelled now.

        A running call gets an exception between two of its bytecodes; if it does not end within a
        second, its executor is restarted. Calls that it has submitted are cancelled with it.
        """
        with self._condition:
            if self.cancelled():
                return True
            if not super().cancel():
                return False
            self.set_running_or_notify_cancel()
        call = self.call
        if call is not None:
            self._pool.cancel((call,))
        self._over()
        return True

    def done(self) -> bool:
        """Whether it was cancelled, or its call has returned or raised."""
        self.awaited()
        return self._state in _DONE

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[T]], object]) -> None:
        """Call `fn(future)` when it is done; on a thread of its own, where it may block."""
        super().add_done_callback(self._pool.calling_back(fn))
        self.awaited()

    @door
    def result(self, timeout: float | None = None) -> T:
        """What the call returned.

        Raises:
            CancelledError: it was cancelled.
            TimeoutError: it was not done in `timeout` seconds.
            TaskTimeoutError: it took longer than its own timeout.
            TasksLostError: its executors died, several times.
            ClusterError: the session was stopped.
            Exception: what the call raised, with the remote traceback in a note.
        """
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error  # or its traceback would refer to it
        outcome = self._outcome
        if outcome is not None:
            self._read(outcome)
        return self._result  # type: ignore[return-value]  # it is done

    def _read(self, outcome: PythonOutcome) -> None:
        assert outcome.value is not None
        if not outcome.value.files:
            # Twice, if two threads do it at once; a lock for each future would cost more.
            self._result, self._outcome = read(self._pool, outcome), None
            return
        with self._condition:
            if self._outcome is not None:
                self._result = read(self._pool, outcome)
                self._outcome = None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call raised; None if it returned. Waits, and raises, as `result` does."""
        self.awaited()
        error = self._exception if self._state == FINISHED else super().exception(timeout)
        if not isinstance(error, _Unread):
            return error
        with self._condition:
            if self._outcome is not None:
                assert self.node is not None
                self._exception = self._pool.error(self._label, self._outcome, self.node)
                self._outcome = None
        return self._exception

    def __del__(self) -> None:
        outcome = getattr(self, "_outcome", None)
        if outcome is not None and not sys.is_finalizing():
            self._pool.discard(outcome)  # nobody has read it

    def __reduce__(self) -> NoReturn:
        raise TypeError("A future can't be sent to other processes; send its result().")


def read(pool: CallPool, outcome: PythonOutcome) -> Any:
    """The value of an outcome without a problem; the call is made again if a kept one is lost.

    Raises:
        TasksLostError: it is lost, and was not kept.
        Exception: what the call has raised now, or unpickling its result.
    """

    def again(call: Call) -> Any:
        future: Future[Any] = Future(pool, call.function.label)
        future.call = repeated = pool.again(future, call)
        pool.submit((repeated,))
        return future.result()

    return pool.result(outcome, again)
