"""Which side of a join DuckDB builds the hash table from.

DuckDB chooses by estimated row counts, and of Arrow data it knows nothing but the number of rows.
A plan was made with the tables' statistics, so its own choice is better as long as only tables are
read: the right side of each join as it is written. Outputs of other stages are as large as they
turned out to be, which only DuckDB knows by then.
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
    """The kind of `join` with its sides swapped; None if they should stay as they are."""
    return _TURNED.get(join.kind) if _task_bytes(left) < _task_bytes(right) else None


def are_as_written(plan: PhysicalPlan) -> bool:
    """Whether every hash table that `plan` needs is best built from the right side of its join."""
    # Sides of semi and anti joins can't be swapped in SQL, though DuckDB can swap them.
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
    """The estimated size of a hash table over the rows of one task."""
    return built_bytes(plan) / plan.distribution.partitions
