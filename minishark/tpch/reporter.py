"""How a long run tells what it is doing; the command line decides how that looks."""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Hears of a run's steps, one after the other."""

    def step(self, title: str) -> None:
        """A step begins, and the one before it is over."""

    def progress(self, done: int, total: int) -> None:
        """Part of the current step is done."""

    def detail(self, text: str) -> None:
        """Something that only a curious user wants to read."""

    def warning(self, text: str) -> None:
        """Something that the user should know, though the run goes on."""
