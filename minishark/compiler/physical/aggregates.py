"""How an aggregate splits into a partial and a final phase.

sum, count, min, max and the logical ones combine their plain results. Every other splittable
function exports its state in the partial phase (DuckDB's EXPORT_STATE), and the final phase
combines the states and finishes them, which gives DuckDB's own one-phase answer.
"""

from __future__ import annotations

from minishark.compiler.logical.operators import Aggregate
from minishark.model.expressions import AggregateCall, Column, Names, render_aggregate

_BY_RESULT = {
    "sum": "sum",
    "count": "sum",
    "count_star": "sum",
    "regr_count": "sum",
    "min": "min",
    "max": "max",
    # Exporting the states of these crashes DuckDB 2.0 for some types.
    "bool_and": "bool_and",
    "bool_or": "bool_or",
    "bit_and": "bit_and",
    "bit_or": "bit_or",
    "bit_xor": "bit_xor",
}
_BY_STATE = frozenset(
    [
        "avg", "stddev", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop", "sem",
        "corr", "covar_samp", "covar_pop", "skewness", "kurtosis", "kurtosis_pop",
        "regr_slope", "regr_intercept", "regr_r2", "regr_avgx", "regr_avgy", "regr_sxx",
        "regr_syy", "regr_sxy", "approx_count_distinct",
    ]
)  # fmt: skip
_STATE = "STATE"


def can_split(aggregate: Aggregate) -> bool:
    """Whether every aggregate can be computed in two phases."""
    # Over grouping sets, DuckDB 2.0 fails to combine states, with an error that shuts it down.
    with_states = not aggregate.grouping_sets
    return all(
        splits(call) and (with_states or call.name in _BY_RESULT) for call in aggregate.aggregates
    )


def splits(call: AggregateCall) -> bool:
    if call.distinct or call.order_by or _is_top_n(call):
        return False
    return call.name in _BY_RESULT or call.name in _BY_STATE


def combines_results(call: AggregateCall) -> bool:
    """Whether plain partial results combine to the complete result."""
    return call.name in _BY_RESULT and not _is_top_n(call)


def _is_top_n(call: AggregateCall) -> bool:
    """Whether it is `min(x, n)` or `max(x, n)`, whose results are lists."""
    return call.name in ("min", "max") and len(call.arguments) > 1


def state_column(call: AggregateCall, position: int) -> Column:
    """The output column of the partial phase."""
    # Its type is the result's where the partial result is a plain value; a state has no type that
    # SQL could name.
    return Column(f"state{position}", call.type if call.name in _BY_RESULT else _STATE)


def render_partial(call: AggregateCall, names: Names) -> str:
    sql = render_aggregate(call, names)
    return sql if call.name in _BY_RESULT else f"{sql} EXPORT_STATE"


def render_final(call: AggregateCall, state: str) -> str:
    combine = _BY_RESULT.get(call.name)
    if combine is None:
        types = ", ".join(f"'{argument.type}'" for argument in call.arguments)
        return f"finalize(combine_aggr(to_aggregate_state({state}, '{call.name}', [{types}])))"
    if combine == "sum" and call.name != "sum":
        # A count of no rows at all is 0, while a sum of no counts is NULL.
        return f"CAST(coalesce(sum({state}), 0) AS {call.type})"
    return f"{combine}({state})"
