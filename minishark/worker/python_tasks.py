"""Python tasks: calls of users' functions, without DuckDB and tables.

The calls of a Sparrow job share a function, which an executor unpickles once. An exception is an
outcome like any other: it must not end the job, whose other calls may have nothing to do with it.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from minishark.worker.functions import (
    FunctionFailedError,
    Interrupted,
    UserCode,
    end_copies_of,
    note_call,
)
from minishark.worker.limited import LimitedCalls, TooLongError
from minishark.worker.prints import PRINTS
from minishark.worker.protocol import (
    FileSlice,
    ProblemDetail,
    PythonJob,
    PythonOutcome,
    TaskProblem,
    Value,
    decode_value,
    encode,
)
from minishark.worker.seals import Seal
from minishark.worker.store import FolderMissingError, InputMissingError, Store
from minishark.worker.task_errors import TaskError
from minishark.worker.values import (
    UNPICKLABLE,
    LoadedValues,
    dump,
    dump_whole,
    load,
    unsendable,
    write_file,
)

_FUNCTIONS_MAX = 64
_SHARED_MAX = 256
_KEPT_INLINE_BYTES = 16 << 10
"""Nodes hold kept results of up to this size in memory, and larger ones in files."""


@dataclass(frozen=True, slots=True)
class EachOf:
    """`fn(item)` for each of a list of items."""

    fn: Callable[[Any], Any]
    noted: bool = True  # whether exceptions say which item it was: not of items of ours

    def __call__(self, items: Iterable[Any]) -> list[Any]:
        calls = map(self.fn, items)
        return _collected(calls, items) if self.noted else list(calls)


@dataclass(frozen=True, slots=True)
class EachOfRows:
    """`fn(*row)` for each of a list of tuples."""

    fn: Callable[..., Any]

    def __call__(self, rows: Iterable[tuple[Any, ...]]) -> list[Any]:
        return _collected(itertools.starmap(self.fn, rows), rows)


def _collected(calls: Iterator[Any], items: Iterable[Any]) -> list[Any]:
    """The results of one call per item; an exception says which item it was."""
    results: list[Any] = []
    try:
        results.extend(calls)  # a loop in C, which leaves what there was before an exception
    except Exception as error:
        note_call(error, next(itertools.islice(items, len(results), None), None))
        raise
    return results


@dataclass(slots=True, eq=False)
class Scope:
    """A call that runs, for what its code asks of minishark."""

    tasks: PythonTasks  # what runs it
    # The calls that it has submitted, by what they were submitted to.
    nested: dict[Any, Any] = field(default_factory=dict)
    ending: list[Callable[[], None]] = field(default_factory=list)  # called when it has ended
    # Called from another thread when it is to be interrupted.
    stopping: list[Callable[[], None]] = field(default_factory=list)


SCOPE: ContextVar[Scope | None] = ContextVar("minishark_scope", default=None)
"""The call that runs in this thread; None in a front end."""


_slots: dict[PythonTasks, None] = {}
"""Those of this process."""


def slot_here() -> PythonTasks | None:
    """A slot of this process, for threads of which it is not known what call they belong to."""
    for slot in tuple(_slots):
        return slot
    return None


class Closing(Protocol):
    """What has to be closed."""

    def close(self) -> None: ...


class PythonTasks:
    """Runs the Python calls of a slot, and further ones while those wait for calls of their own.

    Attributes:
        store: the slot's view of stored files.
        sockets: a folder for sockets of code that submits calls.
        keys: the folder of the cluster's keys, for code that submits calls; None for no keys.
        shared: broadcast values.
        closing: what calls have opened for later ones; closed at the end of the slot.
    """

    def __init__(self, store: Store, sockets: Path, keys: str | None = None) -> None:
        self.store = store
        self.sockets = sockets
        self.keys = keys
        self.closing: dict[Closing, None] = {}
        self.shared = LoadedValues(store, _SHARED_MAX)
        self._functions = LoadedValues(store, _FUNCTIONS_MAX)
        self._user_code = UserCode()
        self._scopes: dict[Scope, None] = {}  # of calls that run
        self._idle_since_s = time.monotonic()
        self._limited = LimitedCalls()
        self._numbers = itertools.count()
        _slots[self] = None

    def call(self, job: PythonJob, payload: bytes, user_code: UserCode | None = None) -> bytes:
        """Call the job's function with a Value of arguments; returns a PythonOutcome.

        Args:
            job: what is called.
            payload: its arguments, an encoded Value.
            user_code: can stop it; None for what `interrupt` stops.

        Raises:
            TaskError: something was missing, full or interrupted, for which the function is not to
                blame.
        """
        scope = Scope(self)
        self._scopes[scope] = None
        token = SCOPE.set(scope)
        own = os.getpid()
        try:
            value = (user_code or self._user_code).run(
                lambda: self._value(job, decode_value(payload))
            )
            return encode(PythonOutcome(value, printed=PRINTS.take()))
        except Interrupted as error:
            raise TaskError(TaskProblem.INTERRUPTED, "The task was interrupted.") from error
        except TooLongError:
            message = f"The task took longer than {job.timeout_s:g} s."
            problem = ProblemDetail(problem=TaskProblem.FUNCTION, message=message)
            return encode(PythonOutcome(None, problem, timed_out=True, printed=PRINTS.take()))
        except InputMissingError as error:
            raise TaskError(TaskProblem.INPUT, str(error)) from error
        except FolderMissingError as error:
            raise TaskError(TaskProblem.FOLDER, str(error)) from error
        except _StorageError as error:
            raise TaskError(TaskProblem.RESOURCE, f"Can't store a result: {error}") from error
        except BaseException as error:  # noqa: BLE001 - whatever user code raises is its outcome
            return encode(PythonOutcome(None, _problem(error), printed=PRINTS.take()))
        finally:
            end_copies_of(own)
            SCOPE.reset(token)
            del self._scopes[scope]
            self._idle_since_s = time.monotonic()
            for end in scope.ending:
                end()

    def _value(self, job: PythonJob, arguments: Value) -> Value:
        function = self._functions.get(job.function)
        args, kwargs = load(arguments, self.store)
        if job.timeout_s is None:
            result = function(*args, **kwargs)
        else:
            result = self._limited.call(partial(function, *args, **kwargs), job.timeout_s)
        stored: list[FileSlice] = []
        try:
            if job.kept:
                kept = self._kept(result, job.kept, stored)
                if kept is not None:
                    return kept
            value = dump(result, partial(self._store_part, job.folder, stored))
            return msgspec.structs.replace(value, is_fleeting=True) if job.kept else value
        except BaseException as error:  # also an interrupt: nobody will know of these files
            for item in stored:
                self.store.remove(item)
            if isinstance(error, UNPICKLABLE):
                raise TypeError(str(unsendable("The result", error))) from error
            raise

    def _kept(self, result: Any, folder: str, stored: list[FileSlice]) -> Value | None:
        """A result that is one file, or none if it is small; None for one that can't be kept."""
        value = dump_whole(result)
        if value is None or len(value.pickled) <= _KEPT_INLINE_BYTES:
            return value
        # Sessions share the folder, and files outlive this process, whose number is used again.
        name = f"{folder}/call-{secrets.token_hex(12)}"
        try:
            item = write_file(memoryview(value.pickled), name, self.store, Seal.ALWAYS)
            stored.append(item)
            return Value(b"", item, stream_bytes=len(value.pickled))
        except OSError as error:
            raise _StorageError(str(error)) from error

    def _store_part(self, folder: str, stored: list[FileSlice], data: memoryview) -> FileSlice:
        # No two attempts at a task, on whichever node, write the same file.
        name = f"{self.store.node}-{os.getpid()}-{id(self):x}-{next(self._numbers)}"
        try:
            stored.append(write_file(data, f"{folder}/{name}", self.store))
        except FolderMissingError:
            raise
        except OSError as error:
            raise _StorageError(str(error)) from error
        return stored[-1]

    def interrupt(self) -> float:
        """Stop the slot's call and those beside it; for how many seconds it has ignored that."""
        for scope in tuple(self._scopes):
            for stop in scope.stopping:
                stop()
        return self._user_code.stop()

    @property
    def idle_s(self) -> float:
        """For how many seconds no call has run, those aside that were given up."""
        return 0.0 if self._scopes else time.monotonic() - self._idle_since_s

    def left_behind(self) -> bool:
        """Interrupt calls again that were given up and have not ended; whether there are any."""
        return self._limited.left_behind()

    def forget_code(self) -> None:
        """Unpickle functions and broadcast values again: modules of theirs have changed."""
        self._functions.clear()
        self.shared.clear()

    def forget_removed(self) -> None:
        """Free what was made of files that are removed by now."""
        self.shared.forget_removed()
        self._functions.forget_removed()

    def close(self) -> None:
        """The slot ends: close what calls have opened for later ones."""
        _slots.pop(self, None)
        for opened in tuple(self.closing):
            opened.close()


class _StorageError(Exception):
    """A large result can't be stored."""


def _problem(error: BaseException) -> ProblemDetail:
    failed = FunctionFailedError.of(error)
    return ProblemDetail(
        problem=TaskProblem.FUNCTION,
        message=str(failed),
        traceback=failed.traceback,
        pickled=failed.pickled,
    )
