"""Functions: what their names promise to users of PySpark, and the rest of DuckDB's."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from minishark import Column
from minishark import functions as F
from minishark.errors import OptionError
from minishark.session.session import Session

# A Column, and what it is in SQL over the toy table t.
SCALARS: dict[str, tuple[Any, str]] = {
    "add_months": (F.add_months("d", 1), "(d + INTERVAL 1 MONTH)::DATE"),
    "array": (F.array("id", "k"), "[id, k]"),
    "array_contains": (
        F.array_contains(F.array("id", "k"), 5),
        "id = 5 OR k = 5",
    ),
    "array_join": (F.array_join(F.array("id", "k"), "-"), "array_to_string([id, k], '-')"),
    "array_max": (F.array_max(F.array("id", "k")), "list_max([id, k])"),
    "array_position": (
        F.array_position(F.array("id", "k"), 5),
        "coalesce(list_position([id, k], 5), 0)",
    ),
    "aggregate": (
        F.aggregate(F.array("id", "id"), F.lit(1), lambda total, x: total + x),
        "1 + id + id",
    ),
    "bround": (F.bround("v"), "round_even(v, 0)"),
    "coalesce": (F.coalesce("k", F.lit(-1)), "coalesce(k, -1)"),
    "concat": (F.concat("s", F.lit("!")), "s || '!'"),
    "concat_ws": (F.concat_ws("-", "s", "id"), "concat_ws('-', s, id)"),
    "create_map": (F.create_map(F.lit("a"), "id"), "MAP {'a': id}"),
    "date_add": (F.date_add("d", 3), "d + 3"),
    "date_format": (F.date_format("d", "dd.MM.yyyy"), "strftime(d, '%d.%m.%Y')"),
    "date_sub": (F.date_sub("d", F.col("id")), "d - id"),
    "datediff": (F.datediff("d", F.lit("2020-01-01").cast("date")), "d - DATE '2020-01-01'"),
    "dayofweek": (F.dayofweek("d"), "dayofweek(d) + 1"),
    "element_at": (F.element_at(F.array("id", "k"), -1), "[id, k][-1]"),
    "exists": (F.exists(F.array("id", "k"), lambda x: x > 7), "id > 7 OR k > 7"),
    "filter": (F.filter(F.array("id"), lambda x: x > 7), "CASE WHEN id > 7 THEN [id] ELSE [] END"),
    "forall": (F.forall(F.array("id", "id"), lambda x: x > 7), "id > 7"),
    "initcap": (F.initcap(F.concat(F.lit("an "), "s")), "'An ' || upper(s[1]) || s[2:]"),
    "instr": (F.instr("s", "e"), "instr(s, 'e')"),
    "isnull": (F.isnull("k"), "k IS NULL"),
    "locate": (F.locate("e", "s"), "instr(s, 'e')"),
    "log": (F.log(F.col("id") + 1), "ln(id + 1)"),
    "log to a base": (F.log(2, F.col("id") + 1), "log(2, id + 1)"),
    "log1p": (F.log1p("id"), "ln(id + 1)"),
    "lpad": (F.lpad("s", 7, "*"), "lpad(s, 7, '*')"),
    "nanvl": (F.nanvl("v", 0), "v"),
    "nvl2": (F.nvl2("k", "id", F.lit(-1)), "CASE WHEN k IS NULL THEN -1 ELSE id END"),
    "regexp_extract": (F.regexp_extract("s", r"(\w)(\d)", 2), r"regexp_extract(s, '(\w)(\d)', 2)"),
    "regexp_replace": (F.regexp_replace("s", "[ae]", "_"), "translate(s, 'ae', '__')"),
    "sequence": (
        F.sequence(F.lit(1), "id"),
        "generate_series(1, id, CASE WHEN id < 1 THEN -1 ELSE 1 END)",
    ),
    "slice": (F.slice(F.array("id", "k", "id"), 2, 2), "[k, id]"),
    "split": (F.split("s", "[ae]"), "string_split_regex(s, '[ae]')"),
    "struct": (F.struct("id", (F.col("id") + 1).alias("n")), "{'id': id, 'n': id + 1}"),
    "substring": (F.substring("s", 2, 3), "s[2:4]"),
    "to_date": (F.to_date(F.lit("31.12.2020"), "dd.MM.yyyy"), "DATE '2020-12-31'"),
    "transform": (F.transform(F.array("id", "k"), lambda x: x + 1), "[id + 1, k + 1]"),
    "translate": (F.translate("s", "ae", "xy"), "translate(s, 'ae', 'xy')"),
    "trunc": (F.trunc("d", "month"), "date_trunc('month', d)::DATE"),
    "unix_timestamp": (F.unix_timestamp("d"), "epoch(d)::BIGINT"),
    "weekday": (F.weekday("d"), "isodow(d) - 1"),
    "when": (
        F.when(F.col("k") > 3, "x").when(F.col("k") > 1, "y").otherwise("z"),
        "CASE WHEN k > 3 THEN 'x' WHEN k > 1 THEN 'y' ELSE 'z' END",
    ),
    "any of DuckDB's": (F.levenshtein("s", F.lit("name")), "levenshtein(s, 'name')"),
    "any in camelCase": (F.jaroSimilarity("s", F.lit("name")), "jaro_similarity(s, 'name')"),
    "by name": (F.call_function("greatest", "id", "k"), "greatest(id, k)"),
    "text": (F.expr("id + 1 -- a comment"), "id + 1"),
}

AGGREGATES: dict[str, tuple[Column, str]] = {
    "collect_list": (
        F.array_sort(F.collect_list("k")),
        "list_sort(list(k) FILTER (k IS NOT NULL))",
    ),
    "collect_set": (F.array_sort(F.collect_set("k")), "list_sort(list_distinct(list(k)))"),
    "count": (F.count("k"), "count(k)"),
    "count of all": (F.count(F.col("*")), "count(*)"),
    "count_distinct": (F.count_distinct("k"), "count(DISTINCT k)"),
    "count_distinct of two": (
        F.count_distinct("k", "s"),
        "(SELECT count(*) FROM (SELECT DISTINCT k, s FROM t WHERE k + len(s) > 0))",
    ),
    "every": (F.every("b"), "bool_and(b)"),
    "some": (F.some("b"), "bool_or(b)"),
    "std": (F.std("v"), "stddev_samp(v)"),
    "sum_distinct": (F.sum_distinct("v"), "sum(DISTINCT v)"),
    "percentile": (F.percentile("v", 0.25), "quantile_cont(v, 0.25)"),
    "with a condition": (F.sum("v").filter(F.col("k") > 3), "sum(v) FILTER (k > 3)"),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", SCALARS)
def test_scalars(name: str, toy_session: Session, plain: duckdb.DuckDBPyConnection) -> None:
    """A function of a row gives what its SQL gives."""
    column, sql = SCALARS[name]
    expected = plain.sql(f"SELECT {sql} FROM t ORDER BY id").to_arrow_table().to_pydict()
    actual = toy_session.table("t").select("id", column.alias("x")).order_by("id").to_arrow()
    assert [*expected.values()] == [actual.column("x").to_pylist()]


@pytest.mark.parametrize("name", AGGREGATES)
def test_aggregates(name: str, toy_session: Session, plain: duckdb.DuckDBPyConnection) -> None:
    """A function of a group gives what its SQL gives."""
    column, sql = AGGREGATES[name]
    ((expected,),) = plain.sql(f"SELECT {sql} FROM t LIMIT 1").fetchall()
    ((actual,),) = toy_session.table("t").agg(column).collect()
    assert pytest.approx(expected) == actual


def test_exploding_lists_makes_rows(toy_session: Session) -> None:
    """Explode gives a row for each element, and explode_outer at least one."""
    frame = toy_session.create_dataframe([(1, [5, 6]), (2, []), (3, None)], "id INT, xs INT[]")
    rows = frame.select("id", F.explode("xs").alias("x")).order_by("id", "x").collect()
    assert [(1, 5), (1, 6)] == rows
    rows = frame.select("id", F.explode_outer("xs").alias("x")).order_by("id", "x").collect()
    assert [(1, 5), (1, 6), (2, None), (3, None)] == rows


def test_a_pattern_of_dates_that_means_nothing_raises() -> None:
    """A letter without a counterpart is an error, not a wrong date."""
    with pytest.raises(OptionError, match="'QQQ'"):
        F.date_format("d", "QQQ yyyy")


def test_functions_are_documented() -> None:
    """What comes from DuckDB has DuckDB's description, and is listed."""
    assert "transposition" in F.damerau_levenshtein.__doc__
    assert {"damerau_levenshtein", "sum", "col", "row_number"} <= set(dir(F))
