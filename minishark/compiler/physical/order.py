"""Which plans give other rows, or other values, if rows come in another order. Pure.

Several threads pass rows on in no certain order, so a query that depends on it would answer
differently from run to run. SQL allows that; but one thread, or stages of one thread each, always
give the same. Sums of floating-point numbers are not counted: they differ in the last digits only.
"""

from __future__ import annotations

from minishark.compiler.logical.operators import TopN
from minishark.compiler.physical.plan import Exchange, PhysicalPlan, aggregate_of

INDEPENDENT_AGGREGATES = frozenset(
    [
        "count", "count_star", "min", "max", "sum", "avg", "bool_and", "bool_or", "bit_and",
        "bit_or", "bit_xor", "regr_count", "approx_count_distinct",
    ]
)  # fmt: skip
"""Aggregate functions whose result never depends on the order of rows."""

# Those that do in the last digits of floating-point numbers, or in ties.
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
        return False  # computed by another stage
    aggregate = aggregate_of(operator)
    if aggregate is not None:
        calls = aggregate.aggregates
        depends = any(c.name not in _NEARLY_INDEPENDENT and not c.order_by for c in calls)
    else:
        # A TopN depends on it in ties only, of which any is as good as the others.
        depends = operator.order_matters and not isinstance(operator, TopN)
    return depends or any(map(depends_on_order, plan.children))
