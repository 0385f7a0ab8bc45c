"""Lowers DuckDB's serialized logical plan to ours. Pure; unknown nodes raise `PlanNotLowered`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from minishark.compiler.logical import operators as ops
from minishark.compiler.logical.plan import LogicalPlan, make_plan
from minishark.compiler.sql.plan_json import (
    COMPARISONS,
    Json,
    PlanNotLowered,
    lower_aggregate,
    lower_expression,
    lower_sort_keys,
    lower_table_filter,
    lower_type,
    lower_value,
    lower_window,
)
from minishark.model.expressions import Column, ColumnRef, Expression, Schema, transform

_VIRTUAL_COLUMN = 1 << 62
_EMPTY_COLUMN = (1 << 64) - 1
_NO_LIMIT = 1 << 62


def lower_plan(json: Json, output: Schema) -> LogicalPlan:
    """The logical plan of DuckDB's `json_serialize_plan`; `output` has the bound columns."""
    plan = _lower(json["plans"][0])
    if tuple(c.type for c in plan.schema) != tuple(c.type for c in output):
        raise PlanNotLowered("an output with other types than the statement's")
    return replace(plan, schema=output)


def _lower(json: Json) -> LogicalPlan:
    kind = json["type"]
    handler = HANDLERS.get(kind)
    if handler is None:
        raise PlanNotLowered(kind)
    return handler(json, *map(_lower, json.get("children", [])))


def _get(json: Json, *_: LogicalPlan) -> LogicalPlan:
    data = json.get("function_data") or {}
    if json["qname"]["path"][-1] != "seq_scan" or "table" not in data:
        raise PlanNotLowered(f"table function {json['qname']['path'][-1]}")
    columns = tuple(_scan_column(json, item) for item in json.get("column_indexes", []))
    schema = tuple(column for _, column in columns)
    scan = make_plan(ops.Scan(data["table"], tuple(name for name, _ in columns), schema))
    if json.get("extra_info") or json.get("parameters"):
        raise PlanNotLowered("a scan with parameters")
    predicates = _scan_filters(json, schema)
    positions = tuple(json.get("projection_ids") or range(len(columns)))
    if not predicates and positions == tuple(range(len(columns))):
        return scan
    return make_plan(ops.Filter(predicates, positions), scan)


def _scan_column(json: Json, item: Json) -> tuple[str | None, Column]:
    index = item.get("index", 0)
    if index == _EMPTY_COLUMN:
        return None, Column("", "BOOLEAN")
    if index >= _VIRTUAL_COLUMN:
        raise PlanNotLowered("a virtual column such as rowid")
    if item.get("index_type") not in (None, "FULL_READ"):
        raise PlanNotLowered("a scan of a part of a nested column")
    name = json["names"][index]
    return name, Column(name, lower_type(json["returned_types"][index]))


def _scan_filters(json: Json, schema: Schema) -> tuple[Expression, ...]:
    """The predicates that DuckDB pushed into a scan, over the scanned columns."""
    filters = json.get("table_filters") or {}
    keyed = [((f.get("key", 0),), f["value"]) for f in filters.get("filters", [])]
    several = [(tuple(f["column_indexes"]), f) for f in filters.get("multi_column_filters", [])]
    if any(not schema[i].name for positions, _ in keyed + several for i in positions):
        raise PlanNotLowered("a filter on rowid")
    if keyed and not json.get("table_filters_by_projection"):
        raise PlanNotLowered("a scan's filters by table column")
    predicates: list[Expression] = []
    for positions, item in keyed + several:
        columns = tuple(ColumnRef(i, schema[i].type) for i in positions)
        predicates += lower_table_filter(item, columns)
    return tuple(predicates)


def _filter(json: Json, child: LogicalPlan) -> LogicalPlan:
    predicates = tuple(lower_expression(e, child.schema) for e in json.get("expressions", []))
    output = _kept(json, "projection_map", child)
    inner = child.operator
    # A filter over a filter is one: DuckDB repeats in the scan what it also keeps above it.
    if not isinstance(inner, ops.Filter):
        return make_plan(ops.Filter(predicates, output), child)

    def below(reference: ColumnRef) -> Expression:
        return replace(reference, index=inner.output[reference.index])

    lowered = tuple(transform(predicate, below) for predicate in predicates)
    every = tuple(dict.fromkeys(inner.predicates + lowered))
    return make_plan(ops.Filter(every, tuple(inner.output[i] for i in output)), child.children[0])


def _kept(json: Json, key: str, child: LogicalPlan) -> tuple[int, ...]:
    return tuple(json.get(key) or range(len(child.schema)))


def _projection(json: Json, child: LogicalPlan) -> LogicalPlan:
    expressions = tuple(lower_expression(e, child.schema) for e in json["expressions"])
    names = tuple(
        item.get("alias") or (child.schema[e.index].name if isinstance(e, ColumnRef) else "")
        for item, e in zip(json["expressions"], expressions, strict=True)
    )
    return make_plan(ops.Project(expressions, names), child)


def _aggregate(json: Json, child: LogicalPlan) -> LogicalPlan:
    groups = tuple(lower_expression(e, child.schema) for e in json.get("groups", []))
    aggregates = tuple(lower_aggregate(e, child.schema) for e in json.get("expressions", []))
    sets = tuple(tuple(sorted(s)) for s in json.get("grouping_sets", []))
    functions = tuple(map(tuple, json.get("grouping_functions", [])))
    plain = not functions and sets in ((), (tuple(range(len(groups))),))
    if not plain and len(dict.fromkeys(groups)) < len(groups):
        # A group that stands twice is NULL in one place only where a set leaves one out; in SQL
        # both places would be the same expression.
        raise PlanNotLowered("GROUPING SETS with a group that stands twice")
    return make_plan(ops.Aggregate(groups, aggregates, () if plain else sets, functions), child)


def _comparison_join(json: Json, left: LogicalPlan, right: LogicalPlan) -> LogicalPlan:
    if json.get("duplicate_eliminated_columns"):
        raise PlanNotLowered("LOGICAL_DELIM_JOIN")
    conditions = []
    residual = [json["predicate"]] if json.get("predicate") else []
    for item in json.get("conditions", []):
        if "right" not in item:
            residual.append(item["left"])
            continue
        comparison = COMPARISONS.get(item["comparison"])
        if comparison is None:
            raise PlanNotLowered(f"join condition {item['comparison']}")
        conditions.append(
            ops.JoinCondition(
                lower_expression(item["left"], left.schema),
                comparison,
                lower_expression(item["right"], right.schema),
            )
        )
    return _join(json, left, right, tuple(conditions), residual)


def _join(
    json: Json,
    left: LogicalPlan,
    right: LogicalPlan,
    conditions: tuple[ops.JoinCondition, ...],
    residual: list[Json],
) -> LogicalPlan:
    try:
        kind = ops.JoinKind(json["join_type"].lower().replace("_", " "))
    except ValueError:
        raise PlanNotLowered(f"join type {json['join_type']}") from None
    deciding = [c.comparison for c in conditions if "DISTINCT" not in c.comparison]
    if kind is ops.JoinKind.MARK and len(deciding) > 1 and set(deciding) != {"="}:
        raise PlanNotLowered("ANY over rows with other comparisons than =")
    both = left.schema + right.schema
    join = ops.Join(
        kind,
        conditions,
        tuple(lower_expression(e, both) for e in residual),
        _kept(json, "left_projection_map", left),
        _kept(json, "right_projection_map", right),
    )
    return make_plan(join, left, right)


def _cross_product(_: Json, left: LogicalPlan, right: LogicalPlan) -> LogicalPlan:
    everything = (tuple(range(len(left.schema))), tuple(range(len(right.schema))))
    return make_plan(ops.Join(ops.JoinKind.INNER, (), (), *everything), left, right)


def _order_by(json: Json, child: LogicalPlan) -> LogicalPlan:
    keys = lower_sort_keys(json["orders"], child.schema)
    return make_plan(ops.Sort(keys, _kept(json, "projections", child)), child)


def _top_n(json: Json, child: LogicalPlan) -> LogicalPlan:
    keys = lower_sort_keys(json["orders"], child.schema)
    return make_plan(ops.TopN(keys, json.get("limit", 0), json.get("offset", 0)), child)


def _limit(json: Json, child: LogicalPlan) -> LogicalPlan:
    limit = _limit_value(json.get("limit_val") or {})
    offset = _limit_value(json.get("offset_val") or {})
    return make_plan(ops.Limit(limit, offset or 0), child)


def _limit_value(json: Json) -> int | None:
    match json.get("type", "UNSET"):
        case "UNSET":
            return None
        case "CONSTANT_VALUE":
            value = int(json.get("constant_integer", 0))
            return None if value >= _NO_LIMIT else value
        case other:
            raise PlanNotLowered(f"LIMIT with {other}")


def _distinct(json: Json, child: LogicalPlan) -> LogicalPlan:
    targets = tuple(lower_expression(e, child.schema) for e in json["distinct_targets"])
    covered = {e.index for e in targets if isinstance(e, ColumnRef)}
    if json.get("distinct_type", "DISTINCT") == "DISTINCT" and len(covered) == len(child.schema):
        return make_plan(ops.Distinct(), child)
    keys = lower_sort_keys((json.get("order_by") or {}).get("orders", []), child.schema)
    return make_plan(ops.DistinctOn(targets, keys), child)


def _window(json: Json, child: LogicalPlan) -> LogicalPlan:
    calls = tuple(lower_window(e, child.schema) for e in json["expressions"])
    return make_plan(ops.Window(calls), child)


def _unnest(json: Json, child: LogicalPlan) -> LogicalPlan:
    if not all(e["expression_class"] == "BOUND_UNNEST" for e in json["expressions"]):
        raise PlanNotLowered("LOGICAL_UNNEST of other than lists")
    lists = tuple(lower_expression(e["child"], child.schema) for e in json["expressions"])
    types = tuple(lower_type(e["return_type"]) for e in json["expressions"])
    return make_plan(ops.Unnest(lists, types), child)


def _set_operation(json: Json, left: LogicalPlan, *others: LogicalPlan) -> LogicalPlan:
    kind = ops.SetKind(json["type"].removeprefix("LOGICAL_"))
    operation = ops.SetOperation(kind, json.get("setop_all", True))
    for right in others:  # a UNION can have more than two inputs
        if tuple(c.type for c in left.schema) != tuple(c.type for c in right.schema):
            raise PlanNotLowered(f"{kind} of different types")
        left = make_plan(operation, left, right)
    return left


def _cte_ref(json: Json, *_: LogicalPlan) -> LogicalPlan:
    if json.get("is_recurring"):
        raise PlanNotLowered("LOGICAL_RECURSIVE_CTE")
    names = json.get("bound_columns") or []
    types = [lower_type(t) for t in json["chunk_types"]]
    schema = tuple(
        Column(names[i] if i < len(names) else f"c{i}", type_) for i, type_ in enumerate(types)
    )
    return make_plan(ops.CteRef(json.get("cte_index", 0), "", schema))


def _chunk_get(json: Json, *_: LogicalPlan) -> LogicalPlan:
    vectors = json["collection"].get("values", [])
    if json.get("column_ids"):
        raise PlanNotLowered("a part of the columns of a constant relation")
    columns = [tuple(map(lower_value, vector)) for vector in vectors]
    rows: tuple[tuple[Expression, ...], ...] = tuple(zip(*columns, strict=True))
    return make_plan(ops.Values(rows, _unnamed(json["chunk_types"])))


def _expression_get(json: Json, *children: LogicalPlan) -> LogicalPlan:
    if children and not isinstance(children[0].operator, ops.Values):
        raise PlanNotLowered("VALUES with correlated columns")
    rows = tuple(tuple(lower_expression(e, ()) for e in row) for row in json["expressions"])
    return make_plan(ops.Values(rows, _unnamed(json["expr_types"])))


def _dummy_scan(*_: object) -> LogicalPlan:
    type_ = {"id": "INTEGER"}
    return make_plan(ops.Values(((lower_value({"type": type_, "value": 0}),),), _unnamed([type_])))


def _unnamed(types: list[Json]) -> Schema:
    return tuple(Column(f"c{i}", lower_type(type_)) for i, type_ in enumerate(types))


# Each is called with the JSON of a node and the node's lowered inputs.
HANDLERS: Mapping[str, Callable[..., LogicalPlan]] = {
    "LOGICAL_GET": _get,
    "LOGICAL_FILTER": _filter,
    "LOGICAL_PROJECTION": _projection,
    "LOGICAL_AGGREGATE_AND_GROUP_BY": _aggregate,
    "LOGICAL_COMPARISON_JOIN": _comparison_join,
    "LOGICAL_ANY_JOIN": lambda json, left, right: _join(json, left, right, (), [json["condition"]]),
    "LOGICAL_CROSS_PRODUCT": _cross_product,
    "LOGICAL_ORDER_BY": _order_by,
    "LOGICAL_TOP_N": _top_n,
    "LOGICAL_LIMIT": _limit,
    "LOGICAL_WINDOW": _window,
    "LOGICAL_UNNEST": _unnest,
    "LOGICAL_UNION": _set_operation,
    "LOGICAL_INTERSECT": _set_operation,
    "LOGICAL_EXCEPT": _set_operation,
    "LOGICAL_DISTINCT": _distinct,
    "LOGICAL_MATERIALIZED_CTE": lambda json, *plans: make_plan(
        ops.Cte(json.get("table_index", 0), json["ctename"]), *plans
    ),
    "LOGICAL_CTE_REF": _cte_ref,
    "LOGICAL_CHUNK_GET": _chunk_get,
    "LOGICAL_EXPRESSION_GET": _expression_get,
    "LOGICAL_DUMMY_SCAN": _dummy_scan,
    "LOGICAL_EMPTY_RESULT": lambda json: make_plan(ops.Values((), _unnamed(json["return_types"]))),
}
