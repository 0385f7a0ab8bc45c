"""Tags of running statements, and their interruption; which session is the active one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minishark.dataframe.runtime import latest_session
from minishark.errors import OptionError

if TYPE_CHECKING:
    from typing import Self

    from minishark.session.runtime import Runtime


class Operations:
    """The methods of sessions that name, tag and interrupt what runs."""

    _runtime: Runtime

    @classmethod
    def get_active_session(cls) -> Self | None:
        """The session that this thread made last, or else the process; None if none is open."""
        session: Self | None = latest_session()
        return session

    @classmethod
    def active(cls) -> Self:
        """As `get_active_session`.

        Raises:
            OptionError: no session is open.
        """
        found = cls.get_active_session()
        if found is None:
            raise OptionError("No session is open; make one with minishark.connect().")
        return found

    def add_tag(self, tag: str) -> None:
        """Give a tag to the statements that this thread runs from now on, for `interrupt_tag`.

        Raises:
            OptionError: it is empty, or has a comma.
        """
        if not tag or "," in tag:
            raise OptionError("A tag is a text that is not empty, without commas.")
        scope = self._runtime.scope
        scope.set_tags(scope.tags | {tag})

    def remove_tag(self, tag: str) -> None:
        """Give a tag to later statements no more."""
        scope = self._runtime.scope
        scope.set_tags(scope.tags - {tag})

    def get_tags(self) -> set[str]:
        """The tags of what this thread runs."""
        return set(self._runtime.scope.tags)

    def clear_tags(self) -> None:
        """Give no tags to later statements."""
        self._runtime.scope.set_tags(frozenset())

    def interrupt_all(self) -> list[str]:
        """Cancel this session's queries that run now; their numbers."""
        return self._interrupted(None)

    def interrupt_tag(self, tag: str) -> list[str]:
        """Cancel those that have a tag; their numbers."""
        return self._interrupted(tag)

    def interrupt_operation(self, op_id: str) -> list[str]:
        """Cancel a query by its number, as the page and events have it."""
        engine = self._runtime.engine
        return [op_id] if op_id.isdecimal() and engine.cancel(int(op_id)) else []

    def _interrupted(self, tag: str | None) -> list[str]:
        engine, scope = self._runtime.engine, self._runtime.scope
        return [str(number) for number in scope.tagged(tag) if engine.cancel(number)]
