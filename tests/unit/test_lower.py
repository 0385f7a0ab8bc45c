from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from toy_cluster import ToyTable

from minishark.compiler.logical.operators import (
    Aggregate,
    Cte,
    CteRef,
    Distinct,
    DistinctOn,
    Filter,
    Join,
    JoinCondition,
    JoinKind,
    Limit,
    Operator,
    Project,
    Scan,
    SetKind,
    SetOperation,
    Sort,
    Statement,
    TopN,
    Unnest,
    Values,
    Window,
)
from minishark.compiler.logical.plan import LogicalPlan
from minishark.compiler.sql.lower import lower_plan
from minishark.compiler.sql.plan_json import PlanNotLowered
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.model.expressions import (
    AggregateCall,
    Column,
    ColumnRef,
    Infix,
    IsNull,
    Literal,
    SortKey,
)

INTEGER: dict[str, Any] = {"id": "INTEGER"}
A, B = Column("a", "INTEGER"), Column("b", "INTEGER")
REF: dict[str, Any] = {"expression_class": "BOUND_REF", "return_type": INTEGER}
REF_B: dict[str, Any] = {**REF, "index": 1}
EMPTY_COLUMN = (1 << 64) - 1


def get(**more: Any) -> dict[str, Any]:
    """A scan of the columns a and b of a table t."""
    return {
        "type": "LOGICAL_GET",
        "qname": {"path": ["seq_scan"]},
        "function_data": {"table": "t"},
        "names": ["a", "b"],
        "returned_types": [INTEGER, INTEGER],
        "column_indexes": [{"index_type": "FULL_READ"}, {"index": 1, "index_type": "FULL_READ"}],
        **more,
    }


def above(kind: str, *children: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An operator over others."""
    return {"type": kind, "children": list(children or (get(),)), **more}


def lowered(json: dict[str, Any], *output: Column) -> LogicalPlan:
    """The plan of a statement with the given output columns."""
    return lower_plan({"plans": [json]}, output or (A, B))


ORDER = {"expression": REF_B, "type": "DESCENDING", "null_order": "NULLS_LAST"}
KEY = SortKey(ColumnRef(1, "INTEGER"), True, False)
CONSTANT = {"type": "CONSTANT_VALUE", "constant_integer": 3}


@pytest.mark.parametrize(
    ("json", "operator", "output"),
    [
        (get(), Scan("t", ("a", "b"), (A, B)), (A, B)),
        (
            get(column_indexes=[{"index": EMPTY_COLUMN}]),
            Scan("t", (None,), (Column("", "BOOLEAN"),)),
            (Column("", "BOOLEAN"),),
        ),
        (
            get(projection_ids=[1]),
            Filter((), (1,)),
            (B,),
        ),
        (
            above("LOGICAL_FILTER", expressions=[REF_B], projection_map=[1, 0]),
            Filter((ColumnRef(1, "INTEGER"),), (1, 0)),
            (B, A),
        ),
        (
            above("LOGICAL_PROJECTION", expressions=[{**REF_B, "alias": "x"}, REF]),
            Project((ColumnRef(1, "INTEGER"), ColumnRef(0, "INTEGER")), ("x", "a")),
            (A, B),
        ),
        (above("LOGICAL_ORDER_BY", orders=[ORDER]), Sort((KEY,), (0, 1)), (A, B)),
        (above("LOGICAL_ORDER_BY", orders=[ORDER], projections=[0]), Sort((KEY,), (0,)), (A,)),
        (above("LOGICAL_TOP_N", orders=[ORDER], limit=3), TopN((KEY,), 3, 0), (A, B)),
        (above("LOGICAL_TOP_N", orders=[ORDER], offset=2), TopN((KEY,), 0, 2), (A, B)),
        (above("LOGICAL_LIMIT", limit_val=CONSTANT), Limit(3, 0), (A, B)),
        (above("LOGICAL_LIMIT", offset_val=CONSTANT), Limit(None, 3), (A, B)),
        (
            above("LOGICAL_LIMIT", limit_val={"type": "CONSTANT_VALUE"}),
            Limit(0, 0),
            (A, B),
        ),
        (
            above("LOGICAL_LIMIT", limit_val={**CONSTANT, "constant_integer": 1 << 62}),
            Limit(None, 0),
            (A, B),
        ),
        (above("LOGICAL_DISTINCT", distinct_targets=[REF, REF_B]), Distinct(), (A, B)),
        (
            above(
                "LOGICAL_DISTINCT",
                distinct_type="DISTINCT_ON",
                distinct_targets=[REF],
                order_by={"orders": [ORDER]},
            ),
            DistinctOn((ColumnRef(0, "INTEGER"),), (KEY,)),
            (A, B),
        ),
        (
            above("LOGICAL_UNION", get(), get()),
            SetOperation(SetKind.UNION, keep_all=True),
            (A, B),
        ),
        (
            above("LOGICAL_EXCEPT", get(), get(), setop_all=False),
            SetOperation(SetKind.EXCEPT, keep_all=False),
            (A, B),
        ),
        (
            above(
                "LOGICAL_UNNEST",
                expressions=[
                    {"expression_class": "BOUND_UNNEST", "child": REF, "return_type": INTEGER}
                ],
            ),
            Unnest((ColumnRef(0, "INTEGER"),), ("INTEGER",)),
            (A, B, Column("unnest", "INTEGER")),
        ),
        (
            {"type": "LOGICAL_EMPTY_RESULT", "return_types": [INTEGER]},
            Values((), (Column("c0", "INTEGER"),)),
            (A,),
        ),
        (
            {
                "type": "LOGICAL_CHUNK_GET",
                "chunk_types": [INTEGER],
                "collection": {"values": [[{"type": INTEGER, "value": 7}]]},
            },
            Values(((Literal("CAST(7 AS INTEGER)", "INTEGER", 7),),), (Column("c0", "INTEGER"),)),
            (A,),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_operator(json: dict[str, Any], operator: Operator, output: tuple[Column, ...]) -> None:
    """Each operator is taken over; what DuckDB leaves out has its default."""
    plan = lowered(json, *output)
    assert operator == plan.operator
    assert output == plan.schema


def test_aggregate() -> None:
    """One plain set of groups is no grouping set; several are."""
    call = {
        "qname": {"path": ["count_star"]},
        "return_type": {"id": "BIGINT"},
    }
    count = AggregateCall(name="count_star", arguments=(), type="BIGINT")
    parts = {"groups": [REF], "expressions": [call]}
    output = (A, Column("n", "BIGINT"))
    plain = lowered(above("LOGICAL_AGGREGATE_AND_GROUP_BY", grouping_sets=[[0]], **parts), *output)
    assert Aggregate((ColumnRef(0, "INTEGER"),), (count,)) == plain.operator
    sets = above("LOGICAL_AGGREGATE_AND_GROUP_BY", grouping_sets=[[0], []], **parts)
    found = lowered(sets, *output)
    assert Aggregate((ColumnRef(0, "INTEGER"),), (count,), ((0,), ())) == found.operator


CONDITION = {"comparison": "COMPARE_EQUAL", "left": REF, "right": REF_B}
EQUAL = JoinCondition(ColumnRef(0, "INTEGER"), "=", ColumnRef(1, "INTEGER"))


@pytest.mark.parametrize("kind", JoinKind)
def test_comparison_join(kind: JoinKind) -> None:
    """Each kind of join has its condition, kept columns and residual predicate."""
    json = above(
        "LOGICAL_COMPARISON_JOIN",
        get(),
        get(),
        join_type=kind.name,
        conditions=[CONDITION, {"left": {**REF, "index": 3}}],
        left_projection_map=[1],
        predicate=REF_B,
    )
    outputs = {
        JoinKind.SEMI: (B,),
        JoinKind.ANTI: (B,),
        JoinKind.RIGHT_SEMI: (A, B),
        JoinKind.RIGHT_ANTI: (A, B),
        JoinKind.MARK: (B, Column("mark", "BOOLEAN")),
    }
    residual = (ColumnRef(1, "INTEGER"), ColumnRef(3, "INTEGER"))
    found = lowered(json, *outputs.get(kind, (B, A, B)))
    assert Join(kind, (EQUAL,), residual, (1,), (0, 1)) == found.operator


def test_other_joins() -> None:
    """A join on any condition has it as residual, a cross product has none."""
    any_join = above("LOGICAL_ANY_JOIN", get(), get(), join_type="LEFT", condition=REF_B)
    everything = ((0, 1), (0, 1))
    expected = Join(JoinKind.LEFT, (), (ColumnRef(1, "INTEGER"),), *everything)
    assert expected == lowered(any_join, A, B, A, B).operator
    cross = above("LOGICAL_CROSS_PRODUCT", get(), get())
    assert Join(JoinKind.INNER, (), (), *everything) == lowered(cross, A, B, A, B).operator


def test_scan_filters_become_a_filter() -> None:
    """Filters that DuckDB pushed into a scan stand above ours, over the scanned columns."""
    filters = {
        "filters": [{"key": 1, "value": {"filter_type": "LEGACY_IS_NOT_NULL"}}],
        "multi_column_filters": [
            {
                "filter_type": "EXPRESSION_FILTER",
                "column_indexes": [1, 0],
                "expr": {
                    "expression_class": "BOUND_FUNCTION",
                    "type": "COMPARE_LESSTHAN",
                    "return_type": {"id": "BOOLEAN"},
                    "children": [REF, REF_B],
                },
            }
        ],
    }
    plan = lowered(get(table_filters=filters, table_filters_by_projection=True))
    less = Infix("<", (ColumnRef(1, "INTEGER"), ColumnRef(0, "INTEGER")), "BOOLEAN")
    expected = Filter((IsNull(ColumnRef(1, "INTEGER"), negated=True), less), (0, 1))
    assert expected == plan.operator
    assert isinstance(plan.children[0].operator, Scan)


def test_filter_over_filter_is_one() -> None:
    """A filter above a scan's joins it, at the scan's positions and without repetitions."""
    inner = above("LOGICAL_FILTER", expressions=[REF_B], projection_map=[1])
    plan = lowered(above("LOGICAL_FILTER", inner, expressions=[REF]), B)
    assert Filter((ColumnRef(1, "INTEGER"),), (1,)) == plan.operator
    assert isinstance(plan.children[0].operator, Scan)


def test_output_is_named_by_the_statement() -> None:
    """The root's columns have the names that DuckDB bound, not those of the plan."""
    assert (Column("x", "INTEGER"), B) == lowered(get(), Column("x", "INTEGER"), B).schema


@pytest.mark.parametrize(
    ("json", "names"),
    [
        ({"type": "LOGICAL_SOMETHING_NEW"}, "LOGICAL_SOMETHING_NEW"),
        (above("LOGICAL_FILTER", {"type": "LOGICAL_SAMPLE"}), "LOGICAL_SAMPLE"),
        (get(qname={"path": ["range"]}), "table function range"),
        (get(function_data={}), "table function"),
        (get(column_indexes=[{"index": 1 << 62}]), "virtual column"),
        (get(column_indexes=[{"index_type": "PARTIAL"}]), "part of a nested column"),
        (get(extra_info={"sample_options": {}}), "parameters"),
        (
            get(table_filters={"filters": [{"value": {"filter_type": "LEGACY_IS_NULL"}}]}),
            "by table column",
        ),
        (above("LOGICAL_LIMIT", limit_val={"type": "CONSTANT_PERCENTAGE"}), "LIMIT with"),
        (
            above("LOGICAL_COMPARISON_JOIN", get(), get(), join_type="OUTER_SPACE"),
            "join type OUTER_SPACE",
        ),
        (
            above(
                "LOGICAL_COMPARISON_JOIN",
                get(),
                get(),
                join_type="INNER",
                conditions=[{**CONDITION, "comparison": "COMPARE_NEARLY"}],
            ),
            "COMPARE_NEARLY",
        ),
        (
            above("LOGICAL_COMPARISON_JOIN", get(), get(), duplicate_eliminated_columns=[1]),
            "LOGICAL_DELIM_JOIN",
        ),
        ({"type": "LOGICAL_CTE_REF", "is_recurring": True}, "RECURSIVE"),
        (
            {"type": "LOGICAL_CHUNK_GET", "chunk_types": [], "collection": {}, "column_ids": [1]},
            "constant relation",
        ),
        (above("LOGICAL_EXPRESSION_GET", get(), expressions=[]), "correlated"),
        (get(returned_types=[INTEGER, {"id": "ENUM"}]), "type ENUM"),
        (get(column_indexes=[{}]), "other types"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_known_is_named(json: dict[str, Any], names: str) -> None:
    """An operator, or a variant of one, that is not lowered is named in the reason."""
    with pytest.raises(PlanNotLowered, match=names):
        lowered(json)


# DuckDB's own plans


@pytest.fixture(scope="module")
def planning() -> Iterator[PlanningDatabase]:
    """A planning database with two tables."""
    database = PlanningDatabase()
    for name in ("t", "u"):
        columns = (("a", "INTEGER"), ("b", "INTEGER"), ("s", "VARCHAR"))
        database.put_table(ToyTable(name, columns, ()).catalog_table())
    yield database
    database.close()


def operators(plan: LogicalPlan) -> list[type]:
    """The kinds of operators, from the root, left to right."""
    found = [type(plan.operator)]
    for child in plan.children:
        found += operators(child)
    return found


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1", [Project, Values]),
        ("SELECT x + 1 FROM (VALUES (1), (2)) v(x)", [Project, Project, Values]),
        ("SELECT row_number() OVER (ORDER BY a) FROM t", [Project, Window, Scan]),
        ("SELECT a, unnest([a, b]) FROM t", [Project, Unnest, Scan]),
        ("SELECT DISTINCT ON (a) a, b FROM t ORDER BY b", [Sort, DistinctOn, Project, Scan]),
        ("SELECT a FROM t UNION ALL SELECT b FROM u", [SetOperation, Project, Scan, Project, Scan]),
        (
            "SELECT a FROM t EXCEPT ALL SELECT b FROM u",
            [SetOperation, Project, Scan, Project, Scan],
        ),
        ("SELECT a FROM t", [Project, Scan]),
        ("SELECT a FROM t WHERE b > 1", [Project, Filter, Scan]),
        ("SELECT count(*) FROM t", [Project, Aggregate, Scan]),
        ("SELECT a FROM t ORDER BY a", [Sort, Project, Scan]),
        ("SELECT a FROM t ORDER BY a LIMIT 3", [TopN, Project, Scan]),
        ("SELECT DISTINCT a FROM t", [Distinct, Project, Scan]),
        ("SELECT t.b, u.b FROM t JOIN u ON t.a = u.a", [Project, Join, Scan, Scan]),
        (
            "WITH q AS MATERIALIZED (SELECT a FROM t) SELECT x.a, y.a FROM q x, q y",
            [Cte, Project, Scan, Project, Join, CteRef, CteRef],
        ),
    ],
)
def test_plans_of_duckdb(planning: PlanningDatabase, sql: str, expected: list[type]) -> None:
    """What DuckDB makes of plain statements is lowered, operator by operator."""
    assert expected == operators(planning.plan(planning.bind(sql)))


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT sum(a) OVER (ORDER BY a RANGE 2 PRECEDING) FROM t", "RANGE with an offset"),
        ("SELECT row(a, b) FROM t", "TUPLE"),
        ("SELECT rowid FROM t", "column #0"),
        ("SELECT * FROM range(3)", "table function range"),
        ("SELECT * FROM t TABLESAMPLE 10%", "LOGICAL_SAMPLE"),
        ("SELECT a FROM t LIMIT 10%", "LIMIT with"),
        (
            "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) FROM r",
            "RECURSIVE",
        ),
    ],
)
def test_plans_that_run_whole(planning: PlanningDatabase, sql: str, reason: str) -> None:
    """What has no distributed form runs as one statement, and says why."""
    plan = planning.plan(planning.bind(sql))
    assert isinstance(plan.operator, Statement)
    assert reason in plan.operator.reason
    assert sql == plan.operator.sql
