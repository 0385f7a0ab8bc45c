"""The registry of placements. All that knows a placement by name derives from it.

A name is one of `PLACEMENTS`, one that an installed package adds, or "module:factory" for a plug-in
(docs/policies.md). All are made by calling a factory without arguments, once per scheduler. A new
one of ours is a `Placement` and an entry here, one of a package an entry point: validation, the
options and help texts of `sparrow` and `minishark`, `connect(placement=...)`, the simulator and
docs/sparrow.md follow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from random import Random
from typing import Final

from sparrow_core.policy import plugins
from sparrow_core.policy.early_binding import RandomPlacement
from sparrow_core.policy.late_binding import LateBinding
from sparrow_core.policy.placer import HOOKS, PlacedJob, Placement, Placer, Watcher
from sparrow_core.protocol.errors import InvalidJob
from sparrow_core.protocol.types import TaskSpec

PLACEMENTS: Final[dict[str, Callable[[], Placement]]] = {
    "sparrow": LateBinding,
    "random": RandomPlacement,
}
"""Sparrow's own."""
DEFAULT_PLACEMENT: Final = "sparrow"
_GROUP: Final = "sparrow_core.placements"  # entry points
_PROBE_RATIO_MAX = 1000.0


@functools.cache
def _installed() -> dict[str, str]:
    """The names that installed packages add, and the "module:factory" that each stands for."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and seldom needed

    return {entry.name: entry.value for entry in entry_points(group=_GROUP)}


def placement_names() -> list[str]:
    """All placements that have a name: Sparrow's own, and those of installed packages."""
    return [*PLACEMENTS, *_installed()]


def check_placement(
    placement: str, probe_ratio: float = 1.0, tasks: Sequence[TaskSpec] = ()
) -> None:
    """Raise InvalidJob if there can be no placer for a job. Plug-ins are not imported."""
    # With a probe ratio below 1, tasks would be left without a reservation.
    if not (placement in PLACEMENTS or plugins.is_path(placement) or placement in _installed()):
        names = ", ".join(placement_names())
        raise InvalidJob(f"placement {placement!r} is none of {names}, and no module:factory")
    if not 1.0 <= probe_ratio <= _PROBE_RATIO_MAX:
        raise InvalidJob(f"probe ratio {probe_ratio} is not between 1 and {_PROBE_RATIO_MAX:g}")
    if len({task.task_id for task in tasks}) < len(tasks):
        raise InvalidJob("two tasks have the same id")


def make_placement(name: str) -> Placement:
    """A new placement of that name; InvalidJob if there is none, or it can't be imported.

    Those of installed packages are trusted as ours; what a path names is fenced in.
    """
    check_placement(name)
    if (factory := PLACEMENTS.get(name)) is not None:
        return factory()
    path = name if plugins.is_path(name) else _installed()[name]
    placement = plugins.made(path, "placement", Placement, InvalidJob)  # type: ignore[type-abstract]
    return plugins.FencedPlacement(name, placement) if path == name else placement


class Placements:
    """The placements of one scheduler. Each is made when a job first names it, and then kept."""

    def __init__(self, plug_ins: Collection[str] | None = None) -> None:
        """No placement is made yet; only these plug-ins may be, or any if None."""
        self._plug_ins = plug_ins
        self._made: dict[str, Placement] = {}
        self.watching: list[Placement] = []  # those that are told what the scheduler sees
        self.noting: dict[str, Placement] = {}  # those that tell other schedulers' placements

    def placer(self, name: str, job: PlacedJob, rng: Random) -> Placer:
        """The placer for a job under the placement of that name; InvalidJob if there is none."""
        check_placement(name, job.probe_ratio, job.tasks)
        return self.of(name).placer(job, rng)

    def of(self, name: str) -> Placement:
        """The placement of that name; raises as `make_placement` does."""
        placement = self._made.get(name)
        if placement is None:
            listed = self._plug_ins is None or name in self._plug_ins
            if plugins.is_path(name) and not listed:
                text = f"this scheduler's configuration does not list the placement {name!r}"
                raise InvalidJob(text)
            placement = self._made[name] = make_placement(name)
            if _overrides(placement, *HOOKS):
                self.watching.append(placement)
            if _overrides(placement, "notes"):
                self.noting[name] = placement
        return placement

    def __iter__(self) -> Iterator[Placement]:
        """Those that are told what the scheduler sees."""
        return iter(self.watching)


def _overrides(placement: Placement, *methods: str) -> bool:
    """Whether it overrides one of these: the others need not be called on every message."""
    kind = type(placement.inner if isinstance(placement, plugins.FencedPlacement) else placement)
    return any(getattr(kind, name) is not getattr(Watcher, name) for name in methods)
