"""What tasks tell while they run and when they end: how far they are, and what they print."""

from __future__ import annotations

import io
import itertools
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from minishark.model.events.figures import TaskFigures
from minishark.query.progress import QueryProgress, StageProgress
from minishark.session.prints import CallPrints, TaskPrints
from minishark.session.progress import (
    line_for_people,
    progress_for_people,
    progress_lines,
    shown_progress,
)
from minishark.worker import progress as worker_progress
from minishark.worker.prints import PrintedFiles, Prints
from minishark.worker.progress import TaskProgress, parts_done
from minishark.worker.protocol import OutputKind, StageTask, TaskPayload


def _stage(output: OutputKind = OutputKind.PIECE) -> StageTask:
    return StageTask(sql="", types=(), output=output, folder="queries/1", prefix="3-")


@pytest.fixture
def progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskProgress:
    """That of a slot whose node keeps its files in `tmp_path`; tasks tell at once."""
    monkeypatch.setattr(worker_progress, "_AFTER_S", 0.0)
    (tmp_path / "queries/1").mkdir(parents=True)
    store: Any = SimpleNamespace(in_memory=lambda file: tmp_path / file)
    return TaskProgress(store)


def test_progress_is_that_of_the_task_that_runs(progress: TaskProgress, tmp_path: Path) -> None:
    """Nothing is told before, after, of loads, or when the query's folder is gone."""
    folder = tmp_path / "queries/1"
    progress.tell(lambda: 0.1)
    with progress.of(_stage(), TaskPayload(index=7, inputs={})):
        for done in (0.25, 0.5):
            progress.tell(lambda done=done: done)
            assert {7: done} == parts_done(folder, "3-")
    progress.tell(lambda: 0.75)
    assert {7: 0.5} == parts_done(folder, "3-")
    assert {} == parts_done(folder, "4-") == parts_done(tmp_path / "nowhere", "3-")
    with progress.of(_stage(OutputKind.PARTITION), TaskPayload(index=8, inputs={})):
        progress.tell(lambda: 0.1)
    (folder / "3-9.progress").write_text("")
    assert {7: 0.5} == parts_done(folder, "3-")
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    with progress.of(_stage(), TaskPayload(index=7, inputs={})):
        progress.tell(lambda: 0.9)
    assert not folder.exists()


def test_a_bar_moves_within_a_task() -> None:
    """By the part of the running tasks that is done, which is never all."""
    shown = []
    for running in (0.0, 0.5, 1.0):
        console = Console(width=100, record=True, force_terminal=False)
        with console.capture() as captured:
            stage = StageProgress(
                index=0, tasks=1, done=0, figures=TaskFigures(), started=True, running=running
            )
            console.print(progress_lines(QueryProgress((stage,), 1.0), 1.0, 0.1, ()))
        shown.append(captured.get().splitlines()[0])
    assert shown[0].endswith(" 0/1 tasks, 0 rows")
    assert shown[1].endswith(f"{'━' * 12}{'─' * 12} 0/1 tasks, 50 %, 0 rows")
    assert shown[2].endswith(" 0/1 tasks, 99 %, 0 rows")


class _Watched:
    """A session that tells of a query; it counts who listens."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def nodes(self) -> tuple[Any, ...]:
        return ()

    def register_progress_handler(self, handler: Any) -> None:
        self.heard.append(handler)
        handler(QueryProgress((), 0.0))

    def remove_progress_handler(self, handler: Any) -> None:
        self.heard.remove(handler)


def test_progress_is_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, of an interactive Python or on demand; once, although blocks are nested."""
    watched = _Watched()

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def listeners(wanted: bool | None) -> int:
        with progress_for_people(watched, wanted):
            return len(watched.heard)

    monkeypatch.delattr(sys, "ps1", raising=False)  # left by consoles that other tests open
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert 0 == listeners(True)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert (0, 1, 0) == (listeners(None), listeners(True), listeners(False))
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert 1 == listeners(None)
    console = Console(file=Terminal(), force_terminal=True)
    with shown_progress(watched, console):
        assert 1 == listeners(True)
    assert [] == watched.heard
    elsewhere: list[int] = []
    thread = threading.Thread(target=lambda: elsewhere.append(listeners(True)))
    thread.start()
    thread.join()
    assert [0] == elsewhere


def test_a_line_is_drawn_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a block runs on a terminal, and one at a time; nothing is left of it."""
    err, drawn, asked = io.StringIO(), threading.Event(), itertools.count()
    monkeypatch.setattr(err, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm")

    def line() -> str:
        number = next(asked)
        if number == 2:
            drawn.set()
        return f"iteration {number}"

    with line_for_people(line, True), line_for_people(lambda: "another", True):
        assert drawn.wait(30)
    assert "iteration 1 · Ctrl-C cancels" in err.getvalue()
    assert "another" not in err.getvalue()
    asked = itertools.count()
    with line_for_people(line, False):
        pass
    assert 0 == next(asked)


def test_prints_are_kept_up_to_a_bound() -> None:
    """Since the last task; the rest is counted. Streams go on as they were."""
    prints = Prints()
    assert "" == prints.take()
    prints.add("hello\n")
    prints.add("y" * 20_000)
    text = prints.take()
    assert text.startswith("hello\nyyy")
    assert text.endswith("y\n... and 3,622 more characters")
    assert "" == prints.take()


def test_lines_of_a_task_that_runs_are_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is read once, there or in the outcome; both together are bounded."""
    monkeypatch.setattr("minishark.worker.prints.PRINTED_AFTER_S", 0.0)
    prints, files, folder = Prints(), PrintedFiles(), tmp_path / "prints"
    assert [] == files.new([folder])
    prints.begin(lambda: folder)
    for text, told in (("one\ntw", "one\n"), ("o\nthree\n", "two\nthree\n")):
        prints.add(text)
        prints.write("node-0-e0")
        assert [("node-0-e0", told)] == files.new([folder])
    prints.add("x" * 20_000)
    prints.write("node-0-e0")
    prints.end()
    prints.add("late\n")
    prints.write("node-0-e0")  # no task runs
    assert [] == files.new([folder])
    assert prints.take().endswith("x\n... and 3,635 more characters")
    half = (folder / "node-0-e1~1~0").open("wb", buffering=0)
    for written, found in ((b"a\n\xc3", "a\n"), (b"\xa4\n", "ä\n"), (b"\xff\n", "\ufffd\n")):
        half.write(written)
        assert [("node-0-e1", found)] == files.new([folder])
    half.close()
    files.remove()
    assert not folder.exists()
    for _ in range(20):
        prints.begin(lambda: folder)
        prints.add("again\n")
        prints.write("node-0-e0")
        prints.end()
    assert 8 == len(list(folder.iterdir()))


def test_calls_that_come_while_their_follower_ends_are_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looks again before it ends: whoever came saw that it was there, and started no other."""
    monkeypatch.setattr("minishark.session.prints._LINGER_S", -1.0)
    monkeypatch.setattr("minishark.session.prints._LOOK_S", 0.001)
    busy, looks = iter((False, True, False, False)), itertools.count()
    prints = TaskPrints()
    calls = CallPrints(prints, lambda: [Path(str(next(looks)))], lambda: next(busy))
    calls.wake()
    assert prints.follower is not None
    prints.follower.join(10)
    assert not prints.follower.is_alive()
    assert 2 == next(looks)


def test_prints_go_on_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """`print` and stderr are copied; other methods are those of the streams."""
    out, err, prints = io.StringIO(), io.StringIO(), Prints()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    prints.install()
    print("to stdout", flush=True)  # noqa: T201 - what is tested
    sys.stderr.writelines(["to ", "stderr"])
    assert not sys.stdout.isatty()
    assert ("to stdout\n", "to stderr") == (out.getvalue(), err.getvalue())
    assert "to stdout\nto stderr" == prints.take()


def test_lines_have_the_executors_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr, all that was told before the end; not if they are switched off."""
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    shown = TaskPrints()
    shown.show("node-0-e0", "one\ntwo")
    shown.show("node-1-e0", "three\n")
    shown.close()
    shown.show("node-1-e0", "too late")
    assert "(node-0-e0) one\n(node-0-e0) two\n(node-1-e0) three\n" == err.getvalue()
    silent = TaskPrints()
    silent.are_shown = False
    silent.show("node-0-e0", "nothing")
    silent.close()
    assert 3 == len(err.getvalue().splitlines())


def test_a_flood_of_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told faster than a terminal takes it is left out, and counted."""
    written, may_write = io.StringIO(), threading.Event()

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            may_write.wait(10)
            return written.write(text)

    monkeypatch.setattr(sys, "stderr", Slow())
    shown = TaskPrints()
    for _ in range(30):
        shown.show("e", "line\n" * 1000)
    may_write.set()
    shown.close()
    lines = written.getvalue().splitlines()
    assert len(lines) <= 20_002
    told = [line for line in lines if "more lines" in line]
    left_out = sum(int(line.split()[1].replace(",", "")) for line in told)
    assert 30_000 == len(lines) - len(told) + left_out
