"""Runs a program in the calling process, one partition after the other.

It is what users debug with, and what all distributed runs are compared with: whatever moves, is
lost or restored, the result is this one, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from canary_core import stages, values
from canary_core.driver import Driver, Run, Source, Value
from canary_core.errors import InvalidCall
from canary_core.stages import Routes, Stage
from canary_core.tasks import scattered, task_failed
from canary_core.tree import combine


def run_sequentially(driver: Driver, *, partitions: int, source: Source | None = None) -> Any:
    """Run a program without workers.

    Args:
        driver: The program.
        partitions: The default number of partitions.
        source: `source(name, index, partitions)` is what `run.table(name)` has at an index.

    Returns:
        What the driver returns, with values in the places of handles.

    Raises:
        TaskFailed: A function raised. Exceptions of the driver itself pass unchanged.
    """
    recorder = _Eager(source or no_tables)
    body, handles = values.dump_tree(
        driver(Run(recorder, partitions)), lambda item: isinstance(item, Value)
    )
    return values.load_tree(body, [recorder.result(handle) for handle in handles])


def no_tables(name: str, index: int, partitions: int) -> Any:
    """The source of a program whose host has no tables."""
    del index, partitions
    raise InvalidCall(f"there is no table {name!r}: the program was started without a source")


class _Eager:
    """A recorder that runs each stage at once."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._stages = 0
        self._parts: dict[int, list[Any]] = {}
        self._states: set[int] = set()

    def record(
        self,
        kind: int,
        fn: Any,
        operands: tuple[int, ...],
        size: int,
        target: int,
        routes: Routes | None = None,
    ) -> int:
        stage = Stage(
            index=self._stages,
            kind=kind,
            fn=fn,
            operands=operands,
            size=size,
            target=target,
            routes=routes,
        )
        self._stages += 1
        self._parts[stage.index] = self._run(stage)
        if kind == stages.STATE:
            self._states.add(stage.index)
        return stage.index

    def decide(self, fn: Callable[..., Any], operands: tuple[int, ...]) -> Any:
        (value,) = self._parts[self.record(stages.SIGNAL, fn, operands, 1, 1)]
        return values.copied(value)

    def release(self, value: int, size: int) -> None:
        del size
        self._parts.pop(value, None)

    def result(self, handle: Value) -> Any:
        parts = self._parts[handle._id]  # noqa: SLF001 - the runner's own handles
        return parts[0] if handle.partitions == 1 else parts

    def _run(self, stage: Stage) -> list[Any]:
        made = [self._task(stage, index) for index in range(stage.size)]
        if not self._states.isdisjoint(stage.operands) and stage.kind >= stages.SIGNAL:
            made = [values.copied(value) for value in made]  # what is sent is sent as it is now
        match stage.kind:
            case stages.BROADCAST:
                return made * stage.target
            case stages.SCATTER:
                arrived: list[list[Any]] = [[] for _ in range(stage.target)]
                for pieces in made:
                    for target, piece in pieces.items():
                        arrived[target].append(piece)
                return arrived
            case stages.REDUCE:
                leaves = {(index, index + 1): value for index, value in enumerate(made)}
                try:
                    ((_, value),), _ = combine(stage.fn, leaves, 0, stage.size)
                except Exception as error:
                    raise task_failed(stage, 0, error) from error
                return [value]
            case _:
                return made

    def _task(self, stage: Stage, index: int) -> Any:
        operands = [self._parts[operand][index] for operand in stage.operands]
        try:
            match stage.kind:
                case stages.SINGLE:
                    return values.copied(stage.fn)
                case stages.BROADCAST | stages.REDUCE:
                    return operands[0]
                case stages.LOAD:
                    return stage.fn(index)
                case stages.TABLE:
                    return self._source(stage.fn, index, stage.size)
                case stages.SCATTER:
                    return scattered(stage, index, operands)
                case _:
                    return stage.fn(*operands)
        except Exception as error:
            raise task_failed(stage, index, error) from error
