from __future__ import annotations

import threading
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import adbc_driver_postgresql.dbapi as adbc
import cloudpickle
import duckdb
import pyarrow as pa
import pytest
from postgres_server import PASSWORD, Server
from postgres_tables import RandomTable
from reading import condition, read, rows, types

from minishark.errors import DataError, OptionError
from minishark.model.predicates import Comparison, Predicate, Pushed
from minishark.sources import postgres
from minishark.sources.postgres import PostgresSource
from minishark.sources.postgres_server import fetched


def column(server: Server, type_: str, *values: str) -> tuple[str, list[Any]]:
    """DuckDB's type and the values of a column of PostgreSQL."""
    server.sql(
        "DROP TABLE IF EXISTS one",
        f"CREATE TABLE one (x {type_})",
        f"INSERT INTO one VALUES {', '.join(f'({value})' for value in values)}",
    )
    snapshot = PostgresSource(server.dsn, "public", "one").resolve()
    found = read(snapshot)
    assert types(found) == [each.type for each in snapshot.schema]
    return snapshot.schema[0].type, found["x"].to_pylist()


@pytest.mark.sample(11)
@pytest.mark.parametrize(
    ("postgres", "literals", "duckdb_type", "expected"),
    [
        ("bool", ["true", "NULL"], "BOOLEAN", [True, None]),
        ("int2", ["-32768"], "SMALLINT", [-32768]),
        ("int8", ["9223372036854775807"], "BIGINT", [2**63 - 1]),
        ("float4", ["1.5", "'-Infinity'"], "FLOAT", [1.5, float("-inf")]),
        ("numeric(10,2)", ["1.5", "-99999999.99"], "DECIMAL(10,2)",
         [Decimal("1.50"), Decimal("-99999999.99")]),
        ("numeric(3,-2)", ["12345"], "DECIMAL(5,0)", [Decimal(12300)]),
        ("numeric(2,5)", ["0.00012"], "DECIMAL(5,5)", [Decimal("0.00012")]),
        ("numeric", ["1/3.0", "12345678901234567890"], "DECIMAL(38,18)",
         [Decimal("0.333333333333333333"), Decimal(12345678901234567890)]),
        ("numeric(5,2)[]", ["'{1.5,NULL}'", "NULL", "'{}'"], "DECIMAL(5,2)[]",
         [[Decimal("1.50"), None], None, []]),
        ("text", ["'a''b'", "''"], "VARCHAR", ["a'b", ""]),
        ("char(3)", ["'a'"], "VARCHAR", ["a  "]),
        ("bytea", [r"'\x00ff'"], "BLOB", [b"\x00\xff"]),
        ("date", ["'2024-02-29'", "NULL"], "DATE", [date(2024, 2, 29), None]),
        ("timestamptz", ["'2024-01-01 00:00:00.000001+02'"], "TIMESTAMP WITH TIME ZONE",
         [datetime(2023, 12, 31, 22, 0, 0, 1, tzinfo=UTC)]),
        ("uuid", ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"], "UUID",
         [UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")]),
        ("jsonb", ["""'{"a": [1]}'"""], "JSON", ['{"a": [1]}']),
        ("int[]", ["'{1,NULL}'"], "INTEGER[]", [[1, None]]),
        ("inet", ["'10.0.0.1/8'"], "VARCHAR", ["10.0.0.1/8"]),
        ("oid", ["4000000000"], "BIGINT", [4_000_000_000]),
        ("int4range", ["'[1,3)'"], "VARCHAR", ["[1,3)"]),
        ("timetz", ["'12:00+02'"], "VARCHAR", ["12:00:00+02"]),
    ],
)  # fmt: skip
def test_types(
    server: Server, postgres: str, literals: list[str], duckdb_type: str, expected: list[Any]
) -> None:
    """Each type of PostgreSQL has one of DuckDB, with the same values."""
    assert (duckdb_type, expected) == column(server, postgres, *literals)


@pytest.mark.slow
def test_users_types(server: Server) -> None:
    """Enums are text, domains what they are made of, composites the server's text."""
    server.sql(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN price AS numeric(6,2)",
        "CREATE DOMAIN cheap AS price",
        "CREATE TYPE pair AS (a int, b text)",
    )
    assert ("VARCHAR", ["ok"]) == column(server, "mood", "'ok'")
    assert ("DECIMAL(6,2)", [Decimal("1.25")]) == column(server, "cheap", "1.25")
    assert ("VARCHAR", ["(1,x)"]) == column(server, "pair", "(1,'x')::pair")
    assert ("VARCHAR[]", [["ok", "sad"]]) == column(server, "mood[]", "'{ok,sad}'")


@pytest.mark.slow
def test_infinite_dates_are_duckdbs(server: Server) -> None:
    """The driver moves them by its epoch; they come out as infinite as they were."""
    for type_ in ("date", "timestamp", "timestamptz"):
        server.sql(
            "DROP TABLE IF EXISTS ends",
            f"CREATE TABLE ends AS SELECT v::{type_} AS x FROM unnest("
            "ARRAY['infinity', '-infinity', '2024-01-01', NULL]) v",
        )
        table = read(PostgresSource(server.dsn, "public", "ends").resolve())
        with duckdb.connect() as connection:
            found = connection.from_arrow(table).project("(x::VARCHAR)[:8]").fetchall()
        assert [("infinity",), ("-infinit",), ("2024-01-",), (None,)] == found


@pytest.mark.slow
def test_what_does_not_fit_is_an_error_that_names_the_column(server: Server) -> None:
    """NaN is no DECIMAL, and an array of two dimensions no list."""
    with pytest.raises(DataError, match=r"column x of postgres public.one .*numeric"):
        column(server, "numeric(5,2)", "'NaN'")
    with pytest.raises(DataError, match="has several dimensions"):
        column(server, "int[]", "'{{1,2},{3,4}}'")
    with pytest.raises(OptionError, match="DECIMAL"):
        PostgresSource(server.dsn, "public", "one", numeric="DECIMAL(39,2)")
    as_double = PostgresSource(server.dsn, "public", "one", numeric="double")
    server.sql("DROP TABLE one", "CREATE TABLE one AS SELECT 'NaN'::numeric AS x")
    assert ["nan"] == [str(value) for value in read(as_double.resolve())["x"].to_pylist()]


def test_splits_are_ranges_of_blocks_that_make_up_the_table(server: Server) -> None:
    """Every row is in one split exactly, whatever their number."""
    snapshot = PostgresSource(server.dsn, "public", "numbers").resolve()
    assert snapshot.statistics is not None
    assert 100_000 == snapshot.statistics.rows
    assert [100_000, 7] == [each.distinct for each in snapshot.statistics.columns][:2]
    expected = list(range(1, 100_001))
    for tasks in (1, 3):
        assert expected == sorted(read(snapshot, Pushed(columns=("id",)), tasks)["id"].to_pylist())
    snapshot.close()


@pytest.fixture(scope="module")
def compared(server: Server) -> pa.Table:
    """A table of columns that predicates can be pushed down to, as PostgreSQL wrote it."""
    server.sql(
        "CREATE TYPE mood2 AS ENUM ('sad', 'ok')",
        'CREATE TABLE compared (i int, f float8, n numeric(8,2), "T x" text, c char(3), d date, '
        "z timestamptz, e mood2, b bool, u uuid, y bytea)",
        "INSERT INTO compared SELECT i, CASE i % 3 WHEN 0 THEN 'NaN'::float8 ELSE i END, i / 4.0, "
        "(ARRAY['a', 'B', 'ä', 'it''s', 'Z'])[1 + i % 5], (ARRAY['a', 'b '])[1 + i % 2], "
        "date '2024-01-01' + i, timestamptz '2024-01-01 12:00+01' + i * interval '1 hour', "
        "(ARRAY['sad', 'ok'])[1 + i % 2]::mood2, i % 2 = 0, md5(i::text)::uuid, "
        "decode(md5(i::text), 'hex') FROM generate_series(1, 40) i",
        "INSERT INTO compared SELECT",
    )
    return read(PostgresSource(server.dsn, "public", "compared").resolve())


@pytest.mark.slow
def test_pushed_predicates_leave_out_no_row(server: Server, compared: pa.Table) -> None:
    """Every comparison on every type: what DuckDB finds is found, and mostly nothing else."""
    snapshot = PostgresSource(server.dsn, "public", "compared").resolve()
    fewer = 0
    for name in compared.column_names:
        values = [each for each in compared[name].to_pylist() if each is not None][5:7]
        for comparison in Comparison:
            count = 0 if "NULL" in comparison else 2 if comparison is Comparison.IN else 1
            predicate = Predicate(name, comparison, tuple(values[:count]))
            found = read(snapshot, Pushed(predicates=(predicate,)))
            with duckdb.connect() as connection:
                connection.execute("SET TimeZone = 'UTC'")
                where = _condition(predicate, types(compared)[compared.column_names.index(name)])
                left, right = (
                    connection.from_arrow(each).filter(where).project("i").fetchall()
                    for each in (compared, found)
                )
            assert sorted(left, key=str) == sorted(right, key=str), predicate
            fewer += found.num_rows < compared.num_rows
    assert fewer > 60
    snapshot.close()


def _condition(predicate: Predicate, type_: str) -> str:
    quoted = f'"{predicate.column}"'
    values = [
        f"from_hex('{each.hex()}')" if isinstance(each, bytes)
        else "CAST('" + str(each).replace("'", "''") + f"' AS {type_})"
        for each in predicate.values
    ]  # fmt: skip
    if predicate.comparison is Comparison.IN:
        return f"{quoted} IN ({', '.join(values)})"
    return f"{quoted} {predicate.comparison} {' '.join(values)}"


@pytest.mark.slow
def test_views_partitioned_and_inherited_tables(server: Server) -> None:
    """A view is one split; partitions and children are read with their parents."""
    server.sql(
        "CREATE VIEW seen AS SELECT id, s FROM numbers WHERE id <= 10",
        "CREATE TABLE parts (id int, k int) PARTITION BY LIST (k)",
        *(f"CREATE TABLE parts{k} PARTITION OF parts FOR VALUES IN ({k})" for k in range(7)),
        "INSERT INTO parts SELECT id, k FROM numbers",
        "CREATE TABLE parent (id int)",
        "CREATE TABLE child (more int) INHERITS (parent)",
        "INSERT INTO parent SELECT id FROM numbers",
        "INSERT INTO child SELECT id, 1 FROM numbers",
    )
    view = PostgresSource(server.dsn, "public", "seen").resolve()
    assert 1 == len(view.splits(Pushed(), 4))
    assert list(range(1, 11)) == sorted(read(view)["id"].to_pylist())
    for name, count in (("parts", 100_000), ("parent", 200_000)):
        snapshot = PostgresSource(server.dsn, "public", name).resolve()
        assert count == read(snapshot, tasks=3).num_rows
        assert snapshot.statistics is not None
        assert 0.9 < snapshot.statistics.rows / count < 1.6
    server.sql('CREATE TABLE odd AS SELECT 1 AS "a ""b", \'x\' AS "C"')
    odd = PostgresSource(server.dsn, "public", "odd").resolve()
    assert {'a "b': 1, "C": "x"} == read(odd).to_pylist()[0]
    with pytest.raises(DataError, match=r"There is no postgres public\.nothing"):
        PostgresSource(server.dsn, "public", "nothing").resolve()


@pytest.mark.slow
def test_all_splits_see_one_moment_while_others_write(server: Server) -> None:
    """Money moves all the time, and none of it gets lost or doubled."""
    server.run("pgbench", "-i", "-s", "2", "-q").wait(60)
    writer = server.run("pgbench", "-c", "2", "-T", "30")
    try:
        source = PostgresSource(server.dsn, "public", "pgbench_accounts")
        histories = set()
        for _ in range(4):
            snapshot = source.resolve()
            splits = snapshot.splits(Pushed(columns=("abalance",)), 4)
            assert len(splits) > 1
            sums = []
            for split in splits:
                batches = split.read(Pushed(columns=("abalance",))).read_all()
                sums.append(sum(batches["abalance"].to_pylist()))
                time.sleep(0.2)
            # What the accounts have is what the history says at the same moment.
            with source._server.connected() as connection:
                fetched(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                kept = snapshot.moment.exported("pgbench_accounts")
                fetched(connection, f"SET TRANSACTION SNAPSHOT '{kept}'")
                ((total, count),) = fetched(
                    connection,
                    "SELECT coalesce(sum(delta), 0)::int8, count(*) FROM pgbench_history",
                )
            assert total == sum(sums)
            histories.add(count)
            snapshot.close()
        assert len(histories) > 1, "nobody wrote"
    finally:
        writer.kill()
        writer.wait(10)


_SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed else []) for seed in range(200)]


@pytest.mark.parametrize("seed", _SEEDS)
def test_rows_and_types_are_those_of_the_server(
    server: Server, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever happened to a table, its values are those that the server writes as text."""
    monkeypatch.setattr(postgres, "_BLOCKS_MIN", 1)
    made = RandomTable.created(server, seed)
    source = PostgresSource(server.dsn, made.schema, made.name)
    snapshot = source.resolve()
    found = read(snapshot)
    assert made.types == {each.name: each.type for each in snapshot.schema}
    assert made.rows() == made.comparable(found)
    for predicate in made.predicates(found):
        where = condition([predicate], found)
        pushed = read(source.resolve(), Pushed(predicates=(predicate,)))
        assert rows(found, where) == rows(pushed, where), predicate


@pytest.mark.slow
def test_tables_of_one_server_are_read_as_of_one_moment(server: Server) -> None:
    """The second joins the first's transaction, unless it says otherwise."""
    server.sql("CREATE TABLE first1 AS SELECT 1 AS x", "CREATE TABLE second1 AS SELECT 1 AS x")
    both = [PostgresSource(server.dsn, "public", name).resolve() for name in ("first1", "second1")]
    first = both[0].opened()
    second = both[1].opened([first])
    later = PostgresSource(server.dsn, "public", "second1", hold=9).resolve().opened([first])
    assert 1 == read(first).num_rows
    server.sql("INSERT INTO first1 VALUES (2)", "INSERT INTO second1 VALUES (2)")
    assert [1, 1, 2] == [read(each).num_rows for each in (first, second, later)]
    for each in (first, second, later):
        each.close()
    assert 2 == read(second.opened()).num_rows


@pytest.mark.slow
def test_a_snapshot_ends_with_its_object_or_its_time(server: Server) -> None:
    """No transaction stays open, which would keep the server from cleaning up."""
    open_ones = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    before = server.sql(open_ones)[0][0]
    snapshot = PostgresSource(server.dsn, "public", "numbers", hold=1.0).resolve()
    assert before == server.sql(open_ones)[0][0]
    splits = snapshot.splits(Pushed(), 1)
    assert before + 1 == server.sql(open_ones)[0][0]
    time.sleep(1.5)
    assert before == server.sql(open_ones)[0][0]
    with pytest.raises(DataError, match="`hold`"):
        splits[0].read(Pushed()).read_all()
    with pytest.raises(DataError, match=r"public\.numbers"):
        snapshot.splits(Pushed(), 1)  # would be of another moment
    snapshot.close()
    assert 100_000 == read(snapshot).num_rows  # begins another
    del snapshot
    assert before == server.sql(open_ones)[0][0]


@pytest.mark.slow
def test_tables_are_not_written_anew_while_they_are_read(server: Server) -> None:
    """VACUUM FULL would move rows from one range of blocks to another, TRUNCATE remove them."""
    server.sql(
        "CREATE TABLE moving AS SELECT i FROM generate_series(1, 9) i",
        "CREATE VIEW over_moving AS SELECT i FROM moving",
    )
    for name in ("moving", "over_moving"):
        snapshot = PostgresSource(server.dsn, "public", name).resolve().opened()
        splits = snapshot.splits(Pushed(), 1)
        with pytest.raises(adbc.Error, match="lock timeout"):
            server.sql("SET lock_timeout = '50ms'", "TRUNCATE moving")
        assert 9 == splits[0].read(Pushed()).read_all().num_rows
        snapshot.close()
    server.sql("SET lock_timeout = '5s'", "TRUNCATE moving")


@pytest.mark.slow
def test_who_waits_to_change_a_table_does_not_block_its_reader(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server can't see that both wait for each other: the task gives up, and says so."""
    monkeypatch.setattr(postgres, "LOCK_OF_TASKS_S", 0.05)
    server.sql("CREATE TABLE awaited AS SELECT 1 AS x")
    snapshot = PostgresSource(server.dsn, "public", "awaited").resolve().opened()
    (split,) = snapshot.splits(Pushed(), 1)
    changes = threading.Thread(target=server.sql, args=("ALTER TABLE awaited ADD COLUMN y int",))
    changes.start()
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    deadline = time.monotonic() + 10
    while not server.sql(waiting)[0][0] and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(DataError, match=r"public\.awaited: .*lock timeout.* Somebody changes"):
        split.read(Pushed()).read_all()
    snapshot.close()
    changes.join(10)
    assert ["x", "y"] == server.sql("SELECT array_agg(attname::text) FROM pg_attribute "
        "WHERE attrelid = 'awaited'::regclass AND attnum > 0")[0][0]  # fmt: skip


@pytest.mark.slow
def test_a_statement_that_takes_too_long_is_ended(server: Server) -> None:
    server.sql("CREATE VIEW slow AS SELECT pg_sleep(30)::text AS x")
    source = PostgresSource(server.dsn, "public", "slow", statement_timeout=0.3)
    with pytest.raises(DataError, match="statement timeout"):
        read(source.resolve())


def test_passwords_are_in_nothing_that_is_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in names, representations, or errors; a function's result is in no pickle, too."""
    source = PostgresSource(server.dsn, "public", "numbers")
    snapshot = source.resolve()
    split = snapshot.splits(Pushed(), 1)[0]
    shown = f"{source!r} {source.name} {snapshot!r} {snapshot.version} {split!r} {vars(source)!r}"
    shown += repr(vars(split))
    assert PASSWORD not in shown
    assert "sesame" not in shown
    called = PostgresSource(_from_elsewhere, "public", "numbers")
    monkeypatch.setenv("TEST_DSN", server.dsn)
    other = called.resolve()
    pickle = cloudpickle.dumps(other.splits(Pushed(), 1)[0])
    assert b"sesame" not in pickle
    assert 100_000 == cloudpickle.loads(pickle).read(Pushed()).read_all().num_rows
    for wrong in (
        "postgresql://u:open%20sesame@127.0.0.1:1/x",
        "port=1 host=127.0.0.1 password='open sesame'",
        "postgresql://u:open sesame@h:1/x",
        "nonsense password='open sesame'",
        "postgresql://u:open@sesame@127.0.0.1:1/x",
        "postgresql://u:sesame/sesame@127.0.0.1:1/x",
        "postgresql://127.0.0.1:sesame/x@y",
    ):
        with pytest.raises(DataError) as caught:
            PostgresSource(wrong, "public", "x").resolve()
        text = f"{caught.value} {caught.value.__cause__!r} {caught.value.__context__!r}"
        assert "sesame" not in text
        assert "Can't read postgres public.x" in text


def _from_elsewhere() -> str:
    import os

    return os.environ["TEST_DSN"]


@pytest.mark.slow
def test_what_a_string_leaves_out_comes_from_the_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors have another environment; the front end's counts."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("PGPORT", str(server.port))
    sources = [
        PostgresSource(server.uri, "public", "numbers"),
        PostgresSource("postgresql://tester@127.0.0.1/postgres", "public", "numbers"),
        PostgresSource("host=127.0.0.1 user=tester dbname=postgres", "public", "numbers"),
    ]
    monkeypatch.setenv("WHERE_IT_IS", server.dsn)
    sources.append(PostgresSource("env:WHERE_IT_IS", "public", "numbers"))
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.delenv("PGPORT")
    for index, source in enumerate(sources):
        assert 3 == read(source.resolve(), Pushed(limit=3)).num_rows, index
    with pytest.raises(OptionError, match="NOT_THERE"):
        PostgresSource("env:NOT_THERE", "public", "numbers")
