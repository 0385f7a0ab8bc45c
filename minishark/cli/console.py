"""What the terminal shows: progress on stderr, answers on stdout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from minishark.tpch.reporter import Reporter

# Where nobody looks at the lines there is no width that they must fit into.
_PIPE_WIDTH = 10_000


def standard_output() -> Console:
    """A console on stdout that never folds or cuts what goes into a pipe or file."""
    console = _Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def standard_error() -> Console:
    """A console on stderr."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


class _Console(Console):
    """A console that leaves it to its user what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - called where the BrokenPipeError is handled


@contextmanager
def open_reporter(*, verbose: bool) -> Iterator[Reporter]:
    """A reporter on stderr: bars on a terminal, a line a step elsewhere."""
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
        """Nothing: a log is no place for moving bars."""

    def detail(self, text: str) -> None:
        if self._verbose:
            self._console.print(text, markup=False)

    def warning(self, text: str) -> None:
        self._console.print(f"Warning: {text}", markup=False)


class _BarReporter(_LineReporter):
    """Shows a bar for the current step; the bars vanish at the end."""

    def __init__(self, progress: Progress, *, verbose: bool) -> None:
        super().__init__(progress.console, verbose=verbose)
        self._progress = progress
        self._current = progress.add_task("", total=None, visible=False)

    def step(self, title: str) -> None:
        self._progress.remove_task(self._current)
        self._current = self._progress.add_task(title, total=None)

    def progress(self, done: int, total: int) -> None:
        self._progress.update(self._current, completed=done, total=total)
