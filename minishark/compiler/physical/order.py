"""Which plans give other rows, or other values, if rows come in another order. Pure.

Several threads pass rows on in no certain order, so a query that depends on it would answer
differently from run to run. SQL allows that; but one thread, or stages of such, always give the
same. Sums of floating-point numbers are not counted: they differ in the last digits only.
"""

from __future__ import annotations

from minishark.compiler.logical.operators import (
    Aggregate,
    Cte,
    CteRef,
    Distinct,
    Filter,
    Join,
    Project,
    Scan,
    SetOperation,
    Sort,
    TopN,
    Unnest,
    Values,
)
from minishark.compiler.physical.plan import (
    Boundaries,
    Exchange,
    FinalAggregate,
    PartialAggregate,
    PhysicalPlan,
)

INDEPENDENT_OPERATORS = (
    Scan, Filter, Project, Join, Sort, Distinct, SetOperation, Values, Unnest, Cte, CteRef,
)  # fmt: skip
INDEPENDENT_AGGREGATES = frozenset(
    [
        "count", "count_star", "min", "max", "sum", "avg", "bool_and", "bool_or", "bit_and",
        "bit_or", "bit_xor", "regr_count", "approx_count_distinct",
    ]
)  # fmt: skip
_NEARLY_INDEPENDENT = INDEPENDENT_AGGREGATES | frozenset(
    [
        "stddev", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop", "sem", "corr",
        "covar_samp", "covar_pop", "skewness", "kurtosis", "kurtosis_pop", "regr_slope",
        "regr_intercept", "regr_r2", "regr_avgx", "regr_avgy", "regr_sxx", "regr_syy", "regr_sxy",
        "median", "quantile_cont", "quantile_disc", "histogram", "entropy", "mad", "product",
        "fsum", "kahan_sum", "favg",
    ]
)  # fmt: skip


def depends_on_order(plan: PhysicalPlan) -> bool:
    """Whether the stage that computes `plan` reads rows in an order that decides its answer."""
    operator = plan.operator
    if isinstance(operator, Exchange):
        return False  # another stage
    match operator:
        case PartialAggregate(complete=aggregate) | FinalAggregate(complete=aggregate):
            depends = _depends(aggregate)
        case Aggregate():
            depends = _depends(operator)
        case TopN():
            depends = False  # but for ties, which are as good as each other
        case _:
            depends = not isinstance(operator, (*INDEPENDENT_OPERATORS, Boundaries))
    return depends or any(map(depends_on_order, plan.children))


def _depends(aggregate: Aggregate) -> bool:
    return any(
        call.name not in _NEARLY_INDEPENDENT and not call.order_by for call in aggregate.aggregates
    )
