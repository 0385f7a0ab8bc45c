"""Statements that change rows, as queries over the files of a table, give what DuckDB gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.compiler.sql.changes import Delete, Insert, Merge, Update, parse_change
from minishark.errors import QueryError, UnsupportedError
from minishark.model.expressions import Column
from minishark.tables.warehouse import dml
from minishark.tables.warehouse.writer import CHANGED

_CON = duckdb.connect()  # opening one costs more than all else
_TARGET = dml.Target("t", (Column("id", "INTEGER"), Column("v", "VARCHAR")))
_ROWS = st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["a", "b", None])), max_size=12)
_CONDITIONS = st.sampled_from(
    ["t.id < 3", "v IS NULL", "t.id IN (SELECT id FROM s)", "v = 'a' OR t.id > 4", "NULL", "true"]
)
_SOURCE = st.lists(st.integers(0, 8), unique=True, max_size=6)


class _Files:
    """A table in DuckDB whose rows are in three files, and changes of it by copying."""

    def __init__(self, rows: Sequence[tuple[int, str | None]]) -> None:
        self.con = _CON
        values = [f"({i}, {'NULL' if v is None else repr(v)})" for i, v in rows]
        self.con.execute(
            "CREATE OR REPLACE TABLE t (id INTEGER, v VARCHAR); CREATE OR REPLACE TABLE s AS FROM t"
            + (f"; INSERT INTO t VALUES {', '.join(values)}" if values else "")
            + "; CREATE OR REPLACE TABLE located AS "
            f"SELECT *, 'f' || row_number() OVER () % 3 AS {dml.FILE}, "
            f"row_number() OVER () AS {dml.ROW} FROM t"
        )

    def add_source(self, ids: Sequence[int]) -> None:
        values = ", ".join(f"({number}, 'n{number}')" for number in ids)
        if ids:
            self.con.execute(f"INSERT INTO s VALUES {values}")

    def some(self, files: Sequence[str]) -> str:
        """A relation of the rows in some files."""
        listed = ", ".join(f"'{file}'" for file in files) or "NULL"
        self.con.execute(
            f"CREATE OR REPLACE TABLE chosen AS FROM located WHERE {dml.FILE} IN ({listed})"
        )
        return "chosen"

    def left(self, files: Sequence[str], sql: str) -> list[tuple[object, ...]]:
        """All rows after those of the files were replaced, and how many of these are marked."""
        listed = ", ".join(f"'{file}'" for file in files) or "''"
        return self.con.execute(
            f"SELECT id, v FROM located WHERE {dml.FILE} NOT IN ({listed}) "
            f"UNION ALL SELECT id, v FROM ({sql}) ORDER BY ALL"
        ).fetchall()

    def own(self, statement: str) -> tuple[list[tuple[object, ...]], int]:
        """All rows after DuckDB has run the statement, and its count."""
        ((count,),) = self.con.execute(statement).fetchall()
        return self.con.execute("SELECT id, v FROM t ORDER BY ALL").fetchall(), count


@given(_ROWS, _SOURCE, _CONDITIONS, st.booleans())
def test_delete(
    rows: list[tuple[int, str | None]], source: list[int], condition: str, using: bool
) -> None:
    """The rows that are left, of the files that have rows to be deleted, and the count."""
    files = _Files(rows)
    files.add_source(source)
    text = f"DELETE FROM t {'USING s ' if using else ''}WHERE {condition.replace('v ', 't.v ')}"
    text += " AND t.id = s.id" if using else ""
    change = parse_change(text)
    assert isinstance(change, Delete)
    counts = dict(files.con.execute(dml.matching_files(change, "located")).fetchall())
    left = files.left([*counts], dml.kept(change, _TARGET, files.some([*counts])))
    assert (left, sum(counts.values())) == files.own(text)


@given(_ROWS, _SOURCE, _CONDITIONS, st.booleans())
def test_update(
    rows: list[tuple[int, str | None]], source: list[int], condition: str, using: bool
) -> None:
    """The rows after an update, with and without another table."""
    files = _Files(rows)
    files.add_source(source)
    value = "s.v" if using else "concat(v, id)"
    condition = condition.replace("v ", "t.v ")
    text = f"UPDATE t SET v = {value}, id = t.id + 1"
    text += f" FROM s WHERE t.id = s.id AND ({condition})" if using else f" WHERE {condition}"
    change = parse_change(text)
    assert isinstance(change, Update)
    found = [f for f, _ in files.con.execute(dml.matching_files(change, "located")).fetchall()]
    sql = dml.updated(change, _TARGET, files.some(found))
    ((changed,),) = files.con.execute(f"SELECT count(*) FILTER ({CHANGED}) FROM ({sql})").fetchall()
    left = files.left(found, sql)
    assert (left, changed) == files.own(text)


_CLAUSES = (
    "WHEN MATCHED AND t.id < 3 THEN DELETE",
    "WHEN MATCHED AND CASE WHEN t.v = 'a' THEN true ELSE false END THEN DO NOTHING",
    "WHEN MATCHED THEN UPDATE SET v = s.v",
    "WHEN NOT MATCHED AND s.id > 6 THEN INSERT (id) VALUES (s.id * 10)",
    "WHEN NOT MATCHED THEN INSERT",
    "WHEN NOT MATCHED BY SOURCE AND t.v IS NULL THEN DELETE",
    "WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = concat(t.v, '!')",
)


@given(_ROWS, _SOURCE, st.sets(st.sampled_from(range(len(_CLAUSES))), min_size=1))
def test_merge(rows: list[tuple[int, str | None]], source: list[int], chosen: set[int]) -> None:
    """Any clauses in DuckDB's order: what is rewritten, what is added, and the count."""
    files = _Files(rows)
    files.add_source(source)
    clauses = " ".join(_CLAUSES[i] for i in sorted(chosen))
    text = f"MERGE INTO t USING s ON t.id = s.id {clauses}"
    parsed = parse_change(text)
    assert isinstance(parsed, Merge)
    change = replace(parsed, source_names=("id", "v"))
    found = files.con.execute(dml.merged_files(change, "located")).fetchall()
    affected = [row[0] for row in found]
    several = any(row[3] > 1 for row in found)
    sql = dml.merged(change, _TARGET, files.some(affected), several=several)
    inserts = dml.merged_inserts(change, _TARGET, "located")
    added = files.con.execute(inserts).fetchall() if inserts is not None else []
    left = sorted([*files.left(affected, sql), *added], key=repr)
    expected, count = files.own(text)
    assert (left, sum(row[1] for row in found) + len(added)) == (sorted(expected, key=repr), count)


def test_merge_tells_of_rows_that_are_changed_twice() -> None:
    files = _Files([(1, "a"), (2, "b")])
    files.add_source([1, 1])
    change = parse_change("MERGE INTO t USING s USING (id) WHEN MATCHED THEN DELETE")
    assert isinstance(change, Merge)
    ((_, _, changes, partners),) = files.con.execute(dml.merged_files(change, "located")).fetchall()
    assert (changes, partners) == (2, 2)


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t VALUES (1, 'x'), (2, NULL)",
        "INSERT INTO t (v) SELECT 'y'",
        "INSERT INTO t BY NAME SELECT 'z' AS v, 3 AS id",
        "INSERT INTO t DEFAULT VALUES",
        "WITH q AS (SELECT 5 AS id) INSERT INTO t SELECT id, 'q' FROM q",
        "INSERT INTO t (SELECT 1, 'x')",
    ],
)
def test_insert(text: str) -> None:
    files = _Files([(0, "a")])
    change = parse_change(text)
    assert isinstance(change, Insert)
    query = f"{change.ctes}{change.query}"
    names = files.con.sql(query).columns if change.query else []
    added = files.con.execute(dml.inserted(change, _TARGET, names)).fetchall()
    assert sorted([*added, (0, "a")], key=repr) == sorted(files.own(text)[0], key=repr)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("DELETE FROM t RETURNING *", "RETURNING"),
        ("INSERT INTO t VALUES (1, 'x') ON CONFLICT DO NOTHING", "CONFLICT"),
        ("INSERT OR REPLACE INTO t VALUES (1, 'x')", "no keys"),
        ("UPDATE t SET (id, v) = (1, 'x')", "SET a = x"),
    ],
)
def test_clauses_without_a_form_are_refused_by_name(text: str, what: str) -> None:
    with pytest.raises(UnsupportedError, match=what):
        _supported(text)


def _supported(text: str) -> None:
    change = parse_change(text)
    assert change is not None
    dml.supported(change)


def test_columns_must_fit_the_values() -> None:
    change = parse_change("INSERT INTO t VALUES (1)")
    assert isinstance(change, Insert)
    with pytest.raises(QueryError, match="takes 2 values here, but 1 were given"):
        dml.inserted(change, _TARGET, ["a"])
    with pytest.raises(QueryError, match="has no column 'x'; it has: id, v"):
        dml.inserted(replace(change, columns=("x",)), _TARGET, ["a"])
