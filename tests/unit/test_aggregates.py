from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest
from toy_cluster import ToyCluster, ToyTable, as_bag

from minishark.compiler.logical.operators import Aggregate, Filter, Scan
from minishark.compiler.logical.plan import make_plan
from minishark.compiler.physical.aggregates import (
    _BY_RESULT,
    _BY_STATE,
    can_split,
    render_final,
    render_partial,
    state_column,
)
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import FinalAggregate, PartialAggregate, PhysicalPlan
from minishark.compiler.physical.planner import plan_physical
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.model.expressions import AggregateCall, Column, ColumnRef, Literal, SortKey

# DuckDB casts other types of numbers to one of these before it adds them up.
NUMBERS = (
    "INTEGER",
    "BIGINT",
    "DOUBLE",
    "DECIMAL(9,2)",
    "DECIMAL(15,2)",
    "DECIMAL(30,4)",
    "HUGEINT",
)
BITS = ("bit_and", "bit_or", "bit_xor")
BOOLS = ("bool_and", "bool_or")
ANY = ("min", "max")
COUNTS = ("count", "approx_count_distinct")

VALUES = {
    "INTEGER": "i::INTEGER",
    "BIGINT": "(i * 1000000007)::BIGINT",
    "TINYINT": "i::TINYINT",
    "UBIGINT": "i::UBIGINT",
    "HUGEINT": "(i * 100000000000000007)::HUGEINT",
    "DOUBLE": "(i * 1.25)::DOUBLE",
    "FLOAT": "(i * 0.5)::FLOAT",
    "DECIMAL(9,2)": "(i * 1.25)::DECIMAL(9,2)",
    "DECIMAL(15,2)": "(i * 1.25)::DECIMAL(15,2)",
    "DECIMAL(30,4)": "(i * 1000.0125)::DECIMAL(30,4)",
    "VARCHAR": "'it''s ' || i",
    "BLOB": "('b' || i)::BLOB",
    "BOOLEAN": "(i % 2 = 0)",
    "DATE": "DATE '2020-01-01' + i::INTEGER",
    "TIMESTAMP": "TIMESTAMP '2020-01-01 00:00:00' + to_days(i::INTEGER)",
    "INTERVAL": "to_days(i::INTEGER)",
    "INTEGER[]": "[i::INTEGER]",
}


def cases() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every function that splits, with the argument types that matter to it."""
    for name in [*_BY_RESULT, *sorted(_BY_STATE)]:
        if name == "count_star":
            yield name, ()
        elif name.startswith(("corr", "covar_", "regr_")):
            yield name, ("DOUBLE", "DOUBLE")
        elif name in BITS:
            yield from ((name, (type_,)) for type_ in ("INTEGER", "TINYINT", "UBIGINT", "HUGEINT"))
        elif name in BOOLS:
            yield name, ("BOOLEAN",)
        elif name in ANY:
            yield from ((name, (type_,)) for type_ in VALUES)
        elif name in COUNTS:
            yield from ((name, (type_,)) for type_ in ("DOUBLE", "VARCHAR", "INTEGER[]"))
        elif name in ("sum", "avg"):
            yield from ((name, (type_,)) for type_ in NUMBERS)
        else:
            yield name, ("DOUBLE",)


CASES = list(cases())
GROUPS = ("none", "some", "empty input")


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB, as the oracle too."""
    with duckdb.connect(config={"threads": 1}) as connection:
        yield connection


def toy_table(con: duckdb.DuckDBPyConnection, types: tuple[str, ...]) -> ToyTable:
    """Ten rows in three groups and a NULL group; group 2 has NULL arguments only."""
    values = ", ".join(
        f"CASE WHEN g IS DISTINCT FROM 2 AND i % 4 <> {n} THEN {VALUES[type_]} END"
        for n, type_ in enumerate(types)
    )
    rows = con.execute(
        f"SELECT g, i % 3 > 0{f', {values}' if values else ''} FROM "
        "(SELECT i, CASE WHEN i % 5 < 3 THEN (i % 5)::INTEGER END AS g FROM range(10) r(i))"
    ).fetchall()
    columns = [("g", "INTEGER"), ("f", "BOOLEAN"), *((f"a{n}", t) for n, t in enumerate(types))]
    return ToyTable("t", tuple(columns), tuple(rows), (), 3, 50_000_000)


def result_type(con: duckdb.DuckDBPyConnection, name: str, types: tuple[str, ...]) -> str:
    """What DuckDB gives for the aggregate."""
    arguments = ", ".join(f"CAST(NULL AS {type_})" for type_ in types)
    call = "count(*)" if name == "count_star" else f"{name}({arguments})"
    return str(con.sql(f"SELECT {call}").types[0])


@pytest.mark.sample(9)
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize(("name", "types"), CASES, ids=str)
def test_two_phases_give_the_answer_of_one(
    con: duckdb.DuckDBPyConnection, name: str, types: tuple[str, ...], groups: str
) -> None:
    """Partial then final is DuckDB's answer, with NULLs, FILTER, and groups without rows."""
    table = toy_table(con, types)
    type_ = result_type(con, name, types)
    arguments = tuple(ColumnRef(n + 2, t) for n, t in enumerate(types))
    calls = (
        AggregateCall(name=name, arguments=arguments, type=type_),
        AggregateCall(name=name, arguments=arguments, type=type_, filter=ColumnRef(1, "BOOLEAN")),
    )
    scan = make_plan(Scan("t", tuple(c for c, _ in table.columns), table.schema))
    if groups == "empty input":
        everything = tuple(range(len(table.columns)))
        scan = make_plan(Filter((Literal("false", "BOOLEAN"),), everything), scan)
    keys = (ColumnRef(0, "INTEGER"),) if groups == "some" else ()
    plan = make_plan(Aggregate(keys, calls), scan)
    cluster = ToyCluster(con, [table])
    physical = plan_physical(
        plan, cluster.catalog, PlannerOptions(partitions=2, gather_rows=0).in_stages()
    )
    assert ["FinalAggregate", "PartialAggregate"] == phases(physical)
    text = f"{'count' if name == 'count_star' else name}({star_or_columns(types)})"
    sql = f"SELECT {'g, ' if keys else ''}{text}, {text} FILTER (f) FROM t"
    sql += " WHERE false" if groups == "empty input" else ""
    sql += " GROUP BY g" if keys else ""
    assert as_bag(con.execute(sql).fetchall()) == as_bag(cluster.run_physical(physical))


@pytest.mark.sample(5)
@pytest.mark.parametrize("type_", VALUES)
def test_planned_aggregates_split_for_every_type(
    con: duckdb.DuckDBPyConnection, type_: str
) -> None:
    """What DuckDB makes of an aggregate over a type, casts included, splits and is right."""
    table = toy_table(con, (type_,))
    planning = PlanningDatabase()
    planning.put_table(table.catalog_table())
    numeric = type_ not in (
        "VARCHAR",
        "BLOB",
        "BOOLEAN",
        "INTEGER[]",
        "DATE",
        "TIMESTAMP",
        "INTERVAL",
    )
    more = ", sum(a0), avg(a0), stddev(a0), sum(a0) FILTER (f)" if numeric else ""
    sql = f"SELECT g, min(a0), max(a0), count(a0), count(*){more} FROM t GROUP BY g"
    plan = planning.plan(planning.bind(sql))
    planning.close()
    cluster = ToyCluster(con, [table])
    physical = plan_physical(
        plan, cluster.catalog, PlannerOptions(partitions=2, gather_rows=0).in_stages()
    )
    assert ["FinalAggregate", "PartialAggregate"] == phases(physical)
    assert as_bag(con.execute(sql).fetchall()) == as_bag(cluster.run_physical(physical))


def star_or_columns(types: tuple[str, ...]) -> str:
    """The arguments, or the star of count(*)."""
    return ", ".join(f"a{n}" for n in range(len(types))) or "*"


def phases(plan: PhysicalPlan) -> list[str]:
    """The phases of aggregation in a plan, from the top."""
    own = [type(plan.operator).__name__] if is_phase(plan) else []
    return own + [name for child in plan.children for name in phases(child)]


def is_phase(plan: PhysicalPlan) -> bool:
    """Whether a node is one of two phases."""
    return isinstance(plan.operator, PartialAggregate | FinalAggregate)


A = ColumnRef(0, "INTEGER")
PLAIN = AggregateCall(name="avg", arguments=(A,), type="DOUBLE")


@pytest.mark.parametrize(
    "call",
    [
        AggregateCall(name="sum", arguments=(A,), type="HUGEINT", distinct=True),
        AggregateCall(
            name="avg", arguments=(A,), type="DOUBLE", order_by=(SortKey(A, False, False),)
        ),
        AggregateCall(name="median", arguments=(A,), type="DOUBLE"),
        AggregateCall(name="mode", arguments=(A,), type="INTEGER"),
        AggregateCall(name="first", arguments=(A,), type="INTEGER"),
        AggregateCall(name="max", arguments=(A, Literal("2", "BIGINT", 2)), type="INTEGER[]"),
        AggregateCall(name="min", arguments=(A, Literal("2", "BIGINT", 2)), type="INTEGER[]"),
    ],
    ids=lambda call: call.name,
)
def test_what_does_not_combine_is_not_split(call: AggregateCall) -> None:
    """DISTINCT, ORDER BY, unknown functions and min or max of n values need all rows of a group."""
    assert can_split(Aggregate((), (PLAIN,)))
    assert not can_split(Aggregate((), (PLAIN, call)))


def test_states_over_grouping_sets_are_not_split() -> None:
    """DuckDB can't combine states over grouping sets; plain results it can."""
    counted = AggregateCall(name="count", arguments=(A,), type="BIGINT")
    assert can_split(Aggregate((A,), (counted,), ((0,), ())))
    assert not can_split(Aggregate((A,), (PLAIN,), ((0,), ())))


def test_state_export_stands_after_the_filter() -> None:
    """The one order that DuckDB parses."""
    call = AggregateCall(name="avg", arguments=(A,), type="DOUBLE", filter=ColumnRef(1, "BOOLEAN"))
    assert '"avg"(x) FILTER (WHERE f) EXPORT_STATE' == render_partial(call, ("x", "f"))


def test_final_phase_adds_counts_and_keeps_their_type() -> None:
    """A count of nothing is 0, and not NULL as a sum would be."""
    count = AggregateCall(name="count_star", arguments=(), type="BIGINT")
    assert "CAST(coalesce(sum(s), 0) AS BIGINT)" == render_final(count, "s")
    assert "max(s)" == render_final(AggregateCall(name="max", arguments=(A,), type="INTEGER"), "s")


def test_state_names_the_types_that_it_was_made_of() -> None:
    """DuckDB needs the function and its argument types to read a state."""
    call = AggregateCall(name="corr", arguments=(A, ColumnRef(1, "DECIMAL(15,2)")), type="DOUBLE")
    expected = "finalize(combine_aggr(to_aggregate_state(s, 'corr', ['INTEGER', 'DECIMAL(15,2)'])))"
    assert expected == render_final(call, "s")


def test_only_plain_results_have_a_type() -> None:
    """A state's type has no name in SQL."""
    assert Column("state0", "HUGEINT") == state_column(
        AggregateCall(name="sum", arguments=(A,), type="HUGEINT"), 0
    )
    assert Column("state3", "STATE") == state_column(PLAIN, 3)
