"""Hypothesis strategies for tables and for queries over them that have one right answer.

A table is described by a few numbers, so that a failing case is small to print and to shrink: its
rows are drawn from pools of SQL constants with the values at the limits of each type. Queries name
two tables, `a` and `b`, with the same columns; what leaves a choice in SQL (ties, unordered lists,
sums of floats) is not generated.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

POOLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "k": ("INTEGER", ("0", "1", "2", "3", "5", "-1")),
    "i": ("BIGINT", ("0", "1", "2", "-7", "9223372036854775807", "-9223372036854775808")),
    "t": ("TINYINT", ("0", "1", "127", "-128")),
    "q": ("UBIGINT", ("0", "1", "18446744073709551615")),
    "h": (
        "HUGEINT",
        (
            "0",
            "2",
            "170141183460469231731687303715884105727",
            "-170141183460469231731687303715884105728",
        ),
    ),
    "f": ("DOUBLE", ("0", "-0.0", "1.5", "-2.25", "'nan'", "'inf'", "'-inf'", "1e300", "5e-324")),
    "r": ("FLOAT", ("0", "1.5", "'nan'", "'inf'", "3.4e38")),
    "m": ("DECIMAL(9,2)", ("0", "0.07", "-3.50", "12.25", "9999999.99", "-9999999.99")),
    "w": ("DECIMAL(38,10)", ("0", "1.5", "9999999999999999999999999999.9999999999", "-1e-10")),
    "s": ("VARCHAR", ("''", "'a'", "'A'", "'é'", "'a''b'", "'zz'", "'🦆 duck'", "'a%b_'")),
    "b": ("BOOLEAN", ("true", "false")),
    "d": ("DATE", ("'2024-02-29'", "'1969-12-31'", "'5877642-06-25 (BC)'", "'infinity'")),
    "ts": (
        "TIMESTAMP",
        ("'2024-02-29 12:00:00.000001'", "'1969-12-31 23:59:59'", "'infinity'", "'-infinity'"),
    ),
    "tz": ("TIMESTAMPTZ", ("'2024-02-29 12:00:00+00'", "'1969-12-31 23:59:59+05'")),
    "v": ("INTERVAL", ("'1 month'", "'30 days'", "'720 hours'", "'-1 second'")),
    "x": ("BLOB", ("''", "'\\x00a'", "'ab'")),
    "u": (
        "UUID",
        ("'00000000-0000-0000-0000-000000000001'", "'ffffffff-0000-0000-0000-000000000000'"),
    ),
    "l": ("INTEGER[]", ("[]", "[1]", "[1, NULL, 2]", "[3, 3]")),
    "o": ("STRUCT(p INTEGER, q VARCHAR)", ("{'p': 1, 'q': 'x'}", "{'p': NULL, 'q': ''}")),
}
"""Type and values of each column; every table has besides `n`, the number of the row."""

# Intervals of one length can look different, so that a group of them has no one name.
_SCALARS = tuple(name for name in POOLS if name not in ("l", "o", "v"))
_SUMMED = ("k", "m", "t")


@dataclass(frozen=True)
class TableShape:
    """A random table, made again from these few numbers.

    Attributes:
        rows: how many.
        null_share: what share of all values is NULL.
        skewed: whether four of five values are the first of their pool.
        seed: of the values.
        partition_by: a column, or None.
        partitions: of the table in the cluster.
    """

    rows: int
    null_share: float
    skewed: bool
    seed: int
    partition_by: str | None
    partitions: int

    def create(self, name: str) -> list[str]:
        """The statements that make the table in DuckDB."""
        columns = ", ".join(f"{column} {type_}" for column, (type_, _) in POOLS.items())
        rng = random.Random(self.seed)
        rows = ", ".join(
            f"({number}, {', '.join(self._value(rng, pool) for _, pool in POOLS.values())})"
            for number in range(self.rows)
        )
        made = f"CREATE OR REPLACE TABLE {name} (n INTEGER, {columns})"
        return [made, f"INSERT INTO {name} VALUES {rows}"] if rows else [made]

    def _value(self, rng: random.Random, pool: Sequence[str]) -> str:
        if rng.random() < self.null_share:
            return "NULL"
        return pool[0] if self.skewed and rng.random() < 0.8 else rng.choice(pool)


shapes = st.builds(
    TableShape,
    rows=st.one_of(st.integers(0, 3), st.integers(4, 60)),
    null_share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    skewed=st.booleans(),
    seed=st.integers(0, 1000),
    partition_by=st.sampled_from([None, "n", "k", "i", "f", "s", "w", "d", "ts"]),
    partitions=st.sampled_from([1, 2, 3, 7]),
)

_PREDICATES = (
    "{x}.k > 1",
    "{x}.s <> 'a'",
    "{x}.f < 1.5 OR {x}.m IS NULL",
    "{x}.d >= DATE '2024-02-29'",
    "{x}.ts < TIMESTAMP '2000-01-01'",
    "{x}.i IS NOT NULL",
    "{x}.k IN (1, 2, NULL)",
    "{x}.k NOT IN (1, 2)",
    "NOT ({x}.m > 0)",
    "{x}.h > 0 AND {x}.q > 0",
    "{x}.s LIKE '%a%'",
    "{x}.f = 'nan'::DOUBLE",
    "{x}.k BETWEEN 0 AND 2",
    "length({x}.s) + {x}.k < 3",
    "CASE WHEN {x}.b THEN {x}.k ELSE {x}.t END > 0",
    "coalesce({x}.k, {x}.t, 7) <> 7",
    "{x}.l[1] = 1",
    "{x}.o.p = 1",
    "list_contains({x}.l, 3)",
    "{x}.k IN (SELECT t FROM b)",
    "{x}.k NOT IN (SELECT k FROM b)",
    "{x}.k NOT IN (SELECT k FROM b WHERE k IS NOT NULL)",
    "{x}.k > ALL (SELECT k FROM b WHERE k < 2)",
    "{x}.k < ANY (SELECT k FROM b)",
    "EXISTS (SELECT 1 FROM b z WHERE z.s = {x}.s AND z.n <> {x}.n)",
    "NOT EXISTS (SELECT 1 FROM b z WHERE z.k = {x}.k)",
    "{x}.k = (SELECT max(k) FROM b)",
    "{x}.m < (SELECT avg(m) FROM b z WHERE z.k = {x}.k)",
    "{x}.k < (SELECT count(*) FROM b z WHERE z.k = {x}.k)",
    "({x}.k, {x}.s) IN (SELECT k, s FROM b)",
)
_CONDITIONS = (
    *(f"x.{c} = y.{c}" for c in _SCALARS),
    "x.k IS NOT DISTINCT FROM y.k",
    "x.s IS NOT DISTINCT FROM y.s AND x.k = y.t",
    "x.k = y.k AND x.n < y.n",
    "x.k = y.t AND x.s = y.s",
    "x.k < y.k AND x.n % 7 = 0",
    "x.f = y.f AND x.m >= y.m",
    "x.v = y.v",
    "x.l = y.l",
    "x.o = y.o",
    "x.k = y.k OR x.s = y.s",
    "x.n BETWEEN y.n AND y.n + 1",
)
_AGGREGATES = (
    "count(*)",
    "count({c})",
    "count(DISTINCT {c})",
    "min({c})",
    "max({c})",
    "sum({m})",
    "avg({m})",
    "sum(DISTINCT {m})",
    "sum({m}) FILTER (WHERE {x}.k > 1)",
    "stddev({x}.k)",
    "bool_or({x}.b)",
    "bit_and({x}.t)",
    "median({x}.k)",
    "mode({x}.k ORDER BY {x}.k)",
    "quantile_disc({x}.k, 0.3)",
    "arg_min({x}.n, {x}.n)",
    "list({x}.n ORDER BY {x}.n)",
    "list(DISTINCT {x}.k ORDER BY {x}.k)",
    "string_agg({x}.s, ',' ORDER BY {x}.n)",
    "first({x}.s ORDER BY {x}.n)",
    "count(DISTINCT {x}.v)",
)
_WINDOWS = (
    "row_number() OVER ({p} ORDER BY {x}.n)",
    "rank() OVER ({p} ORDER BY {c})",
    "dense_rank() OVER ({p} ORDER BY {c} DESC NULLS LAST)",
    "percent_rank() OVER ({p} ORDER BY {c})",
    "cume_dist() OVER ({p} ORDER BY {c})",
    "ntile(3) OVER ({p} ORDER BY {x}.n)",
    "lag({c}, 2) OVER ({p} ORDER BY {x}.n)",
    "lead({c} IGNORE NULLS) OVER ({p} ORDER BY {x}.n)",
    "first_value({c}) OVER ({p} ORDER BY {x}.n DESC)",
    "nth_value({c}, 2) OVER ({p} ORDER BY {x}.n ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING)",
    "sum({x}.k) OVER ({p} ORDER BY {x}.n ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
    "sum({x}.k) OVER ({p} ORDER BY {x}.k RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING)",
    "count(*) OVER ({p} ORDER BY {c} GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE TIES)",
    "count(DISTINCT {c}) OVER ({p})",
    "max({c}) FILTER (WHERE {x}.k > 0) OVER ({p})",
    "sum({x}.m) OVER ({p})",
)
_DIRECTIONS = st.sampled_from(["", "DESC", "NULLS FIRST", "DESC NULLS LAST"])
_JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN", "CROSS JOIN")


@dataclass(frozen=True)
class _Source:
    """What a query reads: the text behind FROM, and the aliases that are to be seen."""

    text: str
    sides: tuple[str, ...]


@st.composite
def _sources(draw: st.DrawFn) -> _Source:
    kind = draw(st.sampled_from(["", "", *_JOINS, "ASOF JOIN"]))
    if not kind:
        text, sides = "a x", ("x",)
    elif kind == "CROSS JOIN":
        text, sides = "a x CROSS JOIN (SELECT * FROM b WHERE n < 5) y", ("x", "y")
    elif kind == "ASOF JOIN":
        text, sides = "a x ASOF LEFT JOIN b y ON x.k = y.k AND x.n >= y.n", ("x", "y")
    else:
        text = f"a x {kind} b y ON {draw(st.sampled_from(_CONDITIONS))}"
        sides = ("x",) if kind in ("SEMI JOIN", "ANTI JOIN") else ("x", "y")
    predicates = draw(st.lists(st.sampled_from(_PREDICATES), max_size=2))
    wanted = [f"({p.format(x=draw(st.sampled_from(sides)))})" for p in predicates]
    return _Source(f"{text} WHERE {' AND '.join(wanted)}" if wanted else text, sides)


def _columns(sides: Sequence[str]) -> st.SearchStrategy[str]:
    return st.builds("{}.{}".format, st.sampled_from(sides), st.sampled_from(_SCALARS))


def _filled(draw: st.DrawFn, template: str, sides: Sequence[str]) -> str:
    """A template with a side and columns in its gaps."""
    side = draw(st.sampled_from(sides))
    keys = draw(st.sampled_from(["", f"PARTITION BY {side}.k", f"PARTITION BY {side}.s, {side}.b"]))
    return template.format(
        x=side,
        c=draw(_columns(sides)),
        m=f"{side}.{draw(st.sampled_from(_SUMMED))}",
        p=keys,
    )


@st.composite
def _plain(draw: st.DrawFn) -> str:
    """Rows, all or distinct ones, perhaps in order and cut."""
    source = draw(_sources())
    columns = draw(st.lists(_columns(source.sides), min_size=1, max_size=4, unique=True))
    match draw(st.sampled_from(["all", "distinct", "top", "distinct on", "correlated", "unnest"])):
        case "all":
            return f"SELECT * FROM {source.text}"
        case "distinct":
            return f"SELECT DISTINCT {', '.join(columns)} FROM {source.text}"
        case "top":
            numbers = [f"{side}.n" for side in source.sides]
            keys = [f"{c} {draw(_DIRECTIONS)}" for c in columns[:2]]
            limit = draw(st.sampled_from(["0", "1", "5", "10000", "5 OFFSET 3"]))
            return (
                f"SELECT {', '.join([*numbers, *columns])} FROM {source.text} "
                f"ORDER BY {', '.join([*keys, *numbers])} LIMIT {limit}"
            )
        case "distinct on":
            numbers = [f"{side}.n" for side in source.sides]
            return (
                f"SELECT DISTINCT ON ({columns[0]}) {', '.join([*columns, *numbers])} "
                f"FROM {source.text} ORDER BY {', '.join([columns[0], *numbers])}"
            )
        case "correlated":
            return (
                f"SELECT x.n, (SELECT {draw(st.sampled_from(['count(*)', 'max(z.s)', 'sum(z.k)']))}"
                f" FROM b z WHERE z.k = x.k) AS q, x.k IN (SELECT z.k FROM b z) AS p "
                f"FROM {source.text}"
            )
        case _:
            return f"SELECT x.n, unnest(x.l) AS e FROM {source.text}"


@st.composite
def _grouped(draw: st.DrawFn) -> str:
    source = draw(_sources())
    keys = draw(st.lists(_columns(source.sides), max_size=3, unique=True))
    calls = draw(st.lists(st.sampled_from(_AGGREGATES), min_size=1, max_size=4))
    items = [_filled(draw, call, source.sides) for call in calls]
    if not keys:
        return f"SELECT {', '.join(items)} FROM {source.text}"
    kind = draw(st.sampled_from(["", "", "ROLLUP ", "CUBE "]))
    having = draw(st.sampled_from(["", "", " HAVING count(*) > 1"]))
    if kind:
        items.append(f"grouping({keys[0]})")
    return (
        f"SELECT {', '.join(keys + items)} FROM {source.text} "
        f"GROUP BY {kind}({', '.join(keys)}){having}"
    )


@st.composite
def _windowed(draw: st.DrawFn) -> str:
    # One table only: n is its key, so that every order over it is complete.
    predicate = draw(st.sampled_from(["", *(f" WHERE {p.format(x='x')}" for p in _PREDICATES)]))
    calls = draw(st.lists(st.sampled_from(_WINDOWS), min_size=1, max_size=3))
    items = [f"{_filled(draw, call, ('x',))} AS w{i}" for i, call in enumerate(calls)]
    qualify = draw(st.sampled_from(["", "", " QUALIFY row_number() OVER (ORDER BY x.n) % 2 = 0"]))
    return f"SELECT x.n, {', '.join(items)} FROM a x{predicate}{qualify}"


@st.composite
def _combined(draw: st.DrawFn) -> str:
    """Set operations, shared CTEs, and queries over queries."""
    columns = ", ".join(draw(st.lists(st.sampled_from(_SCALARS), min_size=1, max_size=3)))
    left = f"SELECT {columns} FROM a x WHERE {draw(st.sampled_from(_PREDICATES)).format(x='x')}"
    right = f"SELECT {columns} FROM b x WHERE {draw(st.sampled_from(_PREDICATES)).format(x='x')}"
    match draw(st.sampled_from(["set", "cte", "nested"])):
        case "set":
            word = draw(st.sampled_from(["UNION", "INTERSECT", "EXCEPT"]))
            return f"{left} {word}{draw(st.sampled_from(['', ' ALL']))} {right}"
        case "cte":
            stored = draw(st.sampled_from(["", "MATERIALIZED ", "NOT MATERIALIZED "]))
            return (
                f"WITH g AS {stored}(SELECT k, count(*) AS c, min(s) AS s FROM a GROUP BY k) "
                "SELECT p.k, p.c, o.c, o.s FROM g p JOIN g o ON p.c = o.c AND p.k <= o.k"
            )
        case _:
            inner = draw(st.one_of(_plain(), _grouped(), _windowed()))
            return f"SELECT count(*) FROM ({inner}) z"


queries = st.one_of(_plain(), _grouped(), _windowed(), _combined())
"""A statement with one right answer over the tables a and b."""
