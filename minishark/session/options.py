"""Checks the arguments of `connect`, and turns them into planner options; quick to import."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from minishark.compiler.physical.options import PlannerOptions
from minishark.errors import OptionError
from sparrow_core import PLACEMENTS

if TYPE_CHECKING:
    from minishark.cluster.backend import Cluster


def check_placement(placement: str, probe_ratio: object) -> None:
    """Raise OptionError for an unknown placement policy or a ratio below 1."""
    if placement not in PLACEMENTS:
        raise OptionError(f"Unknown placement {placement!r}; choose {' or '.join(PLACEMENTS)}.")
    if not isinstance(probe_ratio, numbers.Real) or not 1 <= float(probe_ratio) < math.inf:
        raise OptionError("probe_ratio must be at least 1: each task needs a reservation.")


def check_optimizations(task_threads: int | None, disabled: Collection[str]) -> None:
    """Raise OptionError for unknown rules or a number of threads below 1."""
    if task_threads is not None and task_threads < 1:
        raise OptionError("task_threads must be at least 1.")
    if disabled:
        _check_rules(disabled)


def _check_rules(disabled: Collection[str]) -> None:
    from minishark.compiler.rules import RULES  # noqa: PLC0415 - `connect` is light

    names = {rule.name for rule in RULES}
    if isinstance(disabled, str) or not names.issuperset(disabled):
        others = [] if isinstance(disabled, str) else sorted(set(disabled) - names, key=repr)
        wrong = f", not {', '.join(map(repr, others))}" if others else ""
        known = ", ".join(sorted(names))
        raise OptionError(f"disabled_optimizations takes a list of these names{wrong}: {known}.")


def planner_options(
    cluster: Cluster,
    *,
    partitions: int | None,
    single_task_rows: int,
    task_threads: int | None,
    disabled: Collection[str],
) -> PlannerOptions:
    """The planner options of a session."""
    slots = cluster.total_slots
    if not single_task_rows:
        eager = PlannerOptions.eager(partitions or slots).without(*disabled)
        return replace(eager, slots=cluster.cores)
    return PlannerOptions(
        partitions=partitions or slots,
        single_task_rows=single_task_rows,
        threads=task_threads or (1 if partitions else slots),
        slots=cluster.cores,
        task_bytes=cluster.task_bytes,
        disabled=frozenset(disabled),
    )
