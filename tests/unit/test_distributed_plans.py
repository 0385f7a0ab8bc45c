"""Physical plans over partitioned toy data give DuckDB's answer on the whole data.

Sizes that the planner believes in are made up, so that every kind of exchange gets its turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import duckdb
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from toy_cluster import Row, ToyCluster, ToyTable, as_bag, rounded

from minishark.compiler.logical.operators import (
    Aggregate,
    Distinct,
    Join,
    JoinCondition,
    JoinKind,
    Scan,
)
from minishark.compiler.logical.plan import LogicalPlan, make_plan
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.rules.eager_aggregation import EAGER_AGGREGATION
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.model.expressions import Column, ColumnRef, Infix

COLUMNS = {
    "t": (
        ("a", "INTEGER"),
        ("b", "INTEGER"),
        ("s", "VARCHAR"),
        ("x", "DOUBLE"),
        ("d", "DECIMAL(17,2)"),
    ),
    "u": (
        ("a", "INTEGER"),
        ("c", "INTEGER"),
        ("s", "VARCHAR"),
        ("x", "DOUBLE"),
        ("e", "DECIMAL(18,2)"),
    ),
    "w": (("a", "INTEGER"), ("k", "INTEGER")),
}
KEYS: dict[str, list[tuple[str, ...]]] = {
    "t": [(), ("a",), ("b",), ("a", "b"), ("s",)],
    "u": [(), ("a",), ("c",), ("c", "a"), ("x",)],
    "w": [(), ("a",), ("k",)],
}
SMALL, MIDDLE, LARGE = 10, 60_000, 50_000_000
VALUES = {
    "INTEGER": st.none() | st.integers(0, 3),
    "VARCHAR": st.none() | st.sampled_from(["", "p", "q"]),
    "DOUBLE": st.none() | st.sampled_from([0.0, -0.0, 1.5, float("nan")]),
    "DECIMAL(17,2)": st.none() | st.sampled_from([Decimal(0), Decimal("1.50"), Decimal(3)]),
    "DECIMAL(18,2)": st.none() | st.sampled_from([Decimal(0), Decimal("3.00"), Decimal(6)]),
}

QUERIES = {
    "group": "SELECT a, count(*), count(b), sum(b), avg(x), min(s) FROM t GROUP BY a",
    "group by all": "SELECT a, b, s FROM t GROUP BY ALL",
    "group by expression": "SELECT a + b AS k, count(*) FROM t GROUP BY k",
    "no groups": "SELECT count(*), sum(a), avg(b), max(x), stddev(b) FROM t",
    "no rows": "SELECT count(*), sum(a), avg(b), bool_or(b > 1) FROM t WHERE a > 99",
    "filter clause": "SELECT a, count(*) FILTER (b > 1), avg(d) FILTER (b > 1) FROM t GROUP BY a",
    "group of group": """SELECT a, max(n) FROM (SELECT a, b, count(*) n
        FROM t GROUP BY a, b) GROUP BY a""",
    "coarser group": """SELECT b, sum(n) FROM (SELECT a, b, count(*) n
        FROM t GROUP BY a, b) GROUP BY b""",
    "having": "SELECT a, sum(b) FROM t GROUP BY a HAVING sum(b) > (SELECT avg(c) FROM u)",
    "top values": "SELECT a, max(b, 2) FROM t GROUP BY a",
    "top value of all": "SELECT max(b, 2), min(b, 1) FROM t",
    "no split": "SELECT a, median(b), string_agg(s, ',' ORDER BY s) FROM t GROUP BY a",
    "distinct aggregate": "SELECT a, count(DISTINCT b), sum(DISTINCT b) FROM t GROUP BY a",
    "distinct alone": "SELECT count(DISTINCT b) FROM t",
    "top values and distinct": "SELECT max(b, 2), count(DISTINCT b) FROM (SELECT b FROM t)",
    "two distinct": "SELECT count(DISTINCT b), count(DISTINCT s), max(a) FROM t",
    "rollup": "SELECT a, b, grouping(a, b), count(*) FROM t GROUP BY ROLLUP (a, b)",
    "cube": "SELECT a, s, avg(x) FROM t GROUP BY CUBE (a, s)",
    "sets": "SELECT a, b, count(DISTINCT s) FROM t GROUP BY GROUPING SETS ((a), (b), ())",
    "distinct": "SELECT DISTINCT s, x FROM t",
    "distinct expression": "SELECT DISTINCT a + b FROM t",
    "distinct join": "SELECT DISTINCT t.a FROM t JOIN u ON t.a = u.c",
    "inner": "SELECT t.a, t.b, u.c FROM t JOIN u ON t.a = u.a",
    "inner two keys": "SELECT t.s, u.s FROM t JOIN u ON t.a = u.a AND t.b = u.c",
    "inner float": "SELECT t.b, u.c FROM t JOIN u ON t.x = u.x",
    "inner residual": "SELECT t.b, u.c FROM t JOIN u ON t.a = u.a AND t.b + u.c > 2",
    "inner expression": "SELECT t.b, u.c FROM t JOIN u ON t.a + 1 = u.c",
    "inner wider decimal": "SELECT t.b, u.c FROM t JOIN u ON t.d + t.d = u.e",
    "inner null safe": "SELECT t.b, u.c FROM t JOIN u ON t.a IS NOT DISTINCT FROM u.a",
    "three": "SELECT t.s, sum(w.k) FROM t JOIN u ON t.a = u.a JOIN w ON u.a = w.a GROUP BY t.s",
    "three, grouped on key": """SELECT w.a, count(*) FROM t JOIN u ON t.a + 1 = u.c
        JOIN w ON w.a = u.c GROUP BY w.a""",
    "left": "SELECT t.a, t.b, u.c FROM t LEFT JOIN u ON t.a = u.a",
    "left, grouped left": """SELECT t.a, count(*), count(u.c) FROM t
        LEFT JOIN u ON t.a = u.a GROUP BY t.a""",
    "left, grouped right": "SELECT u.a, count(*) FROM t LEFT JOIN u ON t.a = u.a GROUP BY u.a",
    "left, left": "SELECT t.b, w.k FROM t LEFT JOIN u ON t.a = u.a LEFT JOIN w ON u.a = w.a",
    "right, grouped": """SELECT u.a, count(*), count(t.b) FROM t
        RIGHT JOIN u ON t.a = u.a GROUP BY u.a""",
    "left, counted by the other side": """SELECT t.b, count(u.c), sum(u.c + 1), max(u.s) FROM t
        LEFT JOIN u ON t.a = u.a GROUP BY t.b""",
    "right, counted by the other side": """SELECT u.s, u.c, min(t.d), count(t.s), sum(t.b) FROM t
        RIGHT JOIN u ON t.a = u.a GROUP BY u.s, u.c""",
    "inner, counted by the other side": """SELECT t.s, count(*), sum(u.c), bool_or(u.c > 1) FROM t
        JOIN u ON t.a = u.a AND t.b = u.c GROUP BY t.s""",
    "left, rows counted by the other side": """SELECT t.b, count(*), sum(u.c) FROM t
        LEFT JOIN u ON t.a = u.a GROUP BY t.b""",
    "left, constants counted": """SELECT t.b, count(1), sum(2), count(coalesce(u.c, 1)),
        sum(CASE WHEN u.c IS NULL THEN 1 ELSE 0 END)
        FROM t LEFT JOIN u ON t.a = u.a GROUP BY t.b""",
    "cross, counted": """SELECT t.b, count(*), sum(u.c) FROM t
        CROSS JOIN (SELECT c FROM u WHERE a % 7 > 8) u GROUP BY t.b""",
    "inner, with what is dropped": """SELECT t.b, sum(1 / (u.c - 3)) FROM t
        JOIN u ON t.a = u.a AND u.c <> 3 GROUP BY t.b""",
    "right, grouped left": "SELECT t.a, count(*) FROM t RIGHT JOIN u ON t.a = u.a GROUP BY t.a",
    "full": "SELECT t.b, u.c FROM t FULL JOIN u ON t.a = u.a",
    "full, grouped": """SELECT x.a, count(*) FROM (SELECT t.a FROM t
        FULL JOIN u ON t.a = u.a) x GROUP BY x.a""",
    "full, grouped right": """SELECT a, count(*) FROM (SELECT u.a FROM t
        FULL JOIN u ON t.a = u.a) GROUP BY a""",
    "no keys": "SELECT t.b, u.c FROM t JOIN u ON t.a < u.a",
    "left, no keys": "SELECT count(*) FROM t LEFT JOIN u ON t.a < u.a AND t.b > u.c",
    "cross": "SELECT count(*), sum(t.a) FROM t, u",
    "exists": "SELECT a, b FROM t WHERE EXISTS (FROM u WHERE u.a = t.a AND u.c < t.b)",
    "not exists": "SELECT a, b FROM t WHERE NOT EXISTS (FROM u WHERE u.a = t.a)",
    "in": "SELECT a, b FROM t WHERE b IN (SELECT c FROM u)",
    "not in": "SELECT a, b FROM t WHERE b NOT IN (SELECT c FROM u)",
    "in as a value": "SELECT b, b IN (SELECT c FROM u WHERE u.a = t.a) FROM t",
    "in, or": "SELECT a FROM t WHERE a IN (SELECT c FROM u) OR b = 1",
    "greater than all": "SELECT a FROM t WHERE a > ALL (SELECT c FROM u)",
    "in a list": "SELECT a, b FROM t WHERE a IN (0, 1, 3) AND s NOT IN ('p')",
    "semi": "SELECT t.a, count(*) FROM t SEMI JOIN u ON t.a = u.a AND t.b = u.c GROUP BY 1",
    "anti": "SELECT u.a, count(*) FROM u ANTI JOIN t ON t.a = u.a GROUP BY 1",
    "scalar": "SELECT a, (SELECT max(c) FROM u WHERE u.a = t.a) FROM t",
    "scalar of all": "SELECT a, (SELECT max(c) FROM u) FROM t",
    "scalar condition": "SELECT a FROM t WHERE b = (SELECT min(c) FROM u WHERE u.a = t.a)",
    "count of none": "SELECT a, b FROM t WHERE (SELECT count(*) FROM u WHERE u.a = t.a) = 0",
    "values": "SELECT t.a, v.c FROM t, (VALUES (1, 2), (3, 4)) v(b, c) WHERE t.b = v.b",
    "limit inside": "SELECT count(*) FROM (SELECT a FROM t LIMIT 3)",
    "offset inside": "SELECT count(*) FROM (SELECT a FROM t LIMIT 3 OFFSET 2)",
    "offset alone": "SELECT count(*) FROM (SELECT a FROM t OFFSET 2)",
    "top inside": "SELECT z.a, u.c FROM (SELECT a FROM t ORDER BY a LIMIT 4) z JOIN u ON z.a = u.a",
    "cte twice": """WITH q AS MATERIALIZED (SELECT a, count(*) AS n FROM t GROUP BY a)
        SELECT x.a, y.n FROM q x JOIN q y ON x.n = y.a""",
    "cte in place": """WITH q AS MATERIALIZED (SELECT a, b FROM t)
        SELECT q.a, w.k FROM q JOIN w ON q.a = w.a WHERE q.b > (SELECT avg(b) FROM q)""",
    "cte of cte": """WITH q AS MATERIALIZED (SELECT a, b FROM t WHERE b > 0),
        r AS MATERIALIZED (SELECT a, count(*) AS n FROM q GROUP BY a)
        SELECT q.a, r.n, s.n FROM q JOIN r ON q.a = r.a JOIN r s ON s.n = q.b""",
    "cte limited": """WITH q AS MATERIALIZED (SELECT a FROM w ORDER BY a LIMIT 2)
        SELECT x.a, y.a FROM q x, q y""",
    "whole statement": "SELECT a, sum(b) OVER (ORDER BY b RANGE 1 PRECEDING) FROM t",
    "window": "SELECT a, rank() OVER (PARTITION BY a ORDER BY b) FROM t",
    "window of all": "SELECT b, sum(b) OVER (ORDER BY b, a RANGE UNBOUNDED PRECEDING) FROM t",
    "windows": """SELECT a, b, count(*) OVER (PARTITION BY a, b), max(d) OVER (PARTITION BY b)
        FROM t""",
    "windows with no key shared": """SELECT count(*) OVER (PARTITION BY a),
        count(*) OVER (PARTITION BY b) FROM t""",
    "window, then group": """SELECT a, max(n), count(*) FROM
        (SELECT a, count(*) OVER (PARTITION BY a, s) AS n FROM t) GROUP BY a""",
    "window over a join": """SELECT u.a, count(*) OVER (PARTITION BY u.a) FROM t
        LEFT JOIN u ON t.a = u.a""",
    "distinct on": """SELECT DISTINCT ON (a) a, b, s FROM t
        ORDER BY a, b, s, x, d""",
    "distinct on, then group": """SELECT b, count(*) FROM
        (SELECT DISTINCT ON (a, b) a, b FROM t) GROUP BY b""",
    "union all": "SELECT a, b FROM t UNION ALL SELECT a, c FROM u",
    "union": "SELECT a, b FROM t UNION SELECT a, c FROM u",
    "union of three": "SELECT a FROM t UNION ALL SELECT a FROM u UNION ALL SELECT k FROM w",
    "union all, then group": """SELECT a, count(*) FROM
        (SELECT a, b FROM t UNION ALL SELECT a, c FROM u) GROUP BY a""",
    "union all, then join": """SELECT x.a, w.k FROM
        (SELECT a, b FROM t UNION ALL SELECT a, c FROM u) x JOIN w ON x.a = w.a""",
    "union all with values": "SELECT a FROM t UNION ALL VALUES (7), (8)",
    "union all with a value": "SELECT a FROM t UNION ALL SELECT max(c) FROM u",
    "intersect": "SELECT a, b FROM t INTERSECT SELECT a, c FROM u",
    "intersect all": "SELECT a FROM t INTERSECT ALL SELECT a FROM u",
    "except": "SELECT a, s FROM t EXCEPT SELECT a, s FROM u",
    "except all": "SELECT a FROM t EXCEPT ALL SELECT a FROM u",
    "except, then group": """SELECT a, count(*) FROM
        (SELECT a, b FROM t EXCEPT SELECT a, c FROM u) GROUP BY a""",
    "unnest": "SELECT a, unnest([b, a, NULL]) FROM t",
    "unnest, then group": "SELECT v, count(*) FROM (SELECT unnest([a, b]) AS v FROM t) GROUP BY v",
    "unnest, grouped on key": """SELECT a, count(*) FROM
        (SELECT a, unnest([b, b, 3]) FROM t WHERE b > 0) GROUP BY a""",
    "no table": "SELECT 1 + 1, 'x'",
}
ORDERED = {
    "sort": "SELECT a, b, s FROM t ORDER BY a DESC NULLS LAST, b, s NULLS FIRST",
    "top": "SELECT a, b, s FROM t ORDER BY b, a DESC, s LIMIT 3",
    "top, offset": "SELECT a, b, s FROM t ORDER BY b, a DESC, s LIMIT 2 OFFSET 1",
    "top groups": "SELECT b, count(*) AS n FROM t GROUP BY b ORDER BY n DESC, b LIMIT 2 OFFSET 1",
    "sorted, offset": "SELECT a, b, s FROM t ORDER BY a, b, s OFFSET 2",
    "sorted by hidden": "SELECT a FROM t ORDER BY b, a, s",
    "nothing": "SELECT a, b FROM t ORDER BY a, b LIMIT 0",
}


@st.composite
def toy_tables(draw: st.DrawFn) -> tuple[ToyTable, ...]:
    """Three tables, each partitioned in some way or another."""
    found = []
    for name, columns in COLUMNS.items():
        rows = draw(st.lists(st.tuples(*(VALUES[type_] for _, type_ in columns)), max_size=7))
        partitions = draw(st.integers(1, 4))
        keys = draw(st.sampled_from(KEYS[name])) if partitions > 1 else ()
        believed = draw(st.sampled_from([SMALL, MIDDLE, LARGE]))
        found.append(ToyTable(name, columns, tuple(rows), keys, partitions, believed))
    return tuple(found)


planner_options = st.builds(
    PlannerOptions,
    partitions=st.integers(1, 4),
    single_task_rows=st.sampled_from([0, 0, 0, 10**12]),
    disabled=st.sampled_from([frozenset(["one_task"]), frozenset(["one_task"]), frozenset()]),
    gather_rows=st.sampled_from([0, 50_000]),
    read_whole_rows=st.sampled_from([0, 20_000]),
    stage_cost=st.sampled_from([0.0, 100_000.0]),
    rules=st.sampled_from(
        [{}, {"eager_aggregation": EAGER_AGGREGATION.everywhere}],
    ),
)
check = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(scope="module")
def planning() -> Iterator[PlanningDatabase]:
    """A planning database that knows the toy tables."""
    database = PlanningDatabase()
    for name, columns in COLUMNS.items():
        database.put_table(ToyTable(name, columns, ()).catalog_table())
    yield database
    database.close()


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """The oracle, which runs the fragments too."""
    with duckdb.connect(config={"threads": 1}) as connection:
        yield connection


def planned(planning: PlanningDatabase, sql: str) -> LogicalPlan:
    """The logical plan of a query."""
    return planning.plan(planning.bind(sql))


@check
@given(name=st.sampled_from(list(QUERIES)), tables=toy_tables(), options=planner_options)
def test_distributed_answer_is_duckdbs(
    planning: PlanningDatabase,
    con: duckdb.DuckDBPyConnection,
    name: str,
    tables: tuple[ToyTable, ...],
    options: PlannerOptions,
) -> None:
    """However tables are partitioned and however large they seem, the rows are DuckDB's."""
    cluster = ToyCluster(con, tables)
    expected = as_bag(con.execute(QUERIES[name]).fetchall())
    assert expected == as_bag(cluster.run(planned(planning, QUERIES[name]), options))


ONE_FULL_PARTITION = (
    ToyTable("t", COLUMNS["t"], tuple((1, i, "p", 0.0, None) for i in range(5)), ("a",), 3, LARGE),
    ToyTable("u", COLUMNS["u"], ()),
    ToyTable("w", COLUMNS["w"], ()),
)


@settings(check, max_examples=settings.default.max_examples // 3)
@given(name=st.sampled_from(list(ORDERED)), tables=toy_tables(), options=planner_options)
@example(
    name=next(iter(ORDERED)),
    tables=ONE_FULL_PARTITION,
    options=PlannerOptions(partitions=2, gather_rows=0).in_stages(),
)
def test_distributed_answer_keeps_its_order(
    planning: PlanningDatabase,
    con: duckdb.DuckDBPyConnection,
    name: str,
    tables: tuple[ToyTable, ...],
    options: PlannerOptions,
) -> None:
    """An answer that is ordered totally comes in that order."""
    cluster = ToyCluster(con, tables)
    expected = [rounded(row) for row in con.execute(ORDERED[name]).fetchall()]
    found = cluster.run(planned(planning, ORDERED[name]), options)
    assert expected == [rounded(row) for row in found]


# Joins of every kind, made by hand: DuckDB's optimizer would choose their direction.

JOIN_SQL = {
    JoinKind.INNER: "SELECT t.*, u.* FROM t JOIN u ON {on}",
    JoinKind.LEFT: "SELECT t.*, u.* FROM t LEFT JOIN u ON {on}",
    JoinKind.RIGHT: "SELECT t.*, u.* FROM t RIGHT JOIN u ON {on}",
    JoinKind.FULL: "SELECT t.*, u.* FROM t FULL JOIN u ON {on}",
    JoinKind.SEMI: "SELECT t.* FROM t WHERE EXISTS (SELECT 1 FROM u WHERE {on})",
    JoinKind.ANTI: "SELECT t.* FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE {on})",
    JoinKind.RIGHT_SEMI: "SELECT u.* FROM u WHERE EXISTS (SELECT 1 FROM t WHERE {on})",
    JoinKind.RIGHT_ANTI: "SELECT u.* FROM u WHERE NOT EXISTS (SELECT 1 FROM t WHERE {on})",
    JoinKind.MARK: "SELECT t.*, {mark} FROM t",
    JoinKind.SINGLE: "SELECT t.*, u.* FROM t LEFT JOIN u ON {on}",
}
JOIN_COLUMNS = (("a", "INTEGER"), ("b", "INTEGER"))
RIGHT_COLUMNS = (("a", "INTEGER"), ("c", "INTEGER"))
CONDITIONS = {
    "equal": ("=",),
    "null safe": ("IS NOT DISTINCT FROM",),
    "two keys": ("=", "="),
    "mixed": ("=", "IS NOT DISTINCT FROM"),
    "less": ("<",),
}
join_rows = st.lists(st.tuples(VALUES["INTEGER"], VALUES["INTEGER"]), max_size=8)


def join_plan(kind: JoinKind, comparisons: tuple[str, ...], residual: bool) -> LogicalPlan:
    """A join of t and u on their first columns, then on their second ones."""
    left, right = (
        make_plan(
            Scan(name, tuple(c for c, _ in columns), tuple(Column(*column) for column in columns))
        )
        for name, columns in (("t", JOIN_COLUMNS), ("u", RIGHT_COLUMNS))
    )
    conditions = tuple(
        JoinCondition(ColumnRef(i, "INTEGER"), comparison, ColumnRef(i, "INTEGER"))
        for i, comparison in enumerate(comparisons)
    )
    rest = Infix("<=", (ColumnRef(1, "INTEGER"), ColumnRef(3, "INTEGER")), "BOOLEAN")
    both = (0, 1)
    return make_plan(Join(kind, conditions, (rest,) if residual else (), both, both), left, right)


def join_sql(kind: JoinKind, comparisons: tuple[str, ...], residual: bool) -> str:
    """The same as SQL, written independently."""
    pairs = [("t.a", "u.a"), ("t.b", "u.c")]
    terms = [f"{a} {op} {b}" for (a, b), op in zip(pairs, comparisons, strict=False)]
    terms += ["t.b <= u.c"] if residual else []
    rest = " AND ".join(terms[1:]) or "true"
    mark = f"t.a IN (SELECT u.a FROM u WHERE {rest})"
    if "=" not in comparisons[0]:
        mark = f"EXISTS (SELECT 1 FROM u WHERE {' AND '.join(terms)})"
    return JOIN_SQL[kind].format(on=" AND ".join(terms), mark=mark)


def join_cases() -> Iterator[tuple[JoinKind, str]]:
    """Each kind with each condition that DuckDB has for it."""
    for kind in JoinKind:
        for condition in CONDITIONS:
            # DuckDB has no FULL join without a key, and a mark's deciding comparison is one.
            if condition == "less" and kind in (JoinKind.FULL, JoinKind.MARK):
                continue
            if kind is JoinKind.MARK and condition == "two keys":
                continue
            yield kind, condition


@pytest.mark.sample(12)
@pytest.mark.parametrize(("kind", "condition"), list(join_cases()))
@settings(check, max_examples=max(1, settings.default.max_examples // 20))
@given(
    left=join_rows,
    right=join_rows,
    layout=st.tuples(st.integers(1, 4), st.integers(1, 4), st.booleans()),
    keys=st.tuples(st.sampled_from(["", "a", "b", "ab"]), st.sampled_from(["", "a", "c", "ac"])),
    believed=st.tuples(*[st.sampled_from([SMALL, MIDDLE, LARGE])] * 2),
    options=planner_options,
    above=st.sampled_from(["", "distinct", "group first", "group last"]),
    residual=st.booleans(),
)
@example(
    left=[(1, 1), (None, 2), (2, None)],
    right=[(1, 1), (None, 3), (3, 1)],
    layout=(3, 3, True),
    keys=("a", "a"),
    believed=(LARGE, LARGE),
    options=PlannerOptions(partitions=3, gather_rows=0).in_stages(),
    above="group last",
    residual=False,
)
@example(
    left=[(1, 1), (1, 1), (None, 2), (2, None)],
    right=[(1, 1), (None, 3), (3, 1)],
    layout=(2, 4, False),
    keys=("", ""),
    believed=(LARGE, LARGE),
    options=PlannerOptions(partitions=3, gather_rows=0).in_stages(),
    above="group first",
    residual=True,
)
@example(
    left=[(i, 1) for i in range(8)],
    right=[(None, 3), (3, 3)],
    layout=(4, 4, True),
    keys=("a", "a"),
    believed=(LARGE, LARGE),
    options=PlannerOptions(partitions=4, gather_rows=0).in_stages(),
    above="",
    residual=False,
)
def test_join_of_every_kind_is_sound(
    con: duckdb.DuckDBPyConnection,
    kind: JoinKind,
    condition: str,
    left: list[Row],
    right: list[Row],
    layout: tuple[int, int, bool],
    keys: tuple[str, str],
    believed: tuple[int, int],
    options: PlannerOptions,
    above: str,
    residual: bool,
) -> None:
    """A join gives DuckDB's rows for each distribution of its inputs, and so does a group of it."""
    comparisons = CONDITIONS[condition]
    if kind is JoinKind.SINGLE:  # at most one partner
        right = list(
            {row[0]: row for row in right if row[0] is not None or condition != "mixed"}.values()
        )
        right = right[:1] if condition == "less" else right
    partitions = (layout[0], layout[0] if layout[2] else layout[1])
    tables = tuple(
        ToyTable(name, columns, tuple(rows), tuple(key) if count > 1 else (), count, size)
        for name, columns, rows, key, count, size in (
            ("t", JOIN_COLUMNS, left, keys[0], partitions[0], believed[0]),
            ("u", RIGHT_COLUMNS, right, keys[1], partitions[1], believed[1]),
        )
    )
    plan, sql = with_above(
        join_plan(kind, comparisons, residual), join_sql(kind, comparisons, residual), above
    )
    cluster = ToyCluster(con, tables)
    assert as_bag(con.execute(sql).fetchall()) == as_bag(cluster.run(plan, options))


def with_above(plan: LogicalPlan, sql: str, above: str) -> tuple[LogicalPlan, str]:
    """An operator that relies on where the join says that its rows lie."""
    width = len(plan.schema)
    names = ", ".join(f"c{i}" for i in range(width))
    inner = f"({sql}) AS j({names})"
    match above:
        case "distinct":
            return make_plan(Distinct(), plan), f"SELECT DISTINCT * FROM {inner}"
        case "group first" | "group last":
            key = 0 if above == "group first" else width - 1 - width % 2
            group = (ColumnRef(key, plan.schema[key].type),)
            return make_plan(Aggregate(group, ()), plan), f"SELECT c{key} FROM {inner} GROUP BY 1"
        case _:
            return plan, sql
