"""The `minishark` command, over a stand-in for the engine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from minishark.cli.app import run
from minishark.cli.console import open_reporter
from minishark.cli.constants import constant_answer
from minishark.cli.tpch.locations import sample_folder, scale_folder
from minishark.cli.tpch.tables import TABLES
from minishark.dataframe.show import print_table
from minishark.errors import MinisharkError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder that holds the sample as scale 0.001."""
    root = tmp_path / "data"
    for name in TABLES:
        folder = scale_folder(root, 0.001) / name
        folder.mkdir(parents=True)
        (folder / "1.parquet").symlink_to(sample_folder() / f"{name}.parquet")
    return root


def _tpch(data: Path, *arguments: str) -> int:
    return run(["tpch", "--scale", "0.001", "--data", str(data), *arguments])


def test_tpch_prints_a_table_and_the_verdict_last(
    data: Path, sessions: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """All 22 queries have their line, and the last line counts the right answers."""
    assert 0 == _tpch(data, "--memory-limit", "2GiB")
    output = capsys.readouterr().out
    assert "22 of 22 correct, 22 of 22 correct in stages" == output.splitlines()[-1]
    assert all(f"Q{number} " in output for number in range(1, 23))
    assert all(line.split()[-4:] == ["6", "75", "%", "yes"] for line in _query_lines(output))
    assert "it ran 22 of 22 queries as a single task" in output
    assert {
        "nodes": 2,
        "executors_per_node": 1,
        "placement": "sparrow",
        "partitions": None,
        "memory_limit": 2 << 30,
    } == sessions[0].options


def test_tpch_partitions_the_tables_as_the_schema_says(
    data: Path, sessions: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Lineitem and orders are partitioned alike; small tables are left to the engine.

    What the session warns of is passed on.
    """
    assert 0 == _tpch(data, "--queries", "1", "--partitions", "5", "--nodes", "1")
    tables = sessions[0].tables
    assert {"partition_by": "l_orderkey", "partitions": 5, "replicas": 1} == tables["lineitem"]
    assert {"partition_by": "o_orderkey", "partitions": 5, "replicas": 1} == tables["orders"]
    assert {"partition_by": None, "partitions": None, "replicas": 1} == tables["nation"]
    assert "Warning: shared memory is short\n" in capsys.readouterr().err


def test_a_wrong_answer_is_told_and_ends_with_status_1(
    data: Path,
    sessions: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The run goes on after a wrong answer and after a failed query."""
    from tests.cli.conftest import FakeFrame

    right = FakeFrame.to_arrow

    def spoilt(self: FakeFrame) -> pa.Table:
        table = right(self)
        if "l_returnflag" in table.column_names:
            return table.slice(1)
        if "o_orderpriority" in table.column_names:
            raise MinisharkError("A node is lost.")
        return table

    monkeypatch.setattr(FakeFrame, "to_arrow", spoilt)
    assert 1 == _tpch(data, "--queries", "1,4,6")
    lines = capsys.readouterr().out.splitlines()
    assert "1 of 3 correct, 1 of 3 correct in stages" == lines[-1]
    for where in ("", " in stages"):
        assert f"Query 1 is wrong{where}: There are 3 rows, expected 4." in lines
        assert f"Query 4 is wrong{where}: MinisharkError: A node is lost." in lines


def test_an_answer_that_is_wrong_only_in_stages_ends_with_status_1(
    data: Path,
    sessions: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Both answers of a query count, and the report says which of them is wrong."""
    from tests.cli.conftest import FakeFrame

    right = FakeFrame.to_arrow
    monkeypatch.setattr(
        FakeFrame,
        "to_arrow",
        lambda self: right(self).slice(1) if self.stages > 1 else right(self),
    )
    assert 1 == _tpch(data, "--queries", "1,6")
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert "2 of 2 correct, 0 of 2 correct in stages" == lines[-1]
    assert "Query 1 is wrong in stages: There are 3 rows, expected 4." in lines
    assert ["NO", "NO"] == [line.split()[-1] for line in _query_lines(output)]


def _query_lines(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.strip().startswith("Q") and "%" in line]


def test_json_has_parameters_versions_and_every_repetition(
    data: Path, sessions: list[Any], tmp_path: Path
) -> None:
    """The file says what was measured, how, and with what."""
    file = tmp_path / "report.json"
    assert 0 == _tpch(data, "--queries", "6,1", "--repetitions", "3", "--json", str(file))
    report = json.loads(file.read_text())
    assert [6, 1] == [query["number"] for query in report["queries"]]
    assert [3, 3] == [len(query["times_s"]) for query in report["queries"]]
    assert [3, 3] == [len(query["duckdb_times_s"]) for query in report["queries"]]
    assert 3 == report["parameters"]["repetitions"]
    assert 2 == report["parameters"]["replicas"]
    assert {"python", "platform", "minishark", "duckdb", "pyarrow", "pyzmq"} == set(
        report["versions"]
    )
    assert 2 == report["correct"] == report["correct_in_stages"]
    assert [1, 1] == [query["stages"] for query in report["queries"]]
    assert [4, 4] == [query["staged"]["stages"] for query in report["queries"]]
    assert [3, 3] == [len(query["staged"]["times_s"]) for query in report["queries"]]
    assert {"stages": 8, "tasks": 12}.items() <= report["totals"]["staged"].items()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tpch", "--queries", "23"], "There is no query 23"),
        (["tpch", "--queries", "1,x"], "'x' is no query number"),
        (["tpch", "--scale", "0"], "must be a positive number such as 0.1, not 0."),
        (["tpch", "--scale", "inf"], "positive number such as 0.1, not inf"),
        (["tpch", "--nodes", "0"], "Invalid value for '--nodes'"),
        (["tpch", "--placement", "best"], "Invalid value for '--placement'"),
        (["tpch", "--json", "/no/such/folder/x.json"], "there is no folder /no/such/folder"),
        (["tpch", "--json", "/"], "Can't write to /: it is a folder"),
        (["tpch", "--data", "/dev/null/data"], "Can't write to the data folder /dev/null/data"),
        (["sql", "SELECT 1", "--data", "/no/such"], "Can't read /no/such"),
        (["sql", "SELECT 1", "--data", "/dev"], "There are no tables in /dev"),
        (["sql", "SELECT 1", "--scale", "7"], "minishark tpch --scale 7"),
        (["sql"], "Missing argument 'STATEMENT'"),
        (["sql", "SELECT 1", "--format", "parquet"], "name a file with --output"),
        (["sql", "SELECT 1", "--format", "xml"], "'xml' is not one of"),
        (["nonsense"], "No such command 'nonsense'"),
        (["--memory-limit", "2GiB", "sql", "SELECT 1"], "--memory-limit stands before sql"),
        (["--cluster", "other", "tpch"], "write it after tpch"),
    ],
)
def test_bad_usage_ends_with_one_sentence_and_status_2(
    arguments: list[str],
    words: str,
    sessions: list[Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A mistake is explained on stderr, without a traceback, and stdout stays empty."""
    assert 2 == run(arguments)
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert "" == captured.out


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (
            "SELEC 1",
            (
                'Error: Parser Error: syntax error at or near "SELEC"\n'
                "Did you mean SELECT instead of SELEC?\nLINE 1: SELEC 1\n"
            ),
        ),
        ("SELECT * FROM natoin", 'natoin does not exist!\nDid you mean "nation"?'),
        ("SELECT x FROM nation", 'Referenced column "x" not found'),
    ],
)
def test_a_wrong_statement_ends_with_status_1(
    statement: str, words: str, sessions: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistake in SQL is explained on stderr, without a traceback, and stdout stays empty."""
    assert 1 == run(["sql", statement, "--data", str(sample_folder())])
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert "" == captured.out


def test_a_failure_ends_with_status_1_and_a_traceback_only_on_demand(
    data: Path,
    sessions: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Even a bug of ours shows its traceback only with --debug."""
    monkeypatch.setenv("MINISHARK_DEBUG", "")
    monkeypatch.setattr("minishark_lab.tpch.run.load_tables", lambda *_, **__: 1 / 0)
    assert 1 == _tpch(data)
    assert "Traceback" not in (quiet := capsys.readouterr().err)
    assert "Error: ZeroDivisionError: division by zero" in quiet
    assert 1 == _tpch(data, "--debug")
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_stops_the_session_and_ends_with_status_130(
    data: Path, sessions: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while tables are loaded leaves no session open."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("minishark_lab.tpch.run.load_tables", interrupt)
    assert 130 == _tpch(data)
    assert [True] == [session.stopped for session in sessions]


def test_sql_prints_an_answer_over_the_sample(
    sessions: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Values look as DuckDB writes them, and only the tables in question are loaded."""
    query = "SELECT r_name, NULL AS n, 1.50 AS d FROM region ORDER BY r_regionkey LIMIT 2"
    assert 0 == run(["sql", query, "--data", str(sample_folder())])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["r_name", "n", "d"] in lines
    assert ["AFRICA", "NULL", "1.50"] in lines
    assert ["2", "rows"] == lines[-1]
    assert ["region"] == list(sessions[0].tables)


def test_what_reads_nothing_needs_no_session() -> None:
    """A SELECT without FROM, or of VALUES; the engine is not imported. All else has a session."""
    code = (
        "import sys; from minishark.cli.app import run; run(['sql', 'SELECT 42 AS a', '-f', 'csv'])"
        "; print(sorted(n for n in sys.modules if n in ('minishark.session.session', 'zmq')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "a\n42\n[]\n" == done.stdout
    answered = ["VALUES (1), (2)", "SELECT 1 UNION ALL SELECT 2", "SELECT (SELECT 1)"]
    assert all(constant_answer(text) is not None for text in answered)
    others = ["FROM t", "SELECT (SELECT max(a) FROM t)", "FROM range(3)", "SHOW TABLES", "SELEC 1",
              "SELECT 1; SELECT 2", "SET threads = 1", "SELECT error('x')", ".tables",
              "WITH a AS (FROM 'x.csv') SELECT 1", "EXPLAIN SELECT 1", ""]  # fmt: skip
    assert not any(constant_answer(text) for text in others)


def test_sql_reads_generated_data_of_a_scale(
    data: Path, sessions: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """--scale with --data reads below that folder."""
    assert 0 == run(
        ["sql", "SELECT count(*) FROM lineitem", "--scale", "0.001", "--data", str(data)]
    )
    assert "6005" in capsys.readouterr().out


@pytest.mark.parametrize("prefix", ["EXPLAIN ", " explain\n", "\n-- why\nEXPLAIN /* this */ "])
def test_explain_prints_the_plan(
    prefix: str, sessions: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """EXPLAIN before a SELECT prints text instead of rows."""
    query = f"{prefix}SELECT * FROM region"
    assert 0 == run(["sql", query, "--data", str(sample_folder())])
    assert "the plan\n" == capsys.readouterr().out
    assert ["region"] == list(sessions[0].tables)


def test_a_table_shows_no_more_rows_than_asked_and_no_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A value can't move the cursor, and brackets are no markup."""
    table = pa.table({"[bold]a": ["\x1b[2J[red]x\n", "b", "c"]})
    print_table(table, Console(width=80), rows_max=2)
    output = capsys.readouterr().out
    assert "[bold]a" in output
    assert r"\x1b[2J[red]x\n" in output
    assert "3 rows, the first 2 shown" == output.splitlines()[-1]


def test_steps_are_lines_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A log has a plain line for a step, and no bars."""
    with open_reporter(verbose=False) as reporter:
        reporter.step("Loading lineitem")
        reporter.progress(1, 2)
        reporter.detail("hidden")
        reporter.warning("short of memory")
    assert "Loading lineitem\nWarning: short of memory\n" == capsys.readouterr().err


def test_steps_are_bars_that_vanish_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal there is a bar for the current step; details stay on the screen."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with open_reporter(verbose=True) as reporter:
        reporter.step("Loading lineitem")
        reporter.progress(1, 2)
        reporter.detail("some detail")
    shown = capsys.readouterr().err
    assert "Loading lineitem" in shown
    assert "some detail" in shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("minishark s", ["serve", "sql", "submit"]),
        ("minishark sql --format js", ["json", "jsonlines"]),
    ],
)
def test_the_users_shell_completes_commands(
    words: str,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Click's completion knows commands and values."""
    monkeypatch.setenv("_MINISHARK_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit):
        run([])
    assert [f"plain,{word}" for word in expected] == capsys.readouterr().out.split()


def test_answers_go_to_a_file_in_its_format(
    tmp_path: Path, sessions: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """--output takes the format of the file's name, --format another one; stdout stays empty."""
    for name, expected in (("a.csv", "a\n1\n"), ("a.jsonl", '{"a":1}\n')):
        file = tmp_path / name
        assert 0 == run(["sql", "SELECT 1 AS a", "--output", str(file)])
        assert expected == file.read_text()
    assert 0 == run(["sql", "SELECT 1 AS a", "-o", str(tmp_path / "b.csv"), "-f", "tsv"])
    assert 0 == run(["sql", "SELECT 1 AS a", "-o", str(tmp_path / "c.parquet")])
    assert {"a": [1]} == pq.read_table(tmp_path / "c.parquet").to_pydict()
    assert "" == capsys.readouterr().out
    assert 2 == run(["sql", "SELECT 1 AS a", "-o", str(tmp_path / "d.xlsx")])
    assert "d.xlsx names no format: pass --format" in capsys.readouterr().err
    assert 0 == run(["sql", "SELECT 1 AS a", "-o", str(tmp_path / "d")])
    assert "a\n1\n" == (tmp_path / "d").read_text()


def test_a_table_of_ones_own_may_be_called_as_one_of_tpch(
    tmp_path: Path, sessions: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever its columns are."""
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "orders.parquet")
    (tmp_path / "part.csv").write_text("id\n2\n3\n")
    data = ["--data", str(tmp_path / "orders.parquet"), "--data", str(tmp_path / "part.csv")]
    assert 0 == run(["sql", "SELECT id FROM orders JOIN part USING (id)", *data, "-f", "csv"])
    assert "id\n2\n" == capsys.readouterr().out


def test_several_tables_are_named_by_data(
    tmp_path: Path, sessions: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """--data takes files and folders; two tables of one name are refused."""
    (tmp_path / "small.csv").write_text("n\n7\n")
    data = ["--data", str(tmp_path / "small.csv"), "--data", str(sample_folder())]
    query = "SELECT min(n) + count(*) AS n FROM small, region"
    assert 0 == run(["sql", query, *data, "-f", "csv"])
    assert "n\n12\n" == capsys.readouterr().out
    assert ["small", "region"] == list(sessions[0].tables)
    assert 2 == run(["sql", query, *data, "--data", str(tmp_path / "small.csv")])
    assert "two tables small" in capsys.readouterr().err


def test_a_script_loads_only_what_it_reads(
    tmp_path: Path, sessions: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables that a script makes itself are not looked for in the data."""
    script = tmp_path / "script.sql"
    script.write_text("CREATE TABLE made AS SELECT 1 AS a FROM region; SELECT a FROM made;")
    run(["run", str(script), "--data", str(sample_folder())])
    assert ["region"] == list(sessions[0].tables)
    assert 2 == run(["run", str(tmp_path / "none.sql")])
    assert "No such file" in capsys.readouterr().err


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("group", [[], ["cluster"], ["jobs"]])
def test_lists_of_commands_are_not_cut(
    group: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first sentence of each command's help fits into a line of 80 columns."""
    assert run([*group, "--help"]) == 0
    commands = capsys.readouterr().out.partition("Commands:\n")[2].partition("\n\n")[0]
    assert [] == [line for line in commands.splitlines() if not line.endswith(".")]
    assert "..." not in commands


def test_help_imports_nothing_heavy() -> None:
    """`minishark --help` answers at once, for it loads neither DuckDB nor Arrow nor rich."""
    program = (
        "import sys; from minishark.cli.app import run; run(['tpch', '--help']); "
        "print(sorted({'duckdb', 'pyarrow', 'rich', 'zmq', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=_environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "Examples:" in done.stdout
    assert "[]" == done.stdout.splitlines()[-1]


def _await_end(pid: int) -> None:
    """Wait until a killed process is gone, but for its entry that init will read."""
    with contextlib.suppress(psutil.NoSuchProcess):
        deadline = time.monotonic() + 30
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_while_data_is_made_leaves_nothing(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """The generator ends with the command, its unfinished files vanish, and no traceback shows."""
    generator = tmp_path / "bin" / "tpchgen-cli"
    generator.parent.mkdir()
    generator.write_text('#!/bin/sh\necho $$ > "$PIDFILE"\nexec sleep 600\n')
    generator.chmod(0o755)
    pid_file = tmp_path / "pid"
    os.mkfifo(pid_file)
    program = (
        "import sys; from minishark.cli import main; sys.executable = '/nowhere/python'; main()"
    )
    command = [sys.executable, "-c", program, "tpch", "--data", str(tmp_path / "data")]
    with subprocess.Popen(
        command,
        env=_environment()
        | {"PATH": f"{generator.parent}:{os.environ['PATH']}", "PIDFILE": str(pid_file)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        pid = int(pid_file.read_text())  # blocks until the generator runs
        child.send_signal(number)
        _, errors = child.communicate()
    assert status == child.returncode
    assert "Traceback" not in errors
    _await_end(pid)
    assert [] == list((tmp_path / "data").iterdir())


@pytest.mark.slow
def test_an_interrupt_ends_a_query_of_the_reference(tmp_path: Path) -> None:
    """Ctrl-C while DuckDB computes the right answer does not wait for it."""
    program = (
        "import os, signal, threading\n"
        "from minishark_lab.tpch.reference import Reference\n"
        "text = 'SELECT sum(a * b) FROM range(10000000) t(a), range(10000000) u(b)'\n"
        "with Reference({}, 2) as reference:\n"
        "    reference.run('SELECT 1')\n"
        "    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "    try:\n"
        "        reference.run(text)\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=_environment(), capture_output=True, text=True, check=True, cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert "interrupted\n" == done.stdout
    assert "" == done.stderr


def test_dir_lists_the_public_names() -> None:
    """Completion finds what is imported only when it is used."""
    program = "import minishark; print({*minishark.__all__} <= {*dir(minishark)})"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=_environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "True\n" == done.stdout
