"""A notebook, as a user runs it: %sql of minishark, then JupySQL over the same session."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from minishark.adapters.notebook import SqlAnswer, SqlMagics
from minishark.cli.tpch.locations import sample_folder
from minishark.cli.tpch.queries import load_queries
from minishark.errors import OptionError
from minishark.session.session import Session

CELLS = (
    f"""
import minishark
session = minishark.connect(in_process=True, nodes=1)
session.create_table("lineitem", "{sample_folder()}/lineitem.parquet")
%load_ext minishark""",
    f"%%sql\n{load_queries([6])[6]}",
    'limits = {"tax": 0.05}',
    "%sql --params limits --out big SELECT max(l_quantity) AS q FROM lineitem WHERE l_tax > $tax",
    """
import pandas as pd
pets = pd.DataFrame({"name": ["Rex"], "tax": [0.05]})
limit = 0.02""",
    """
%%sql
SELECT name, count(*) > 0 AS found FROM pets JOIN lineitem ON tax = l_tax WHERE tax > $limit
GROUP BY name""".lstrip(),
    """
%matplotlib inline
session.table("lineitem").limit(20).plot.scatter(x="l_tax", y="l_quantity")""",
    "session",
    """
from minishark import dbapi
connection = dbapi.connect(session=session)
%load_ext sql
%config SqlMagic.displaycon = False
%config SqlMagic.feedback = 0
%sql connection --alias minishark""",
    f"found = %sql {' '.join(load_queries([6])[6].splitlines()[1:])}\nprint(tuple(found[0]))",
    "connection.close()\nsession.stop()",
)


@pytest.mark.slow
def test_a_notebook_runs_a_tpch_query_twice(
    tmp_path: Path, plain: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The magic shows the answer as HTML, and JupySQL has the same rows over DB-API."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    monkeypatch.setenv("PLOOMBER_STATS_ENABLED", "false")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    client.NotebookClient(book, timeout=60, kernel_name="python3").execute()
    (revenue,) = plain.sql(load_queries([6])[6]).fetchall()
    assert f">{revenue[0]}</td>" in _outputs(book, 1)["text/html"]
    assert repr(revenue) == _outputs(book, 9).strip().splitlines()[-1]
    assert "<td>Rex</td><td>true</td>" in _outputs(book, 5)["text/html"]
    assert "nodes alive" in _outputs(book, 7)["text/html"]
    pictures = [output.data for output in book.cells[6].outputs if "data" in output]
    assert any("image/png" in data for data in pictures)
    for index in (1, 5, 7):  # a table is one output
        assert 1 == len(book.cells[index].outputs)


def _outputs(book: Any, index: int) -> Any:
    found = [output for output in book.cells[index].outputs if output.output_type != "display_data"]
    return found[-1].get("data") or "".join(output.get("text", "") for output in found)


@pytest.fixture
def magics(session: Session) -> SqlMagics:
    """The magic in a shell whose variables hold the session of the sample."""
    shell = InteractiveShell()
    shell.user_ns["session"] = session
    return SqlMagics(shell)


def test_answers_are_shown_and_kept(magics: SqlMagics, capsys: pytest.CaptureFixture[str]) -> None:
    """Text and HTML with true counts, nulls and nothing that is markup; DataFrames by --out."""
    answer = magics.sql("", "SELECT '<b>' AS a, NULL AS b")
    assert isinstance(answer, SqlAnswer)
    assert "<td>&lt;b&gt;</td><td><i>NULL</i></td>" in answer._repr_html_()
    assert ["a    b", "───  ────", "<b>  NULL", "1 row"] == repr(answer).splitlines()
    many = magics.sql("FROM range(100)")
    assert many is not None
    assert many._repr_html_().endswith("<p>the first 40 rows; there are more</p>")
    assert 100 == len(many.to_pandas())
    assert None is magics.sql("EXPLAIN FROM nation")
    assert capsys.readouterr().out.startswith("Logical plan")
    magics.shell.user_ns["key"] = [3]
    assert None is magics.sql("--out=asia --params key", "FROM nation WHERE n_regionkey = ?")
    assert 5 == magics.shell.user_ns["asia"].to_arrow().num_rows


def test_parameters_are_variables_of_the_notebook(magics: SqlMagics) -> None:
    """Only what is no text or comment is a parameter; without a variable it is DuckDB's error."""
    magics.shell.user_ns |= {"region": 3, "other": object()}
    sql = "SELECT count(*) AS n, '$other' AS t FROM nation WHERE n_regionkey = $region -- $other"
    answer = magics.sql(sql)
    assert answer is not None
    assert [{"n": 5, "t": "$other"}] == answer.table.to_pylist()
    with pytest.raises(UsageError, match="nowhere"):
        magics.sql("SELECT $nowhere")


def test_an_answer_is_the_only_output_of_its_cell(
    magics: SqlMagics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is not displayed beside its HTML, although the console finds a notebook."""
    shown: list[object] = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *found: shown.append(found))
    assert [" a", "──", "42", "1 row"] == repr(magics.sql("SELECT 42 AS a")).splitlines()
    assert [] == shown


def test_frames_are_read_by_their_variables_names(magics: SqlMagics) -> None:
    """Of any library, as they are when the statement runs; tables come first."""
    variables = magics.shell.user_ns
    session = variables["session"]
    variables["pets"] = pd.DataFrame({"name": ["Rex"], "nation": [3]})
    variables["few"] = session.table("nation").limit(3)
    variables["nation"] = pa.table({"x": [1]})
    sql = "SELECT count(*) AS n FROM few f, pets JOIN nation ON n_nationkey = pets.nation"
    assert [{"n": 3}] == magics.sql(sql).table.to_pylist()
    variables["pets"].loc[1] = ["Tom", 4]
    assert [{"n": 6}] == magics.sql(sql).table.to_pylist()
    variables["few"] = pa.table({"a": [1]})
    assert [{"n": 2}] == magics.sql(sql).table.to_pylist()
    del variables["few"]
    with pytest.raises(UsageError, match="Table with name few does not exist"):
        magics.sql("FROM few")
    assert "pets" in {info.name for info in session.catalog.list_tables()}
    variables["pets"] = None
    with pytest.raises(UsageError, match="Table with name pets"):
        magics.sql("SELECT * FROM pets")


def test_only_the_rows_that_are_shown_run(magics: SqlMagics) -> None:
    """All of them do when they are asked for."""
    answer = magics.sql("FROM lineitem")
    assert answer is not None
    assert "the first 40 rows; there are more" == repr(answer).splitlines()[-1]
    with pytest.raises(OptionError, match="not run"):
        answer.frame.metrics()
    assert len(answer) == len(answer.to_pandas()) > 1000
    assert answer.frame.metrics().tasks > 0


def test_a_session_shows_its_cluster_and_tables(magics: SqlMagics, session: Session) -> None:
    """As HTML, also when it is stopped."""
    shown = session._repr_html_()
    assert "2 of 2 nodes alive, 2 slots" in shown
    assert "<tr><td>nation</td><td>25</td>" in shown
    child = session.new_session()
    child.stop()
    assert "stopped" in child._repr_html_()


@pytest.mark.slow
def test_plots(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """By pandas with matplotlib; nothing runs before a plot is asked for."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    frame = session.table("nation")
    plots = frame.plot
    assert not hasattr(plots, "_repr_html_")
    drawn = plots.scatter(x="n_nationkey", y="n_regionkey")
    assert 25 == len(drawn.collections[0].get_offsets())
    assert 1 == len(plots(x="n_nationkey", y="n_regionkey").lines)
    with pytest.raises(OptionError, match="too many for a plot"):
        session.range(1_000_001).plot.line()
    monkeypatch.setattr("minishark.dataframe.plots.find_spec", lambda name: None)
    with pytest.raises(OptionError, match="pandas and matplotlib or polars and altair"):
        frame.plot()
    with pytest.raises(OptionError, match="need polars and altair"):
        frame.plot(backend="altair")


def test_charts(session: Session) -> None:
    """By Altair, if that is asked for."""
    frame = session.table("nation")
    points = frame.plot.scatter(x="n_nationkey", y="n_regionkey", backend="altair").to_dict()
    assert "point" in str(points["mark"])
    assert "n_regionkey" == points["encoding"]["y"]["field"]
    assert "line" in str(frame.plot(x="n_nationkey", y="n_regionkey", backend="altair").to_dict())
    for wrong, named in ((frame.plot.hist, "'hist'"), (frame.plot.nothing, "'nothing'")):
        with pytest.raises(OptionError, match=named):
            wrong(backend="altair")
    with pytest.raises(OptionError, match="matplotlib or altair, not 'plotly'"):
        frame.plot(backend="plotly")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "Write a statement"),
        ("--outt x SELECT 1", "Unknown option --outt"),
        ("--params nowhere SELECT ?", "no variable called nowhere"),
        ("--session key SELECT 1", "not a minishark session"),
        ("SELEC 1", "syntax error"),
        ("SELECT x FROM nation", "LINE 1: SELECT x"),
    ],
)
def test_mistakes_are_told_without_a_traceback(magics: SqlMagics, line: str, words: str) -> None:
    """A UsageError is what a notebook shows in one line."""
    magics.shell.user_ns["key"] = [3]
    with pytest.raises(UsageError, match=words):
        magics.sql(line)


def test_several_sessions_need_a_choice(
    magics: SqlMagics, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two names of one session are one; two sessions are not guessed between; none is started."""
    variables = magics.shell.user_ns
    variables["same"] = session
    assert 1 == len(magics.sql("SELECT 1") or ())
    other = object.__new__(Session)
    other._runtime = SimpleNamespace(is_stopped=False)
    variables["other"] = other
    with pytest.raises(UsageError, match="session or same or other"):
        magics.sql("SELECT 1")
    assert 1 == len(magics.sql("--session same SELECT 1") or ())
    for name in ("session", "same", "other"):
        del variables[name]
    monkeypatch.setattr("minishark.adapters.notebook.connect", lambda: session)
    assert 1 == len(magics.sql("SELECT 1") or ())
    assert session is variables["session"]
