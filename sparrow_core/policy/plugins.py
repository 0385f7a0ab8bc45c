"""Plug-ins: what is named "module:factory" is imported, and fenced in.

A placement that is not ours may raise, or return nonsense. Neither may stop a scheduler: the job
fails with the kind "invalid", and a sentence that names the placement.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, ParamSpec, TypeVar

from sparrow_core.policy.placer import HOOKS, PlacedJob, Placement, Placer, Reservations
from sparrow_core.protocol.errors import (
    InvalidJob,
    NoNodes,
    PlacementFailed,
    SparrowError,
    Unsatisfiable,
)
from sparrow_core.protocol.ids import JobId, NodeName, TaskId
from sparrow_core.protocol.types import TaskSpec

P = ParamSpec("P")
R = TypeVar("R")


def is_path(name: str) -> bool:
    """Whether a name is of the form "module:factory"."""
    module, colon, factory = name.partition(":")
    return bool(colon) and factory.isidentifier() and all(map(str.isidentifier, module.split(".")))


def imported(path: str, what: str, error: type[SparrowError]) -> Callable[..., Any]:
    """Import a factory.

    Args:
        path: "module:factory"; the module is looked for on PYTHONPATH.
        what: What it makes, for messages.
        error: Raised if there is no such module or factory, or its import fails.
    """
    module, _, name = path.partition(":")
    try:
        factory = getattr(importlib.import_module(module), name)
    except Exception as cause:
        raise error(f"cannot load {what} {path!r}: {cause!r}") from cause
    if not callable(factory):
        raise error(f"{what} {path!r} is not callable")
    return factory  # type: ignore[no-any-return]


def made(path: str, what: str, kind: type[R], error: type[SparrowError]) -> R:
    """Import a factory and call it without arguments; it must make a `kind`.

    Raises `error` as `imported` does, and if the factory fails or makes something else.
    """
    factory = imported(path, what, error)
    try:
        product = factory()
    except Exception as cause:
        raise error(f"cannot make {what} {path!r}: {cause!r}") from cause
    if not isinstance(product, kind):
        base = f"{kind.__module__}.{kind.__qualname__}"
        raise error(f"{what} {path!r} makes a {type(product).__name__}; it must make a {base}")
    return product


def _is(product: object, kind: type) -> bool:
    """Whether an annotation holds, of which nobody made sure."""
    return isinstance(product, kind)


class FencedPlacement(Placement):
    """A plug-in's placement. Once it has failed at watching, no job gets a placer from it.

    Its hooks are made below, one for each that a scheduler calls.
    """

    def __init__(self, name: str, inner: Placement) -> None:
        self._name = name
        self._inner = inner
        self._failure: str | None = None

    @property
    def inner(self) -> Placement:
        return self._inner

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        if self._failure is not None:
            raise InvalidJob(self._failure)
        try:
            placer = self._inner.placer(job, rng)
        except Exception as error:
            raise InvalidJob(f"placement {self._name!r} failed: {error!r}") from error
        if not _is(placer, Placer):
            text = f"placement {self._name!r} made a {type(placer).__name__}, not a Placer"
            raise InvalidJob(text)
        return _FencedPlacer(self._name, job.job_id, placer)

    def watch(self, method: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Tell the inner placement something, unless it has failed."""
        if self._failure is not None:
            return
        try:
            method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - whatever it raises, its jobs are told
            self._failure = f"placement {self._name!r} failed before: {error!r}"

    def notes(self, peers: int, now: float) -> bytes:
        notes: list[bytes] = []
        self.watch(lambda: notes.append(self._inner.notes(peers, now)))
        if notes and not _is(notes[0], bytes):
            self._failure = f"placement {self._name!r} made notes that are no bytes"
            return b""
        return notes[0] if notes else b""


def _watching(hook: str) -> Callable[..., None]:
    def method(fenced: FencedPlacement, *told: Any) -> None:
        fenced.watch(getattr(fenced.inner, hook), *told)

    return method


for _hook in HOOKS:
    setattr(FencedPlacement, _hook, _watching(_hook))


class _FencedPlacer(Placer):
    """A plug-in's placer of one job; PlacementFailed for whatever it does wrong."""

    def __init__(self, name: str, job_id: JobId, inner: Placer) -> None:
        # Not the base's: `waiting` is the inner placer's own.
        self.waiting = inner.waiting
        self.waits_for_loads = inner.waits_for_loads
        self.wants_levels = inner.wants_levels
        self.uses_idle = inner.uses_idle
        self._name = name
        self._job_id = job_id
        self._inner = inner

    def _fail(self, text: str) -> PlacementFailed:
        return PlacementFailed(f"placement {self._name!r} {text}", self._job_id)

    def _call(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except (NoNodes, Unsatisfiable):
            raise
        except Exception as error:
            raise self._fail(f"failed: {error!r}") from error

    def _checked(self, reservations: Reservations, nodes: Sequence[NodeName]) -> Reservations:
        for node, count in reservations.items():
            if node not in nodes or not _is(count, int) or count < 1:
                raise self._fail(f"made {count!r} reservations on {node!r}")
        return reservations

    def probes(self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName]) -> Sequence[NodeName]:
        probed = self._call(self._inner.probes, tasks, nodes)
        if strange := [node for node in probed if node not in nodes]:
            raise self._fail(f"probed {strange[0]!r}, where the job may not run")
        return probed

    def note_loads(self, loads: Mapping[NodeName, int]) -> None:
        self._call(self._inner.note_loads, loads)

    def place(
        self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName], avoid: Sequence[NodeName] = ()
    ) -> Reservations:
        return self._checked(self._call(self._inner.place, tasks, nodes, avoid), nodes)

    def _place(
        self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName], avoid: Sequence[NodeName]
    ) -> Reservations:
        raise AssertionError("place is the inner placer's")

    def widen(self, tasks: Sequence[TaskId], nodes: Sequence[NodeName]) -> Reservations:
        return self._checked(self._call(self._inner.widen, tasks, nodes), nodes)

    def node_joined(self, node: NodeName, nodes: int) -> Reservations:
        return self._checked(self._call(self._inner.node_joined, node, nodes), (node,))

    def refused(self, node: NodeName, count: int, nodes: Sequence[NodeName]) -> Reservations:
        return self._checked(self._call(self._inner.refused, node, count, nodes), nodes)

    def withdraw(self, task_id: TaskId) -> None:
        self._call(self._inner.withdraw, task_id)

    def take(self, node: NodeName, count: int) -> list[TaskSpec]:
        tasks = self._call(self._inner.take, node, count)
        if len(tasks) > count or any(task.task_id in self.waiting for task in tasks):
            raise self._fail(f"bound {len(tasks)} tasks to {node!r}, which asked for {count}")
        return tasks

    def offers(self, node: NodeName) -> bool:
        return self._call(self._inner.offers, node)

    def node_lost(self, node: NodeName, held: int, nodes: Sequence[NodeName]) -> Reservations:
        return self._checked(self._call(self._inner.node_lost, node, held, nodes), nodes)

    def covered(self, reserved: Reservations) -> bool:
        return self._inner.covered(reserved)
