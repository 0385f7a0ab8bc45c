"""Values that many calls read: stored once per node, unpickled once per executor."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, Generic, TypeVar

from minishark.errors import OptionError
from minishark.session.tasks.files import Files
from minishark.worker.keeping import keep
from minishark.worker.protocol import Value
from minishark.worker.python_tasks import SCOPE, slot_here
from minishark.worker.values import dump, unsendable

T = TypeVar("T")

_LARGE_BYTES = 1 << 10  # smaller ones may travel with each call


class Broadcast(Generic[T]):
    """A value for functions that run in the cluster: `shared.value` in a function reads it.

    Sending it with a call costs a few bytes. It is freed when nobody has it any more.
    """

    def __init__(self, stored: Value, *value: T) -> None:
        """A stored value; `value` is given where it was made."""
        self._stored = stored
        self._value = value

    @property
    def value(self) -> T:
        """The value; in executors a copy that all calls share, and must not change."""
        # Not kept in executors: a function that refers to this would keep it mapped there.
        return self._value[0] if self._value else _load(self._stored)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._stored.files:
            keep(self)  # until the call is over
        return Broadcast, (self._stored,)


def broadcast(value: T, files: Files) -> Broadcast[T]:
    """Store a value for many calls.

    Raises:
        OptionError: it can't be pickled.
    """
    try:
        with files.storing() as put:
            stored = dump(value, put, large_bytes=_LARGE_BYTES)
    except Exception as error:
        raise unsendable("The value", error) from error
    shared = Broadcast(stored, value)
    weakref.finalize(shared, partial(files.release, stored.files)).atexit = False
    return shared


def _load(stored: Value) -> Any:
    scope = SCOPE.get()
    tasks = slot_here() if scope is None else scope.tasks  # a call may have started this thread
    if tasks is None:
        raise OptionError("A broadcast value can be read in calls, and where it was made.")
    return tasks.shared.get(stored)
