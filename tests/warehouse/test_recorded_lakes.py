"""DuckLakes that DuckDB's extension has written are read exactly, and it reads what is written."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import minishark
from minishark.errors import ConflictError, UnsupportedError
from minishark.session.session import Session
from minishark.sources.ducklake_database import LakeDatabase, open_database
from tests.sources.postgres_server import running

_RECORDED = Path(__file__).with_name("recorded_lakes")
_SCRIPT = Path(__file__).with_name("record_lake.py")
_CATALOGS = {"sqlite": "sqlite:{}/catalog.sqlite", "duckdb": "{}/catalog.ducklake"}
# An interpreter that has the extension, as `record_lake.py` says; without one, tests are skipped.
_PYTHON = os.environ.get("MINISHARK_DUCKLAKE_PYTHON", "/tmp/lake/bin/python")


def texts(session: Session, relation: str) -> list[list[Any]]:
    rows = session.sql(f"SELECT CAST(COLUMNS(*) AS VARCHAR) FROM {relation}").collect()
    return sorted((list(row) for row in rows), key=str)


@contextlib.contextmanager
def connected(address: str | dict[str, str]) -> Iterator[Session]:
    with minishark.connect(
        in_process=True, nodes=2, partitions=2, single_task_rows=0, warehouse=address
    ) as session:
        yield session


def recorded(kind: str, folder: Path) -> str:
    """The address of a recorded lake, which is moved to another folder."""
    shutil.unpack_archive(_RECORDED / f"{kind}.zip", folder)
    catalog = _CATALOGS[kind].format(folder)
    with contextlib.closing(database(catalog)) as lake, lake.writing() as connection:
        ((old,),) = connection.rows("SELECT value FROM ducklake_metadata WHERE key = 'data_path'")
        for table, column in (("ducklake_metadata", "value"), ("ducklake_data_file", "path")):
            connection.rows(
                f"UPDATE {table} SET {column} = replace({column}, '{old}', '{folder}/files/')"
            )
    return f"ducklake:{catalog}"


def database(catalog: str) -> LakeDatabase:
    return open_database(catalog, create=False)


_KINDS = ["sqlite", pytest.param("duckdb", marks=pytest.mark.slow)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", _KINDS)
def test_all_recorded_versions_are_read(kind: str, tmp_path: Path) -> None:
    """Every table in every snapshot: types, inlined rows, deletes, other columns, partitions."""
    address = recorded(kind, tmp_path)
    expected = json.loads((tmp_path / "expected.json").read_text())
    # Snapshots that are alike are not read twice: it takes its time.
    last: dict[str, Any] = {}
    checked = 0
    with connected(address) as session:
        assert [tuple(row) for row in session.sql("SHOW TABLES FROM other").collect()] == [
            ("parts",)
        ]
        for version, tables_then in expected.items():
            for name, rows in tables_then.items():
                if last.get(name) != rows and name not in ("main.dropped", "main.renamed"):
                    found = texts(session, f"warehouse.{name} AT (VERSION => {version})")
                    assert found == rows, (name, version)
                    checked += 1
                last[name] = rows
        for name, rows in expected[version].items():
            assert texts(session, f"warehouse.{name}") == rows
        scan = f"ducklake_scan('{address}', 'main', 'merged', version = 25)"
        assert texts(session, scan) == expected["25"]["main.merged"] != rows
    assert checked > 30


@pytest.mark.slow
@pytest.mark.parametrize("kind", _KINDS)
def test_recorded_tables_are_changed(kind: str, tmp_path: Path) -> None:
    """Rows of files, of the catalog, and those with deletes, are changed like others."""
    address = recorded(kind, tmp_path)
    with connected(address) as session:
        for sql in (
            "UPDATE warehouse.changed SET text = 'ours' WHERE a IN (2, 130, 105)",
            "DELETE FROM warehouse.changed WHERE a = 1",
            "INSERT INTO warehouse.changed (a) VALUES (900)",
            "ALTER TABLE warehouse.changed RENAME COLUMN text TO said",
            "INSERT INTO warehouse.merged VALUES (8000)",
            "DELETE FROM other.parts WHERE v = 'v3'",
        ):
            session.sql(sql)
        rows = session.sql(
            "SELECT a, said, s2 FROM warehouse.changed WHERE a IN (105, 900)"
        ).collect()
        assert sorted(map(tuple, rows)) == [(105, "ours", "it's"), (900, "x'y", "it's")]
        ours = {
            name: texts(session, f"warehouse.{name}")
            for name in ("main.changed", "main.merged", "other.parts")
        }
    with connected(address) as session:
        assert {name: texts(session, f"warehouse.{name}") for name in ours} == ours
    if Path(_PYTHON).exists():
        answers = extension(address, *(f"FROM {name}" for name in ours))
        assert answers == [*ours.values()]


def extension(address: str, *statements: str) -> list[Any]:
    """What DuckDB's extension answers."""
    done = subprocess.run(
        [_PYTHON, str(_SCRIPT), "--run", address],
        input="\n".join(statements),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.skipif(not Path(_PYTHON).exists(), reason="nobody has installed the extension")
@pytest.mark.parametrize("kind", _KINDS)
def test_the_extension_goes_on_with_what_was_written(kind: str, tmp_path: Path) -> None:
    """Two writers take turns: minishark, and DuckDB's extension."""
    address = f"ducklake:{_CATALOGS[kind].format(tmp_path)}"
    with connected(address) as session:
        for sql in (
            "CREATE SCHEMA s",
            """CREATE TABLE s.t (i INTEGER NOT NULL, v VARCHAR, f FLOAT, l STRUCT(a INTEGER)[],
            u UUID, d DECIMAL(9, 2), z TIMESTAMPTZ, m MAP(VARCHAR, INTEGER))""",
            """INSERT INTO s.t SELECT i, 'v' || i, CASE WHEN i = 5 THEN 'nan'::FLOAT ELSE i END,
            [{a: i}], uuid(), i, '2020-01-01 00:00:00+00', MAP {'k': i} FROM range(100) r(i)""",
            "UPDATE s.t SET v = 'ours' WHERE i < 10",
            "ALTER TABLE s.t ADD COLUMN n BIGINT",
            "ALTER TABLE s.t ALTER i TYPE BIGINT",
            "CREATE TABLE s.p (a INTEGER, v VARCHAR) PARTITIONED BY (a, bucket(4, v))",
            "INSERT INTO s.p SELECT i % 3, 'v' || i FROM range(40) r(i)",
        ):
            session.sql(sql)
        ours = texts(session, "s.t"), texts(session, "s.p")
    assert extension(address, "FROM s.t", "FROM s.p") == [*ours]
    theirs = extension(
        address,
        "INSERT INTO s.t (i, v) VALUES (1000, 'small')",
        "INSERT INTO s.t (i, v) SELECT i, 'large' FROM range(2000, 2050) r(i)",
        "UPDATE s.t SET v = 'theirs' WHERE i IN (3, 1000, 2001)",
        "DELETE FROM s.t WHERE i BETWEEN 50 AND 60 OR i = 2002",
        "ALTER TABLE s.t RENAME n TO nn",
        "ALTER TABLE s.t ADD COLUMN added INTEGER DEFAULT 7",
        "INSERT INTO s.t (i) VALUES (1001)",
        "INSERT INTO s.p VALUES (1, 'v1'), (NULL, NULL)",
        "FROM s.t",
        "FROM s.p",
    )
    with connected(address) as session:
        assert [texts(session, "s.t"), texts(session, "s.p")] == theirs[-2:]
        for sql in (
            "UPDATE s.t SET v = 'again' WHERE i IN (3, 1000, 1001, 2003)",
            "DELETE FROM s.t WHERE i = 2004",
            "ALTER TABLE s.t RENAME COLUMN added TO late",
            "DELETE FROM s.p WHERE a = 1",
        ):
            session.sql(sql)
        ours = texts(session, "s.t"), texts(session, "s.p")
    # What it keeps of all rows together must be true: it answers by that.
    conditions = ("i > 2040", "v = 'again'", "u IS NOT NULL", "f > 98", "isnan(f)", "late = 7")
    counts = [f"(SELECT count(*) FROM s.t WHERE {condition})" for condition in conditions]
    answers = extension(
        address,
        "INSERT INTO s.t (i, late) VALUES (3000, 1)",
        "DELETE FROM s.t WHERE i = 3000",
        "FROM s.t",
        "FROM s.p",
        *(f"FROM {count}" for count in counts),
    )
    assert answers[2:4] == [*ours]
    with connected(address) as session:
        assert answers[4:] == [texts(session, count) for count in counts]


@pytest.mark.slow
def test_a_catalog_in_postgresql(tmp_path: Path) -> None:
    """Statements that write, those of another session, and rows that the catalog has."""
    with running() as server:
        uri = f"ducklake:postgres:{server.dsn.removeprefix('postgresql:')}"
        where = {"uri": uri, "data_path": str(tmp_path)}
        with connected(where) as one, connected({"uri": uri}) as two:
            one.sql("CREATE TABLE warehouse.t (a INTEGER, v VARCHAR, i INTEGER)")
            one.sql("INSERT INTO warehouse.t SELECT range, 'v' || range, 1 FROM range(10)")
            two.sql("UPDATE warehouse.t SET v = 'two' WHERE a = 3")
            one.sql("ALTER TABLE warehouse.t RENAME COLUMN v TO w")
            server.sql(
                "CREATE TABLE small (row_id BIGINT, begin_snapshot BIGINT, end_snapshot BIGINT, "
                "a INTEGER, w BYTEA, i INTEGER)",
                "INSERT INTO small VALUES (100, 0, NULL, 100, 'inlined', 2)",
                "INSERT INTO ducklake_inlined_data_tables VALUES (1, 'small', 2)",
            )
        with connected({"uri": uri}) as session:
            session.sql("DELETE FROM warehouse.t WHERE a BETWEEN 4 AND 9 OR i = 3")
            rows = session.sql("SELECT a, w FROM warehouse.t ORDER BY a").collect()
            session.sql("UPDATE warehouse.t SET i = 4 WHERE a = 100")
            ((total,),) = session.sql("SELECT sum(i) FROM warehouse.t").collect()
    expected = [(0, "v0"), (1, "v1"), (2, "v2"), (3, "two"), (100, "inlined")]
    assert [tuple(row) for row in rows] == expected
    assert total == 8
    del one, two, session
    gc.collect()  # which fails the test if a connection was not closed


def test_what_is_left_out_is_refused(tmp_path: Path) -> None:
    """Encrypted lakes, and other versions of the specification."""
    address = recorded("sqlite", tmp_path)
    lake = database(address.removeprefix("ducklake:"))
    with lake.writing() as connection:
        connection.rows("UPDATE ducklake_metadata SET value = '0.3' WHERE key = 'version'")
    with pytest.raises(UnsupportedError, match=r"version 0\.3"), connected(address):
        pass
    with lake.writing() as connection:
        connection.rows("UPDATE ducklake_metadata SET value = '1.0' WHERE key = 'version'")
        connection.rows("UPDATE ducklake_metadata SET value = 'true' WHERE key = 'encrypted'")
    with pytest.raises(UnsupportedError, match="encrypted"), connected(address):
        pass
    lake.close()


def test_writers_of_other_processes_conflict(tmp_path: Path) -> None:
    """Appends follow one another; of two changes of the same rows, the second fails."""
    address = f"ducklake:sqlite:{tmp_path}/catalog.sqlite"
    with connected(address) as one, connected(address) as two:
        one.sql("CREATE TABLE warehouse.t AS SELECT range AS a FROM range(10)")
        two.sql("BEGIN")
        two.sql("INSERT INTO warehouse.t VALUES (100)")
        one.sql("DELETE FROM warehouse.t WHERE a = 1")
        two.sql("COMMIT")
        assert one.sql("SELECT count(*), max(a) FROM warehouse.t").collect()[0] == (10, 100)
        two.sql("BEGIN")
        two.sql("UPDATE warehouse.t SET a = -1 WHERE a = 2")
        one.sql("INSERT INTO warehouse.t VALUES (101)")
        with pytest.raises(ConflictError, match="changed"):
            two.sql("COMMIT")
        assert two.sql("SELECT min(a), max(a) FROM warehouse.t").collect()[0] == (0, 101)
        files = {path.name for path in tmp_path.rglob("*.parquet")}
        with (
            contextlib.closing(database(address.removeprefix("ducklake:"))) as lake,
            lake.reading() as connection,
        ):
            stored = connection.rows("SELECT path FROM ducklake_data_file")
        assert files == {Path(path).name for (path,) in stored}
