"""Physical plans as text: operators, distributions, estimated rows."""

from __future__ import annotations

from typing import assert_never

from minishark.compiler.logical.display import aggregate_label, operator_label, tree
from minishark.compiler.physical.plan import (
    Boundaries,
    Broadcast,
    Distribution,
    FinalAggregate,
    Gather,
    Hashed,
    Materialize,
    PartialAggregate,
    PhysicalPlan,
    Ranged,
    RangeShuffle,
    Replicated,
    SampleKeys,
    Shuffle,
    Single,
    Spread,
)
from minishark.expressions import Schema, render, render_sort_keys


def physical_text(plan: PhysicalPlan) -> str:
    """A physical plan as a tree."""
    return tree(plan, physical_label)


def physical_label(plan: PhysicalPlan) -> str:
    """One node in one line."""
    place = distribution_label(plan.distribution, plan.schema)
    return f"{physical_operator_label(plan)}  [{place}, ~{plan.rows:,.0f} rows]"


def physical_operator_label(plan: PhysicalPlan) -> str:
    """An operator or exchange."""
    operator = plan.operator
    inputs = [child.schema for child in plan.children]
    names = [column.name or f"#{i}" for i, column in enumerate(inputs[0])] if inputs else []
    match operator:
        case Shuffle(keys=keys, partitions=partitions):
            text = ", ".join(render(key, names) for key in keys)
            return f"Exchange shuffle by {text} to {partitions} partitions"
        case RangeShuffle(keys=sort_keys, partitions=partitions):
            text = render_sort_keys(sort_keys, names)
            return f"Exchange range shuffle by {text} to {partitions} partitions"
        case SampleKeys(keys=sort_keys, rows=rows):
            return f"SampleKeys {render_sort_keys(sort_keys, names)} of {rows:,} rows"
        case Boundaries(partitions=partitions):
            return f"Boundaries of {partitions} ranges"
        case Broadcast():
            return "Exchange broadcast"
        case Gather():
            return "Exchange gather"
        case Materialize():
            return "Materialize"
        case PartialAggregate(complete=complete):
            return f"PartialAggregate {aggregate_label(complete, names)}"
        case FinalAggregate(complete=complete):
            groups = ", ".join(column.name for column in plan.schema[: len(complete.groups)])
            return f"FinalAggregate {f'by {groups}' if groups else ''}".rstrip()
        case _:
            return operator_label(operator, inputs)


def distribution_label(distribution: Distribution, schema: Schema) -> str:
    """Where rows lie."""
    match distribution:
        case Hashed(keys=keys, partitions=partitions):
            names = (
                "=".join(schema[i].name or f"#{i}" for i in sorted(key)) or "?" for key in keys
            )
            return f"hashed by {', '.join(names)} in {partitions}"
        case Ranged(partitions=partitions):
            return f"in ranges in {partitions}"
        case Spread(partitions=partitions):
            return f"spread over {partitions}"
        case Single():
            return "single"
        case Replicated():
            return "replicated"
        case _:
            assert_never(distribution)
