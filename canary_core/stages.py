"""The record of one call of `run`, and what a sequence of them is called and hashed to."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from msgspec import Struct

from canary_core.errors import InvalidCall

MASK = (1 << 63) - 1  # digests travel as msgpack integers
UNTOLD = 0  # instead of a digest
CACHED_MAX = 10_000
SCALARS = (int, float, str, bytes, bool, type(None), complex)


# What a stage does. The first seven run one task for each partition of their group. Plain numbers:
# an enum's members hash by their names, differently in each process.
MAP, UPDATE, STATE, LOAD, TABLE, SINGLE, SIGNAL, BROADCAST, REDUCE, SCATTER, RETURN = range(11)
KINDS = (
    "map", "update", "state", "load", "table", "single", "signal", "broadcast", "reduce",
    "scatter", "return",
)  # fmt: skip


class Routes(Struct, frozen=True, eq=False):
    """Which partitions a scatter sends to: a target waits for no others than those that do.

    Attributes:
        targets: By source, in order.
        awaited: By target: how many sources send to it.
        digest: Of the targets; the same in all copies.
    """

    targets: tuple[tuple[int, ...], ...]
    awaited: tuple[int, ...]
    digest: int


def routes_of(targets_of: Callable[[int], Iterable[int]], sources: int, targets: int) -> Routes:
    """The routes from each of `sources` partitions to some of `targets`.

    Raises:
        InvalidCall: `targets_of` names a partition that there is not.
    """
    by_source = tuple(
        [tuple(sorted(set(map(int, targets_of(source))))) for source in range(sources)]
    )
    awaited = [0] * targets
    for source, named in enumerate(by_source):
        if named and not 0 <= named[0] <= named[-1] < targets:
            raise InvalidCall(
                f"routes lead from partition {source} to {named[0]} to {named[-1]};"
                f" there are {targets} partitions, from 0"
            )
        for target in named:
            awaited[target] += 1
    return Routes(by_source, tuple(awaited), hash(by_source) & MASK)


class Stage(Struct, eq=False, kw_only=True):
    """One call of `run`; its index is also the id of the value that it makes.

    Attributes:
        index: Its place in the program.
        kind: What it does.
        fn: The function; the name of a TABLE, the value of a SINGLE, the pickled tree of a RETURN.
        operands: Ids of the values that it reads, of partitions of the group `size`.
        size: How many partitions its operands have: the group in which it runs.
        target: How many its value has: another group if it sends.
        routes: Of a SCATTER that sends to few: where to.
        digest: Of all stages up to this one, in the same copy of the driver.
    """

    index: int
    kind: int
    fn: Any
    operands: tuple[int, ...]
    size: int
    target: int
    routes: Routes | None = None
    digest: int = 0

    @property
    def call(self) -> str:
        """What a reader of the driver would recognise: "map(step)"."""
        if self.kind == TABLE:
            return f"table({self.fn!r})"
        if self.kind == SINGLE:
            return f"single({type(self.fn).__name__})"
        name = KINDS[self.kind]
        return name if self.kind in {BROADCAST, RETURN} else f"{name}({function_name(self.fn)})"


def function_name(fn: Any) -> str:
    """How a function is called where it was written, or its type."""
    if isinstance(fn, functools.partial):
        return f"partial({function_name(fn.func)})"
    named = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None)
    return str(named or type(fn).__name__)


class Digester:
    """Folds stages into a digest that travels with messages, so that divergence is found.

    Folded are what two copies of a driver must agree on: kinds, operands, sizes, functions by name
    and code, and the numbers and texts that closures, defaults and partials hold. Larger objects in
    closures count by their types only: hashing an array at each stage would cost more than the
    stage. Constants (`single`) are folded whole.
    """

    def __init__(self) -> None:
        self.digest = 0
        self._codes: dict[int, tuple[Any, int]] = {}
        self._plain: dict[int, tuple[Any, int]] = {}  # functions that don't change, by their id

    def fold(self, stage: Stage) -> int:
        """The digest of all stages up to this one."""
        fn = stage.fn
        what = self._plain.get(id(fn))
        if what is None or what[0] is not fn:
            what = (fn, self._function(fn))
        told = (self.digest, stage.kind, what[1], stage.operands, stage.size, stage.target)
        folded = hash(told if stage.routes is None else (*told, stage.routes.digest)) & MASK
        self.digest = stage.digest = folded
        return folded

    def fold_constant(self, stage: Stage, content: bytes) -> int:
        """The same for a stage whose "function" is a constant, given by its bytes."""
        what = _number(content)
        folded = hash((self.digest, stage.kind, what, stage.size, stage.target)) & MASK
        self.digest = stage.digest = folded
        return folded

    def _function(self, fn: Any) -> int:
        code = getattr(fn, "__code__", None)
        number = _number(self._describe(fn).encode()) if code is None else self._code(code)
        if _holds_nothing_that_changes(fn):
            if len(self._plain) > CACHED_MAX:
                self._plain.clear()
            self._plain[id(fn)] = (fn, number)
        elif code is not None:
            number = hash((number, _number(self._describe(fn).encode()))) & MASK
        return number

    def _code(self, code: CodeType) -> int:
        remembered = self._codes.get(id(code))
        if remembered is None or remembered[0] is not code:
            if len(self._codes) > CACHED_MAX:
                self._codes.clear()
            self._codes[id(code)] = remembered = (code, _number(_code_text(code).encode()))
        return remembered[1]

    def _describe(self, item: Any, depth: int = 0) -> str:
        """What is the same in all processes about a function or what it holds."""
        if isinstance(item, SCALARS):
            return repr(item)
        if depth > 3:
            return type(item).__qualname__
        inside = functools.partial(self._describe, depth=depth + 1)
        if isinstance(item, tuple | list):
            return f"({','.join(map(inside, item))})"
        if isinstance(item, functools.partial):
            named = tuple(sorted(item.keywords.items()))
            return f"partial({inside(item.func)},{inside(item.args)},{inside(named)})"
        if (code := getattr(item, "__code__", None)) is not None:
            cells = tuple(_contents(cell) for cell in getattr(item, "__closure__", None) or ())
            held = (cells, item.__defaults__, tuple(sorted((item.__kwdefaults__ or {}).items())))
            return f"{self._code(code)}{inside(held)}"
        owner = "" if (bound := getattr(item, "__self__", None)) is None else type(bound).__name__
        return f"{getattr(item, '__module__', '')}.{owner}.{function_name(item)}"


def _holds_nothing_that_changes(fn: Any) -> bool:
    """Whether what is folded of a function is the same whenever it is called."""
    if isinstance(fn, functools.partial):
        held = (*fn.args, *fn.keywords.values())
        return _holds_nothing_that_changes(fn.func) and all(isinstance(h, SCALARS) for h in held)
    if hasattr(fn, "__code__"):
        return fn.__closure__ is None and fn.__defaults__ is None and fn.__kwdefaults__ is None
    return True  # it is folded by its name


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a function that is not bound yet, such as a recursive one
        return None


def _code_text(code: CodeType) -> str:
    constants = [_constant_text(constant) for constant in code.co_consts]
    return f"{code.co_qualname} {code.co_code.hex()} {code.co_names} {constants}"


def _constant_text(constant: Any) -> str:
    if isinstance(constant, CodeType):
        return _code_text(constant)
    if isinstance(constant, frozenset):  # its order depends on the process's hash seed
        return repr(sorted(map(repr, constant)))
    return repr(constant)


def _number(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) & MASK
