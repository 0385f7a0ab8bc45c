"""Typical mistakes: each message names what is wrong, and says what to do or what is right."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import minishark
from minishark import functions as F
from minishark.errors import (
    AlreadyExistsError,
    CatalogError,
    ClusterError,
    ColumnError,
    DataError,
    FunctionError,
    MinisharkError,
    OptionError,
    QueryError,
    TaskFailedError,
    UnsupportedError,
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A session `s` with orders `o` and cities `c`, one that is stopped, and a folder of files."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "notes.txt").write_text("hello")
    (folder / "bad.parquet").write_text("no Parquet")
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


def sql(text: str, params: Any = None) -> Callable[[Any], Any]:
    """The mistake is in a statement."""
    return lambda w: w.s.sql(text, params).collect()


Mistake = tuple[Callable[[Any], Any], type[Exception], str, str]

MISTAKES: dict[str, Mistake] = {
    # Names
    "a table in SQL": (sql("FROM ordrs"), QueryError, "ordrs", 'Did you mean "orders"'),
    "a table": (lambda w: w.s.table("ordres"), CatalogError, "'ordres'", "mean orders"),
    "a table to drop": (lambda w: w.s.drop_table("order"), CatalogError, "'order'", "mean orders"),
    "a table to read": (lambda w: w.s.read.table("orderz"), CatalogError, "orderz", "mean orders"),
    "a column in SQL": (
        sql("SELECT custmer FROM orders"), QueryError, r"custmer[\s\S]*\^{7}", "Candidate.*customer"
    ),
    "a column by dot": (lambda w: w.o.amont, AttributeError, "'amont'", "mean amount"),
    "a column in brackets": (lambda w: w.o["amont"], ColumnError, "'amont'", "mean amount"),
    "a column to select": (lambda w: w.o.select("amont"), ColumnError, "'amont'", "mean amount"),
    "a column in a filter": (
        lambda w: w.o.filter("amont > 3"), QueryError, r"amont > 3\n +\^{5}", "Candidate.*amount"
    ),
    "a column to group by": (
        lambda w: w.o.group_by("amont").count(), ColumnError, "amont", "mean amount"
    ),
    "a column to add up": (
        lambda w: w.o.group_by("id").agg(F.sum("amont")), ColumnError, "amont", "mean amount"
    ),
    "a column to join on": (lambda w: w.o.join(w.c, "idd"), ColumnError, "left side.*idd", "n id"),
    "a column to drop": (lambda w: w.o.drop("amont"), ColumnError, "'amont'", "mean amount"),
    "a column to sort by": (lambda w: w.o.order_by("amont"), ColumnError, "'amont'", "mean amount"),
    "a column to rename": (
        lambda w: w.o.with_column_renamed("amont", "x"), ColumnError, "'amont'", "mean amount"
    ),
    "a column to fill": (lambda w: w.o.fillna({"amont": 0}), ColumnError, "'amont'", "mean amount"),
    "a value of a row": (lambda w: w.o.first().amont, AttributeError, "'amont'", "mean amount"),
    "a key of a row": (lambda w: w.o.first()["amont"], KeyError, "'amont'", "mean amount"),
    "a function in SQL": (sql("SELECT summ(id) FROM orders"), QueryError, "summ", 'mean "sum"'),
    "a function": (lambda w: F.summ("id"), AttributeError, "'summ'", "mean sum"),
    "a method of a frame": (lambda w: w.o.fliter("id"), AttributeError, "fliter", "mean filter"),
    "a method of a session": (
        lambda w: w.s.creat_table("x", 1), AttributeError, "'creat_table'", "mean create_table"
    ),
    "a method of a column": (lambda w: w.o.id.isnul(), AttributeError, "'isnul'", "mean is_null"),
    "a type to cast to": (
        lambda w: w.o.select(w.o.id.cast("itneger")), QueryError, "itneger", 'mean "integer"'
    ),
    "a type in a schema": (
        lambda w: w.s.create_dataframe([(1,)], "a itneger"), DataError, "itneger", 'mean "integer"'
    ),
    "a type of a function": (
        lambda w: w.s.udf.register("f", abs, "itneger"), DataError, "itneger", 'mean "integer"'
    ),
    "a Python variable in SQL": (
        lambda w: _from_variable(w.s, w.c), QueryError, "cities", r'create_temp_view\("cities"\)'
    ),
    # Statements
    "a keyword": (sql("SELECT id FORM orders"), QueryError, r'"orders"[\s\S]*\^', "mean FROM inst"),
    "the first keyword": (sql("SELEC id FROM orders"), QueryError, r'"SELEC"', "mean SELECT inst"),
    "text in double quotes": (
        sql('SELECT * FROM orders WHERE customer = "Ada"'), QueryError, '"Ada"', "quotes: 'Ada'"
    ),
    "text that is added": (
        sql("SELECT customer + ' x' FROM orders"), QueryError, r"\+\(VARCHAR", r"joined by \|\|"
    ),
    "text that is averaged": (
        lambda w: w.o.select(F.avg("customer")), QueryError, r"avg\(VARCHAR\)", "casts"
    ),
    "no GROUP BY": (
        sql("SELECT customer, id FROM orders GROUP BY customer"), QueryError, '"id"', "ANY_VALUE"
    ),
    "an aggregate in WHERE": (
        sql("SELECT id FROM orders WHERE sum(id) > 3"), QueryError, "WHERE clause", "HAVING"
    ),
    "a window function alone": (
        lambda w: w.o.select(F.rank()), QueryError, r"rank\(\)", r"\.over\(Window"
    ),
    "an ambiguous column": (
        sql("SELECT id FROM orders a, orders b"), QueryError, 'Ambiguous.*"id"', "'a.id' or 'b.id'"
    ),
    "an ambiguous column of a join": (
        lambda w: w.o.join(w.c, w.o.id == w.c.id).select("id"), ColumnError, "'id'", "alias"
    ),
    "a UNION of unlike tables": (
        lambda w: w.o.union(w.c), QueryError, "number of result columns", "union_by_name"
    ),
    "a parameter without values": (
        sql("SELECT $day"), QueryError, "parameters: day", r'session\.sql\(text, \{"day": \.\.\.\}'
    ),
    "a parameter of another name": (
        sql("SELECT $day", {"dya": 1}), QueryError, "Parameter day", "pass one in params"
    ),
    "no statement": (sql("-- later"), QueryError, "no statement", "text"),
    "a division by zero": (sql("SELECT 1 // 0"), TaskFailedError, "1 // 0", "TRY"),
    "a value that is no number": (
        sql("SELECT customer::INTEGER FROM orders"), TaskFailedError, "'Ada'", "column customer"
    ),
    "values that are too few": (
        sql("INSERT INTO orders VALUES (1)"), QueryError, '"orders" has 4|3 columns', "1 values"
    ),
    "a setting of DuckDB": (
        sql("SET threads = 4"), UnsupportedError, "setting", r"connect\(\) takes task_threads"
    ),
    "a setting by PRAGMA": (
        sql("PRAGMA memory_limit = '1GB'"), UnsupportedError, "setting", "takes memory_limit"
    ),
    "IMPORT DATABASE": (sql("IMPORT DATABASE 'x'"), UnsupportedError, "IMPORT", "FROM 'file'"),
    "a pragma of no table": (
        sql("PRAGMA table_info('nowhere')"), MinisharkError, "nowhere", "exist"
    ),
    "an attribute of pandas": (
        lambda w: w.s.range(3).shape, AttributeError, "'shape'", r"df\.count\(\), len"
    ),
    "a method of a Series": (
        lambda w: w.s.range(3).id.mean(), TypeError, "'mean'", r"df\.agg\(F\.mean"
    ),
    "a column of groups": (
        lambda w: w.s.range(3).group_by("id")["id"], TypeError, "Groups", r"F\.mean\('id'\)"
    ),
    "an extension": (sql("INSTALL httpfs"), UnsupportedError, "LOAD", "extensions"),
    # Files and data
    "a file in SQL": (
        sql("FROM 'nowhere.parquet'"), QueryError, "nowhere.parquet", "relative to /"
    ),
    "a file to read": (
        lambda w: w.s.read.parquet("/no/such.parquet"), QueryError, "/no/such", "Check the path"
    ),
    "a file to load": (
        lambda w: w.s.create_table("x", "/no/such.csv"), DataError, "no file", "/no/such.csv"
    ),
    "a file that says it is Parquet": (
        lambda w: w.s.create_table("x", w.folder / "bad.parquet"), DataError, "bad.parquet", "small"
    ),
    "a file of another kind": (
        lambda w: w.s.create_table("x", w.folder / "notes.txt"), DataError, "notes.txt", ".parquet"
    ),
    "a folder without files": (
        lambda w: w.s.create_table("x", w.folder / "empty"), DataError, "empty", "end in .parquet"
    ),
    "a web address": (
        sql("FROM 'https://example.com/a.csv'"), DataError, "example.com", "session.create_table"
    ),
    "a format": (
        lambda w: w.s.read.format("paquet").load("x"), UnsupportedError, "paquet", "mean parquet"
    ),
    "a table that is there": (
        lambda w: w.s.create_table("orders", pa.table({"a": [1]})), AlreadyExistsError, "orders",
        "replace=True",
    ),
    "a folder that is there": (
        lambda w: w.o.write.parquet(w.folder / "taken"), DataError, "taken exists", "overwrite"
    ),
    "a folder that can't be made": (
        lambda w: w.o.write.parquet("/proc/no/such"), DataError, "/proc/no/such", "Can't write"
    ),
    "a mode of writing": (
        lambda w: w.o.write.mode("overwite"), OptionError, "'overwite'", "mean overwrite"
    ),
    "a dictionary as a table": (
        lambda w: w.s.create_table("x", {"a": [1]}), DataError, "dict", "pyarrow, pandas or polars"
    ),
    "rows of unlike lengths": (
        lambda w: w.s.create_dataframe([(1, 2), (3,)], ["a", "b"]), DataError, "Row 2", "columns"
    ),
    "rows of unlike types": (
        lambda w: w.s.create_dataframe([(1,), ("x",)], ["a"]), DataError, "'a'", "Pass a schema"
    ),
    "no rows and no schema": (lambda w: w.s.create_dataframe([]), DataError, "no rows", "schema"),
    # Python
    "and for &": (
        lambda w: w.o.filter((w.o.id > 1) and (w.o.id < 9)), TypeError, "truth value", r"& \| ~"
    ),
    "assignment to a column": (
        lambda w: w.o.__setitem__("x", 1), TypeError, "do not change", r"with_column\('x'"
    ),
    "a row by position": (lambda w: w.o[0], OptionError, "no positions", r"collect\(\)"),
    "a loop over a column": (lambda w: list(w.o.id), TypeError, "iterated", "explode"),
    "a name that is a number": (lambda w: w.o.id.alias(5), OptionError, "5", "name as text"),
    "rows that are text": (lambda w: w.o.show("3"), OptionError, "'3'", "whole number"),
    "a negative limit": (lambda w: w.o.limit(-1), OptionError, "limit", "from 0"),
    "a kind of join": (lambda w: w.o.join(w.c, "id", "lefft"), OptionError, "'lefft'", "mean left"),
    "a mode of explain": (lambda w: w.o.explain("phsyical"), OptionError, "phsyical", "physical"),
    "a seed": (lambda w: w.o.sample(0.5, seed="x"), OptionError, "'x'", "whole number"),
    "a query around nothing": (
        lambda w: w.o.select(w.o.id.outer()).collect(), QueryError, "outer", r"exists\(\)"
    ),
    "no partitions": (lambda w: w.o.repartition(0), OptionError, "partitions", "from 1 to"),
    "pandas' dtypes": (lambda w: w.o.to_pandas("arrow"), OptionError, "'arrow'", "pyarrow"),
    "a call instead of a function": (
        lambda w: w.s.submit(abs(-3)), OptionError, "not a int", "takes a function"
    ),
    "a function that can't be sent": (
        lambda w: w.s.submit(_LOCAL).result(), OptionError,
        "pickle '_thread.lock'", "inside the function",
    ),
    "a result that can't be sent": (
        lambda w: w.s.submit(threading.Lock).result(), TypeError, "The result", "stay where"
    ),
    "a function of partitions without rows": (
        lambda w: w.o.map_partitions(lambda rows: 5, "a INT").collect(), FunctionError, "a int",
        "must give tables",
    ),
    "a function of partitions with other columns": (
        lambda w: w.o.map_partitions(lambda rows: rows, "a INT").collect(), FunctionError, "'a'",
        "does not give",
    ),
    # Sessions
    "a session that is stopped": (
        lambda w: w.stopped.sql("SELECT 1"), ClusterError, "stopped", r"connect\(\)"
    ),
    "a frame of a stopped session": (
        lambda w: w.left.collect(), ClusterError, "stopped", r"connect\(\)"
    ),
    "a frame of another session": (
        lambda w: w.o.union(w.left), OptionError, "DataFrames", "same session"
    ),
    "a misspelt option": (lambda w: minishark.connect(node=2), OptionError, "'node'", "nodes"),
    "another name of an option": (
        lambda w: minishark.connect(threads=2), OptionError, "'threads'", "task_threads"
    ),
    "nodes as an address": (
        lambda w: minishark.connect(2), OptionError, "address", r"connect\(nodes=2\)"
    ),
    "no nodes": (lambda w: minishark.connect(nodes=0), OptionError, "nodes", "at least 1"),
    "an amount of memory": (
        lambda w: minishark.connect(memory_limit="lots"), OptionError, "'lots'", "such as 4GiB"
    ),
    "a placement": (
        lambda w: minishark.connect(placement="sparow"), OptionError, "'sparow'", "sparrow, batch"
    ),
    "a cluster": (
        lambda w: minishark.connect("nowhere"), ClusterError, "nowhere", "minishark cluster start"
    ),
    "an optimization": (
        lambda w: minishark.connect(disabled_optimizations=["one_taks"]), OptionError, "'one_taks'",
        "one_task",
    ),
    "a setting": (
        lambda w: w.s.conf.set("shuffle_partitions", 5), OptionError, "shuffle", "connect"
    ),
}  # fmt: skip


def _from_variable(session: Any, cities: Any) -> Any:
    return session.sql("FROM cities")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_message_names_the_cause_and_what_to_do(world: SimpleNamespace, mistake: str) -> None:
    """A typed error; two patterns: what is wrong, and what would be right."""
    make, error, cause, advice = MISTAKES[mistake]
    with pytest.raises(error) as found:
        make(world)
    for pattern in (cause, advice):
        assert re.search(pattern, str(found.value)), f"{pattern} is not in: {found.value}"
