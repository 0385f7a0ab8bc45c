"""Calls whose results are kept for later ones, as far as the pool of calls sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from minishark.session.tasks.functions import Function
from minishark.worker.protocol import FileSlice, PythonOutcome, Value

Naming: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], str]
"""Gives the name of a call with such arguments; empty if it has none."""


class KeptCalls(Protocol):
    """Keeps what calls return, under names that say what was called with what."""

    @property
    def folder(self) -> str:
        """Where nodes keep large results, relative to their storage folders."""

    def naming(self, function: Function) -> Naming:
        """How calls of a function are named, which is as it is now."""

    def take(self, names: Sequence[str]) -> Mapping[str, tuple[PythonOutcome, str]]:
        """The outcomes of those calls that were made, each with its node; files of them stay."""

    def keep(self, name: str, value: Value, node: str, run_s: float) -> None:
        """A call has returned; its file, if there is one, stays. Must not block."""

    def not_kept(self, label: str, why: str) -> None:
        """What a function has returned can't be kept."""

    def lost(self, items: Iterable[FileSlice]) -> None:
        """Files of results are gone, or damaged."""

    def release(self, items: Iterable[FileSlice]) -> Sequence[FileSlice]:
        """Files of results were read, or are not wanted; those that nobody is to read any more."""
