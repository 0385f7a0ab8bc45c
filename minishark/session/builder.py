"""SessionBuilder: how PySpark programs create sessions."""

from __future__ import annotations

import inspect
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from minishark.dataframe.names import CamelCase, nearest
from minishark.errors import OptionError
from minishark.session.sparks_settings import is_ignored


class Stoppable(Protocol):
    """What a builder makes."""

    @property
    def is_stopped(self) -> bool:
        """Whether it has ended."""


S = TypeVar("S", bound=Stoppable)


class SessionBuilder(CamelCase, Generic[S]):
    """`Session.builder`: settings, then a session.

    Examples:
        >>> builder = minishark.Session.builder.app_name("report").config("in_process", True)
        >>> with builder.get_or_create() as other:
        ...     other.sql("SELECT 42 AS answer").collect()
        [Row(answer=42)]
    """

    # Running sessions by their settings, for get_or_create; weak, so that it keeps none alive.
    _made: ClassVar[weakref.WeakValueDictionary[Any, Any]] = weakref.WeakValueDictionary()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(
        self, connect: Callable[..., S], settings: Mapping[str, Any], name: str = ""
    ) -> None:
        self._connect = connect
        self._settings = dict(settings)
        self._name = name

    def app_name(self, name: str) -> SessionBuilder[S]:
        """Set the application's name; get_or_create shares sessions only within a name."""
        return SessionBuilder(self._connect, self._settings, name)

    def master(self, address: str) -> SessionBuilder[S]:
        """Set the cluster: "local", "local[4]" slots, "local[*]" (one per core), or an address."""
        if "://" in address:
            return self.config("cluster", address)
        local = re.fullmatch(r"local(?:\[(\d+|\*)\])?", address)
        if local is None:
            raise OptionError(f"{address!r} is not a local cluster; write local[4].")
        if local[1] in (None, "*"):
            return self
        return self.config("nodes", 1).config("executors_per_node", int(local[1]))

    def config(self, name: str, value: Any) -> SessionBuilder[S]:
        """An argument of `minishark.connect`; Spark's settings are ignored, with a warning.

        Raises:
            OptionError: it has no such argument.
        """
        if is_ignored(name):
            return self
        settings = list(inspect.signature(self._connect).parameters)
        if name not in settings:
            near = nearest(name, settings)
            raise OptionError(
                f"There is no setting {name!r}.{near} There are {', '.join(settings)}."
            )
        return SessionBuilder(self._connect, {**self._settings, name: value}, self._name)

    def get_or_create(self) -> S:
        """The running session with the same settings, or a new one."""
        # What connects is of the key: another kind of session has builders, too.
        key = self._connect, repr((self._name, sorted(self._settings.items())))
        with self._lock:
            session: S | None = self._made.get(key)
            if session is None or session.is_stopped:
                session = self._made[key] = self.create()
            return session

    def create(self) -> S:
        """A new session."""
        return self._connect(**self._settings)
