"""What a driver sees: `Run`, and the handles that its calls return.

A driver is a plain function of a `Run`. Each worker runs a copy of it; a call only records a stage,
so the copies agree on the program as long as nothing but signals decides what is called.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, Protocol

from canary_core import stages
from canary_core.errors import InvalidCall
from canary_core.stages import Routes


class Recorder(Protocol):
    """What takes the stages of a driver: a worker's program, or the sequential runner."""

    def record(
        self,
        kind: int,
        fn: Any,
        operands: tuple[int, ...],
        size: int,
        target: int,
        routes: Routes | None = None,
    ) -> int:
        """Take a stage; returns the id of its value."""
        ...

    def decide(self, fn: Callable[..., Any], operands: tuple[int, ...]) -> Any:
        """Take a signal stage and wait for its value."""
        ...

    def release(self, value: int, size: int) -> None:
        """The driver holds no handle of this value any more; called at any time."""
        ...


class Value:
    """A handle of partitioned data, which never change; a *single* is one with one partition."""

    __array_ufunc__ = None  # numpy must not make an array of handles
    __slots__ = ("_id", "_recorder", "partitions")

    def __init__(self, recorder: Recorder, id_: int, partitions: int) -> None:
        self._recorder = recorder
        self._id = id_
        self.partitions = partitions

    def __del__(self) -> None:
        self._recorder.release(self._id, self.partitions)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of stage {self._id}, {self.partitions} partitions>"

    def __bool__(self) -> bool:
        raise self._refusal("a driver branches on run.signal(...) alone")

    def __iter__(self) -> NoReturn:
        raise self._refusal("a driver sees no data: give run.map a function")

    def __len__(self) -> int:
        raise self._refusal("its number of partitions is `.partitions`")

    def _refusal(self, advice: str) -> InvalidCall:
        return InvalidCall(f"{self!r} is a handle of data that lie at workers; {advice}")


class State(Value):
    """A handle of partitions that stay where they are and that `Run.update` changes in place."""

    __slots__ = ()


class Run:
    """A driver's way to its data: each call records a stage and returns a handle.

    Functions are run on one partition at a time, at the worker that has it. They must not change
    what they are given (but for `update` its state), nor return or keep a part of a state.
    """

    def __init__(self, recorder: Recorder, partitions: int) -> None:
        self._recorder = recorder
        self._partitions = partitions

    @property
    def partitions(self) -> int:
        """The program's number of partitions, the default wherever one can be given."""
        return self._partitions

    def table(self, name: str, partitions: int | None = None) -> Value:
        """The partitions of a table that the host knows."""
        return self._record(stages.TABLE, name, (), self._size(partitions))

    def load(self, fn: Callable[[int], Any], partitions: int | None = None) -> Value:
        """Data that `fn` makes or reads for each partition index.

        After a failure it is called again, and must return the same for the same index.
        """
        self._check_function("load", fn)
        return self._record(stages.LOAD, fn, (), self._size(partitions))

    def single(self, value: Any) -> Value:
        """One value, in one place."""
        return self._record(stages.SINGLE, value, (), 1)

    def map(self, fn: Callable[..., Any], *values: Value) -> Value:
        """`fn(part, ...)` for each partition; all values have the same number of partitions."""
        size, operands = self._operands("map", fn, values)
        recorder = self._recorder
        return Value(recorder, recorder.record(stages.MAP, fn, operands, size, size), size)

    def broadcast(self, value: Value, partitions: int | None = None) -> Value:
        """A single's value as each partition of a group."""
        _, operands = self._operands("broadcast", self.broadcast, (value,), single=True)
        return self._send(stages.BROADCAST, 0, operands, 1, self._size(partitions))

    def reduce(self, fn: Callable[[Any, Any], Any], value: Value) -> Value:
        """All partitions combined by `fn(a, b)` to a single, along a fixed tree of indices."""
        size, operands = self._operands("reduce", fn, (value,))
        return self._send(stages.REDUCE, fn, operands, size, 1)

    def scatter(
        self,
        fn: Callable[..., Any],
        *values: Value,
        partitions: int | None = None,
        along: Routes | None = None,
    ) -> Value:
        """Exchange all to all: `fn(part, ...)` returns pieces by the index of their target.

        That is a mapping from index to piece, or a sequence with a piece (or None) for each target.
        A partition of the result is the list of its pieces, in order of their sources.

        With `along`, what `routes` returned, pieces go to the targets that it names alone. Then a
        target does not wait for partitions that never have a piece for it.
        """
        size, operands = self._operands("scatter", fn, values)
        target = self._size(partitions)
        if along is not None and (len(along.targets), len(along.awaited)) != (size, target):
            raise InvalidCall(
                f"scatter: the routes lead from {len(along.targets)} partitions to"
                f" {len(along.awaited)}, but it sends from {size} to {target}"
            )
        stage = self._recorder.record(stages.SCATTER, fn, operands, size, target, routes=along)
        return Value(self._recorder, stage, target)

    def routes(
        self,
        targets_of: Callable[[int], Iterable[int]],
        sources: int | None = None,
        targets: int | None = None,
    ) -> Routes:
        """For `scatter`: `targets_of(index)` names the targets to which a partition may send."""
        self._check_function("routes", targets_of)
        return stages.routes_of(targets_of, self._size(sources), self._size(targets))

    def gather(self, fn: Callable[..., Any], scattered: Value, *values: Value) -> Value:
        """`fn(pieces, part, ...)` for each partition of what `scatter` returned."""
        return self.map(fn, scattered, *values)

    def state(self, fn: Callable[..., Any], *values: Value) -> State:
        """Objects that `update` changes in place; `fn(part, ...)` makes them, and keeps no part."""
        size, operands = self._operands("state", fn, values)
        return State(
            self._recorder, self._recorder.record(stages.STATE, fn, operands, size, size), size
        )

    def update(self, fn: Callable[..., Any], state: State, *values: Value) -> Value:
        """`fn(object, part, ...)` changes the object in place; its results are the value."""
        if not isinstance(state, State):
            raise InvalidCall(f"update changes what run.state made, not {state!r}")
        size, operands = self._operands("update", fn, (state, *values))
        return self._record(stages.UPDATE, fn, operands, size)

    def signal(self, fn: Callable[..., Any], *values: Value) -> Any:
        """`fn(value, ...)` of singles, once, told to all copies of the driver, which wait for it.

        Control flow may depend on signals and on nothing else. They are kept for the length of the
        program, so they should be small: a bool, a number.
        """
        _, operands = self._operands("signal", fn, values, single=True)
        return self._recorder.decide(fn, operands)

    def _record(self, kind: int, fn: Any, operands: tuple[int, ...], size: int) -> Value:
        return Value(self._recorder, self._recorder.record(kind, fn, operands, size, size), size)

    def _send(self, kind: int, fn: Any, operands: tuple[int, ...], size: int, target: int) -> Value:
        stage = self._recorder.record(kind, fn, operands, size, target)
        return Value(self._recorder, stage, target)

    def _size(self, partitions: int | None) -> int:
        if partitions is None:
            return self._partitions
        try:
            size = operator.index(partitions)  # NumPy's integers are fine, but do not travel
        except TypeError:
            size = 0
        if size < 1:
            raise InvalidCall(f"partitions must be a positive integer, not {partitions!r}")
        return size

    def _operands(
        self, call: str, fn: Any, values: tuple[Value, ...], *, single: bool = False
    ) -> tuple[int, tuple[int, ...]]:
        """The common size and the ids of operands."""
        if not callable(fn):
            raise InvalidCall(f"{call} needs a function, not {fn!r}")
        try:
            size = values[0].partitions
            operands = tuple([value._id for value in values])  # noqa: SLF001 - its own handles
        except (IndexError, AttributeError):
            raise InvalidCall(f"{call} needs handles of this run, not {values!r}") from None
        for value in values:
            if value.partitions != size:
                sizes = [value.partitions for value in values]
                advice = " (broadcast the single first)" if 1 in sizes else ""
                raise InvalidCall(f"{call}: operands have {sizes} partitions{advice}")
            if value._recorder is not self._recorder:  # noqa: SLF001 - its own handles
                raise InvalidCall(f"{call}: {value!r} is of another run; was it kept in a global?")
        if single and size != 1:
            raise InvalidCall(f"{call} needs a single, not {size} partitions (reduce them first)")
        return size, operands

    @staticmethod
    def _check_function(call: str, fn: Any) -> None:
        if not callable(fn):
            raise InvalidCall(f"{call} needs a function, not {fn!r}")


Driver = Callable[[Run], Any]
Source = Callable[[str, int, int], Any]
