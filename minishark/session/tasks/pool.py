"""The calls of a session as jobs of Sparrow: many calls travel as one job.

    submit ──► pending ──flush──► sent ──event──► over ──► receiver.returned / failed
                  │ ▲               │
                  │ └─ retried      └─ taken back ──┐
                  └─ claimed ───────────────────────┴──► run here, for a call that waits

`flush` runs on the cluster's IO thread: what is submitted while that thread is busy goes out
together. At most `_SENT_MAX` calls are sent; the others wait here, where cancelling them is free.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from minishark.cluster.backend import (
    Backend,
    BackendError,
    OnPrint,
    Placement,
    function_error,
    printed_by,
    task_error,
    tasks_lost,
)
from minishark.cluster.job_events import (
    Job,
    JobEvent,
    JobFailed,
    JobFinished,
    TaskCompleted,
    TaskFailed,
    TaskLost,
    TasksReturned,
)
from minishark.errors import (
    ClusterError,
    ExecutionError,
    TasksLostError,
    TaskTimeoutError,
)
from minishark.model.events.kinds import CallEnded, CallsSubmitted, message, shortened
from minishark.model.events.stream import EventStream
from minishark.session.tasks.call import Call, CallOptions, Receiver, Sent
from minishark.session.tasks.callbacks import Callbacks
from minishark.session.tasks.files import Files
from minishark.session.tasks.functions import Function, Functions
from minishark.session.tasks.kept import KeptCalls, Naming
from minishark.session.tasks.nested_calls import NestedCalls
from minishark.worker.keeping import keeping
from minishark.worker.protocol import (
    FileSlice,
    ProblemDetail,
    PythonJob,
    PythonOutcome,
    TaskProblem,
    Value,
    decode_python_outcome,
    encode,
)
from minishark.worker.python_tasks import SCOPE
from minishark.worker.store import InputMissingError
from minishark.worker.values import dump_arguments, dump_plain, load, load_small, unsendable

_SENT_MAX = 16_384
_SENT_BYTES = 64 << 20
_STOPPED = "The session was stopped before the call was done."
_LOSSES_MAX = 3  # of what one call has returned: then something is wrong with storage
_UNKNOWN_S = 1.0  # what Sparrow takes for the time of a task of which nothing is known


class CallPool:
    """Runs calls on a cluster; safe to use from several threads."""

    def __init__(
        self,
        backend: Backend,
        placing: Callable[[], Placement],
        files: Files,
        *,
        working_folder: Callable[[], str] = str,
        events: EventStream | None = None,
        on_print: OnPrint | None = None,
        on_send: Callable[[], None] | None = None,
        kept: KeptCalls | None = None,
    ) -> None:
        """Run calls on a backend.

        Args:
            backend: takes jobs.
            placing: where they are placed.
            files: large arguments and results.
            working_folder: where relative paths begin.
            events: what happens is told to it.
            on_print: takes what calls print; must not block.
            on_send: called when calls are sent; must not block.
            kept: what earlier calls have returned; None for nothing.
        """
        self._on_print, self._on_send = on_print, on_send
        self._events = events or EventStream(1)
        self.files = files
        self.kept = kept
        self.functions = Functions(files)
        self.placing = placing
        self._backend = backend
        self._working_folder = working_folder
        self._callbacks = Callbacks()
        self._io_thread: int | None = None
        self._lock = threading.RLock()  # guards the following; finalizers come while it is held
        self._pending: deque[Call] = deque()
        self._flush_due = False
        self._sent = 0
        self._sent_bytes = 0
        self._open: dict[Sent, None] = {}
        self._withdrawn: dict[Sent, list[int]] = {}
        # Those whose kept results are to be read, by file: the arguments stay as long.
        self._unread: dict[str, Call] = {}
        self._closed = False

    @property
    def is_busy(self) -> bool:
        """Whether calls were sent that have not ended."""
        return bool(self._open)

    # Submitting

    def call(
        self,
        receiver: Receiver,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
        naming: Naming | None = None,
    ) -> Call:
        """A call that is ready to be submitted.

        Raises:
            OptionError: its arguments can't be pickled.
        """
        name = "" if naming is None else naming(args, kwargs)
        plain = dump_plain(args, kwargs)
        if plain is not None:
            return Call(
                receiver=receiver,
                function=function,
                options=options,
                payload=encode(Value(plain)),
                files=(),
                retries=options.retries,
                name=name,
            )
        with keeping() as kept:
            try:
                with self.files.storing() as put:
                    value = dump_arguments(args, kwargs, put)
            except Exception as error:
                raise unsendable(f"An argument of {function.label}", error) from error
        return Call(
            receiver=receiver,
            function=function,
            options=options,
            payload=encode(value),
            files=value.files,
            retries=options.retries,
            keeps=tuple(kept),
            name=name,
        )

    def submit(self, calls: Sequence[Call]) -> None:
        """Run calls.

        Raises:
            ClusterError: the pool is closed.
        """
        scope = SCOPE.get()
        if scope is not None:
            nested = scope.nested.get(self)
            if nested is None:
                nested = scope.nested[self] = NestedCalls(self, scope)
            nested.add(calls)
        calls = self._not_made(calls)
        if not calls:
            return
        self.files.make_folder()
        with self._lock:
            if self._closed:
                raise ClusterError("The session is stopped; call connect() again.")
            self._pending.extend(calls)
            woken, self._flush_due = self._flush_due, True
        if not woken:
            self._call_flush()

    def _not_made(self, calls: Sequence[Call]) -> Sequence[Call]:
        """The calls that have to be made; receivers of the others are told what came of them."""
        names = [call.name for call in calls if call.name]
        if self.kept is None or not names or self._closed:
            return calls
        made = self.kept.take(names)
        left = []
        for call in calls:
            if call.name not in made:
                left.append(call)
                continue
            call.is_pending = False
            self._returned(call, *made[call.name])
        return left

    def _wake(self) -> None:
        """Have the IO thread call `_flush`, if it is not about to."""
        with self._lock:
            woken, self._flush_due = self._flush_due, True
        if not woken:
            self._call_flush()

    def _call_flush(self) -> None:
        try:
            self._backend.call_soon(self._flush)
        except BackendError as error:
            self._fail_all(ClusterError(f"The cluster is gone: {error}"))

    def _flush(self) -> None:
        self._io_thread = threading.get_ident()
        with self._lock:
            self._flush_due = False
            withdrawn, self._withdrawn = self._withdrawn, {}
            taken = self._take()
        for sent, numbers in withdrawn.items():
            if sent.job_id is not None:
                self._backend.withdraw(sent.job_id, numbers, stop=True)
        batches: dict[tuple[int, CallOptions], list[Call]] = {}
        for call in taken:
            batches.setdefault((id(call.function), call.options), []).append(call)
        # Not cut into several jobs: those could be placed by different schedulers, and the first
        # results of a map, which are awaited first, would come after those of a later job.
        for calls in batches.values():
            self._send(calls)

    def _take(self) -> list[Call]:
        """Pending calls that may be sent now; the lock is held."""
        taken = []
        while self._pending and self._sent < _SENT_MAX and self._sent_bytes < _SENT_BYTES:
            call = self._pending.popleft()
            if not call.is_pending:
                continue  # it was cancelled or claimed
            call.is_pending = False
            self._sent += 1
            self._sent_bytes += len(call.payload)
            taken.append(call)
        return taken

    def _send(self, taken: list[Call]) -> None:
        calls, sent = self._begin(taken)
        if not calls:
            return
        try:
            placement = self.placing()
            now = time.monotonic()
            for call in calls:
                call.sent_at = now
                call.wait_s = math.inf if placement.wait_s is None else placement.wait_s
            job = self._job(calls, placement)
            function = calls[0].function.label
            self._events.emit(CallsSubmitted(at=time.time(), function=function, count=len(calls)))
            sent.job_id = self._backend.submit(job, partial(self._on_event, sent))
            if self._on_send is not None:
                self._on_send()
        except Exception as error:  # noqa: BLE001 - nobody else would end these calls
            for call in self._forget(sent):
                self.fail(call, ClusterError(f"The cluster can't run calls: {error}"))

    def _begin(self, taken: list[Call]) -> tuple[list[Call], Sent]:
        """The calls of a job; from now on, who cancels one of them withdraws its task."""
        with self._lock:
            calls = [call for call in taken if not call.is_over]
            for call in taken:
                if call.is_over:  # cancelled since it was taken
                    self._make_room(call)
            sent = Sent(dict(enumerate(calls)))
            for number, call in sent.calls.items():
                call.task = (sent, number)
            if calls:
                self._open[sent] = None
        return calls, sent

    def _job(self, calls: list[Call], placement: Placement) -> Job:
        function, options = calls[0].function, calls[0].options
        job = PythonJob(
            function=function.value,
            folder=self.files.folder,
            stores=placement.stores,
            working_folder=self._working_folder(),
            timeout_s=options.timeout_s,
            kept=self._kept_folder(options),
        )
        task_s = _UNKNOWN_S if function.call_s is None else function.call_s
        return placement.job(
            tuple(
                [placement.task(i, call.payload, options.prefers) for i, call in enumerate(calls)]
            ),
            encode(job),
            # However a session submits many calls, nobody waits behind more than one of them.
            group=f"{self.files.folder}/{options.group}",
            tag=function.label,
            independent=True,
            task_s=min(task_s, _UNKNOWN_S),
            limit_s=options.timeout_s,
        )

    def naming(self, function: Function, options: CallOptions) -> Naming | None:
        """How calls of a function are named; None if what they return is not kept."""
        return self.kept.naming(function) if self.kept is not None and options.reuse else None

    def _kept_folder(self, options: CallOptions) -> str:
        return self.kept.folder if self.kept is not None and options.reuse else ""

    # Events, on the IO thread

    def _on_event(self, sent: Sent, event: JobEvent) -> None:
        match event:
            case TaskCompleted():
                call = self._ended(sent, event.task_id)
                if call is None:
                    self.discard(decode_python_outcome(event.result))
                else:
                    self.completed(call, event.result, event.node, event.run_s, event.executor)
            case TaskFailed(timed_out=True):
                call = self._ended(sent, event.task_id)
                if call is not None:
                    self._timed_out(call, event)
            case TaskFailed():
                call = self._ended(sent, event.task_id)
                self._show(event.executor, printed_by(event))
                if call is not None:
                    self.fail(call, task_error(event))
            case TaskLost():
                call = self._ended(sent, event.task_id)
                if call is not None:
                    self.fail(call, tasks_lost(call.function.label, event))
            case TasksReturned():
                for number in event.task_ids:
                    call = self._ended(sent, number)
                    if call is not None and call.nested_in is not None:
                        call.nested_in.taken_back(call)
            case JobFinished():
                self._forget(sent)
            case JobFailed():
                for call in self._forget(sent):
                    self.fail(call, _job_error(call, event))

    def _ended(self, sent: Sent, number: int) -> Call | None:
        """A sent call has ended, or has come back; None if it was cancelled before."""
        with self._lock:
            call = sent.calls.pop(number, None)
            if call is None:
                return None
            call.task = None
            wakes = self._make_room(call)
        if wakes:
            self._wake()
        return call

    def _make_room(self, call: Call) -> bool:
        """A call is not sent any more; whether others can be. The lock is held."""
        self._sent -= 1
        self._sent_bytes -= len(call.payload)
        # Half of the room at a time: jobs of many calls cost less than as many small ones.
        return bool(self._pending) and 2 * self._sent <= _SENT_MAX

    def _forget(self, sent: Sent) -> list[Call]:
        """A job is over; its calls that have not ended."""
        with self._lock:
            self._open.pop(sent, None)
            calls = list(sent.calls.values())
            sent.calls.clear()
            for call in calls:
                call.task = None
                self._make_room(call)
            wakes = bool(self._pending)
        if wakes:
            self._wake()
        return calls

    def completed(
        self, call: Call, result: bytes, node: str, run_s: float, executor: str = ""
    ) -> None:
        """A call has returned or raised; `result` is a PythonOutcome."""
        call.function.took(run_s)
        call.ran_s = run_s
        outcome = decode_python_outcome(result)
        self._show(executor, outcome.printed)
        self._events.emit(
            CallEnded(
                at=time.time(),
                function=call.function.label,
                node=node,
                executor=executor,
                run_s=run_s,
                state="done" if outcome.problem is None else "raised",
                error="" if outcome.problem is None else shortened(outcome.problem.message, 300),
            )
        )
        if outcome.problem is not None and call.retries > 0:
            call.retries -= 1
            self.put_back(call)
            return
        if outcome.value is not None and call.name and self.kept is not None:
            if outcome.value.is_fleeting:
                self.kept.not_kept(call.function.label, "it holds a broadcast value")
                call.name = ""
            else:
                self.kept.keep(call.name, outcome.value, node, run_s)
        self._returned(call, outcome, node)

    def _returned(self, call: Call, outcome: PythonOutcome, node: str) -> None:
        """Tell who wants it what came of a call, if somebody still does."""
        files = () if outcome.value is None else outcome.value.files
        if not self._ends(call):
            self.discard(outcome)
            return
        if not files or not self._is_unread(call, files):
            self._release(call)
        call.receiver.returned(outcome, node)

    def _is_unread(self, call: Call, files: Sequence[FileSlice]) -> bool:
        """A result is to be read; whether this call is the one to make again if that is lost."""
        self.files.keep(files)
        if not call.name:
            return False
        with self._lock:  # equal calls may have one result: either will do
            return self._unread.setdefault(files[0].file, call) is call

    def _timed_out(self, call: Call, event: TaskFailed) -> None:
        """A call ended with its executor, after its timeout: as if the executor had said so."""
        timeout_s = call.options.timeout_s
        assert timeout_s is not None, "its job has a limit"
        message = f"The task took longer than {timeout_s:g} s, and its process had to be ended."
        problem = ProblemDetail(problem=TaskProblem.FUNCTION, message=message)
        outcome = encode(PythonOutcome(None, problem, timed_out=True))
        self.completed(call, outcome, event.node, timeout_s, event.executor)

    def _show(self, executor: str, printed: str) -> None:
        if printed and self._on_print is not None:
            self._on_print(executor, printed)

    def put_back(self, call: Call) -> None:
        """Run a call again that was sent, unless it was cancelled meanwhile."""
        with self._lock:
            if call.is_over:
                return
            closed = self._closed
            if not closed:
                call.is_pending = True
                self._pending.appendleft(call)
        if closed:  # `close` did not see it
            self.fail(call, ClusterError(_STOPPED))
            return
        if call.nested_in is not None:
            call.nested_in.add((call,))
        self._wake()

    def fail(self, call: Call, error: Exception) -> None:
        """A call could not be run."""
        if self._over(call):
            text = message(error)
            self._events.emit(
                CallEnded(at=time.time(), function=call.function.label, state="lost", error=text)
            )
            call.receiver.failed(error)

    def _over(self, call: Call) -> bool:
        """Whether a call ends here, so that nothing of it is needed; not if it was cancelled."""
        ends = self._ends(call)
        if ends:
            self._release(call)
        return ends

    def _ends(self, call: Call) -> bool:
        with self._lock:
            if call.is_over:
                return False
            call.is_over = True
        if call.nested_in is not None:
            call.nested_in.ended(call)
        return True

    def _release(self, call: Call) -> None:
        if call.files:
            self.files.release(call.files)
        call.keeps = ()

    def _fail_all(self, error: Exception) -> None:
        with self._lock:
            calls = list(self._pending)
            self._pending.clear()
            for sent in self._open:
                calls += sent.calls.values()
                sent.calls.clear()
            self._open.clear()
            self._sent = self._sent_bytes = 0
        for call in calls:
            self.fail(call, error)

    # Cancelling, and taking calls back

    def cancel(self, calls: Iterable[Call]) -> None:
        """Drop calls that have not ended, and interrupt those that run; nobody is told of them."""
        dropped = []
        with self._lock:
            for call in calls:
                if call.is_over:
                    continue
                call.is_over, call.is_pending = True, False
                dropped.append(call)
                if call.task is not None:
                    sent, number = call.task
                    call.task = None
                    if sent.calls.pop(number, None) is not None:
                        self._make_room(call)
                        self._withdrawn.setdefault(sent, []).append(number)
            is_needed = bool(self._withdrawn)
        for call in dropped:
            self._release(call)
            if call.nested_in is not None:
                call.nested_in.ended(call)
        if is_needed:
            self._wake()

    def abort(self, calls: Iterable[Call], error: Exception) -> None:
        """Cancel calls, and tell their receivers so."""
        ended = [call for call in calls if not call.is_over]
        self.cancel(ended)
        for call in ended:
            call.receiver.failed(error)

    def claim(self, call: Call) -> bool:
        """Take a call that was not sent yet, to run it here; whether it was so."""
        with self._lock:
            claimed, call.is_pending = call.is_pending, False
        return claimed

    def take_back(self, calls: Iterable[Call]) -> None:
        """Ask for calls that were sent; those that have not begun may run here."""
        by_job: dict[Sent, list[int]] = {}
        with self._lock:
            for call in calls:
                if call.task is not None and call.task[0].job_id is not None:
                    by_job.setdefault(call.task[0], []).append(call.task[1])
        for sent, numbers in by_job.items():
            assert sent.job_id is not None
            self._backend.withdraw(sent.job_id, numbers, stop=False)

    def python_job(self, call: Call) -> PythonJob:
        """What a call belongs to, to run it here."""
        return PythonJob(
            function=call.function.value,
            folder=self.files.folder,
            stores=self.placing().stores,
            timeout_s=call.options.timeout_s,
            kept=self._kept_folder(call.options),
        )

    def calling_back(self, fn: Callable[[Any], object]) -> Callable[[Any], None]:
        """`fn`, as a callback that does not run on the cluster's thread."""

        def call(future: object) -> None:
            if threading.get_ident() == self._io_thread:
                self._callbacks.put(partial(fn, future))
            else:
                fn(future)

        return call

    # Outcomes, on the threads that want them

    def result(self, outcome: PythonOutcome, again: Callable[[Call], Any]) -> Any:
        """The value of an outcome without a problem; its files are removed.

        `again` makes a call whose kept result is lost, and gives that.

        Raises:
            TasksLostError: a result is lost with its node.
        """
        assert outcome.value is not None
        if not outcome.value.files:
            return load_small(outcome.value)
        try:
            return load(outcome.value, self.files.store())
        except InputMissingError as error:
            call = self._unread.get(outcome.value.files[0].file)
            if call is None or call.losses == _LOSSES_MAX:
                raise TasksLostError(
                    f"The result of a call is lost with its node; submit the call again ({error})."
                ) from error
            assert self.kept is not None, "what has a name is kept"
            self.kept.lost(outcome.value.files)
            return again(call)
        finally:
            self._free(outcome.value.files)

    def again(self, receiver: Receiver, call: Call) -> Call:
        """A call once more, whose result is lost; `call` has its arguments meanwhile."""
        return Call(
            receiver=receiver,
            function=call.function,
            options=call.options,
            payload=call.payload,
            files=(),
            retries=call.options.retries,
            name=call.name,
            losses=call.losses + 1,
        )

    def discard(self, outcome: PythonOutcome) -> None:
        """Nobody will ask for this outcome: remove its files."""
        if outcome.value is not None and outcome.value.files and not self._closed:
            self._free(outcome.value.files)

    def _free(self, items: Iterable[FileSlice]) -> None:
        """A result was read, or is not wanted; what is kept stays for others."""
        own = f"{self.files.folder}/"
        self.files.remove(item for item in items if item.file.startswith(own))
        others = [item for item in items if not item.file.startswith(own)]
        if others and self.kept is not None:
            self.files.forget(others)
            for item in self.kept.release(others):
                with self._lock:
                    call = self._unread.pop(item.file, None)
                if call is not None:
                    self._release(call)

    def error(self, call_name: str, outcome: PythonOutcome, node: str, index: int = 0) -> Exception:
        """The exception of an outcome with a problem."""
        problem = outcome.problem
        assert problem is not None
        if outcome.timed_out:
            return TaskTimeoutError(f"{call_name} on {node}: {problem.message}")
        return function_error(
            msgspec.structs.replace(problem, partition=index), node, f"in {call_name} on {node}"
        )

    def close(self) -> None:
        """Fail all calls that have not ended; no more may be submitted."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._fail_all(ClusterError(_STOPPED))
        self._callbacks.close()


def _job_error(call: Call, event: JobFailed) -> Exception:
    if event.kind == "task_lost":
        return tasks_lost(call.function.label, event)
    story = "".join(f"\n  {line}" for line in event.story)
    if event.kind == "cancelled":
        return ClusterError(_STOPPED)
    if event.kind in ("no_nodes", "no_executors", "no_scheduler"):
        return ClusterError(f"The cluster can't run calls: {event.message}{story}")
    return ExecutionError(f"The cluster can't run calls: {event.message}{story}")
