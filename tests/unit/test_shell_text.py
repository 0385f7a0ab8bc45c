"""The shell's pure parts: statements in a text, completion, widths, what a query waits for."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from minishark.cli.shell.completion import Names, Suggestion, path_suggestions, suggestions
from minishark.cli.shell.interpreter import Entry, duration_text, error_text, is_complete, split
from minishark.dataframe.show import fitting_widths, human_bytes
from minishark.errors import QueryError
from minishark.model.events.figures import TaskFigures
from minishark.model.events.kinds import NodeReport, StageTag
from minishark.query.progress import QueryProgress, StageProgress
from minishark.session.progress import progress_lines, waiting_text
from sparrow_core import ExecutorStatus, JobId, TaskId, TaskStatus

NAMES = Names(
    columns={"nation": ["n_name", "n_key"], "region": ["r_name"], "Odd one": ["x"]},
    functions=["count", "concat"],
    keywords=["SELECT", "FROM", "CREATE"],
    commands={".read": ["*path"], ".schema": ["*table"], ".mode": ["csv", "json"], ".rows": []},
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  -- only a comment", []),
        ("SELECT 1;", [("SELECT 1;", 1)]),
        ("SELECT 'a;ö'; -- x\n\nSELECT\n .5;", [("SELECT 'a;ö';", 1), ("SELECT\n .5;", 3)]),
        ("/* ; */ SELECT $$ ; $$ ;;;", [("SELECT $$ ; $$ ;", 1)]),
        (".a\n  .b c \n-- d\nSELECT 1;", [(".a", 1), (".b c", 2), ("SELECT 1;", 4)]),
        (".read it's.sql\nSELECT 1;", [(".read it's.sql", 1), ("SELECT 1;", 2)]),
        ("SELECT 1;\n.tables\nSELECT 2;", [("SELECT 1;", 1), (".tables", 2), ("SELECT 2;", 3)]),
    ],
)  # fmt: skip
def test_a_text_is_split_where_statements_end(text: str, expected: list[tuple[str, int]]) -> None:
    """Semicolons in strings and comments end nothing; a dot begins a command only on its own."""
    assert expected == [(entry.text, entry.line) for entry in split(text)]
    assert is_complete(text)


@pytest.mark.parametrize(
    "text",
    ["SELECT 1", "SELECT 'open;", "SELECT $$ ;", "SELECT /* ;", "SELECT 1; SELECT 2", "a\n.b"],
)
def test_what_is_open_is_incomplete(text: str) -> None:
    """A statement without its semicolon is incomplete, and only the last one can be."""
    assert not is_complete(text)
    assert [False] == [entry.is_complete for entry in split(text)][-1:]


def test_a_command_behind_a_statement_on_its_line_is_none() -> None:
    """`SELECT 1;.tables` is a statement and something wrong, not a command."""
    assert [False, False] == [entry.is_command for entry in split("SELECT 1;.tables")]
    assert Entry(".tables", 1, is_command=True) == split(".tables")[0]


@settings(deadline=None)  # the first example waits for DuckDB to be loaded
@given(st.lists(st.sampled_from(["SELECT 1", "'a;'", "--;\n", "/*;*/", '";"', "x", ";", "é"])))
def test_statements_are_duckdbs(pieces: list[str]) -> None:
    """A text has the statements in it that DuckDB finds, if it finds any."""
    text = " ".join(pieces)
    try:
        expected = len(duckdb.extract_statements(text))
    except duckdb.Error:
        return
    assert expected == len(split(text))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("SELECT * FROM na", "", ["nation"]),
        ("SELECT * FROM ", "", ["nation", "region", '"Odd one"']),
        ("SELECT n", " FROM nation", ["n_name", "n_key", "nation"]),
        ("SELECT r_", " FROM nation", []),
        ("SELECT ", " FROM region", ["r_name"]),
        ("SELECT a.n_k", " FROM nation AS a", ["n_key"]),
        ("SELECT nation.", "", ["n_name", "n_key"]),
        ("SELECT z.", " FROM nation", []),
        ("sel", "", ["select"]),
        ("SEL", "", ["SELECT"]),
        ("SELECT cou", "", ["count("]),
        ("SELECT n_name FROM nation; SELECT n_", "", []),
        (".m", "", [".mode"]),
        (".mode c", "", ["csv"]),
        (".schema re", "", ["region"]),
        (".rows ", "", []),
    ],
)
def test_completion(before: str, after: str, expected: list[str]) -> None:
    """Tables come after FROM, columns of the tables that the statement names, then the rest."""
    assert expected == [found.text for found in suggestions(before, after, NAMES)]


def test_paths_are_completed(tmp_path: Path) -> None:
    """After .read and inside a string there are files and folders; hidden ones if asked for."""
    (tmp_path / "one.sql").touch()
    (tmp_path / "only").mkdir()
    (tmp_path / ".hidden").touch()
    expected = [Suggestion("one.sql", 2, "path"), Suggestion("only/", 2, "path")]
    assert expected == path_suggestions(f"{tmp_path}/on")
    assert expected == suggestions(f".read {tmp_path}/on", "", NAMES)
    assert expected == suggestions(f"SELECT * FROM '{tmp_path}/on", "", NAMES)
    assert [".hidden"] == [found.text for found in path_suggestions(f"{tmp_path}/.h")]
    assert 2 == len(path_suggestions(f"{tmp_path}/"))
    assert [] == path_suggestions(f"{tmp_path}/none/x")


@pytest.mark.parametrize(
    ("natural", "rigid", "width", "expected"),
    [
        ([3, 5], "--", None, {0: 3, 1: 5}),
        ([3, 500], "--", None, {0: 3, 1: 500}),
        ([3, 5], "--", 10, {0: 3, 1: 5}),
        ([30, 30], "--", 40, {0: 19, 1: 19}),
        ([3, 50], "--", 40, {0: 3, 1: 35}),
        ([20, 20], "n-", 40, {0: 20, 1: 18}),
        ([8, 8, 8, 8], "----", 30, {0: 8, 3: 8}),
        ([90], "n", 40, {0: 40}),
        ([], "", 40, {}),
    ],
)
def test_columns_share_the_width(
    natural: list[int], rigid: str, width: int | None, expected: dict[int, int]
) -> None:
    """Text gives way before numbers, and the middle before both ends."""
    assert expected == fitting_widths(natural, [kind == "n" for kind in rigid], width)


@given(st.lists(st.integers(1, 200), max_size=30), st.integers(20, 200))
def test_a_line_never_exceeds_the_width(natural: list[int], width: int) -> None:
    """Whatever the columns are, what is shown fits, and some column is shown."""
    widths = fitting_widths(natural, [False] * len(natural), width)
    cut = len(widths) < len(natural)
    assert sum(widths.values()) + 2 * max(0, len(widths) - 1) + 3 * cut <= width
    assert bool(natural) == bool(widths)


def _node(
    *, running: int = 0, alive: bool = True, slots: int = 1, tasks: tuple[TaskStatus, ...] = ()
) -> NodeReport:
    return NodeReport(
        at=1.0,
        name="n",
        pid=1,
        alive=alive,
        executors=(ExecutorStatus("e", 1, slots),) if slots else (),
        running=running,
        longest=tasks,
    )


def _tasks(*queries_or_functions: int | str) -> tuple[TaskStatus, ...]:
    return tuple(
        TaskStatus(
            tag=StageTag(query=each, stage=0) if isinstance(each, int) else each,
            job_id=JobId("j"),
            task_id=TaskId(0),
            attempt=1,
            executor="e",
            for_s=1.0,
        )
        for each in queries_or_functions
    )


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (
            [_node(running=1), _node(running=1)],
            "waiting for 3 s, behind other tasks: 2 of 2 slots are busy",
        ),
        (
            [_node(running=1, tasks=_tasks("sleep")), _node(running=1, tasks=_tasks(6, "sleep"))],
            "waiting for 3 s, behind sleep, query 6: 2 of 2 slots are busy",
        ),
        (
            [_node(running=1, tasks=_tasks(7)), _node(running=1, tasks=_tasks("sleep"))],
            "no task has ended for 3 s: 1 of its tasks runs, 2 of 2 slots are busy",
        ),
        (
            [_node(running=1, tasks=_tasks(7)), _node()],
            "no task has ended for 3 s: 1 of its tasks runs, 1 of 2 slots are busy",
        ),
        ([_node(running=1), _node()], "no task has ended for 3 s: 1 of 2 slots are busy"),
        ([_node(slots=0)], "waiting for 3 s: no executor is alive"),
        ([_node(alive=False)], "waiting for a node, 3 s"),
        ([], "waiting for a node, 3 s"),
        (
            [_node(running=1), _node(alive=False)],
            "waiting for 3 s, behind other tasks: 1 of 1 slots are busy, lost: n",
        ),
    ],
)
def test_what_a_query_waits_for(nodes: list[NodeReport], expected: str) -> None:
    """It is judged from what the nodes do, and which of that is the query's own: number 7."""
    assert expected == waiting_text(3.2, nodes, 7)


def test_progress_has_a_line_for_each_stage_that_runs() -> None:
    """Stages that are over or wait are only counted."""
    stages = [
        StageProgress(index=0, tasks=2, done=2, figures=TaskFigures(rows=10), started=True),
        StageProgress(index=1, tasks=4, done=1, figures=TaskFigures(rows=1234), started=True),
        StageProgress(index=2, tasks=4, done=0, figures=TaskFigures(rows=0), started=False),
    ]
    console = Console(width=100, record=True, quiet=False, force_terminal=False)
    with console.capture() as captured:
        console.print(progress_lines(QueryProgress(tuple(stages), 1.0), 1.0, 0.1, ()))
    lines = captured.get().splitlines()
    assert 2 == len(lines)
    assert lines[0].startswith("stage 1 ")
    assert lines[0].endswith(" 1/4 tasks, 1,234 rows")
    assert "1.0 s · 1 of 3 stages done · Ctrl-C cancels" == lines[1]


def test_texts_for_people() -> None:
    """Times and sizes have units that fit; errors keep their excerpt and say where they were."""
    assert ["12 ms", "1.50 s", "2 min 5 s"] == list(map(duration_text, (0.012, 1.5, 125)))
    assert ["5 B", "2 KB", "1.5 MB", "3.0 TB"] == list(
        map(human_bytes, (5, 2048, 1.5 * 2**20, 3 * 2**40))
    )
    error = QueryError("wrong\n\nLINE 1: x\n        ^\n")
    error.add_note("(file, line 3)")
    assert "wrong\nLINE 1: x\n        ^\n(file, line 3)" == error_text(error)
