"""Users' functions, pickled once for many calls."""

from __future__ import annotations

import builtins
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

from minishark.errors import OptionError
from minishark.tasks.files import Files
from minishark.tasks.keeping import keeping
from minishark.worker.values import Value, dump

_KEPT = 64
_CONSTANT = frozenset(
    (int, float, complex, str, bytes, bool, type(None), types.ModuleType, types.CodeType)
)
_SMOOTHING = 0.2


class Function:
    """A pickled function, and how long its calls take.

    Attributes:
        value: the function.
        label: its name, for messages.
        call_s: the running mean of its calls' seconds; None before the first has ended.
    """

    def __init__(self, value: Value, label: str, keeps: tuple[object, ...]) -> None:
        """`keeps` is what must live as long."""
        self.value = value
        self.label = label
        self._keeps = keeps
        self.call_s: float | None = None

    def took(self, seconds: float) -> None:
        """A call has ended, which took so long."""
        mean_s = self.call_s
        self.call_s = seconds if mean_s is None else mean_s + _SMOOTHING * (seconds - mean_s)


class Functions:
    """Pickles functions, those that are sure to give the same pickle again only once."""

    def __init__(self, files: Files) -> None:
        self._files = files
        # The function itself is kept, or another could get its id.
        self._known: OrderedDict[int, tuple[object, tuple[int, ...], Function]] = OrderedDict()

    def pickled(self, fn: Callable[..., Any], label: str = "") -> Function:
        """A function in the form in which it is sent.

        Raises:
            OptionError: it is not callable, or can't be pickled.
        """
        parts = _parts(fn, {})
        # A function takes along what its closure and its globals hold at that moment.
        state = tuple(parts) if all(map(_never_changes, parts.values())) else None
        known = self._known.get(id(fn))
        if known is not None and known[0] is fn and known[1] == state:
            return known[2]
        name = label or name_of(fn)
        with keeping() as kept:
            try:
                value = dump(fn, self._files.put)
            except Exception as error:
                raise OptionError(f"{name} can't be sent to other processes: {error}") from error
        function = Function(value, name, tuple(kept))
        if value.files:
            release = partial(self._files.release, value.files)
            weakref.finalize(function, release).atexit = False
        if state is not None:
            self._known[id(fn)] = (fn, state, function)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return function


def name_of(fn: object) -> str:
    """What to call a function in messages."""
    return str(getattr(fn, "__qualname__", None) or type(fn).__name__)


def _parts(fn: object, found: dict[int, object]) -> dict[int, object]:
    """What the pickle of a function contains by value: code, defaults, closure, globals; by id.

    Functions among them are pickled by value, too, with parts of their own.
    """
    if id(fn) in found:
        return found
    found[id(fn)] = fn
    if not isinstance(fn, types.FunctionType) or _is_importable(fn):
        return found
    for part in (fn.__code__, *(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()):
        _parts(part, found)
    for cell in fn.__closure__ or ():
        try:
            _parts(cell.cell_contents, found)
        except ValueError:  # empty: it is assigned later
            found[id(cell)] = cell
    for name in fn.__code__.co_names:
        if name in fn.__globals__:
            _parts(fn.__globals__[name], found)
    return found


def _never_changes(part: object) -> bool:
    if isinstance(part, types.FunctionType) and not _is_importable(part):
        return not part.__dict__  # its own parts are looked at, too
    return type(part) in _CONSTANT or _is_importable(part)


def _is_importable(fn: object) -> bool:
    """Whether an object is pickled by its name in a module that others can import."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return False
    found: Any = builtins if module == "builtins" else sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is fn
