"""Consoles and progress reporters: results on stdout, progress on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH = 10_000  # a pipe or file has no width to wrap to


class Reporter(Protocol):
    """Receives the progress of sequential steps."""

    def step(self, title: str) -> None:
        """A step begins, and the previous one has ended."""

    def progress(self, done: int, total: int) -> None:
        """`done` of `total` units of the current step are done."""

    def detail(self, text: str) -> None:
        """A message for verbose output."""

    def warning(self, text: str) -> None:
        """A warning; the run goes on."""


def standard_output() -> Console:
    """A console on stdout that wraps and truncates for terminals only."""
    return _unwrapped(PipeConsole(highlight=False))


def standard_error() -> Console:
    """A console on stderr that wraps for terminals only."""
    return _unwrapped(Console(stderr=True, highlight=False))


def _unwrapped(console: Console) -> Console:
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def print_json(document: object) -> None:
    """Print what commands tell other programs."""
    click.echo(msgspec.json.format(msgspec.json.encode(document)))


def print_rows(heads: Sequence[str], rows: Iterable[Sequence[object]], *, none: str = "") -> None:
    """Print a plain table for people; or a sentence that there is none of its rows."""
    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))  # no cell is markup
    standard_output().print(table if table.row_count or not none else none)


def age(seconds: float) -> str:
    """A time in its largest unit."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


class PipeConsole(Console):
    """A console that passes BrokenPipeError on, instead of exiting."""

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - rich calls this from its except block


@contextmanager
def open_reporter(*, verbose: bool) -> Iterator[Reporter]:
    """A reporter on stderr: progress bars on a terminal, else one line per step."""
    console = standard_error()
    if not console.is_terminal:
        yield _LineReporter(console, verbose=verbose)
        return
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as progress:
        yield _BarReporter(progress, verbose=verbose)


class _LineReporter:
    """Prints a line for each step."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        self._console = console
        self._verbose = verbose

    def step(self, title: str) -> None:
        self._console.print(title, markup=False)

    def progress(self, done: int, total: int) -> None:
        """Ignored: a log can't show a moving bar."""

    def detail(self, text: str) -> None:
        if self._verbose:
            self._console.print(text, markup=False)

    def warning(self, text: str) -> None:
        self._console.print(f"Warning: {text}", markup=False)


class _BarReporter(_LineReporter):
    """Shows a bar for the current step, and removes it at the end."""

    def __init__(self, progress: Progress, *, verbose: bool) -> None:
        super().__init__(progress.console, verbose=verbose)
        self._progress = progress
        self._current = progress.add_task("", total=None, visible=False)

    def step(self, title: str) -> None:
        self._progress.remove_task(self._current)
        self._current = self._progress.add_task(title, total=None)

    def progress(self, done: int, total: int) -> None:
        self._progress.update(self._current, completed=done, total=total)
