from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa

from minishark_lab.clickbench.experiment import ClickBench, clickbench, verdict
from minishark_lab.clickbench.hits import make_hits, view_of_hits
from minishark_lab.clickbench.ties import differences_but_for_ties
from minishark_lab.harness.rows import Point

_UNFIT = {28, 29, 39, 40, 41, 42, 43}  # ask for more rows than there are in a small table


def test_all_queries_give_duckdb_s_rows() -> None:
    """Of a few thousand rows, which are enough for most to have an answer."""
    rows = clickbench(ClickBench(rows=4000, again=0), 1, lambda _: None)
    told = verdict(rows)
    assert told.passed, told.text
    answers = {
        int(row.x): row.y
        for row in rows
        if isinstance(row, Point) and row.panel == "rows of answers"
    }
    assert set(range(1, 44)) == set(answers)
    assert _UNFIT >= {number for number, count in answers.items() if not count}


def test_rows_are_made_as_the_original_s(tmp_path: Path) -> None:
    """105 columns, the same rows for a seed, and a July in which all filters find some."""
    files = [tmp_path / f"{name}.parquet" for name in ("one", "same", "other")]
    for file, seed in zip(files, (1, 1, 2), strict=True):
        make_hits(file, 3000, seed)
    with duckdb.connect() as connection:
        one, same, other = (connection.read_parquet(str(file)) for file in files)
        assert 105 == len(one.columns)
        assert 0 == len(one.except_(same))
        assert 0 < len(one.except_(other))
        connection.execute(view_of_hits(str(files[0])))
        (found,) = connection.execute(
            "SELECT min(EventDate)::VARCHAR, max(EventDate)::VARCHAR, "
            "count(*) FILTER (CounterID = 62 AND URLHash = 2868770270353813622) > 0, "
            "count(*) FILTER (RefererHash = 3594120000172545465) > 0, "
            "count(*) FILTER (UserID = 435090932899640449) > 0, "
            "bool_and(EventTime::DATE = EventDate), "
            "avg((SearchPhrase = '')::INTEGER) > 0.8 FROM hits"
        ).fetchall()
    assert ("2013-07-01", "2013-07-31", True, True, True, True, True) == found


def test_ties_are_no_differences() -> None:
    """Rows that LIMIT leaves to choice may differ; wrong keys, rows and counts may not."""
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t AS FROM (VALUES (1, 9), (2, 5), (3, 5), (4, 1)) v(a, b)")
        text = "SELECT a, b FROM t ORDER BY b DESC LIMIT 2"

        def found(*rows: tuple[int, int], text: str = text) -> list[str]:
            actual = pa.table(dict(zip("ab", map(list, zip(*rows, strict=True)), strict=True)))
            actual = actual.cast(pa.schema({"a": pa.int32(), "b": pa.int32()}))
            expected = connection.sql(text).to_arrow_table()
            return differences_but_for_ties(connection, text, expected, actual)

        assert [] == found((1, 9), (2, 5))
        assert [] == found((1, 9), (3, 5))
        assert found((1, 9), (4, 5))  # no row of the table
        assert found((1, 9), (4, 1))  # not among the first two
        assert found((3, 5), (1, 9))  # in another order
        assert found((1, 9))
        assert found((1, 9), (1, 9))
        assert found((1, 9), (3, 5), text=text.replace("DESC LIMIT 2", "DESC, a LIMIT 2"))
        assert found((1, 9), (4, 1), text="SELECT a, b FROM t WHERE b > 4 ORDER BY b DESC")
