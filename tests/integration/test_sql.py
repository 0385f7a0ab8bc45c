"""Any SELECT answers as plain DuckDB does: names, types, rows, order."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from corpus import CORPUS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import divergences

from minishark.physical import planner
from minishark.session import Session

# What moving rows costs, to make the planner choose each way of it.
_COSTS: dict[str, dict[str, float]] = {
    "as planned": {},
    "shuffle": {"BROADCAST": 1e6},
    "broadcast": {"SHUFFLE": 1e9, "BROADCAST": 0.0, "BUILD": 0.0},
}


@pytest.fixture(
    scope="module",
    params=["as planned", "shuffle", pytest.param("broadcast", marks=pytest.mark.slow)],
)
def session(request: pytest.FixtureRequest, toy_session: Session) -> Iterator[Session]:
    """The toy session with one way of moving rows."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _COSTS[request.param].items():
            patch.setattr(planner._Costs, name, value)
        options = planner.PlannerOptions.eager(3)
        if request.param == "as planned":
            options = planner.PlannerOptions(3, single_task_rows=0)
        patch.setattr(toy_session._queries, "options", options)
        patch.setattr(toy_session._queries, "_plans", OrderedDict())
        yield toy_session


@pytest.mark.parametrize("feature", CORPUS)
def test_corpus(session: Session, plain: duckdb.DuckDBPyConnection, feature: str) -> None:
    """Every statement of the corpus, by feature, has DuckDB's answer however rows move."""
    found = {sql: divergences(session, plain, sql) for sql in CORPUS[feature]}
    assert {} == {sql: sentences for sql, sentences in found.items() if sentences}


def test_most_of_the_corpus_is_distributed(toy_session: Session) -> None:
    """At most a quarter of the statements runs as a whole in one task, so the rest is tested."""
    statements = list(itertools.chain.from_iterable(CORPUS.values()))
    whole = [s for s in statements if "Statement" in toy_session.sql(s).explain("logical")]
    assert len(whole) < len(statements) / 4


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(DISTINCT x) FROM t CROSS JOIN (SELECT random() AS x FROM one)",
        "SELECT count(DISTINCT x) FROM t CROSS JOIN (SELECT uuid() AS x)",
        "SELECT max(n) FROM (SELECT count(*) n FROM (SELECT id, random() AS x FROM t) GROUP BY x)",
        "SELECT count(DISTINCT x) - 5 FROM t JOIN (SELECT k, random() AS x FROM r) ON true",
        (
            "WITH x AS MATERIALIZED (SELECT k, random() AS y FROM r) "
            "SELECT count(*) - 5 FROM x a JOIN x b USING (k, y)"
        ),
    ],
)
def test_random_values_are_computed_once(session: Session, sql: str) -> None:
    """A random value is the same for every task that uses it, and differs from row to row."""
    assert [1] == [value for (value,) in session.sql(sql).collect()]


def test_time_goes_on(toy_session: Session) -> None:
    """The current time is that of each run, though plans are kept."""
    frame = toy_session.sql("SELECT now()::TIMESTAMP AS t, id FROM t ORDER BY id LIMIT 1")
    assert frame.collect()[0]["t"] < frame.collect()[0]["t"]


def test_rows_come_in_exactly_the_asked_order(toy_session: Session) -> None:
    """Where an ORDER BY decides everything, the rows stand in that very order."""
    rows = toy_session.sql("SELECT id FROM skew ORDER BY x DESC, id").to_arrow()
    expected = sorted(range(3000), key=lambda i: (-(i * 31 % 1009), i))
    assert expected == rows.column("id").to_pylist()


# Random tables and queries


@dataclass(frozen=True)
class TableShape:
    """A random table, made again from these few numbers."""

    rows: int
    null_share: float
    skewed: bool
    values: int
    seed: int
    partition_by: str | None
    partitions: int

    def make(self) -> pa.Table:
        """The rows."""
        rng = random.Random(self.seed)

        def value() -> int | None:
            if rng.random() < self.null_share:
                return None
            if self.skewed and rng.random() < 0.8:
                return 1
            return rng.randrange(self.values)

        numbers = [[value() for _ in range(6)] for _ in range(self.rows)]
        i, g, f, s, m, d = zip(*numbers, strict=True) if numbers else ((),) * 6
        day = dt.date(2024, 2, 20)
        return pa.table(
            {
                "n": pa.array(range(self.rows), pa.int64()),
                "i": pa.array(i, pa.int32()),
                "g": pa.array(g, pa.int64()),
                "f": pa.array([None if x is None else _ODD_FLOATS[x % 8] for x in f], pa.float64()),
                "s": pa.array([None if x is None else _ODD_TEXTS[x % 6] for x in s], pa.string()),
                "m": pa.array(
                    [None if x is None else Decimal(x * 7 - 9).scaleb(-2) for x in m],
                    pa.decimal128(9, 2),
                ),
                "d": pa.array([None if x is None else day + dt.timedelta(x) for x in d]),
            },
            schema=_SCHEMA,
        )


_ODD_FLOATS = (0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf"), -2.25, 1e300)
_ODD_TEXTS = ("", "a", "A", "é", "a'b", "zz")
_SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("i", pa.int32()),
        ("g", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("m", pa.decimal128(9, 2)),
        ("d", pa.date32()),
    ]
)
_SHAPES = st.builds(
    TableShape,
    rows=st.one_of(st.integers(0, 3), st.integers(0, 200)),
    null_share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    skewed=st.booleans(),
    values=st.sampled_from([1, 3, 20, 1000]),
    seed=st.integers(0, 1000),
    partition_by=st.sampled_from([None, "i", "g", "f", "s", "m", "d"]),
    partitions=st.sampled_from([1, 2, 3, 5]),
)
_PREDICATES = (
    "{a}.i > 2",
    "{a}.s <> 'a'",
    "{a}.f < 1.5 OR {a}.m IS NULL",
    "{a}.d >= DATE '2024-02-28'",
    "{a}.g IS NOT NULL",
    "{a}.i IN (1, 2, NULL)",
    "NOT ({a}.m > 0)",
    "{a}.g + {a}.i < 10",
    "{a}.s LIKE '%a%'",
    "{a}.i IN (SELECT g FROM b)",
    "{a}.g NOT IN (SELECT i FROM b)",
    "{a}.g NOT IN (SELECT i FROM b WHERE i IS NOT NULL)",
    "EXISTS (SELECT 1 FROM b z WHERE z.s = {a}.s AND z.n <> {a}.n)",
    "NOT EXISTS (SELECT 1 FROM b z WHERE z.i = {a}.i)",
    "{a}.i = (SELECT max(i) FROM b)",
    "{a}.g < (SELECT count(*) FROM b z WHERE z.i = {a}.i)",
)
_KEYS = (
    "x.i = y.i",
    "x.g = y.i",
    "x.s = y.s",
    "x.m = y.m",
    "x.f = y.f",
    "x.d = y.d AND x.i = y.i",
    "x.g IS NOT DISTINCT FROM y.g",
    "x.i = y.i AND x.n < y.n",
    "x.i < y.i AND x.n % 7 = 0",
)
_AGGREGATES = (
    "count(*)",
    "count({c})",
    "count(DISTINCT {c})",
    "min({c})",
    "max({c})",
    "sum({a}.i)",
    "sum({a}.m)",
    "avg({a}.g)",
    "avg({a}.m)",
    "sum({a}.g) FILTER (WHERE {a}.i > 1)",
    "stddev({a}.i)",
    "bool_or({a}.i > 3)",
    "list({a}.n ORDER BY {a}.n)",
)
_COLUMNS = ("i", "g", "f", "s", "m", "d")


@st.composite
def _queries(draw: st.DrawFn) -> str:
    """A statement with one right answer over tables a and b."""
    kind = draw(st.sampled_from(["", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]))
    source = f"a x {kind} b y ON {draw(st.sampled_from(_KEYS))}" if kind else "a x"
    sides = ("x", "y") if kind else ("x",)
    side = draw(st.sampled_from(sides))
    predicates = draw(st.lists(st.sampled_from(_PREDICATES), max_size=2))
    wanted = " AND ".join(f"({p.format(a=draw(st.sampled_from(sides)))})" for p in predicates)
    where = f" WHERE {wanted}" if wanted else ""
    keys = [
        f"{side}.{c}" for c in draw(st.lists(st.sampled_from(_COLUMNS), max_size=2, unique=True))
    ]
    match draw(st.sampled_from(["rows", "top", "distinct", "groups", "sets"])):
        case "rows":
            return f"SELECT {', '.join(f'{s}.*' for s in sides)} FROM {source}{where}"
        case "top":
            order = ", ".join(
                [*(f"{k} {draw(_DIRECTIONS)}" for k in keys), *(f"{s}.n" for s in sides)]
            )
            limit = draw(st.sampled_from([0, 1, 5, 50, 10_000]))
            columns = ", ".join(f"{s}.n, {s}.s" for s in sides)
            return (
                f"SELECT {columns} FROM {source}{where} ORDER BY {order} "
                f"LIMIT {limit} OFFSET {draw(st.sampled_from([0, 3]))}"
            )
        case "distinct":
            return f"SELECT DISTINCT {', '.join(keys or [f'{side}.s'])} FROM {source}{where}"
        case shape:
            calls = draw(st.lists(st.sampled_from(_AGGREGATES), min_size=1, max_size=3))
            column = f"{side}.{draw(st.sampled_from(_COLUMNS))}"
            items = [call.format(a=side, c=column) for call in calls]
            group = ""
            if keys:
                group = f" GROUP BY {'CUBE (' if shape == 'sets' else '('}{', '.join(keys)})"
            return f"SELECT {', '.join(keys + items)} FROM {source}{where}{group}"


_DIRECTIONS = st.sampled_from(["", "DESC", "NULLS FIRST", "DESC NULLS LAST"])


_GIVEN = {
    "shapes": st.tuples(_SHAPES, _SHAPES),
    "queries": st.lists(_queries(), min_size=4, max_size=8),
}
_QUICK = settings(max_examples=10, deadline=None, derandomize=True, database=None)
_THOROUGH = settings(_QUICK, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


@_QUICK
@given(**_GIVEN)
def test_random_queries(
    session: Session, shapes: tuple[TableShape, TableShape], queries: list[str]
) -> None:
    """Random queries over random tables have DuckDB's answer."""
    _check_queries(session, shapes, queries)


@pytest.mark.slow
@pytest.mark.timeout(900)
@_THOROUGH
@given(**_GIVEN)
def test_many_random_queries(
    session: Session, shapes: tuple[TableShape, TableShape], queries: list[str]
) -> None:
    """The same with many more examples."""
    _check_queries(session, shapes, queries)


def _check_queries(
    session: Session, shapes: tuple[TableShape, TableShape], queries: list[str]
) -> None:
    with duckdb.connect() as judge:
        for name, shape in zip("ab", shapes, strict=True):
            rows = shape.make()
            judge.register(f"{name}_rows", rows)
            judge.execute(f"CREATE TABLE {name} AS FROM {name}_rows")
            session.create_table(
                name,
                rows,
                partition_by=shape.partition_by,
                partitions=shape.partitions,
                replace=True,
            )
        for query in queries:
            assert (query, []) == (query, divergences(session, judge, query))
