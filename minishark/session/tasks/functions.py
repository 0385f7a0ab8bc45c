"""Users' functions, pickled once for many calls."""

from __future__ import annotations

import builtins
import dis
import itertools
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from minishark.session.tasks.files import Files
from minishark.worker.keeping import keeping
from minishark.worker.protocol import Value
from minishark.worker.values import dump, unsendable

_KEPT = 64
_CONSTANT = frozenset(
    (int, float, complex, str, bytes, bool, type(None), types.ModuleType, types.CodeType)
)
_GLOBAL = frozenset(("LOAD_GLOBAL", "LOAD_NAME"))
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
        self._known: OrderedDict[int, tuple[_State, Function]] = OrderedDict()  # by id

    def pickled(self, fn: Callable[..., Any], label: str = "") -> Function:
        """A function in the form in which it is sent.

        Raises:
            OptionError: it can't be pickled.
        """
        kept = self._known.get(id(fn))
        if kept is not None and kept[0].fn is fn and kept[0].is_current():
            return kept[1]
        function = self._pickled(fn, label or name_of(fn))
        state = _State(fn)
        if state.is_lasting:
            self._known[id(fn)] = (state, function)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return function

    def _pickled(self, fn: Callable[..., Any], name: str) -> Function:
        with keeping() as kept:
            try:
                with self._files.storing() as put:
                    value = dump(fn, put)
            except Exception as error:
                raise unsendable(name, error) from error
        function = Function(value, name, tuple(kept))
        if value.files:
            release = partial(self._files.release, value.files)
            weakref.finalize(function, release).atexit = False
        return function


class _State:
    """What a function's pickle contains: code, defaults, closure and globals, at this moment.

    Functions among these are pickled by value, too, unless they are found in a module.

    Attributes:
        fn: the function; kept, or another could get its id.
        is_lasting: whether all of it is of kinds that never change themselves.
    """

    def __init__(self, fn: object) -> None:
        self.fn = fn
        self.is_lasting = True
        # With their parts, which are kept: others could get their ids.
        self._functions: list[tuple[types.FunctionType, tuple[object, ...]]] = []
        self._cells: list[tuple[types.CellType, object]] = []
        self._globals: list[tuple[dict[str, Any], str, object]] = []
        self._seen: dict[int, None] = {}
        self._look_at(fn)

    def is_current(self) -> bool:
        """Whether the function still is what it was."""
        try:
            return (
                all(
                    fn.__code__ is code and fn.__defaults__ is defaults
                    for fn, (code, defaults) in self._functions
                )
                and all(cell.cell_contents is value for cell, value in self._cells)
                and all(names[name] is value for names, name, value in self._globals)
            )
        except (KeyError, ValueError):  # a global or a closure's variable was deleted
            return False

    def _look_at(self, part: object) -> None:
        if id(part) in self._seen or type(part) in _CONSTANT or _is_importable(part):
            return
        self._seen[id(part)] = None
        if not isinstance(part, types.FunctionType) or part.__dict__ or part.__kwdefaults__:
            self.is_lasting = False
            return
        self._functions.append((part, (part.__code__, part.__defaults__)))
        for default in part.__defaults__ or ():
            self._look_at(default)
        for cell in part.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # empty: it is assigned later
                self.is_lasting = False
                return
            self._cells.append((cell, content))
            self._look_at(content)
        for name in _global_names(part.__code__):
            if name in part.__globals__:
                value = part.__globals__[name]
                self._globals.append((part.__globals__, name, value))
                self._look_at(value)
            elif not hasattr(builtins, name):
                self.is_lasting = False  # it may be defined later


@lru_cache(_KEPT)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """Names of globals that code refers to, that of nested functions included."""
    names = [
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in _GLOBAL
    ]
    inner = [
        _global_names(constant)
        for constant in code.co_consts
        if isinstance(constant, types.CodeType)
    ]
    return tuple(dict.fromkeys(itertools.chain(names, *inner)))


def name_of(fn: object) -> str:
    """What to call a function in messages."""
    return str(getattr(fn, "__qualname__", None) or type(fn).__name__)


def _is_importable(fn: object) -> bool:
    """Whether an object is pickled by its name in a module that others can import."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return False
    value: Any = builtins if module == "builtins" else sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value is fn
