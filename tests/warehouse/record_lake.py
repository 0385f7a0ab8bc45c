r"""Records DuckLakes as DuckDB's own extension writes them, for `test_recorded_lakes.py`.

The extension is built for one version of DuckDB, another than minishark's, so it needs an
environment of its own:

    python -m venv /tmp/lake && /tmp/lake/bin/pip install duckdb==1.5.5 pytz \
        duckdb-extension-ducklake duckdb-extension-sqlite-scanner
    /tmp/lake/bin/python tests/warehouse/record_lake.py tests/warehouse/recorded_lakes

With two more arguments, it runs the statements of its input, one a line, on the lake at an address
instead, and writes the rows of each as JSON: `record_lake.py --run ducklake:sqlite:FILE`.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path

import duckdb

# One string for each snapshot or two.
STATEMENTS = r"""
CREATE TABLE types (b BOOLEAN, i8 TINYINT, u64 UBIGINT, h HUGEINT, f FLOAT, d DOUBLE, dc DECIMAL(20, 3), s VARCHAR, bl BLOB, da DATE, t TIME, ts TIMESTAMP, tz TIMESTAMPTZ, u UUID, j JSON, st STRUCT(x INTEGER, y VARCHAR), l VARCHAR[], m MAP(VARCHAR, INTEGER), tns TIMESTAMP_NS)
INSERT INTO types VALUES (true, -5, 18446744073709551615, 170141183460469231731687303715884105727, 'nan', 1.5, 12345.678, 'it''s "x"', '\xAA\x00b'::BLOB, '2020-01-02', '12:13:14.5', '2020-01-02 03:04:05.123456', '2020-01-02 03:04:05+02', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{"a":1}', {x: 1, y: 'a''b, c'}, ['q', 'a,b', NULL], MAP {'k': 1}, '2020-01-01 00:00:00.123456789'), (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
INSERT INTO types SELECT i % 2 = 0, i, i, i, i / 2, -i, i / 3, 'v' || i, 'ab'::BLOB, DATE '2021-01-01' + i::INTEGER, '01:02:03', '2021-01-01', '2021-01-01 00:00:00+00', 'b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '[]', {x: i, y: NULL}, [], MAP {'z': i}, '2022-01-01' FROM range(20) r(i)
CREATE TABLE changed (a INTEGER, s VARCHAR DEFAULT 'x''y', n INTEGER DEFAULT 3)
INSERT INTO changed (a) VALUES (1)
INSERT INTO changed SELECT i, 'v' || i, i FROM range(100, 130) r(i)
UPDATE changed SET s = 'updated' WHERE a IN (1, 105)
DELETE FROM changed WHERE a BETWEEN 110 AND 125
DELETE FROM changed WHERE a = 101
ALTER TABLE changed ADD COLUMN s2 VARCHAR DEFAULT 'it''s'
ALTER TABLE changed ADD COLUMN st STRUCT(a INTEGER, b INTEGER)
INSERT INTO changed (a, st) SELECT i, {a: i, b: 2} FROM range(20) r(i)
INSERT INTO changed (a, st) VALUES (2, {a: 7, b: 8})
ALTER TABLE changed ADD COLUMN st.c VARCHAR
ALTER TABLE changed RENAME COLUMN st.a TO aa
ALTER TABLE changed DROP COLUMN st.b
INSERT INTO changed (a, st) VALUES (2, {aa: 5, c: 'c'})
ALTER TABLE changed RENAME s TO text
ALTER TABLE changed ALTER a TYPE BIGINT
ALTER TABLE changed DROP COLUMN n
UPDATE changed SET text = 'last' WHERE a = 2
CREATE TABLE merged (a INTEGER)
CALL lake.set_option('data_inlining_row_limit', 0, table_name => 'merged')
INSERT INTO merged VALUES (1)
INSERT INTO merged VALUES (2)
INSERT INTO merged VALUES (3)
CALL ducklake_merge_adjacent_files('lake')
DELETE FROM merged WHERE a = 2
INSERT INTO merged SELECT range FROM range(100, 110)
DELETE FROM merged WHERE a = 1
CREATE TABLE flushed (a INTEGER, b VARCHAR)
INSERT INTO flushed VALUES (0, 'x0'), (1, 'x1')
INSERT INTO flushed VALUES (2, 'x2')
INSERT INTO flushed VALUES (3, 'x3')
DELETE FROM flushed WHERE a = 2
CALL ducklake_flush_inlined_data('lake', table_name => 'flushed')
DELETE FROM flushed WHERE a = 3
COPY (SELECT 1 AS a, 'q' AS zz, 7 AS extra UNION ALL SELECT 5, 'w', 8) TO '{root}/files/added.parquet'
CREATE TABLE named (a INTEGER, zz VARCHAR, missing INTEGER)
CALL ducklake_add_data_files('lake', 'named', '{root}/files/added.parquet', allow_missing => true, ignore_extra_columns => true)
ALTER TABLE named RENAME a TO a2
CREATE SCHEMA other
CREATE TABLE other.parts (a INTEGER, ts TIMESTAMP, v VARCHAR)
ALTER TABLE other.parts SET PARTITIONED BY (a, year(ts), bucket(4, v))
INSERT INTO other.parts SELECT i % 3, TIMESTAMP '2020-01-01' + INTERVAL (i * 9) MONTH, 'v' || i FROM range(30) r(i)
INSERT INTO other.parts VALUES (NULL, NULL, NULL)
DELETE FROM other.parts WHERE a = 1 AND v > 'v2'
CREATE TABLE renamed AS SELECT 1 AS a
ALTER TABLE renamed RENAME TO renamed2
INSERT INTO renamed2 VALUES (2)
CREATE TABLE dropped AS SELECT 1 AS a
DROP TABLE dropped
CREATE OR REPLACE TABLE renamed2 AS SELECT 'new' AS b
CREATE VIEW seen AS SELECT * FROM merged
COMMENT ON TABLE merged IS 'a comment'
COMMENT ON COLUMN merged.a IS 'of a column'
BEGIN; INSERT INTO merged VALUES (7000); DELETE FROM merged WHERE a = 103; INSERT INTO flushed VALUES (9, 'both'); COMMIT
"""  # noqa: E501


def connect(address: str, data_path: str = "") -> duckdb.DuckDBPyConnection:
    """A connection with the lake at an address as its database `lake`."""
    connection = duckdb.connect(config={"allow_unsigned_extensions": True})
    for name in ("ducklake", "sqlite_scanner", "postgres_scanner"):
        try:
            package = Path(importlib.import_module(f"duckdb_extension_{name}").__file__ or "")
        except ModuleNotFoundError:
            continue
        extension = next(package.parent.rglob(f"{name}.duckdb_extension"))
        connection.execute(f"LOAD '{extension}'")
    options = f" (DATA_PATH '{data_path}')" if data_path else ""
    connection.execute(f"ATTACH '{address}' AS lake{options}")
    connection.execute("USE lake; SET TimeZone = 'UTC'")
    return connection


def texts(connection: duckdb.DuckDBPyConnection, relation: str) -> list[list[str | None]]:
    """The rows of a relation as text, in the order of that."""
    rows = connection.execute(f"SELECT CAST(COLUMNS(*) AS VARCHAR) FROM {relation}").fetchall()
    return sorted((list(row) for row in rows), key=str)


def record(root: Path, kind: str, catalog: str) -> None:
    shutil.rmtree(root, ignore_errors=True)
    (root / "files").mkdir(parents=True)
    with connect(f"ducklake:{kind}{root / catalog}", f"{root / 'files'}") as connection:
        for statement in STATEMENTS.strip().splitlines():
            connection.execute(statement.replace("{root}", str(root)))
        versions = connection.execute("SELECT snapshot_id FROM ducklake_snapshots('lake')")
        expected: dict[str, dict[str, list[list[str | None]]]] = {}
        for (version,) in versions.fetchall():
            metadata = "__ducklake_metadata_lake"
            tables = connection.execute(
                f"SELECT s.schema_name, t.table_name FROM {metadata}.ducklake_table t "
                f"JOIN {metadata}.ducklake_schema s USING (schema_id) "
                f"WHERE t.begin_snapshot <= {version} AND s.end_snapshot IS NULL "
                f"AND coalesce(t.end_snapshot > {version}, true)"
            ).fetchall()
            expected[version] = {
                f"{schema}.{table}": texts(
                    connection, f'{schema}."{table}" AT (VERSION => {version})'
                )
                for schema, table in tables
            }
    (root / "expected.json").write_text(json.dumps(expected))
    shutil.make_archive(str(root), "zip", root)
    shutil.rmtree(root)


def run(address: str) -> None:
    with connect(address) as connection:
        for statement in sys.stdin.read().splitlines():
            if statement.startswith("FROM "):
                answer = texts(connection, statement.removeprefix("FROM "))
            else:
                answer = []
                connection.execute(statement)
            sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        run(sys.argv[2])
    else:
        record(Path(sys.argv[1]).absolute() / "sqlite", "sqlite:", "catalog.sqlite")
        record(Path(sys.argv[1]).absolute() / "duckdb", "", "catalog.ducklake")
