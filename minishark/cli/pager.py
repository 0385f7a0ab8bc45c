"""What does not fit on the screen goes to a pager."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterator

from rich.console import Console

from minishark.cli.console import PipeConsole

_PAGER = "less -RS"


@contextlib.contextmanager
def paged(console: Console) -> Iterator[Console]:
    """A console whose text the user reads in $MINISHARK_PAGER, $PAGER or less.

    It is `console` itself if there is no such program. What is printed waits for the user to read
    on; printing ends early, without an error, when they leave the pager.
    """
    command = os.environ.get("MINISHARK_PAGER") or os.environ.get("PAGER") or _PAGER
    try:
        process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.PIPE, text=True, encoding="utf-8"
        )
    except (OSError, ValueError):  # not installed, or no command
        yield console
        return
    assert process.stdin is not None
    pipe = PipeConsole(
        file=process.stdin, force_terminal=True, width=console.width, highlight=False,
        color_system=console.color_system,  # type: ignore[arg-type]
    )  # fmt: skip
    with _without_interrupts():
        with contextlib.suppress(BrokenPipeError):
            yield pipe
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C is the pager's, which shares the terminal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
