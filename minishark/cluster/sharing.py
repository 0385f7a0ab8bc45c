"""The events of the sessions of a running cluster, for whoever shows them.

A session keeps its newest events, and its file service hands them out to those that hold the
cluster's keys: nobody is waited for, and a session to which nobody listens sends nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec import structs

from minishark.cluster import wire
from minishark.cluster.attributes import store_of
from minishark.cluster.connections import NoAnswerError
from minishark.cluster.jobs.client import JobsClient
from minishark.cluster.jobs.members import may_hold
from minishark.cluster.jobs.watching import JobsSeen
from minishark.cluster.joining import peer_session
from minishark.cluster.keys import Keys
from minishark.cluster.status import NOWHERE, node_changes, node_reports, node_usages
from minishark.errors import ClusterError
from minishark.model.events import kinds
from minishark.model.events.stream import EventStream

EVENTS_MAX = 4_000  # in one reply
_SEEN_HERE = (kinds.NodeReport, kinds.NodeDied, kinds.NodeLeft, kinds.JobReport)
_CALL_S = 1.0
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class SharedEvents:
    """What a session tells those that ask.

    Attributes:
        began: what it is.
        stream: its events.
        cancel: cancels one of its queries.
        asked: called when somebody asks: whether they begin, and whether anybody looks at it.
    """

    began: kinds.SessionStarted
    stream: EventStream
    cancel: Callable[[int], bool]
    asked: Callable[[bool, bool], None]

    def answer(self, request: wire.Request) -> wire.Reply | None:
        """The reply to a request; None if it is about something else."""
        match request:
            case wire.GetEvents(since, is_read):
                self.asked(not since, is_read)
                batch = self.stream.since(since, EVENTS_MAX)
                return wire.Events(
                    began=self.began, events=batch.events, last=batch.last, dropped=batch.dropped
                )
            case wire.CancelQuery(query):
                return wire.Done() if self.cancel(query) else wire.Failure("It does not run.")
            case _:
                return None


@dataclass(slots=True)
class _Heard:
    """A session that is asked for its events."""

    service: str
    last: int = 0
    has_begun: bool = False


class ClusterEvents:
    """The events of all sessions of a running cluster, and of its nodes."""

    def __init__(self, address: str, keys_folder: str | Keys | None) -> None:
        """Connect to the cluster of the node at `address`.

        Raises:
            ClusterError: it does not answer, or has another version.
        """
        with contextlib.ExitStack() as undo:
            welcome, self._connections, self._sparrow = undo.enter_context(
                peer_session(address, keys_folder)
            )
            self.name = welcome.cluster
            self._close = undo.pop_all().close
        self._sessions: dict[str, _Heard] = {}
        self._nodes: dict[str, kinds.NodeReport] = {}
        self._jobs = JobsSeen()
        self._looked_s = 0.0

    def poll(self, *, is_read: bool) -> Iterator[tuple[str, kinds.AnyEvent]]:
        """The events since the last call, each with its session; those of nodes with the cluster.

        Sessions explain where tasks run while somebody looks at the events (`is_read`).

        Raises:
            ClusterError: it is closed.
        """
        if time.monotonic() >= self._looked_s + _LOOK_S:
            self._looked_s = time.monotonic()
            yield from self._look()
        for name, heard in list(self._sessions.items()):
            yield from self._ask(name, heard, is_read=is_read)

    def _look(self) -> Iterator[tuple[str, kinds.AnyEvent]]:
        """Which nodes and sessions there are now."""
        statuses = self._sparrow.nodes()
        usages = node_usages(self._connections, statuses, _CALL_S)
        services = {
            session.name: session.service for usage in usages.values() for session in usage.sessions
        }
        for name, service in services.items():
            if service and name not in self._sessions:
                self._sessions[name] = _Heard(service)
        # A silent node may be the only one that knows of some.
        if usages.keys() >= {status.name for status in statuses if store_of(status)}:
            for name in self._sessions.keys() - services.keys():
                del self._sessions[name]
                self._nodes = {}  # a board that ends a session forgets the nodes with the last one
                yield name, kinds.SessionEnded(at=time.time())
        nodes = {node.name: node for node in node_reports(statuses, NOWHERE, usages)}
        before, self._nodes = self._nodes, nodes
        for event in node_changes(before, nodes, time.time()):
            yield self.name, event
        jobs = JobsClient(self._connections, lambda: may_hold(statuses))
        with contextlib.suppress(ClusterError):  # no node answers: the next look tells
            for job in self._jobs.changes(jobs, time.time()):
                yield self.name, job

    def _ask(
        self, name: str, heard: _Heard, *, is_read: bool
    ) -> Iterator[tuple[str, kinds.AnyEvent]]:
        request = wire.GetEvents(heard.last, is_read)
        try:
            reply = self._connections.call(heard.service, request, _CALL_S)
        except NoAnswerError:
            return  # it may be suspended; its nodes tell when it has ended
        if not isinstance(reply, wire.Events):
            return
        if not heard.has_begun:
            heard.has_begun = True
            yield name, structs.replace(reply.began, cluster=self.name)
        elif reply.dropped and reply.events:
            yield name, kinds.EventsDropped(at=reply.events[0].at, count=reply.dropped)
        heard.last = reply.last
        for event in reply.events:
            # All sessions see the same nodes and jobs, which are looked at here.
            if not isinstance(event, _SEEN_HERE):
                yield name, event

    def cancel(self, session: str, number: int) -> bool:
        """Cancel a query of a session; whether it was running."""
        heard = self._sessions.get(session)
        if heard is None:
            return False
        try:
            reply = self._connections.call(heard.service, wire.CancelQuery(number), _CALL_S)
        except NoAnswerError:
            return False
        return isinstance(reply, wire.Done)

    def close(self) -> None:
        """Disconnect."""
        self._close()
