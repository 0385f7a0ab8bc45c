"""What `connect` takes, checked, and what it means for planning; light, as `connect` is."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from minishark.compiler.physical.options import KeyFilterOptions, PlannerOptions
from minishark.errors import OptionError
from sparrow_core import PLACEMENTS

if TYPE_CHECKING:
    from minishark.cluster.backend import Cluster

OPTIMIZATIONS = frozenset(
    (
        "one_task",
        "eager_aggregation",
        "group_keys",
        "group_runs",
        "join_sides",
        "semi_join_filters",
        "prepared_fragments",
    )
)


def check_placement(placement: str, probe_ratio: object) -> None:
    """Raise OptionError unless there is such a placement, and the ratio makes sense."""
    if placement not in PLACEMENTS:
        raise OptionError(f"Unknown placement {placement!r}; choose {' or '.join(PLACEMENTS)}.")
    if not isinstance(probe_ratio, numbers.Real) or not 1 <= float(probe_ratio) < math.inf:
        raise OptionError("probe_ratio must be at least 1: each task needs a reservation.")


def check_optimizations(task_threads: int | None, disabled: Collection[str]) -> None:
    """Raise OptionError unless there are such optimizations, and the number makes sense."""
    if task_threads is not None and task_threads < 1:
        raise OptionError("task_threads must be at least 1.")
    if isinstance(disabled, str) or not OPTIMIZATIONS.issuperset(disabled):
        known = ", ".join(sorted(OPTIMIZATIONS))
        others = (
            [] if isinstance(disabled, str) else sorted(set(disabled) - OPTIMIZATIONS, key=repr)
        )
        wrong = f", not {', '.join(map(repr, others))}" if others else ""
        raise OptionError(f"disabled_optimizations takes a list of these names{wrong}: {known}.")


def planner_options(
    cluster: Cluster,
    partitions: int | None,
    single_task_rows: int,
    task_threads: int | None,
    disabled: Collection[str],
) -> PlannerOptions:
    """How the queries of a session are planned."""
    slots = cluster.total_slots
    if not single_task_rows:
        options = PlannerOptions.eager(partitions or slots)
    else:
        options = PlannerOptions(
            partitions or slots,
            single_task_rows,
            weighs="one_task" not in disabled,
            threads=task_threads or (1 if partitions else slots),
            slots=slots,
            task_bytes=cluster.task_bytes,
        )
    return replace(
        options,
        early_gain=math.inf if "eager_aggregation" in disabled else options.early_gain,
        coded_rows=math.inf if "group_keys" in disabled else options.coded_rows,
        run_groups=math.inf if "group_runs" in disabled else options.run_groups,
        key_filters=KeyFilterOptions(rows_min=math.inf)
        if "semi_join_filters" in disabled
        else options.key_filters,
    )
