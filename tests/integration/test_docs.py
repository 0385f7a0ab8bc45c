"""What the documentation shows works: docstrings, pages, and the programs in examples/."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.util
import io
import re
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest

import minishark
from minishark import DataFrame, Window
from minishark import functions as F
from minishark.session.session import Session

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    "minishark",
    "minishark.session.builder",
    "minishark.dataframe.column",
    "minishark.dataframe.frame",
    "minishark.dataframe.grouped",
    "minishark.dataframe.profile",
    "minishark.dataframe.reader",
    "minishark.dataframe.row",
    "minishark.dataframe.window",
    "minishark.dataframe.writer",
    "minishark.functions",
    "minishark.session.tasks.items",
    "minishark.session.tasks.verbs",
    "minishark.dataframe.udf",
    "minishark.session.catalog",
    "minishark.session.connect",
    "minishark.session.session",
)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session as users have it."""
    with minishark.connect(in_process=True, nodes=2) as opened:
        yield opened


@pytest.fixture
def names(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What examples may use without saying where it is from; sessions of theirs have no processes.

    The README's has.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(minishark, "connect", partial(minishark.connect, in_process=True))
    return {
        "session": session,
        "minishark": minishark,
        "F": F,
        "Window": Window,
        "Row": minishark.Row,
    }


def _failures(test: doctest.DocTest) -> list[str]:
    told: list[str] = []
    doctest.DocTestRunner().run(test, out=told.append, clear_globs=False)
    return told


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str, names: dict[str, Any]) -> None:
    """The examples of docstrings give what they show."""
    module = importlib.import_module(name)
    tests = doctest.DocTestFinder().find(module, globs=None, extraglobs=names)
    shown = [test for test in tests if test.examples]
    assert shown, f"{name} has no examples"
    assert [] == [line for test in shown for line in _failures(test)]


@pytest.mark.parametrize("page", ["tutorial", "cookbook"])
def test_pages(page: str, names: dict[str, Any]) -> None:
    """The examples of a page, run one after another, give what it shows."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), names, page, None, None)
    assert len(test.examples) > 20
    assert [] == _failures(test)


def test_the_source_of_a_user(session: Session, tmp_path: Path) -> None:
    """The source in the documentation reads its part of a table, in at most 60 lines."""
    text = (ROOT / "docs" / "sources.md").read_text()
    own = text.partition("## A source of your own")[2]
    source, use = re.findall(r"^```python\n(.*?)^```", own, re.DOTALL | re.MULTILINE)[:2]
    assert len([line for line in source.splitlines() if line.strip()]) <= 60
    path = tmp_path / "people.db"
    with sqlite3.connect(path) as people:
        people.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, score REAL)")
        rows = ((i, f"p{i}", i * 37 % 1000) for i in range(1, 1001))
        people.executemany("INSERT INTO people VALUES (?, ?, ?)", rows)
    names = {"__name__": "__main__", "session": session}
    exec(compile(source + use.replace("people.db", str(path)), "sources.md", "exec"), names)
    best = names["best"]
    assert isinstance(best, DataFrame)
    assert [("p27",)] == [tuple(row) for row in best.collect()]
    everything = "SELECT count(*), sum(score)::INTEGER FROM people"
    assert [(1000, 499_500)] == [tuple(row) for row in session.sql(everything).collect()]
    with sqlite3.connect(path) as people:
        people.execute("INSERT INTO people VALUES (0, 'p0', 1000)")
    assert [("p0",)] == [tuple(row) for row in best.collect()]
    session.drop_table("people")


@pytest.mark.slow
def test_the_readme() -> None:
    """Each of its first programs prints what stands below it."""
    first = (ROOT / "README.md").read_text().partition("\n## ")[0]
    shown = re.findall(r"^```python\n(.*?)^```\n\n```\n(.*?)^```", first, re.DOTALL | re.MULTILINE)
    assert len(shown) == 2
    for program, printed in shown:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(program, "README.md", "exec"), {"__name__": "readme"})
        assert printed.split() == output.getvalue().split()


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_report(session: Session, tmp_path: Path) -> None:
    """Each region has four quarters, whose shares add up, and DuckDB agrees."""
    table = _example("report").main(session, tmp_path).to_arrow(verify=True).to_pandas()
    assert 16 == len(table)
    assert [100.0] * 4 == pytest.approx(table.groupby("region")["share"].sum().tolist(), abs=0.3)


@pytest.mark.slow
def test_the_dashboard(session: Session) -> None:
    """All tiles are filled."""
    shown = _example("dashboard").main(session)
    assert [1, 24, 3, 1] == [len(rows) for rows in shown.values()]


def test_the_join_of_pandas_frames(session: Session) -> None:
    """The session's join is pandas' own."""
    module = _example("pandas_join")
    orders, customers = module.make()
    joined = customers.merge(orders, on="customer", how="left")
    expected = joined.groupby("country")["amount"].sum().round(2)
    actual = module.main(session)
    pd.testing.assert_series_equal(
        expected, actual.set_index("country")["amount"], check_dtype=False, check_index_type=False
    )
    assert 3 == actual["without orders"].sum()
