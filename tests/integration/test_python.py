"""Python objects in partitions, and Python functions that SQL calls."""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import minishark
from minishark import functions as F
from minishark.errors import DataError, FunctionError, OptionError, QueryError
from minishark.session.session import Session


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session that distributes everything, and a table in three partitions."""
    with minishark.connect(in_process=True, nodes=2, single_task_rows=0) as found:
        rows = pa.table({"a": [*range(99), None], "s": [f"s{i % 5}" for i in range(100)]})
        found.create_table("t", rows, partitions=3)
        yield found


def _rows(session: Session, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in session.sql(sql).collect()]


# Objects


@pytest.mark.parametrize("partitions", [1, 3, 100])
def test_items_go_through_all_steps_in_their_order(session: Session, partitions: int) -> None:
    """What a chain of steps gives is what it would give here."""
    items = session.parallelize(range(20), partitions)
    assert min(partitions, 20) == items.num_partitions
    chain = items.map(lambda x: x * 3).filter(lambda x: x % 2 == 0).flat_map(lambda x: [x, str(x)])
    expected = [y for x in range(20) for y in (x * 3, str(x * 3)) if x * 3 % 2 == 0]
    assert expected == chain.collect()
    assert len(expected) == chain.count()
    assert expected[:7] == chain.take(7)
    assert "".join(map(str, expected)) == chain.reduce(lambda a, b: f"{a}{b}")
    assert sum(range(20)) == items.sum()
    pairs = items.map_partitions(lambda found: zip(found, itertools.count(), strict=False))
    assert list(range(20)) == [first for first, _ in pairs.collect()]


def test_items_may_be_anything_that_pickles(session: Session) -> None:
    """Also functions, None, and items of several types."""
    items = [None, {"a": [1]}, lambda: 5, float("inf"), b"x"]
    kinds = session.parallelize(items, 2).map(lambda item: type(item).__name__).collect()
    assert ["NoneType", "dict", "function", "float", "bytes"] == kinds
    assert [5] == [found() for found in session.parallelize([lambda: 5]).collect()]
    with pytest.raises(OptionError, match="can't be sent"):
        session.parallelize([threading.Lock()])


def test_no_items(session: Session) -> None:
    """They are no special case, but can't be reduced."""
    nothing = session.parallelize([])
    assert ([], 0, 0, []) == (
        nothing.collect(), nothing.count(), nothing.sum(), nothing.take(3)
    )  # fmt: skip
    with pytest.raises(OptionError, match="nothing to reduce"):
        nothing.reduce(lambda a, b: a)
    few = session.parallelize(range(8), 4).filter(lambda x: x == 5)
    assert 5 == few.reduce(lambda a, b: a + b)


def test_exceptions_of_steps_come_back(session: Session) -> None:
    """With their type and the partition that the item was in."""
    with pytest.raises(ZeroDivisionError) as caught:
        session.parallelize([3, 2, 1, 0], 4).map(lambda x: 1 / x).sum()
    assert isinstance(caught.value.__cause__, FunctionError)
    assert 3 == caught.value.__cause__.partition
    assert "minishark/jobs" not in caught.value.__cause__.traceback


# Functions in SQL


def test_functions_are_called_where_rows_lie(session: Session) -> None:
    """In projections, filters, groups, joins and orders; the plan stays distributed."""
    session.udf.register("plus", lambda x, y: x + y, "BIGINT", ["BIGINT", "BIGINT"])
    assert [(sum(range(1, 100)),)] == _rows(session, "SELECT sum(plus(a, 1)) FROM t")
    assert [(98,), (97,)] == _rows(
        session, "SELECT a FROM t WHERE plus(a, 2) > 98 ORDER BY plus(-a, 0)"
    )
    joined = "SELECT count(*) FROM t JOIN t u ON plus(t.a, 1) = u.a"
    assert [(98,)] == _rows(session, joined)
    assert "single task" not in session.sql(joined).plan_text("stages")


def test_nulls(session: Session) -> None:
    """By default functions do not see them; they may give them."""
    session.udf.register("evens", lambda x: None if x % 2 else x, "BIGINT")
    session.udf.register("seen", lambda x: x is None, "BOOLEAN", null_handling="special")
    assert [(50, 1)] == _rows(session, "SELECT count(evens(a)), count(*) FILTER (seen(a)) FROM t")
    assert [(None, True)] == _rows(session, "SELECT evens(NULL), seen(NULL)")


@pytest.mark.parametrize("vectorized", [False, True])
def test_functions_may_give_null_where_they_raise(session: Session, vectorized: bool) -> None:
    """Only there: other rows of the same array have their results."""
    fn = (lambda x: pc.divide(10, x)) if vectorized else (lambda x: 10 // x)
    session.udf.register("parts", fn, "BIGINT", ["BIGINT"], vectorized=vectorized, on_error="null")
    asked = "SELECT parts(x) FROM (VALUES (1), (0), (NULL), (5)) v(x)"
    assert [(10,), (None,), (None,), (2,)] == _rows(session, asked)
    with pytest.raises(OptionError, match="raise, null"):
        session.udf.register("parts", fn, "BIGINT", on_error="quarantine")


def test_vectorized_functions(session: Session) -> None:
    """They take Arrow arrays, nulls included, and give arrays or lists."""
    session.udf.register(
        "twice", lambda x: pc.multiply(x, 2), "BIGINT", ["BIGINT"], vectorized=True
    )
    session.udf.register(
        "lengths", lambda s: [len(x) for x in s.to_pylist()], int, [str], vectorized=True
    )
    assert [(2 * sum(range(99)), 99, 200)] == _rows(
        session, "SELECT sum(twice(a)), count(twice(a)), sum(lengths(s)) FROM t"
    )


def test_functions_make_columns(session: Session) -> None:
    """What register gives takes Columns and names; it also works as a decorator."""

    @session.udf("STRUCT(low VARCHAR, size BIGINT)")
    def described(text: str) -> dict[str, object]:
        return {"low": text.lower(), "size": len(text)}

    frame = session.create_dataframe([("Ab",), ("CDE",)], ["word"])
    found = frame.select(described("word").alias("d"), described(F.upper("word")).alias("e"))
    assert [("ab", 2), ("cde", 3)] == [(r["d"]["low"], r["e"]["size"]) for r in found.collect()]


def test_functions_are_not_called_while_planning(session: Session) -> None:
    """Not even with constants: that could take long, or fail."""
    calls: list[int] = []
    session.udf.register("noted", lambda x: calls.append(x) or x, "BIGINT", ["BIGINT"])
    frame = session.sql("SELECT noted(1) AS a WHERE noted(2) = 2")
    frame.plan_text()
    session.sql("EXPLAIN SELECT noted(3)").collect()
    assert [] == calls
    assert [(1,)] == [tuple(row) for row in frame.collect()]


def test_try_sees_errors_of_functions_only(session: Session) -> None:
    """Constants are no exception: they would be folded while planning, without the function."""
    session.udf.register("tenth", lambda x: 10 // x, "BIGINT", ["BIGINT"])
    try:
        sql = "SELECT try(tenth(5)), TRY ( TENTH(0)), tenth(2), try(1)"
        assert [(2, None, 5, 1)] == [tuple(row) for row in session.sql(sql).collect()]
        rows = session.sql("SELECT try(tenth(range)) FROM range(3) ORDER BY range").collect()
        assert [None, 10, 5] == [value for (value,) in rows]
    finally:
        session.udf.remove("tenth")


def test_functions_that_are_not_deterministic(session: Session) -> None:
    """They run once for each row, wherever they stand."""
    numbers = random.Random(1)
    session.udf.register("dice", lambda _: numbers.random(), float, [int], deterministic=False)
    frame = session.sql("SELECT count(DISTINCT dice(1)) AS n FROM t")
    assert "dice is not deterministic" in frame.plan_text("stages")
    assert [(100,)] == [tuple(row) for row in frame.collect()]


def test_exceptions_in_sql_come_back(session: Session) -> None:
    """With their type, as from functions over partitions, and the session goes on."""

    def fail(x: int) -> int:
        raise LookupError(x)

    session.udf.register("fail", fail, "BIGINT")
    for sql in ("SELECT fail(a) FROM t", "SELECT fail(1)", "SELECT sum(fail(a)) FROM t GROUP BY s"):
        with pytest.raises(LookupError) as caught:
            session.sql(sql).collect()
        called, raised = caught.value.__notes__
        assert re.fullmatch("Called with: [0-9]+", called)
        assert "in fail\n" in raised
    assert [(100,)] == _rows(session, "SELECT count(*) FROM t")


def test_functions_elsewhere_in_sql(session: Session) -> None:
    """Macros, views, tables and statements that write know them too."""
    session.udf.register("inc", lambda x: x + 1, "BIGINT", ["BIGINT"])
    session.sql("CREATE MACRO twice_inc(x) AS inc(inc(x))")
    session.sql("CREATE VIEW incs AS SELECT twice_inc(a) AS b FROM t")
    session.sql("CREATE TABLE made AS SELECT inc(a) AS c FROM t WHERE a < 3")
    session.sql("INSERT INTO made VALUES (inc(41))")
    assert [(1,), (2,), (3,), (42,)] == _rows(session, "FROM made ORDER BY c")
    assert [(100,)] == _rows(session, "SELECT max(b) FROM incs")


def test_functions_are_replaced_and_removed(session: Session) -> None:
    """Statements mean the function that is registered when they run."""
    session.udf.register("changing", lambda x: 1, "BIGINT", ["BIGINT"])
    frame = session.sql("SELECT DISTINCT changing(a) AS x FROM t WHERE a IS NOT NULL")
    assert [(1,)] == [tuple(row) for row in frame.collect()]
    session.udf.register("CHANGING", lambda x: 2, "BIGINT", ["BIGINT"])
    assert [(2,)] == [tuple(row) for row in frame.collect()]
    session.udf.remove("changing")
    with pytest.raises(QueryError, match="changing"):
        session.sql("SELECT changing(1)")
    with pytest.raises(OptionError, match="no registered function"):
        session.udf.remove("changing")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("upper", lambda x: x, "BIGINT"), OptionError),
        (("sum", lambda x: x, "BIGINT"), OptionError),
        (("a b", lambda x: x, "BIGINT"), OptionError),
        (("f", "no function", "BIGINT"), OptionError),
        (("f", lambda x: x, "NOTYPE"), DataError),
        (("f", lambda x: x, "BIGINT", ["NOTYPE"]), DataError),
    ],
)
def test_wrong_functions(session: Session, arguments: Any, error: type[Exception]) -> None:
    """They are refused when they are registered."""
    with pytest.raises(error):
        session.udf.register(*arguments)
