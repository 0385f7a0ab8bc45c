"""How a session reads and changes the catalog of the tables that belong to its cluster."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from minishark.cluster import wire
from minishark.cluster.connections import Connections, NoAnswerError
from minishark.cluster.jobs.client import JobsClient, new_terms
from minishark.cluster.jobs.records import SHARED_TABLES, JobProgram
from minishark.cluster.shared.records import NEVER, TableCatalog, TableChange
from minishark.errors import AlreadyExistsError, ClusterError, ConflictError

_CALL_S = 5.0
_PATIENCE_S = 30.0  # until another node answers for the catalog, when its owner has died
_FIRST_S = 3.0  # until all nodes answer, when it is unknown whether there is a catalog
_RENEW_S = 0.5
_PAUSE_S = 0.1


class DoubtfulChangeError(ClusterError):
    """No holder has said whether a change counts."""


@dataclass(slots=True, kw_only=True)
class SharedTablesClient:
    """The tables of a cluster.

    Attributes:
        session: its name.
        connections: to the nodes' services.
        jobs: knows who holds the catalog.
        leave: has a folder no longer, which stays on the nodes.
    """

    session: str
    connections: Connections
    jobs: JobsClient
    leave: Callable[[str], None] = lambda _: None
    catalog: TableCatalog = field(default_factory=TableCatalog)  # as it was read last
    # Gives the oldest version of it of which the session reads files; -1 if it reads none.
    oldest: Callable[[], int] = lambda: -1
    _me: str = field(default_factory=lambda: secrets.token_hex(8))  # as it numbers changes
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _service: str = ""  # of the node that answers for it

    def read(self) -> None:
        """Have `catalog` be what there is; for one thread at a time.

        Raises:
            ClusterError: no node that holds the catalog answers.
        """
        reply = self._ask(self._request())
        if isinstance(reply, wire.TableNews) and reply.news.order != self.catalog.order:
            after = self.catalog.after(reply.news)
            assert after is not None, "nobody else has read it"
            self.catalog = after

    def renew(self) -> None:
        """Let the cluster know that the session still reads files, whichever node answers now."""
        if not self.catalog.order[0]:
            return  # it has read none
        with contextlib.suppress(ClusterError):
            for _ in range(2):
                service = self._service or self._owner()
                if not service:
                    return  # the next heartbeat finds it
                with contextlib.suppress(NoAnswerError):
                    reply = self.connections.call(service, self._request(), _RENEW_S)
                    if not isinstance(reply, wire.NotOwner):
                        self._service = service
                        return
                self._service = ""

    def _request(self) -> wire.GetTables:
        order = self.catalog.order
        return wire.GetTables(self.session, order if order[0] else NEVER, self.oldest())

    def change(self, changes: Sequence[TableChange]) -> None:
        """Change tables, all at once; for one thread at a time.

        Raises:
            ConflictError: one is not as it was expected to be; nothing has changed.
            DoubtfulChangeError: nobody says whether they were changed.
            ClusterError: the cluster has no node that may hold the catalog.
        """
        request = wire.ChangeTables((self._me, next(self._numbers)), tuple(changes))
        try:
            reply = self._ask(request)
            if reply is None:
                with contextlib.suppress(AlreadyExistsError):  # another session makes the catalog
                    terms = new_terms(SHARED_TABLES, "the catalog of shared tables")
                    self.jobs.submit(terms, JobProgram(module=SHARED_TABLES))
                reply = self._ask(request, is_there=True)
        except ClusterError as error:
            raise DoubtfulChangeError(f"It is unknown whether it was done. {error}") from error
        if isinstance(reply, wire.Failure) and reply.taken:
            raise ConflictError(f"{reply.message} Run the statement again.")
        if not isinstance(reply, wire.Done):
            raise DoubtfulChangeError(f"It is unknown whether it was done: {reply}")

    def _ask(self, request: wire.Request, *, is_there: bool = False) -> wire.Reply | None:
        """The owner's reply; None if there is no catalog, unless it surely `is_there`.

        Raises:
            ClusterError: there was none for too long.
        """
        began_s, is_known = time.monotonic(), is_there or self.catalog.order[0] > 0
        while True:
            if not self._service:
                with contextlib.suppress(ClusterError):
                    owner = self._owner()
                    if owner is None and not (is_there or self.catalog.tables):
                        return None
                    is_known, self._service = True, owner or ""
            if service := self._service:  # which `renew` may change
                with contextlib.suppress(NoAnswerError):
                    reply = self.connections.call(service, request, _CALL_S)
                    if not isinstance(reply, wire.NotOwner):
                        return reply
                self._service = ""
            patience_s = _PATIENCE_S if is_known else _FIRST_S
            if time.monotonic() > began_s + patience_s:
                raise ClusterError(
                    f"No node has answered for shared tables for {patience_s:g} s: too few of "
                    "those that hold their catalog do. Statements work again when they do; if all "
                    "of them have died, the tables are lost: connect again to make others."
                )
            time.sleep(_PAUSE_S)

    def _owner(self) -> str | None:
        """The service of the node that answers for the catalog; None if there is none."""
        state = self.jobs.find_held(SHARED_TABLES)
        if state is None:
            return None
        services = {holder.home: holder.service for holder in state.holders}
        return services.get(state.owner, "")
