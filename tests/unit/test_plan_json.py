from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from toy_cluster import ToyCluster

from minishark.compiler.logical.operators import Statement
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.sql.plan_json import (
    COMPARISONS,
    PlanNotLowered,
    lower_aggregate,
    lower_expression,
    lower_sort_keys,
    lower_table_filter,
    lower_type,
    lower_value,
)
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.model.expressions import (
    AggregateCall,
    Call,
    Case,
    Cast,
    Column,
    ColumnRef,
    Infix,
    InList,
    IsNull,
    Literal,
    Prefix,
    SortKey,
    quote,
)

INTEGER: dict[str, Any] = {"id": "INTEGER"}
BOOLEAN: dict[str, Any] = {"id": "BOOLEAN"}
CHILD = (Column("a", "INTEGER"), Column("b", "INTEGER"))
A, B = ColumnRef(0, "INTEGER"), ColumnRef(1, "INTEGER")
REF_A: dict[str, Any] = {"expression_class": "BOUND_REF", "return_type": INTEGER}
REF_B: dict[str, Any] = {**REF_A, "index": 1}
FIVE: dict[str, Any] = {"type": INTEGER, "value": 5}
FIVE_SQL = Literal("CAST(5 AS INTEGER)", "INTEGER", 5)


def function(name: str, *arguments: Any, **more: Any) -> dict[str, Any]:
    """A bound function."""
    return {
        "expression_class": "BOUND_FUNCTION",
        "type": "BOUND_FUNCTION",
        "qname": {"path": ["system", "main", name]},
        "return_type": INTEGER,
        "children": list(arguments),
        **more,
    }


# Types


@pytest.mark.parametrize(
    ("json", "type_"),
    [
        ({"id": "BIGINT"}, "BIGINT"),
        ({"id": "DECIMAL", "type_info": {"width": 15, "scale": 2}}, "DECIMAL(15,2)"),
        ({"id": "DECIMAL", "type_info": {"width": 9}}, "DECIMAL(9,0)"),
        ({"id": "LIST", "type_info": {"child_type": INTEGER}}, "INTEGER[]"),
        ({"id": "ARRAY", "type_info": {"child_type": INTEGER, "size": 3}}, "INTEGER[3]"),
        (
            {
                "id": "STRUCT",
                "type_info": {
                    "child_types": [
                        {"first": "x", "second": INTEGER},
                        {"first": 'a "y"', "second": {"id": "VARCHAR"}},
                    ]
                },
            },
            'STRUCT(x INTEGER, "a ""y""" VARCHAR)',
        ),
        ({"id": "TIMESTAMP WITH TIME ZONE"}, "TIMESTAMP WITH TIME ZONE"),
        ({"id": "NULL"}, '"NULL"'),
    ],
    ids=lambda value: str(value)[:30],
)
def test_type(json: dict[str, Any], type_: str) -> None:
    """A serialized type is written as SQL does."""
    assert type_ == lower_type(json)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "name", ["x", "X1", "_x", "1x", "a b", 'a "y"', "é", "x$", "Year", "SELECT", "key", "element"]
)
def test_a_field_is_quoted_as_in_the_text_of_a_type(name: str) -> None:
    """Only what is not plain, and keywords: the text is compared with that of DuckDB's types."""
    fields = [{"first": name, "second": INTEGER}]
    with duckdb.connect() as connection:
        (type_,) = connection.sql(f"SELECT NULL::STRUCT({quote(name)} INTEGER)").types
    assert str(type_) == lower_type({"id": "STRUCT", "type_info": {"child_types": fields}})


@pytest.mark.parametrize(
    "json",
    [
        {"id": "ENUM", "type_info": {}},
        {"id": "UNION", "type_info": {}},
        {"id": "VARCHAR", "type_info": {"alias": "JSON"}},
        {"id": "VARCHAR", "type_info": {"collation": "NOCASE"}},
        {"id": "STRUCT", "type_info": {"child_types": [{"first": "", "second": INTEGER}]}},
        {"id": "SOMETHING NEW"},
    ],
    ids=lambda value: str(value)[:40],
)
def test_unknown_type(json: dict[str, Any]) -> None:
    """A type that SQL text would not give back is not lowered."""
    with pytest.raises(PlanNotLowered, match="type"):
        lower_type(json)


# Constants


@pytest.fixture(scope="module")
def planning() -> Iterator[PlanningDatabase]:
    """A planning database without tables."""
    database = PlanningDatabase()
    yield database
    database.close()


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """What runs the lowered constants."""
    with duckdb.connect(config={"threads": 1}) as connection:
        yield connection


LOWERED = [
    *(
        "true",
        "false",
        "NULL::BOOLEAN",
        "NULL",
        "CAST(-128 AS TINYINT)",
        "32767::SMALLINT",
        "0::INTEGER",
    ),
    *(
        "CAST(-9223372036854775808 AS BIGINT)",
        "255::UTINYINT",
        "65535::USMALLINT",
        "4294967295::UINTEGER",
    ),
    "18446744073709551615::UBIGINT",
    "170141183460469231731687303715884105727::HUGEINT",
    "(-170141183460469231731687303715884105728)::HUGEINT",
    "-1::HUGEINT",
    "340282366920938463463374607431768211455::UHUGEINT",
    *("1.50::DECIMAL(4,2)", "-0.05::DECIMAL(9,2)", "0::DECIMAL(15,2)", "-7::DECIMAL(18,0)"),
    "99999999999999999999999999999999999999::DECIMAL(38,0)",
    "-9999999999999999999999999999.9999999999::DECIMAL(38,10)",
    "0.00000000000000000000000000000000000001::DECIMAL(38,38)",
    *("1.5::FLOAT", "0.1::FLOAT", "0.1::DOUBLE", "-0.0::DOUBLE", "1e300::DOUBLE", "5e-324::DOUBLE"),
    *("'inf'::DOUBLE", "'-inf'::DOUBLE", "'nan'::DOUBLE", "'inf'::FLOAT", "'nan'::FLOAT"),
    *("''", "'it''s'", "'NAN'", "': NAN,'", "'{\"x\": NAN}'", "'ünï 🦈'", "'a\nb\\'"),
    *("DATE '1970-01-01'", "DATE '0001-01-01'", "DATE '9999-12-31'", "DATE '1998-12-01'"),
    *("INTERVAL '3 days'", "INTERVAL '-1 month 2 microseconds'", "INTERVAL '0 days'"),
    *("TIMESTAMP 'infinity'", "TIMESTAMP '-infinity'"),
    *("TIMESTAMP '1969-12-31 23:59:59.999999'", "TIMESTAMP '2020-02-29 12:00:00.000001'"),
]
NOT_LOWERED = [
    "[1, 2]",
    "{'x': 1}",
    "{}",
    "INTERVAL '-9223372036854775807 microseconds'",
    "MAP {'a': 1}",
    "'\\x00a'::BLOB",
    "'101'::BIT",
    "TIME '12:00:00'",
    "DATE '294247-01-01'",
    "DATE 'infinity'",
    "chr(0) || 'a'",
    "uuid '00000000-0000-0000-0000-000000000001'",
    "'a'::ENUM('a', 'b')",
    "TIMESTAMPTZ '2020-01-01 00:00:00+00'",
]


@pytest.mark.parametrize("text", LOWERED)
def test_constant_is_read_back(
    text: str, planning: PlanningDatabase, con: duckdb.DuckDBPyConnection
) -> None:
    """A constant that went through the plan is the same value of the same type."""
    sql = f"SELECT {text} AS x, typeof({text}) AS t"
    plan = planning.plan(planning.bind(sql))
    assert not isinstance(plan.operator, Statement)
    found = ToyCluster(con, []).run(plan, PlannerOptions(partitions=2))
    assert repr(con.execute(sql).fetchall()) == repr(found)


@pytest.mark.parametrize("text", NOT_LOWERED)
def test_constant_without_sure_text_runs_whole(text: str, planning: PlanningDatabase) -> None:
    """A constant that can't be written back for sure is left to DuckDB's own text."""
    plan = planning.plan(planning.bind(f"SELECT {text} AS x"))
    assert isinstance(plan.operator, Statement)


@pytest.mark.parametrize(
    ("json", "literal"),
    [
        ({"type": INTEGER}, Literal("CAST(0 AS INTEGER)", "INTEGER", 0)),
        (FIVE, FIVE_SQL),
        ({"type": INTEGER, "is_null": True}, Literal("CAST(NULL AS INTEGER)", "INTEGER")),
        ({"type": BOOLEAN}, Literal("false", "BOOLEAN")),
        ({"type": {"id": "VARCHAR"}}, Literal("''", "VARCHAR", "")),
        ({"type": {"id": "DATE"}, "value": 31}, Literal("DATE '1970-02-01'", "DATE", "1970-02-01")),
        (
            {"type": {"id": "HUGEINT"}, "value": {"upper": -1, "lower": 18446744073709551615}},
            Literal("CAST(-1 AS HUGEINT)", "HUGEINT", -1),
        ),
        (
            {"type": {"id": "DECIMAL", "type_info": {"width": 4, "scale": 2}}, "value": -5},
            Literal("CAST(-0.05 AS DECIMAL(4,2))", "DECIMAL(4,2)", -0.05),
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_value(json: dict[str, Any], literal: Literal) -> None:
    """Defaults that DuckDB leaves out are filled in, physical values become text."""
    assert literal == lower_value(json)


# Expressions


@pytest.mark.parametrize("kind", COMPARISONS)
def test_comparison(kind: str) -> None:
    """Every comparison has its operator."""
    json = {**function("", REF_A, REF_B), "type": kind, "return_type": BOOLEAN}
    assert Infix(COMPARISONS[kind], (A, B), "BOOLEAN") == lower_expression(json, CHILD)


@pytest.mark.parametrize(
    ("json", "expected"),
    [
        (REF_B, B),
        ({"expression_class": "BOUND_CONSTANT", "value": FIVE}, FIVE_SQL),
        (function("abs", REF_A), Call("abs", (A,), "INTEGER")),
        (function("+", REF_A, REF_B), Infix("+", (A, B), "INTEGER")),
        (function("-", REF_A), Prefix("-", A, "INTEGER")),
        (function("~~", REF_A, REF_B), Infix("~~", (A, B), "INTEGER")),
        (
            {**function("", REF_A), "type": "OPERATOR_CAST", "return_type": {"id": "BIGINT"}},
            Cast(A, "BIGINT"),
        ),
        (
            {**function("", REF_A, function_data={"try_cast": True}), "type": "OPERATOR_CAST"},
            Cast(A, "INTEGER", lenient=True),
        ),
        (
            {
                "expression_class": "BOUND_CONJUNCTION",
                "type": "CONJUNCTION_OR",
                "children": [REF_A, REF_B],
            },
            Infix("OR", (A, B), "BOOLEAN"),
        ),
        (
            {
                "expression_class": "BOUND_CASE",
                "return_type": INTEGER,
                "case_checks": [{"when_expr": REF_A, "then_expr": REF_B}],
                "else_expr": REF_A,
            },
            Case(((A, B),), A, "INTEGER"),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_expression(json: dict[str, Any], expected: object) -> None:
    """Every class of bound expressions has its node."""
    assert expected == lower_expression(json, CHILD)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("OPERATOR_NOT", Prefix("NOT", A, "BOOLEAN")),
        ("OPERATOR_IS_NULL", IsNull(A, negated=False)),
        ("OPERATOR_IS_NOT_NULL", IsNull(A, negated=True)),
        ("COMPARE_IN", InList(A, (B, A), negated=False)),
        ("COMPARE_NOT_IN", InList(A, (B, A), negated=True)),
        ("OPERATOR_COALESCE", Call("coalesce", (A, B, A), "BOOLEAN")),
    ],
)
def test_operator(kind: str, expected: object) -> None:
    """Every operator has its node."""
    json = {"expression_class": "BOUND_OPERATOR", "type": kind, "children": [REF_A, REF_B, REF_A]}
    assert expected == lower_expression(json, CHILD)


def test_null_checks_compute_nothing() -> None:
    """Arithmetic that is only asked whether it is NULL can't overflow."""
    product = function("*", function("-", REF_A), function("+", REF_B, REF_A))
    quotient = function("/", REF_A, REF_B)
    kinds = {"OPERATOR_IS_NOT_NULL": ("AND", True), "OPERATOR_IS_NULL": ("OR", False)}
    for kind, (word, negated) in kinds.items():
        operator = {"expression_class": "BOUND_OPERATOR", "type": kind}
        checks = (IsNull(A, negated), IsNull(B, negated))
        found = lower_expression({**operator, "children": [product]}, CHILD)
        assert Infix(word, checks, "BOOLEAN") == found
        division = lower_expression({**operator, "children": [quotient]}, CHILD)
        assert IsNull(Infix("/", (A, B), "INTEGER"), negated) == division


def test_decimal_constants_in_sums_lose_their_cast() -> None:
    """Bound again with its cast, a DECIMAL sum would be wider than DuckDB planned it."""
    decimal = {"id": "DECIMAL", "type_info": {"width": 16, "scale": 2}}
    constant = {"expression_class": "BOUND_CONSTANT", "value": {"type": decimal, "value": -100}}
    json = {**function("+", constant, constant), "return_type": decimal}
    found = lower_expression(json, CHILD)
    assert isinstance(found, Infix)
    literal = Literal("(-1.00)", "DECIMAL(16,2)", -1.0)
    assert (literal, literal) == found.arguments


@pytest.mark.parametrize(
    "json",
    [
        {"expression_class": "BOUND_LAMBDA"},
        {"expression_class": "BOUND_WINDOW"},
        {"expression_class": "BOUND_OPERATOR", "type": "OPERATOR_TRY", "children": [REF_A]},
        {**REF_A, "index": 2},
        {**REF_A, "return_type": {"id": "BIGINT"}},
        function("__internal_compress_integral_utinyint", REF_A),
        function("row", REF_A),
        function("nextval", REF_A),
        function("list_transform", REF_A),
        function("+", REF_A, REF_B, REF_A),
        {**function("abs", REF_A), "type": "SOMETHING_NEW"},
    ],
    ids=lambda value: str(value)[:50],
)
def test_unknown_expression(json: dict[str, Any]) -> None:
    """An expression whose text could mean something else is not lowered."""
    with pytest.raises(PlanNotLowered):
        lower_expression(json, CHILD)


# Aggregates and sort keys


def test_sort_keys() -> None:
    """Direction and place of NULLs are taken over."""
    items = [
        {"expression": REF_A, "type": "ASCENDING", "null_order": "NULLS_LAST"},
        {"expression": REF_B, "type": "DESCENDING", "null_order": "NULLS FIRST"},
    ]
    assert (SortKey(A, False, False), SortKey(B, True, True)) == lower_sort_keys(items, CHILD)


def test_aggregate() -> None:
    """DISTINCT, FILTER and ORDER BY are taken over; a sum that can't overflow is a sum."""
    order = {"orders": [{"expression": REF_B, "type": "ASCENDING", "null_order": "NULLS_LAST"}]}
    json = function(
        "sum_no_overflow",
        REF_A,
        aggregate_type="DISTINCT",
        filter=REF_B,
        order_bys=order,
    )
    expected = AggregateCall(
        name="sum",
        arguments=(A,),
        type="INTEGER",
        distinct=True,
        filter=B,
        order_by=(SortKey(B, False, False),),
    )
    assert expected == lower_aggregate(json, CHILD)


@pytest.mark.parametrize(
    "json", [function("sum", REF_A, state_export=True), function("combine_aggr", REF_A)]
)
def test_aggregate_states_are_not_lowered(json: dict[str, Any]) -> None:
    """An aggregate state has no type in SQL."""
    with pytest.raises(PlanNotLowered, match="aggregate state"):
        lower_aggregate(json, CHILD)


# Filters in scans

GREATER = {
    "filter_type": "LEGACY_CONSTANT_COMPARISON",
    "comparison_type": "COMPARE_GREATERTHAN",
    "constant": FIVE,
}
GREATER_SQL = Infix(">", (B, FIVE_SQL), "BOOLEAN")
NOT_NULL = {"filter_type": "LEGACY_IS_NOT_NULL"}
NOT_NULL_SQL = IsNull(B, negated=True)
OPTIONAL = {"filter_type": "LEGACY_OPTIONAL_FILTER"}
BOTH = {"filter_type": "LEGACY_CONJUNCTION_AND", "child_filters": [GREATER, NOT_NULL]}


@pytest.mark.parametrize(
    ("json", "expected"),
    [
        (GREATER, (GREATER_SQL,)),
        (NOT_NULL, (NOT_NULL_SQL,)),
        ({"filter_type": "LEGACY_IS_NULL"}, (IsNull(B, negated=False),)),
        (BOTH, (GREATER_SQL, NOT_NULL_SQL)),
        (
            {"filter_type": "LEGACY_CONJUNCTION_OR", "child_filters": [BOTH, GREATER]},
            (
                Infix(
                    "OR",
                    (Infix("AND", (GREATER_SQL, NOT_NULL_SQL), "BOOLEAN"), GREATER_SQL),
                    "BOOLEAN",
                ),
            ),
        ),
        (
            {"filter_type": "LEGACY_IN_FILTER", "values": [FIVE, FIVE]},
            (InList(B, (FIVE_SQL, FIVE_SQL), negated=False),),
        ),
        (OPTIONAL, ()),
        ({"filter_type": "LEGACY_DYNAMIC_FILTER"}, ()),
        (
            {"filter_type": "EXPRESSION_FILTER", "expr": function("abs", REF_A)},
            (Call("abs", (B,), "INTEGER"),),
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_table_filter(json: dict[str, Any], expected: tuple[object, ...]) -> None:
    """A pushed-down filter is a predicate over the scanned column; mere hints are none."""
    assert expected == lower_table_filter(json, (B,))


@pytest.mark.parametrize(
    "json",
    [
        {"filter_type": "LEGACY_STRUCT_EXTRACT"},
        {"filter_type": "LEGACY_CONJUNCTION_OR", "child_filters": [GREATER, OPTIONAL]},
    ],
    ids=["unknown", "hint inside OR"],
)
def test_unknown_table_filter(json: dict[str, Any]) -> None:
    """A filter that is not understood must not be dropped."""
    with pytest.raises(PlanNotLowered):
        lower_table_filter(json, (B,))
