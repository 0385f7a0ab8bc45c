"""Typical mistakes: each message names what is wrong, where, and what to do or what is right.

`pytest --rewrite tests/golden` writes them anew.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import minishark
from minishark import functions as F
from minishark.cli.app import run
from minishark.errors import MinisharkError

GOLDEN = Path(__file__).with_name("mistakes.txt")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A session `s` with orders `o` and cities `c`, one that is stopped, and a folder of files."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "notes.txt").write_text("hello")
    (folder / "bad.parquet").write_text("no Parquet")
    (folder / "cities.csv").write_text("id,city\n1,Paris\n")
    (folder / "numbers.csv").write_text("a,b\n1,2\n3,four\n")
    (folder / "ragged.csv").write_text("a,b\n1,2\n3,4,5\n")
    (folder / "bad.json").write_text('{"a": 1}\n{"a": 2\n')
    (folder / "book.xlsx").write_bytes(b"PK")
    (folder / "mixed").mkdir()
    for name, text in (("a.csv", "a\n1\n"), ("b.csv", "a\n2\n"), ("c.json", '{"a": 1}')):
        (folder / "mixed" / name).write_text(text)
    (folder / "empty").mkdir()
    (folder / "taken").mkdir()
    (folder / "taken" / "file").touch()
    with (
        pytest.MonkeyPatch.context() as patch,
        minishark.connect(in_process=True, nodes=1) as s,
    ):
        patch.setenv("XDG_RUNTIME_DIR", str(folder))  # where clusters are looked up
        rows = {"id": [1, 2], "customer": ["Ada", "Bob"], "amount": [1.5, 2.5]}
        s.create_table("orders", pa.table(rows))
        stopped = s.new_session()
        left = stopped.range(3)
        stopped.stop()
        cities = s.create_dataframe([(1, "Paris")], ["id", "city"])
        yield SimpleNamespace(
            s=s, o=s.table("orders"), c=cities, stopped=stopped, left=left, folder=folder
        )


def _local() -> Any:
    lock = threading.Lock()
    return lambda: lock


_LOCAL = _local()


def _city_of(row: Any) -> dict[str, str]:
    return {"x": row["city"]}


def sql(text: str, params: Any = None) -> Callable[[Any], Any]:
    """The mistake is in a statement."""
    return lambda w: w.s.sql(text, params).collect()


def command(*arguments: str) -> Callable[[Any], Any]:
    """The mistake is in a command."""
    return lambda w: run(arguments)


MISTAKES: dict[str, Callable[[Any], Any]] = {
    # Names
    "a table in SQL": sql("FROM ordrs"),
    "a table": lambda w: w.s.table("ordres"),
    "a table to drop": lambda w: w.s.drop_table("order"),
    "a table to read": lambda w: w.s.read.table("orderz"),
    "a column in SQL": sql("SELECT custmer FROM orders"),
    "a column by dot": lambda w: w.o.amont,
    "a column in brackets": lambda w: w.o["amont"],
    "a column to select": lambda w: w.o.select("amont"),
    "a column in a filter": lambda w: w.o.filter("amont > 3"),
    "a column to group by": lambda w: w.o.group_by("amont").count(),
    "a column to add up": lambda w: w.o.group_by("id").agg(F.sum("amont")),
    "a column to join on": lambda w: w.o.join(w.c, "idd"),
    "a column to drop": lambda w: w.o.drop("amont"),
    "a column to sort by": lambda w: w.o.order_by("amont"),
    "a column to rename": lambda w: w.o.with_column_renamed("amont", "x"),
    "a column to fill": lambda w: w.o.fillna({"amont": 0}),
    "a value of a row": lambda w: w.o.first().amont,
    "a key of a row": lambda w: w.o.first()["amont"],
    "a function in SQL": sql("SELECT summ(id) FROM orders"),
    "a function": lambda w: F.summ("id"),
    "a method of a frame": lambda w: w.o.fliter("id"),
    "a method of a session": lambda w: w.s.creat_table("x", 1),
    "a method of a column": lambda w: w.o.id.isnul(),
    "a type to cast to": lambda w: w.o.select(w.o.id.cast("itneger")),
    "a type in a schema": lambda w: w.s.create_dataframe([(1,)], "a itneger"),
    "a type of a function": lambda w: w.s.udf.register("f", abs, "itneger"),
    "a Python variable in SQL": lambda w: _from_variable(w.s, w.c),
    # Statements
    "a keyword": sql("SELECT id FORM orders"),
    "the first keyword": sql("SELEC id FROM orders"),
    "text in double quotes": sql('SELECT * FROM orders WHERE customer = "Ada"'),
    "text that is added": sql("SELECT customer + ' x' FROM orders"),
    "text that is averaged": lambda w: w.o.select(F.avg("customer")),
    "no GROUP BY": sql("SELECT customer, id FROM orders GROUP BY customer"),
    "an aggregate in WHERE": sql("SELECT id FROM orders WHERE sum(id) > 3"),
    "a window function alone": lambda w: w.o.select(F.rank()),
    "an ambiguous column": sql("SELECT id FROM orders a, orders b"),
    "an ambiguous column of a join": lambda w: w.o.join(w.c, w.o.id == w.c.id).select("id"),
    "a UNION of unlike tables": lambda w: w.o.union(w.c),
    "a parameter without values": sql("SELECT $day"),
    "a parameter of another name": sql("SELECT $day", {"dya": 1}),
    "no statement": sql("-- later"),
    "a division by zero": sql("SELECT 1 // 0"),
    "a value that is no number": sql("SELECT customer::INTEGER FROM orders"),
    "values that are too few": sql("INSERT INTO orders VALUES (1)"),
    "a setting of DuckDB": sql("SET threads = 4"),
    "a setting by PRAGMA": sql("PRAGMA memory_limit = '1GB'"),
    "IMPORT DATABASE": sql("IMPORT DATABASE 'x'"),
    "a pragma of no table": sql("PRAGMA table_info('nowhere')"),
    "an attribute of pandas": lambda w: w.s.range(3).shape,
    "a method of a Series": lambda w: w.s.range(3).id.mean(),
    "a column of groups": lambda w: w.s.range(3).group_by("id")["id"],
    "an extension": sql("INSTALL httpfs"),
    # Files and data
    "a file in SQL": sql("FROM 'nowhere.parquet'"),
    "a file to read": lambda w: w.s.read.parquet("/no/such.parquet"),
    "a file to load": lambda w: w.s.create_table("x", "/no/such.csv"),
    "a file that says it is Parquet": lambda w: w.s.create_table("x", w.folder / "bad.parquet"),
    "a file of another kind": lambda w: w.s.create_table("x", w.folder / "notes.txt"),
    "a folder without files": lambda w: w.s.create_table("x", w.folder / "empty"),
    "a web address": sql("FROM 'https://example.com/a.csv'"),
    "a format": lambda w: w.s.read.format("paquet").load("x"),
    "a table that is there": lambda w: w.s.create_table("orders", pa.table({"a": [1]})),
    "a folder that is there": lambda w: w.o.write.parquet(w.folder / "taken"),
    "a folder that can't be made": lambda w: w.o.write.parquet("/proc/no/such"),
    "a mode of writing": lambda w: w.o.write.mode("overwite"),
    "a dictionary as a table": lambda w: w.s.create_table("x", {"a": [1]}),
    "rows of unlike lengths": lambda w: w.s.create_dataframe([(1, 2), (3,)], ["a", "b"]),
    "rows of unlike types": lambda w: w.s.create_dataframe([(1,), ("x",)], ["a"]),
    "no rows and no schema": lambda w: w.s.create_dataframe([]),
    # Python
    "and for &": lambda w: w.o.filter((w.o.id > 1) and (w.o.id < 9)),
    "assignment to a column": lambda w: w.o.__setitem__("x", 1),
    "a row by position": lambda w: w.o[0],
    "a loop over a column": lambda w: list(w.o.id),
    "a name that is a number": lambda w: w.o.id.alias(5),
    "rows that are text": lambda w: w.o.show("3"),
    "a negative limit": lambda w: w.o.limit(-1),
    "a kind of join": lambda w: w.o.join(w.c, "id", "lefft"),
    "a mode of explain": lambda w: w.o.explain("phsyical"),
    "a seed": lambda w: w.o.sample(0.5, seed="x"),
    "a query around nothing": lambda w: w.o.select(w.o.id.outer()).collect(),
    "no partitions": lambda w: w.o.repartition(0),
    "pandas' dtypes": lambda w: w.o.to_pandas("arrow"),
    "a call instead of a function": lambda w: w.s.submit(abs(-3)),
    "a function that can't be sent": lambda w: w.s.submit(_LOCAL).result(),
    "a result that can't be sent": lambda w: w.s.submit(threading.Lock).result(),
    "a function of partitions without rows": lambda w: w.o.map_partitions(
        lambda rows: 5, "a INT"
    ).collect(),
    "a function of partitions with other columns": lambda w: w.o.map_partitions(
        lambda rows: rows, "a INT"
    ).collect(),
    # Sessions
    "a session that is stopped": lambda w: w.stopped.sql("SELECT 1"),
    "a frame of a stopped session": lambda w: w.left.collect(),
    "a frame of another session": lambda w: w.o.union(w.left),
    "a misspelt option": lambda w: minishark.connect(node=2),
    "another name of an option": lambda w: minishark.connect(threads=2),
    "nodes as an address": lambda w: minishark.connect(2),
    "no nodes": lambda w: minishark.connect(nodes=0),
    "an amount of memory": lambda w: minishark.connect(memory_limit="lots"),
    "a placement": lambda w: minishark.connect(placement="sparow"),
    "a cluster": lambda w: minishark.connect("nowhere"),
    "an optimization": lambda w: minishark.connect(disabled_optimizations=["one_taks"]),
    "a setting": lambda w: w.s.conf.set("shuffle_partitions", 5),
    # More statements
    "a comma that is missing": sql("SELECT id amount customer FROM orders"),
    "a parenthesis that is missing": sql("SELECT sum(id FROM orders"),
    "a quote that is missing": sql("SELECT * FROM orders WHERE customer = 'Ada"),
    "a column that is a keyword": sql("SELECT order FROM orders"),
    "two equals signs": sql("SELECT * FROM orders WHERE id === 1"),
    "a table that is dropped": sql("DROP TABLE ordres"),
    "a table that is changed": sql("UPDATE ordres SET id = 1"),
    "a column that is set": sql("UPDATE orders SET amuont = 1"),
    "a table that is made twice": sql("CREATE TABLE orders (id INT)"),
    "a column that is dropped": sql("ALTER TABLE orders DROP COLUMN amont"),
    "a column of another table": sql("SELECT o.city FROM orders o"),
    "an alias that is not there": sql("SELECT x.id FROM orders o"),
    "a schema": sql("SELECT * FROM sales.orders"),
    "a schema of a column": sql("CREATE TABLE x (a itneger)"),
    "a shared table without a cluster": sql("CREATE TABLE shared.x AS SELECT 1 AS a"),
    "a position to sort by": sql("SELECT id FROM orders ORDER BY 9"),
    "a date": sql("SELECT DATE '2026-13-01'"),
    "a date in a column": sql("SELECT customer::DATE FROM orders"),
    "a part of a date": sql("SELECT date_trunc('dya', DATE '2026-01-01')"),
    "arguments that are too many": sql("SELECT upper('a', 'b')"),
    "arguments of another type": sql("SELECT sum(customer) FROM orders"),
    "texts that are compared with numbers": sql("SELECT * FROM orders WHERE customer > 3"),
    "a subquery of several rows": sql("SELECT (SELECT id FROM orders)"),
    "a subquery of several columns": sql("SELECT (SELECT id, amount FROM orders LIMIT 1)"),
    "a join without a condition": sql("SELECT 1 FROM orders a JOIN orders b"),
    "a column that one side of USING lacks": sql("FROM orders JOIN range(3) r USING (id)"),
    "a number that is too large": sql("SELECT 3000000000::INTEGER"),
    "an overflow": sql("SELECT 9223372036854775807 + id FROM orders"),
    "a pattern": sql("SELECT regexp_matches(customer, '(') FROM orders"),
    "a format of dates": sql("SELECT strptime(customer, '%Y-%m-%d') FROM orders"),
    "a prepared statement": sql("EXECUTE nothing"),
    "a database": sql("USE sales"),
    "an attached database": sql("ATTACH 'nowhere/x.db' AS x"),
    "several statements, of which one is wrong": sql("SELECT 1; SELEC 2"),
    "EXPLAIN of nothing": sql("EXPLAIN SELECT * FROM ordrs"),
    "a value of an ENUM": sql("SELECT 'c'::ENUM('a', 'b')"),
    "a JSON text": sql("SELECT '{a'::JSON"),
    # Transactions
    "COMMIT without BEGIN": sql("COMMIT"),
    "ROLLBACK without BEGIN": sql("ROLLBACK"),
    "BEGIN twice": lambda w: _in_transaction(w.s, "BEGIN"),
    "a statement after an error": lambda w: _in_transaction(w.s, "SELEC 1", "SELECT 1"),
    "a key that is there": lambda w: _with_table(w.s, "INSERT INTO keyed VALUES (1, 'b')"),
    "a NULL that must not be": lambda w: _with_table(w.s, "INSERT INTO keyed VALUES (2, NULL)"),
    "a check that fails": lambda w: _with_table(w.s, "INSERT INTO keyed VALUES (-1, 'b')"),
    # More of DataFrames
    "a list as a literal": lambda w: w.o.select(F.lit(object())),
    "names that are too few": lambda w: w.o.to_df("a", "b"),
    "a file without a header": lambda w: w.s.read.csv(w.folder / "cities.csv").select("city"),
    "such a file's column by dot": lambda w: w.s.read.csv(w.folder / "cities.csv").city,
    "such a file's column in a filter": lambda w: w.s.read.csv(w.folder / "cities.csv").filter(
        "city = 'Rome'"
    ),
    "such a file's column in a function": lambda w: (
        w.s.read.csv(w.folder / "cities.csv").map_rows(_city_of, {"x": "varchar"}).collect()
    ),
    "ALTER of a table": sql("ALTER TABLE ordrs ADD COLUMN x INTEGER"),
    "INSERT into a table": sql("INSERT INTO ordrs VALUES (1)"),
    "UPDATE of a table": sql("UPDATE ordrs SET id = 1"),
    "a union of unions": lambda w: functools.reduce(lambda d, _: d.union(d), range(20), w.o),
    "map of a list": lambda w: w.s.map([1, 2], [3]),
    "map over a number": lambda w: w.s.map(abs, 3),
    "map that reuses": lambda w: w.s.map(abs, [3], reuse=True),
    "an option of a submitted call": lambda w: w.s.submit(_city_of, {}, tiemout=3),
    "reuse of no kind": lambda w: minishark.connect(reuse="yes"),
    "a join without its columns": lambda w: w.o.join(w.c, w.o.id == w.c.number),
    "a join on a column of neither": lambda w: w.o.join(w.c, ["id", "customer"]),
    "explode of a number": lambda w: w.o.select(F.explode("id")),
    "an element of a number": lambda w: w.o.select(w.o.id.get_item(0)),
    "rows of groups": lambda w: w.o.group_by("id").show(),
    "a field of a number": lambda w: w.o.select("id.x"),
    "a share above 1": lambda w: w.o.sample(2.0),
    "a condition that is text": lambda w: w.o.filter("customer").collect(),
    "a condition that is no condition": lambda w: w.o.filter(w.o.customer).collect(),
    "otherwise without when": lambda w: w.o.select(w.o.id.otherwise(1)),
    "a row that is not there": lambda w: w.o.collect()[5],
    "an aggregate among columns": lambda w: w.o.select("id", F.sum("amount")).collect(),
    "an aggregate by name": lambda w: w.o.group_by("id").agg({"amount": "sums"}),
    "a mode of dropna": lambda w: w.o.dropna(how="some"),
    "a statistic": lambda w: w.o.summary("maen"),
    "a keyword of a method": lambda w: w.o.show(truncated=False),
    "a keyword of a session's method": lambda w: w.s.create_table("x", w.o, sharde=True),
    "a keyword of sort": lambda w: w.o.order_by("id", acsending=False),
    "a pivot without an aggregate": lambda w: w.o.group_by("id").pivot("customer").show(),
    "pandas' way to filter": lambda w: w.o[w.o.id > 1].iloc[0],
    "pandas' way to sort": lambda w: w.o.sort_values("id"),
    "polars' way to add columns": lambda w: w.o.with_columns(x=1).y,
    # More of files
    "a folder of unlike files": lambda w: w.s.create_table("x", w.folder / "mixed"),
    "a CSV file with a bad number": lambda w: w.s.read.csv(
        w.folder / "numbers.csv", header=True, schema="a int, b int"
    ).collect(),
    "a CSV file with a long row": lambda w: w.s.read.csv(
        w.folder / "ragged.csv", header=True, schema="a int, b int"
    ).collect(),
    "an option of CSV files": lambda w: w.s.read.csv(w.folder / "cities.csv", headr=True),
    "a JSON file": lambda w: w.s.read.json(w.folder / "bad.json").collect(),
    "a Parquet file to read": lambda w: w.s.read.parquet(w.folder / "bad.parquet"),
    "a pattern without files": lambda w: w.s.read.parquet(w.folder / "*.parq"),
    "a spreadsheet": lambda w: w.s.create_table("x", w.folder / "book.xlsx"),
    "a file in SQL with a misspelt ending": sql("FROM 'sales.cvs'"),
    "a file in SQL of another kind": lambda w: w.s.sql(f"FROM '{w.folder}/notes.txt'"),
    "load without a format": lambda w: w.s.read.load(w.folder / "cities.csv"),
    "a bucket that can't be reached": lambda w: w.s.read.parquet("s3://nowhere/x.parquet"),
    "a bucket to write to": lambda w: w.o.write.parquet("s3://nowhere/x"),
    "a scheme": lambda w: w.s.read.parquet("ftp://host/x.parquet"),
    "a file to write over": lambda w: w.o.write.csv(w.folder / "notes.txt"),
    "a table to write over": lambda w: w.o.write.save_as_table("orders"),
    "COPY to a folder that is not there": sql("COPY orders TO '/no/such/x.csv'"),
    "COPY from a file that is not there": sql("COPY orders FROM 'nowhere.csv'"),
    # Functions of users
    "a function that raises": lambda w: list(w.s.map(_inverse, [1, 0])),
    "a function of rows that raises": lambda w: w.o.map_rows(_raising, "x int").collect(),
    "a function in SQL that raises": lambda w: _registered(
        w.s, "SELECT inverse(range) FROM range(2)"
    ),
    "a function in SQL with other arguments": lambda w: _registered(w.s, "SELECT inverse(1, 2)"),
    "a function in SQL of another type": lambda w: _registered(w.s, "SELECT inverse('x')"),
    "a function of rows with other columns": lambda w: w.o.map_rows(
        lambda row: {"y": row.id}, "x int"
    ).collect(),
    "a function that takes too much": lambda w: list(w.s.map(lambda a, b: a, [1])),
    "a function of another type": lambda w: w.o.map_rows(
        lambda row: {"x": row.customer}, "x int"
    ).collect(),
    "no function": lambda w: w.s.map(3, [1]),
    # Options, commands, clusters
    "nodes that are no number": lambda w: minishark.connect(nodes="two"),
    "a kind of reuse": lambda w: minishark.connect(reuse="sesion"),
    "a time that is negative": lambda w: minishark.connect(query_timeout_s=-1),
    "a warehouse": lambda w: minishark.connect(warehouse="nowhere://x"),
    "keys": lambda w: minishark.connect("tcp://127.0.0.1:7077", keys="/no/such"),
    "a cluster's file": lambda w: minishark.connect("/no/such.json"),
    "a job": lambda w: w.s.job("nightly"),
    "a command": command("clustr"),
    "a command of cluster": command("cluster", "lst"),
    "an option of a command": command("sql", "SELECT 1", "--dat", "x"),
    "a cluster of a command": command("sql", "SELECT 1", "--cluster", "nowhere"),
    "an experiment": command("bench", "plcement"),
    "data that are not there": command("sql", "SELECT 1", "--data", "/no/such"),
    "a script that is not there": command("run", "/no/such.sql"),
    "a program that is not there": command("submit", "/no/such.py"),
    "an option of submit": command("submit", "--atempts", "3", "x.py"),
    "a query of TPC-H": command("tpch", "--queries", "23"),
    "a format of output": command("sql", "SELECT 1", "--format", "xml"),
    "a file to write answers to": command("sql", "SELECT 1", "--output", "/no/such/x.csv"),
    "jobs without a cluster": command("jobs"),
    "tables without a cluster": command("tables"),
    "a page without a cluster": command("ui", "nowhere"),
    "a server": command("sql", "SELECT 1", "--server", "grpc://127.0.0.1:1"),
    "an address without a scheme": command("sql", "SELECT 1", "--server", "localhost"),
}  # fmt: skip


def _from_variable(session: Any, cities: Any) -> Any:
    return session.sql("FROM cities")


def _in_transaction(session: Any, *statements: str) -> None:
    own = session.new_session()
    own.sql("BEGIN")
    try:
        for statement in statements[:-1]:
            with contextlib.suppress(MinisharkError):
                own.sql(statement)
        own.sql(statements[-1])
    finally:
        own.stop()


def _with_table(session: Any, statement: str) -> None:
    session.sql(
        "CREATE OR REPLACE TABLE keyed (id INT PRIMARY KEY CHECK (id > 0), t TEXT NOT NULL)"
    )
    session.sql("INSERT INTO keyed VALUES (1, 'a')")
    session.sql(statement)


def _registered(session: Any, statement: str) -> None:
    session.udf.register("inverse", _inverse, "double")
    session.sql(statement).collect()


def _inverse(x: float) -> float:
    return 1 / x


def _raising(row: Any) -> Any:
    return {"x": 1 // (row.id - 2)}


def _told(mistake: Callable[[Any], Any], world: SimpleNamespace) -> str:
    """What the user reads, without what differs from run to run."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            mistake(world)
    except Exception as error:  # noqa: BLE001 - whatever users see
        notes = [note.partition(":\n")[0] for note in getattr(error, "__notes__", ())]
        said.write("\n".join([f"{type(error).__name__}: {error}", *notes]))
    text = said.getvalue().replace(str(world.folder), "FOLDER").replace(str(Path.cwd()), "HERE")
    # DuckDB cuts the line that it quotes by its length, which depends on the folder's name; the
    # process counts columns.
    text = re.sub(r"\n*^LINE .*(?:read_\w+\(|\.\.\.|_outer).*\n.*\^$", "", text, flags=re.MULTILINE)
    return re.sub(r"node-\d", "node-N", re.sub(r"0x[0-9a-f]{6,}", "0x...", text)).rstrip()


def test_messages_say_what_and_where_and_what_to_do(
    world: SimpleNamespace, pytestconfig: pytest.Config
) -> None:
    """To the byte, what the golden file has: read its diff as a user who made the mistake."""
    texts = [f"== {name}\n{_told(mistake, world)}\n" for name, mistake in MISTAKES.items()]
    told = "\n".join(texts)
    if pytestconfig.getoption("rewrite"):
        GOLDEN.write_text(told)
    assert GOLDEN.read_text() == told
