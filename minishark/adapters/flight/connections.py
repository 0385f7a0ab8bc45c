"""Connections: each client's session, with its statements, limits and end.

Flight has no connections: calls are independent. Those of one client are known by the token of its
handshake; else by the cookie that the server asks it to send; else by its TCP connection, which
drivers keep. A client whose TCP connections are all closed is gone.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from minishark.adapters.flight.access import Caller, Identity
from minishark.adapters.flight.limits import Limits
from minishark.adapters.flight.statements import Answer
from minishark.errors import CatalogError, ResourceError
from minishark.session.session import Session
from minishark.tables.interruption import Interruption

_RECONNECTS_S = 60.0  # for which a client that is known by more than its TCP connection may be away
_SEEN_S = 1.0  # after which the system must have told of a new TCP connection


@dataclass(slots=True, kw_only=True)
class Statement:
    """A statement whose rows are to be fetched once."""

    answers: Sequence[Answer]  # of which queries run when their rows are fetched
    interruption: Interruption = field(default_factory=Interruption)
    asked_s: float = field(default_factory=time.monotonic)
    is_fetched: bool = False  # whether its rows are being fetched


@dataclass(slots=True, kw_only=True)
class Prepared:
    """A prepared statement, with the values of its parameters that were bound last."""

    sql: str
    parameters: Sequence[str]  # their names; numbers for positional ones
    values: Sequence[Any] | None = None  # a sequence or a mapping for each time that it is to run


class Connection:
    """One client's session; safe to use from several threads."""

    def __init__(self, session: Session, identity: Identity, limits: Limits) -> None:
        self.session = session
        self.identity = identity
        self.peers: dict[str, float] = {}  # its TCP connections, and when each was seen last
        self.cookie = ""
        self.is_known_by_peer = False
        self.transaction = b""  # the handle of the one that the client has begun
        self.used_s = time.monotonic()
        self._limits = limits
        self._lock = threading.RLock()  # the garbage collector may end a stream anywhere
        self._statements: dict[bytes, Statement] = {}
        self._prepared: dict[bytes, Prepared] = {}
        self._running: set[Interruption] = set()

    @property
    def is_busy(self) -> bool:
        """Whether one of its statements runs."""
        return bool(self._running)

    def begin(self, interruption: Interruption) -> None:
        """A statement begins to run; `end` must follow.

        Raises:
            ResourceError: as many run as may.
        """
        with self._lock:
            if len(self._running) >= self._limits.running_each:
                raise ResourceError(
                    f"This connection runs {len(self._running)} statements, which is its limit: "
                    "wait for one of them, or connect once more."
                )
            self._running.add(interruption)

    def end(self, interruption: Interruption) -> None:
        """A statement has ended."""
        with self._lock:
            self._running.discard(interruption)
            self.used_s = time.monotonic()

    def keep(self, statement: Statement) -> bytes:
        """Keep a statement until its rows are fetched; its handle."""
        return self._add(self._statements, statement, "results that it has not fetched")

    def prepare(self, prepared: Prepared) -> bytes:
        """Keep a prepared statement; its handle."""
        return self._add(self._prepared, prepared, "prepared statements")

    def _add(self, kept: dict[bytes, Any], item: object, what: str) -> bytes:
        handle = secrets.token_bytes(16)
        with self._lock:
            if len(kept) >= self._limits.kept_each:
                raise ResourceError(
                    f"This connection has {len(kept):,} {what}, which is its limit: close some."
                )
            kept[handle] = item
        return handle

    def fetched(self, handle: bytes) -> Statement:
        """The statement of that handle, whose rows are fetched now.

        Raises:
            CatalogError: there is none, or its rows have been fetched.
        """
        with self._lock:
            statement = self._statements.get(handle)
            if statement is None or statement.is_fetched:
                raise CatalogError(
                    "There is no such result: its rows have been fetched, or its connection is "
                    "over. Run the statement again."
                )
            statement.is_fetched = True
            return statement

    def find(self, handle: bytes) -> Statement | None:
        """The statement of that handle, if it is not over."""
        return self._statements.get(handle)

    def forget(self, handle: bytes) -> None:
        """A statement is over."""
        with self._lock:
            self._statements.pop(handle, None)

    def prepared(self, handle: bytes) -> Prepared:
        """The prepared statement of that handle.

        Raises:
            CatalogError: there is none.
        """
        statement = self._prepared.get(handle)
        if statement is None:
            raise CatalogError("There is no such prepared statement in this connection.")
        return statement

    def begin_transaction(self) -> bytes:
        """Begin a transaction; its handle.

        Raises:
            MinisharkError: there is one, or the session has none.
        """
        with self._lock:
            self.session.begin(lazily=True)
            self.transaction = secrets.token_bytes(16)
            return self.transaction

    def end_transaction(self, handle: bytes, verb: str) -> None:
        """COMMIT or ROLLBACK a transaction.

        Raises:
            CatalogError: there is no such one.
            ConflictError: another writer has changed the same table.
        """
        with self._lock:
            self.check_transaction(handle)
            self.transaction = b""
        self.session.sql(verb)

    def check_transaction(self, handle: bytes) -> None:
        """Check that there is a transaction of this handle.

        Raises:
            CatalogError: there is none.
        """
        if not handle or handle != self.transaction:
            raise CatalogError("There is no such transaction in this connection.")

    def unprepare(self, handle: bytes) -> None:
        """A prepared statement is needed no longer."""
        with self._lock:
            self._prepared.pop(handle, None)

    def expire(self, before_s: float) -> None:
        """Forget results that were asked for before then, and never fetched."""
        with self._lock:
            for handle, statement in tuple(self._statements.items()):
                if statement.asked_s < before_s and not statement.is_fetched:
                    del self._statements[handle]

    def cancel(self) -> None:
        """End what runs."""
        with self._lock:
            running = tuple(self._running)
        for interruption in running:
            interruption.cancel()

    def close(self) -> None:
        """End what runs, and the session."""
        with self._lock:
            self._statements.clear()
            self._prepared.clear()
        self.cancel()
        self.session.stop()


class Connections:
    """The connections of a server; safe to use from several threads."""

    def __init__(
        self, session: Session, limits: Limits, forgotten: Callable[[Identity], None]
    ) -> None:
        """None yet; `forgotten` hears of the callers whose connections have ended."""
        self._session = session
        self._limits = limits
        self._forgotten = forgotten
        self._by_key: dict[tuple[str, ...], Connection] = {}
        self._by_cookie: dict[str, Connection] = {}
        self._running = 0
        self._is_closed = False
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._by_key)

    def of(self, caller: Caller, peer: str) -> Connection:
        """The connection of a caller, which may be new.

        Raises:
            ResourceError: there are as many as there may be.
        """
        now = time.monotonic()
        with self._lock:
            connection = self._known(caller, peer)
            if connection is None:
                connection = self._new(caller, peer)
            connection.peers[peer] = connection.used_s = now
            return connection

    def _known(self, caller: Caller, peer: str) -> Connection | None:
        by_cookie = self._by_cookie.get(caller.cookie) if caller.cookie else None
        if by_cookie is not None and by_cookie.identity == caller.identity:
            by_cookie.is_known_by_peer = False
            return by_cookie
        return self._by_key.get(_key(caller.identity, peer))

    def _new(self, caller: Caller, peer: str) -> Connection:
        if self._is_closed:
            raise ResourceError("The server is stopping.")
        if len(self._by_key) >= self._limits.connections:
            raise ResourceError(
                f"The server has {len(self._by_key):,} connections, which is its limit: try again "
                "later, or raise --max-connections."
            )
        made = Connection(self._session.new_session(), caller.identity, self._limits)
        made.is_known_by_peer = not caller.identity.issued
        made.cookie = caller.offered or caller.cookie
        self._by_key[_key(caller.identity, peer)] = made
        self._by_cookie[made.cookie] = made
        return made

    def begin(self, connection: Connection, interruption: Interruption) -> None:
        """A statement of a connection begins to run; `end` must follow.

        Raises:
            ResourceError: as many run as may.
        """
        with self._lock:
            if self._running >= self._limits.running:
                raise ResourceError(
                    f"The server runs {self._running} statements, which is its limit: try again."
                )
            connection.begin(interruption)
            self._running += 1

    def end(self, connection: Connection, interruption: Interruption) -> None:
        """A statement of a connection has ended."""
        with self._lock:
            self._running -= 1
        connection.end(interruption)

    def find(self, handle: bytes, identity: Identity) -> Statement | None:
        """The statement of that handle in any connection of the same user."""
        with self._lock:
            connections = tuple(self._by_key.values())
        same = (peer for peer in connections if peer.identity.user == identity.user)
        return next((statement for peer in same if (statement := peer.find(handle))), None)

    def sweep(self, peers: Collection[str]) -> None:
        """End connections that nobody uses, or whose client is gone; `peers` are there."""
        now, over = time.monotonic(), []
        with self._lock:
            for connection in self._by_key.values():
                connection.expire(now - self._limits.idle_s)
                is_idle = now - connection.used_s > self._limits.idle_s
                if (is_idle and not connection.is_busy) or _is_gone(connection, peers, now):
                    over.append(connection)
            self._remove(over)
        if over:  # on a thread of its own: a statement that takes long to end holds up no other
            threading.Thread(target=self._close, args=(over,), daemon=True).start()

    def remove(self, connection: Connection) -> None:
        """End a connection; the next call of its client begins another one."""
        with self._lock:
            self._remove([connection])
        self._close([connection])

    def close(self) -> None:
        """End all connections, and refuse others."""
        with self._lock:
            self._is_closed = True
            over = list(self._by_key.values())
            self._remove(over)
        self._close(over)

    def _remove(self, over: Collection[Connection]) -> None:
        self._by_key = {key: open_ for key, open_ in self._by_key.items() if open_ not in over}
        for connection in over:
            self._by_cookie.pop(connection.cookie, None)

    def _close(self, over: Collection[Connection]) -> None:
        for connection in over:
            connection.close()
            self._forgotten(connection.identity)


def _key(identity: Identity, peer: str) -> tuple[str, ...]:
    return ("token", identity.issued) if identity.issued else ("peer", identity.user, peer)


def _is_gone(connection: Connection, peers: Collection[str], now: float) -> bool:
    """Whether a client has no TCP connection any more, and may not come back with another."""
    # A call may have come from one that the system did not list yet.
    there = [peer for peer, seen_s in connection.peers.items() if now - seen_s < _SEEN_S]
    there += [peer for peer in connection.peers if peer in peers]
    if there:
        connection.peers = {peer: connection.peers[peer] for peer in there}
        return False
    return connection.is_known_by_peer or now - connection.used_s > _RECONNECTS_S
