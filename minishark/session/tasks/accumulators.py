"""Accumulators: values to which calls over items add, and which the front end reads.

A call keeps what it adds, and returns it beside its result; so a call that failed, or ran twice
because a node was lost, counts once.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from minishark.errors import UnsupportedError

Addition = Callable[[Any, Any], Any]

_added: ContextVar[dict[str, Any] | None] = ContextVar("minishark_added", default=None)
"""What the call of this thread has added, by accumulator."""
_known: weakref.WeakValueDictionary[str, Accumulator] = weakref.WeakValueDictionary()


def _plus(left: Any, right: Any) -> Any:
    return left + right


@dataclass(frozen=True, slots=True)
class Counted:
    """A call's result, and what the call has added to accumulators."""

    result: Any
    added: dict[str, Any]


def counting(run: Callable[[], Any]) -> Any:
    """The result of a call, with what it adds."""
    token = _added.set({})
    try:
        result = run()
        added = _added.get()
        return Counted(result, added) if added else result
    finally:
        _added.reset(token)


def counted(result: Any) -> Any:
    """The result alone; what was added goes to the accumulators of this process."""
    if not isinstance(result, Counted):
        return result
    for name, term in result.added.items():
        accumulator = _known.get(name)
        if accumulator is not None:
            accumulator.add(term)
    return result.result


class Accumulator:
    """A value that functions of items add to: `session.accumulator(0)`.

    Functions may only add; the value is read where the accumulator was made.

    Examples:
        >>> odd = session.accumulator(0)
        >>> def check(x):
        ...     odd.add(x % 2)
        >>> session.parallelize(range(5), 2).foreach(check)
        >>> odd.value
        2
    """

    def __init__(self, value: Any, plus: Addition = _plus, name: str | None = None) -> None:
        self._value = value
        self._plus = plus
        self._lock = threading.Lock()
        self._is_here = name is None
        self._name = name or uuid.uuid4().hex
        if self._is_here:
            _known[self._name] = self

    @property
    def value(self) -> Any:
        """What was added up.

        Raises:
            UnsupportedError: it is read within a call.
        """
        if not self._is_here:
            raise UnsupportedError("Calls add to accumulators; only the front end reads them.")
        return self._value

    def add(self, term: Any) -> None:
        """Add a term.

        Raises:
            UnsupportedError: it is added by a function that is no call over items.
        """
        if self._is_here:
            with self._lock:
                self._value = self._plus(self._value, term)
            return
        added = _added.get()
        if added is None:
            raise UnsupportedError(
                "Accumulators are for functions of parallelize(...) and df.rdd; aggregate instead."
            )
        added[self._name] = self._plus(added[self._name], term) if self._name in added else term

    def __iadd__(self, term: Any) -> Accumulator:  # noqa: PYI034 - no subclasses
        self.add(term)
        return self

    def __repr__(self) -> str:
        return f"Accumulator({self._value!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Accumulator, (None, self._plus, self._name)
