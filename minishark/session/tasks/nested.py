"""The session inside calls: a call may submit calls, to any depth.

A session that a function refers to travels as its address. In an executor it becomes a
`SessionInCall`, with a connection of its own to the schedulers: results of a call's calls come
straight to the executor that submitted them.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from minishark.cluster.backend import Placement
from minishark.cluster.joining import on_live_nodes, open_from_task
from minishark.errors import ClusterError, OptionError
from minishark.session.tasks.files import Files
from minishark.session.tasks.items import Items
from minishark.session.tasks.pool import CallPool
from minishark.session.tasks.verbs import Calls, CallVerbs
from minishark.worker.python_tasks import SCOPE, PythonTasks, slot_here
from minishark.worker.store import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAddress:
    """How calls reach the session that they belong to.

    Attributes:
        name: unique to the session.
        schedulers: where calls are submitted to.
        placement: how they are placed.
        folder: of large arguments and results.
        slots: how many calls run at once.
        working_folder: the front end's; empty if it has none.
    """

    name: str
    schedulers: tuple[str, ...]
    placement: Placement
    folder: str
    slots: int
    working_folder: str


_here: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""Sessions of this process, for executors that are its threads."""

_opened: dict[tuple[str, int], _Opened] = {}
_opening = threading.Lock()


def is_here(name: str, session: object) -> None:
    """A session of this process begins."""
    _here[f"{name}@{os.getpid()}"] = session


def session_in_call(address: SessionAddress) -> Any:
    """What a session becomes where it is unpickled."""
    session = _here.get(f"{address.name}@{os.getpid()}")
    return SessionInCall(address) if session is None else session


class SessionInCall(CallVerbs):
    """A session inside a call: it runs further calls, but no queries, and keeps nothing."""

    def __init__(self, address: SessionAddress) -> None:
        self._address = address

    def __reduce__(self) -> tuple[Any, ...]:
        return session_in_call, (self._address,)

    def parallelize(self, items: Iterable[Any], partitions: int | None = None) -> Items:
        """See `Session.parallelize`."""
        return self._calls().parallelize(items, partitions)

    @property
    def total_slots(self) -> int:
        """The number of calls that can run at the same time."""
        return self._address.slots

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise OptionError(
            f"session.{name} can't be used inside a call, only submit, map, executor, broadcast "
            "and parallelize. Run the query outside, and pass its rows."
        )

    def _calls(self) -> Calls:
        scope = SCOPE.get()
        if scope is None and slot_here() is not None:
            raise ClusterError(
                "A thread that a call has started can submit calls only in the call's context: "
                "start it by contextvars.copy_context().run."
            )
        if scope is None:
            raise ClusterError("This session is another process's; call connect() here.")
        key = (self._address.name, id(scope.tasks))
        with _opening:
            if key not in _opened:
                _close_left()
                _opened[key] = _Opened(self._address, scope.tasks)
            return _opened[key].calls


class _Opened:
    """A connection of this executor to a session's schedulers."""

    def __init__(self, address: SessionAddress, tasks: PythonTasks) -> None:
        cluster = open_from_task(address.schedulers, tasks.keys, tasks.sockets)

        def placing() -> Placement:
            return on_live_nodes(address.placement, cluster.nodes())

        def store() -> Store:
            tasks.store.meet(placing().stores)  # with nodes that have joined since the call began
            return tasks.store

        files = Files(address.folder, store, lambda: None)
        pool = CallPool(cluster, placing, files, working_folder=lambda: address.working_folder)
        self.calls = Calls(pool, lambda: address.slots)
        self._close_cluster = cluster.close
        self._at_end = tasks.closing
        self._at_end[self] = None

    def is_left(self) -> bool:
        """Whether the session has ended."""
        files = self.calls.pool.files
        return not files.store().has_folder(files.folder)

    def close(self) -> None:
        self._at_end.pop(self, None)
        self.calls.pool.close()
        self._close_cluster()


def _close_left() -> None:
    """Close connections for sessions that have ended: executors may outlive them."""
    for key in [key for key, opened in _opened.items() if opened.is_left()]:
        _opened.pop(key).close()
