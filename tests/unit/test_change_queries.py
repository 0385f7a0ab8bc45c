"""Statements that change rows, as queries over numbered rows, give what DuckDB gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.compiler.sql import change_queries as queries
from minishark.compiler.sql.changes import (
    Delete,
    Insert,
    Merge,
    Update,
    parse_change,
    place_of_target,
)
from minishark.errors import QueryError, UnsupportedError
from minishark.model.catalog import ROW_NUMBER
from minishark.model.expressions import Column

_CON = duckdb.connect()  # opening one costs more than all else
_TARGET = queries.Target("t", (Column("id", "INTEGER"), Column("v", "VARCHAR")))
_ROWS = st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["a", "b", None])), max_size=12)
_CONDITIONS = st.sampled_from(
    ["t.id < 3", "v IS NULL", "t.id IN (SELECT id FROM s)", "v = 'a' OR t.id > 4", "NULL", "true"]
)
_SOURCE = st.lists(st.integers(0, 8), unique=True, max_size=6)


class _Rows:
    """A table in DuckDB, the same with numbers, and a source."""

    def __init__(self, rows: Sequence[tuple[int, str | None]], source: Sequence[int] = ()) -> None:
        self.con = _CON
        values = [f"({i}, {'NULL' if v is None else repr(v)})" for i, v in rows]
        given = ", ".join(f"({number}, 'n{number}')" for number in source)
        self.con.execute(
            "CREATE OR REPLACE TABLE t (id INTEGER, v VARCHAR); CREATE OR REPLACE TABLE s AS FROM t"
            + (f"; INSERT INTO t VALUES {', '.join(values)}" if values else "")
            + (f"; INSERT INTO s VALUES {given}" if given else "")
            + "; CREATE OR REPLACE TABLE numbered AS "
            f"SELECT *, row_number() OVER () + 5 AS {ROW_NUMBER} FROM t"
        )

    def patched(self, change: Delete | Update | Merge) -> tuple[list[tuple[object, ...]], int]:
        """All rows after a change, and its count."""
        columns = () if isinstance(change, Delete) else queries.set_columns(change, _TARGET)
        names = ("number", "kind", *(f"v{i}" for i in columns))
        query = queries.patch(change, _TARGET, "numbered", "0")
        listed = ", ".join((*names, "part"))
        self.con.execute(f"CREATE OR REPLACE TABLE patch AS SELECT * FROM ({query}) AS p({listed})")
        left = queries.patched(_TARGET, columns, "numbered", "patch", names)
        rows = self.con.execute(left).fetchall()
        ((count,),) = self.con.execute("SELECT count(DISTINCT number) FROM patch").fetchall()
        return rows, count

    def own(self, statement: str) -> tuple[list[tuple[object, ...]], int]:
        """All rows after DuckDB has run the statement, and its count."""
        ((count,),) = self.con.execute(statement).fetchall()
        return _sorted(self.con.execute("SELECT id, v FROM t").fetchall()), count


def _sorted(rows: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return sorted(rows, key=repr)


@given(_ROWS, _SOURCE, _CONDITIONS, st.booleans())
def test_delete(
    rows: list[tuple[int, str | None]], source: list[int], condition: str, using: bool
) -> None:
    """The rows that are left, and the count."""
    table = _Rows(rows, source)
    text = f"DELETE FROM t {'USING s ' if using else ''}WHERE {condition.replace('v ', 't.v ')}"
    text += " AND t.id = s.id" if using else ""
    change = parse_change(text)
    assert isinstance(change, Delete)
    left, count = table.patched(change)
    assert (_sorted(left), count) == table.own(text)


@given(_ROWS, _SOURCE, _CONDITIONS, st.booleans())
def test_update(
    rows: list[tuple[int, str | None]], source: list[int], condition: str, using: bool
) -> None:
    """The rows after an update, with and without another table."""
    table = _Rows(rows, source)
    value = "s.v" if using else "concat(v, id)"
    condition = condition.replace("v ", "t.v ")
    text = f"UPDATE t SET v = {value}, id = t.id + 1"
    text += f" FROM s WHERE t.id = s.id AND ({condition})" if using else f" WHERE {condition}"
    change = parse_change(text)
    assert isinstance(change, Update)
    left, count = table.patched(change)
    assert (_sorted(left), count) == table.own(text)


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
    """Any clauses in DuckDB's order: what is changed, what is added, and the count.

    DuckDB does the same on the rows that are concerned, without the others.
    """
    table = _Rows(rows, source)
    text = f"MERGE INTO t USING s ON t.id = s.id {' '.join(_CLAUSES[i] for i in sorted(chosen))}"
    parsed = parse_change(text)
    assert isinstance(parsed, Merge)
    change = replace(parsed, source_names=("id", "v"))
    left, count = table.patched(change)
    inserts = queries.merged_inserts(change, _TARGET, "numbered")
    added = table.con.execute(inserts).fetchall() if inserts is not None else []
    some = table.con.sql(queries.concerned(change, "numbered", "*")).fetchall()
    numbers = {row[2] for row in some}
    others = [row[:2] for row in table.con.sql("FROM numbered").fetchall() if row[2] not in numbers]
    expected = table.own(text)
    assert (_sorted([*left, *added]), count + len(added)) == expected
    found, counted = _Rows([row[:2] for row in some], source).own(text)
    assert (_sorted([*found, *others]), counted) == expected


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
    table = _Rows([(0, "a")])
    change = parse_change(text)
    assert isinstance(change, Insert)
    query = f"{change.ctes}{change.query}"
    names = table.con.sql(query).columns if change.query else []
    added = table.con.execute(queries.inserted(change, _TARGET, names)).fetchall()
    assert sorted([*added, (0, "a")], key=repr) == sorted(table.own(text)[0], key=repr)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("DELETE FROM a.t WHERE t.x", ("a.t", False)),
        ("WITH q AS (DELETE) INSERT OR REPLACE INTO a.t (x) FROM q", ("a.t", False)),
        ("INSERT INTO a.t AS y FROM q", ("a.t", True)),
        ("UPDATE a.t y SET x = 1", ("a.t", True)),
        ("MERGE INTO a.t AS y USING q ON z", ("a.t", True)),
        ("TRUNCATE TABLE a.t", ("a.t", False)),
    ],
)
def test_the_place_of_the_target(text: str, target: tuple[str, bool]) -> None:
    """Whatever stands before it, and whether it has an alias."""
    name, has_alias = place_of_target(text)
    assert target == (text[name.first : name.last], has_alias)


def test_columns_in_brackets_are_refused_by_name() -> None:
    """It says what to write instead."""
    with pytest.raises(UnsupportedError, match="SET a = x"):
        parse_change("UPDATE t SET (id, v) = (1, 'x')")


def test_columns_must_fit_the_values() -> None:
    change = parse_change("INSERT INTO t VALUES (1)")
    assert isinstance(change, Insert)
    with pytest.raises(QueryError, match="takes 2 values here, but 1 were given"):
        queries.inserted(change, _TARGET, ["a"])
    with pytest.raises(QueryError, match="has no column 'x'; it has: id, v"):
        queries.inserted(replace(change, columns=("x",)), _TARGET, ["a"])
