"""The interface by which long runs report progress; the command line renders it."""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Receives the progress of a run's sequential steps."""

    def step(self, title: str) -> None:
        """A step begins, and the previous one has ended."""

    def progress(self, done: int, total: int) -> None:
        """`done` of `total` units of the current step are done."""

    def detail(self, text: str) -> None:
        """A message for verbose output."""

    def warning(self, text: str) -> None:
        """A warning; the run goes on."""
