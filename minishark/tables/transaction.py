"""Whether a session is in a transaction: none, an open one, or one that an error has aborted.

As in DuckDB, each error of a statement or query aborts the transaction that it is part of: nothing
but its end is taken then, and COMMIT ends it as ROLLBACK does. So a script that goes on after an
error commits nothing.

What a transaction has done is known to a store: see `memory_transactions` and `warehouse_tables`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Protocol

from minishark.errors import TransactionError
from minishark.model.catalog import Catalog


class StoreTransaction(Protocol):
    """What a store knows of a transaction."""

    @property
    def view(self) -> Catalog | None:
        """The tables in memory that its statements read, if not those that there are."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held while a statement of the transaction changes something, and while it ends."""

    @property
    def changed_source(self) -> str | None:
        """A source, in lower case, that its statements read by another name, as they left it."""

    def commit(self) -> None:
        """Publish all changes, or raise (ConflictError, perhaps) and have published none."""

    def roll_back(self) -> None:
        """Undo all changes."""


class SessionTransaction:
    """The transaction of one session, whatever thread it is used from."""

    def __init__(self) -> None:
        self._store: StoreTransaction | None = None
        self._began: datetime | None = None
        self._is_aborted = False

    @property
    def store(self) -> StoreTransaction | None:
        """What its store knows of it; None if there is no transaction."""
        return self._store

    def began(self) -> datetime | None:
        """When it began, which its statements tell for the time; None if there is none."""
        return self._began

    @property
    def is_active(self) -> bool:
        """Whether one was begun, and has not ended; it may be aborted."""
        return self._store is not None

    def begin(self, store: Callable[[], StoreTransaction]) -> None:
        """Begin one.

        Raises:
            TransactionError: there is one already.
        """
        self.check()
        if self._store is not None:
            raise TransactionError("There is a transaction already: COMMIT or ROLLBACK it.")
        began = datetime.now(UTC)
        self._store = store()
        self._began = began

    def check(self) -> None:
        """Raise TransactionError if it is aborted."""
        if self._is_aborted:
            raise TransactionError("The transaction is aborted: ROLLBACK it.")

    @contextlib.contextmanager
    def aborted_by_errors(self) -> Iterator[None]:
        """A block whose errors, an interruption among them, abort the transaction."""
        try:
            yield
        except BaseException:
            # Only noted: what it has done is undone at its end, where nothing else is going on.
            self._is_aborted = self._store is not None
            raise

    @contextlib.contextmanager
    def statement(self) -> Iterator[None]:
        """A block that is part of the transaction, and must not run in an aborted one."""
        self.check()
        with self.aborted_by_errors():
            yield

    def end(self, verb: str) -> bool:
        """COMMIT or ROLLBACK it; whether its changes were committed.

        Raises:
            TransactionError: there is none.
            ConflictError: another writer has changed the same tables; everything is undone.
        """
        store = self._store
        with store.lock if store is not None else contextlib.nullcontext():
            if store is None or self._store is not store:  # another thread has ended it
                raise TransactionError(f"There is no transaction to {verb.lower()}: BEGIN one.")
            commits = verb == "COMMIT" and not self._is_aborted
            self._store, self._began, self._is_aborted = None, None, False
            if commits:
                store.commit()
            else:
                store.roll_back()
            return commits
