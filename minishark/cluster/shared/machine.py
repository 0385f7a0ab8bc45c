"""The catalog of shared tables as one node holds it: a state machine without IO.

    owner    answers for the catalog: `cluster.jobs` says which node, of which incarnation
    ballot   what the owner writes under: it has one more whenever another node takes over, and
             whenever it is not sure what the holders have

Before an owner answers, it asks most holders to promise its ballot: from then on they take nothing
of an earlier one. It goes on from the latest catalog among theirs, which it has them write first.
A change counts when most holders have it. So a catalog that counted is known to whoever is the
owner next, and one that no longer is the owner can make none count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from minishark.cluster.shared.records import NEVER, News, Order, TableCatalog

_TRIES = 20  # of one incarnation, in bits


def first_ballot(incarnation: int) -> int:
    """The lowest ballot of an owner."""
    return incarnation << _TRIES


@dataclass(frozen=True, slots=True)
class Refused:
    """A holder has promised a higher ballot."""

    promised: int


@dataclass(frozen=True, slots=True)
class Lacking:
    """A holder has another catalog than the one that news follow."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A holder has promised the ballot; its catalog, if that is later than what it was told."""

    later: News | None = None


Answer: TypeAlias = Refused | Lacking | Taken


@dataclass(slots=True)
class CatalogCopy:
    """A node's copy of the catalog, and what it has promised."""

    catalog: TableCatalog = field(default_factory=TableCatalog)
    promised: int = 0

    def take(self, ballot: int, news: News) -> Answer:
        """An owner tells what there is, or, with old news, asks for a promise."""
        if ballot < self.promised:
            return Refused(self.promised)
        self.promised = ballot
        if news.order < self.catalog.order:
            return Taken(self.catalog.news())
        if news.order > self.catalog.order:
            after = self.catalog.after(news)
            if after is None:
                return Lacking()
            self.catalog = after
        return Taken()


@dataclass(slots=True)
class Ownership:
    """What an owner knows of the other holders, by their homes."""

    incarnation: int = 0
    ballot: int = 0  # that most have promised; 0: it must ask
    tries: int = 0
    has: dict[str, Order] = field(default_factory=dict)

    def next_ballot(self, incarnation: int, at_least: int) -> int:
        """A ballot to ask for, above those that were promised; none is asked for twice."""
        if incarnation != self.incarnation:
            self.incarnation, self.tries = incarnation, 0
        self.ballot, self.has = 0, {}
        self.tries = max(self.tries + 1, at_least - first_ballot(incarnation))
        return first_ballot(incarnation) + self.tries

    def is_ready(self, incarnation: int) -> bool:
        """Whether most holders have promised a ballot of this incarnation."""
        return bool(self.ballot) and self.incarnation == incarnation

    def since(self, home: str) -> Order:
        """The catalog that a holder has, as far as is known."""
        return self.has.get(home, NEVER)
