"""Statements and dot-commands in the shell, over a real session on threads."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from rich.console import Console

import minishark
from minishark.cli.formats import format_of, write_text
from minishark.cli.output import Output
from minishark.cli.shell.interpreter import Interpreter, is_complete
from minishark.cli.shell.prompt import history_file, print_error
from minishark.cli.tpch.locations import sample_folder
from minishark.cli.tpch.queries import load_queries
from minishark.errors import ClusterError, DataError, MinisharkError, OptionError, QueryError
from minishark.model.events.kinds import NodeReport
from minishark.session.session import Session
from sparrow_core import ExecutorStatus


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session without tables."""
    with minishark.connect(in_process=True, nodes=2) as opened:
        yield opened


@pytest.fixture
def shell(session: Session) -> Iterator[Interpreter]:
    """A shell that writes to memory; the tables that a test makes are dropped."""
    console = Console(file=io.StringIO(), width=200)
    errors = Console(file=io.StringIO(), width=200)
    yield Interpreter(session=session, output=Output(console), errors=errors)
    session.sql("DROP VIEW IF EXISTS v")
    for table in session.tables:
        session.drop_table(table)


def written(shell: Interpreter) -> str:
    """What stands on the screen since the last call."""
    stream = shell.output._console.file
    assert isinstance(stream, io.StringIO)
    text = stream.getvalue()
    stream.seek(0)
    stream.truncate()
    return text


def ask(shell: Interpreter, text: str) -> str:
    """Run a text; what stands on the screen then."""
    shell.run_text(text, "test")
    return written(shell)


def test_statements_write_tables_and_counts(shell: Interpreter) -> None:
    """Queries have rows, statements that write a count, definitions a word."""
    assert "Done\n" == ask(shell, "CREATE TABLE t (a INTEGER, b VARCHAR)")
    assert "2 rows\n" == ask(shell, "INSERT INTO t VALUES (1, 'x'), (20, NULL)")
    assert "Done\n" == ask(shell, "CREATE VIEW v AS FROM t")
    assert " a  b\n──  ────\n 1  x\n20  NULL\n2 rows\n" == ask(shell, "FROM v ORDER BY a")
    assert "1 row\n" == ask(shell, "UPDATE t SET b = 'y' WHERE a = 1;")
    assert ask(shell, "EXPLAIN SELECT a FROM t").startswith("Logical plan\n")
    shell.timer = True
    assert ask(shell, "SELECT 1 AS a").endswith(" ms\n")


def test_a_warning_is_told_once(shell: Interpreter) -> None:
    """What the session warns of while a statement runs follows its answer."""
    shell.session._runtime.engine.warn("Shared memory is full.")
    ask(shell, "SELECT 1 AS a; SELECT 2 AS a;")
    assert isinstance(shell.errors.file, io.StringIO)
    assert "Warning: Shared memory is full.\n" == shell.errors.file.getvalue()


def test_an_error_names_file_and_line(shell: Interpreter, tmp_path: Path) -> None:
    """The place is the line of the file, also inside a statement of several lines."""
    script = tmp_path / "wrong.sql"
    script.write_text("SELECT 1 AS a;\n-- so far so good\nSELECT 2,\n  nothing;\nSELECT 3;")
    with pytest.raises(QueryError) as found:
        shell.read(script)
    assert [f"({script}, line 4)"] == found.value.__notes__
    assert "a\n─\n1\n1 row\n" == written(shell)
    errors = Console(file=io.StringIO(), width=300)
    print_error(errors, found.value)
    assert isinstance(errors.file, io.StringIO)
    told = errors.file.getvalue().splitlines()
    assert 'Error: Binder Error: Referenced column "nothing" was not found' in told[0]
    assert ["LINE 2:   nothing", "          ^^^^^^^", f"({script}, line 4)"] == told[-3:]


def test_files_are_read_but_not_by_themselves(shell: Interpreter, tmp_path: Path) -> None:
    """.read runs what a file says, ends at .quit, and does not go round for ever."""
    (tmp_path / "outer.sql").write_text(f".read {tmp_path}/inner.sql\nSELECT 2 AS a;\n.quit\nSELEC")
    (tmp_path / "inner.sql").write_text("SELECT 1 AS a;")
    assert "a\n─\n1\n1 row\na\n─\n2\n1 row\n" == ask(shell, f".read {tmp_path}/outer.sql")
    assert shell.is_over
    shell.is_over = False
    (tmp_path / "round.sql").write_text(f".read {tmp_path}/round.sql")
    for line, words in (
        (f".read {tmp_path}/round.sql", "nested more than 16"),
        (".read /no/such/file", "No such file"),
        (".read", "Write .read FILE"),
    ):
        with pytest.raises(OptionError, match=words):
            ask(shell, line)


def test_tables_and_schema(shell: Interpreter) -> None:
    """Tables and views are listed, and their columns shown as SQL that makes them."""
    assert ".sample" in ask(shell, ".tables")
    ask(shell, 'CREATE TABLE t (a INTEGER, "B c" DECIMAL(9, 2)); CREATE VIEW v AS SELECT a FROM t')
    lines = [line.split() for line in ask(shell, ".tables").splitlines()]
    assert [["t", "2", "2", "of", "2"], ["v", "1"]] == lines[2:4]
    expected = 'CREATE TABLE t (\n  a INTEGER,\n  "B c" DECIMAL(9,2)\n);\n'
    assert expected == ask(shell, ".schema T")
    assert expected in ask(shell, ".schema")
    with pytest.raises(OptionError, match="did you mean t"):
        ask(shell, ".schema tt")


def test_the_last_query_is_explained_and_profiled(shell: Interpreter) -> None:
    """.explain and .profile are about the last query, or .explain about another."""
    shell.last = None
    for line in (".explain", ".profile"):
        with pytest.raises(QueryError, match="No query has run yet"):
            ask(shell, line)
    ask(shell, "SELECT 1 AS a; CREATE TABLE made AS SELECT 2 AS b;")
    assert ask(shell, ".profile").splitlines()[0].split()[:3] == ["stage", "tasks", "rows"]
    assert "task" in ask(shell, ".profile tasks")
    assert ask(shell, ".profile why 0 0").startswith("task 0 ran on node-")
    for line in (".profile why 7 0", ".profile why", ".profile all"):
        with pytest.raises(OptionError):
            ask(shell, line)
    assert "1" in ask(shell, ".explain sql").splitlines()[-1]
    assert "made" in ask(shell, ".explain stages FROM made")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (".tabels", "did you mean .tables?"),
        (".kil", "did you mean .kill-executor?"),
        (".import", "did you mean .load?"),
        (".headers off", "names of columns are always shown"),
        (".shell ls", "press Ctrl-Z"),
        (".foo", r"no command .foo: .help lists them all"),
        (".mode", "Write .mode and one of table, csv"),
        (".zzz", ".help lists them all"),
        (".help zzz", "no command .zzz"),
        (".timer maybe", ".timer on or .timer off"),
        (".mode jsn", "did you mean json?"),
        (".mode parquet", "needs a file"),
        (".rows many", "a number"),
        (".tables x", "takes no arguments"),
        (".kill-executor node-7", "no node node-7; the nodes are node-0, node-1"),
        (".kill-executor", "own process"),
        (".tpch 23", "no query 23"),
        (".tpch 1", ".sample loads"),
    ],
)
def test_wrong_commands_say_what_would_be_right(shell: Interpreter, line: str, words: str) -> None:
    """A mistake names the nearest command or what is missing."""
    with pytest.raises(OptionError, match=words):
        ask(shell, line)


def test_help_names_every_command(shell: Interpreter) -> None:
    """.help lists all, .help COMMAND one."""
    listed = ask(shell, ".help").split()
    for name in (".tables", ".schema", ".explain", ".profile", ".timer", ".cluster", ".read",
                 ".tpch", ".kill-executor", ".quit", ".mode", ".output", ".help"):  # fmt: skip
        assert name in listed
    assert 1 == len(ask(shell, ".help timer").splitlines())


def test_the_cluster_is_shown(shell: Interpreter) -> None:
    """.cluster has a line for each node."""
    lines = ask(shell, ".cluster").splitlines()
    assert ["node-0", "alive"] == lines[2].split()[:2]
    assert "2 rows" == lines[-1]


def test_how_a_node_died_is_told_in_full(
    shell: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a line of its own: the table has no room for it."""
    death = "node-0-e0: killed by SIGKILL, peak memory 123 MiB, while it had task 3 of job 12"
    node = NodeReport(
        at=1.0, name="node-0", pid=1, alive=True, executors=(), deaths=1, last_death=death
    )
    monkeypatch.setattr(Session, "nodes", lambda self: (node,))
    assert f"Last death on node-0: {death}\n" in ask(shell, ".cluster").replace("\n  ", " ")


def test_a_tpch_query_over_the_sample_that_the_user_agrees_to(shell: Interpreter) -> None:
    """.tpch offers the sample, and the answer is DuckDB's."""
    asked: list[str] = []
    shell.confirm = lambda question: not asked.append(question)
    ask(shell, ".mode csv\n.tpch 14")
    assert 1 == len(asked)
    shell.output.set_form("csv")
    found = ask(shell, ".tpch 14")
    with duckdb.connect() as plain:
        for table in ("lineitem", "part"):
            plain.execute(f"CREATE VIEW {table} AS FROM '{sample_folder()}/{table}.parquet'")
        expected = plain.sql(load_queries([14])[14]).fetchall()
    name, value = found.splitlines()
    assert "promo_revenue" == name
    assert pytest.approx(expected[0][0]) == float(value)
    assert 1 == len(asked)


def test_answers_go_to_files(shell: Interpreter, tmp_path: Path) -> None:
    """Text follows text; a binary file holds the last answer; an error leaves what was there."""
    text, binary = tmp_path / "a.csv", tmp_path / "b.parquet"
    ask(shell, f".mode csv\n.output {text}\nSELECT 1 AS a; SELECT 2 AS b;\n.output")
    assert "a\n1\nb\n2\n" == text.read_text()
    ask(shell, f".mode parquet {binary}\nSELECT 1 AS a; SELECT 2::HUGEINT AS b;")
    with pytest.raises(MinisharkError):
        ask(shell, "SELECT 'x'::INTEGER FROM range(3)")
    assert [(2,)] == duckdb.read_parquet(str(binary)).fetchall()
    assert "c\n3\n" == ask(shell, ".mode csv\nSELECT 3 AS c;")
    assert [text, binary] == sorted(tmp_path.iterdir())
    with pytest.raises(OptionError, match="Can't write to"):
        ask(shell, ".output /no/such/folder/x\nSELECT 1;")
    ask(shell, ".output")


def test_files_and_folders_are_loaded(shell: Interpreter, tmp_path: Path) -> None:
    """.load takes a file under its own or another name, and a folder of tables."""
    (tmp_path / "small.csv").write_text("a,b\n1,x\n2,y\n")
    ask(shell, f".load {tmp_path}/small.csv\n.load '{tmp_path}/small.csv' AS other")
    assert ["other", "small"] == shell.session.tables
    assert "2\n" in ask(shell, "SELECT count(*) AS n FROM other")
    with pytest.raises(DataError, match="Can't load"):
        ask(shell, f".load {__file__}")
    with pytest.raises(OptionError, match="AS names a single one"):
        ask(shell, f".load {sample_folder()} AS x")


TABLE = pa.table({
    "n": pa.array([1, None]), "t": ["", 'a,"|\n'], "f": [float("nan"), 1.5],
})  # fmt: skip


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("csv", 'n,t,f\n1,"",nan\n,"a,""|\n",1.5\n'),
        ("tsv", 'n\tt\tf\n1\t""\tnan\n\t"a,""|\n"\t1.5\n'),
        ("json", '[\n{"n":1,"t":"","f":null},\n{"n":null,"t":"a,\\"|\\n","f":1.5}\n]\n'),
        ("jsonlines", '{"n":1,"t":"","f":null}\n{"n":null,"t":"a,\\"|\\n","f":1.5}\n'),
        ("markdown", '| n | t | f |\n|---|---|---|\n| 1 |  | nan |\n| NULL | a,"\\|<br> | 1.5 |\n'),
        ("line", 'n = 1\nt = \nf = nan\n\nn = NULL\nt = a,"|\n\nf = 1.5\n'),
    ],
)  # fmt: skip
def test_formats(form: str, expected: str) -> None:
    """Each form of text, with nulls, quotes, line ends and what JSON has no number for."""
    stream = io.StringIO()
    write_text(TABLE, form, stream)
    assert expected == stream.getvalue()


def test_an_empty_answer_is_right_in_every_form() -> None:
    """No rows: a header, an empty list, nothing."""
    found = {}
    for form in ("csv", "json", "jsonlines", "line"):
        stream = io.StringIO()
        write_text(TABLE.slice(0, 0), form, stream)
        found[form] = stream.getvalue()
    assert {"csv": "n,t,f\n", "json": "[\n]\n", "jsonlines": "", "line": ""} == found
    assert [] == json.loads(found["json"])


def test_a_files_name_tells_its_format() -> None:
    """What follows the last dot decides, csv where there is none; others are refused."""
    names = {"a.parquet": "parquet", "a.JSON": "json", "a.ndjson": "jsonlines", "a.md": "markdown",
             "a": "csv"}  # fmt: skip
    assert names == {name: format_of(Path(name)) for name in names}
    with pytest.raises(OptionError, match=r"a\.txt names no format"):
        format_of(Path("a.txt"))


def test_an_executor_is_killed_only_where_there_is_one(
    shell: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all nodes dead there is nobody to kill; a stranger's process is left alone."""
    monkeypatch.setattr(Session, "nodes", lambda self: ())
    with pytest.raises(ClusterError, match="no executor"):
        ask(shell, ".kill-executor")
    other = ExecutorStatus("node-0-e0", os.getppid(), 1)
    node = NodeReport(at=1.0, name="node-0", pid=1, alive=True, executors=(other,))
    monkeypatch.setattr(Session, "nodes", lambda self: (node,))
    with pytest.raises(ClusterError, match="not a process of this machine"):
        ask(shell, ".kill-executor")


def test_the_history_lies_in_the_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_STATE_HOME decides if it is absolute."""
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert Path("/state/minishark/history") == history_file()
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert Path.home() / ".local/state/minishark/history" == history_file()


def test_commands_of_other_shells(shell: Interpreter) -> None:
    """`help` and `exit` need neither dot nor semicolon; a statement may begin so."""
    shell.run_text("help;", "")
    assert ".load [--replace] PATH [AS TABLE]" in written(shell)
    assert is_complete("exit")
    assert not is_complete("exit now")
    shell.run_text(" exit \n", "")
    assert shell.is_over


def test_a_table_that_is_there_is_replaced_on_demand(shell: Interpreter, tmp_path: Path) -> None:
    """Without `--replace`, the message says what to enter, word by word."""
    file = tmp_path / "twice.csv"
    file.write_text("a\n1\n")
    shell.run_text(f".load {file}", "")
    file.write_text("a\n1\n2\n")
    with pytest.raises(OptionError, match=rf"\.load --replace {file}, or") as found:
        shell.run_text(f".load {file}", "")
    assert f".load {file} AS t" not in str(found.value)
    shell.run_text(f".load --replace {file}\n.load {file} AS other\n.mode csv", "")
    assert "n\n2\n" == ask(shell, "SELECT count(*) AS n FROM twice").partition("\n")[2][-4:]
    with pytest.raises(OptionError, match=rf"\.load --replace {file} AS other, or"):
        shell.run_text(f".load {file} AS other", "")


def on_a_terminal(shell: Interpreter, *, height: int) -> None:
    """Make the screen a small terminal."""
    console = Console(
        file=io.StringIO(), width=40, height=height, force_terminal=True, color_system=None
    )
    shell.output = Output(console)
    shell.output.fits_screen = shell.output.pages = True


def test_only_what_is_seen_is_computed(shell: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen's rows run as a query with a LIMIT; .last has all rows, .explain the statement."""
    on_a_terminal(shell, height=20)
    monkeypatch.setenv("PAGER", "cat")
    ask(shell, "CREATE TABLE many AS SELECT i, 'n' || i AS name FROM range(500) t(i)")
    shown = ask(shell, "FROM many ORDER BY i DESC").splitlines()
    assert ["i  name", "BIGINT  VARCHAR"] == [line.strip() for line in shown[:2]]
    assert (15, "the first 11 rows; there are more: .last shows them") == (len(shown), shown[-1])
    assert shell.last is not None
    assert 12 == shell.last.ran.metrics().by_stage[-1].rows
    assert "LIMIT" not in shell.last.frame.sql()
    assert 500 == shell.last.rows().num_rows
    assert "2 rows" in ask(shell, "SELECT 1 AS a, 2 AS a UNION ALL SELECT 3, 4").splitlines()[-1]
    assert not shell.last.more
    ask(shell, ".mode csv")
    assert 501 == len(ask(shell, "FROM many").splitlines())


@pytest.mark.slow
def test_what_is_longer_than_the_screen_goes_to_the_pager(
    shell: Interpreter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All rows of .last, uncut; more rows than lines; long plans. Never with .pager off."""
    on_a_terminal(shell, height=12)
    read = tmp_path / "read"
    monkeypatch.setenv("MINISHARK_PAGER", f"tee -a {read}")
    ask(shell, "SELECT i, repeat('x', 60) || i AS text FROM range(12000) t(i)")
    assert not read.exists()
    assert "…" in ask(shell, "SELECT repeat('x', 60) AS text")
    ask(shell, "SELECT i, repeat('x', 60) || i AS text FROM range(12000) t(i);\n.last")
    lines = read.read_text().splitlines()
    assert f" 11999  {'x' * 60}11999" == lines[-2]
    assert "12,000 rows" == lines[-1]
    read.unlink()
    ask(shell, ".rows 30\nFROM range(25) t(i)")
    assert "25 rows" == read.read_text().splitlines()[-1]
    read.unlink()
    ask(shell, ".help")
    assert ".quit" in read.read_text()
    read.unlink()
    assert ".quit" in ask(shell, ".pager off\n.help")
    monkeypatch.setenv("MINISHARK_PAGER", "/no/such/pager")
    assert ".quit" in ask(shell, ".pager on\n.help")
    assert not read.exists()
