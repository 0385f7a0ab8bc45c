"""Which side of a join DuckDB makes its hash table of.

It chooses by the numbers of rows that it expects, and of Arrow data it knows nothing but their
rows. A plan was made with the tables' statistics, so its own choice is better as long as it is only
tables that are read: the right side of each join as it is written. What other stages have put out
is as large as it turned out to be, which nobody but DuckDB knows then.
"""

from __future__ import annotations

from minishark.compiler.logical.operators import Join, JoinKind, SetKind, SetOperation
from minishark.compiler.physical.plan import PhysicalPlan
from minishark.compiler.physical.work import built_bytes

_TURNED = {
    JoinKind.INNER: JoinKind.INNER,
    JoinKind.LEFT: JoinKind.RIGHT,
    JoinKind.RIGHT: JoinKind.LEFT,
    JoinKind.FULL: JoinKind.FULL,
}


def turned_kind(join: Join, left: PhysicalPlan, right: PhysicalPlan) -> JoinKind | None:
    """The kind of `join` if its sides are exchanged; None if they are to stay as they are."""
    return _TURNED.get(join.kind) if _task_bytes(left) < _task_bytes(right) else None


def are_as_written(plan: PhysicalPlan) -> bool:
    """Whether every hash table that `plan` needs is best made of the right side of its join.

    Sides of semi and anti joins can't be exchanged in SQL, though DuckDB can do it.
    """
    return _is_as_written(plan) and all(map(are_as_written, plan.children))


def _is_as_written(plan: PhysicalPlan) -> bool:
    match plan.operator:
        case Join(kind=JoinKind.SEMI | JoinKind.ANTI):
            kept, tested = plan.children
        case Join(kind=JoinKind.RIGHT_SEMI | JoinKind.RIGHT_ANTI):
            tested, kept = plan.children
        case Join(kind=JoinKind.MARK | JoinKind.SINGLE):
            return False
        case SetOperation(kind=kind):
            return kind is SetKind.UNION
        case _:
            return True
    return _task_bytes(tested) <= _task_bytes(kept)


def _task_bytes(plan: PhysicalPlan) -> float:
    """About how large a hash table of the rows is that one task has."""
    return built_bytes(plan) / plan.distribution.partitions
