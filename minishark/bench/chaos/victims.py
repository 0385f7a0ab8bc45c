"""Which process a fault can hit. Pure: from what the cluster tells of its nodes.

Somebody is always left: a fault hits no executor, node or head unless another one lives and is not
stopped, on another node. Where nobody is left a query cannot be answered, only fail; that has tests
of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from minishark.bench.chaos.schedule import Fault
from minishark.cluster.status import NodeState


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that can be hit."""

    name: str
    pid: int


@dataclass(frozen=True, slots=True)
class Scene:
    """Who is there at one moment.

    Attributes:
        nodes: as the cluster tells.
        heads: the names of those with a scheduler.
        session: the process of another session, if one runs.
        hit: processes that must not be hit again: killed ones that are still told of, stopped ones.
    """

    nodes: Sequence[NodeState]
    heads: Collection[str]
    session: int | None
    hit: Collection[int]

    def candidates(self, role: str) -> tuple[Victim, ...]:
        """Those that a fault in this role can hit."""
        match role:
            case "session":
                return () if self.session is None else (Victim("session", self.session),)
            case "executor":
                homes = [(node, self._executors(node)) for node in self._up()]
                return tuple(v for node, own in homes if self._others(node) for v in own)
            case _:
                wanted = [n for n in self._up() if (n.name in self.heads) == (role == "head")]
                return tuple(Victim(node.name, node.pid) for node in wanted if self._spared(node))

    def choose(self, fault: Fault) -> Victim | None:
        """Whom a fault hits now; None if it can hit nobody."""
        found = self.candidates(fault.role)
        return found[int(fault.draw * len(found))] if found else None

    def _up(self) -> list[NodeState]:
        return [node for node in self.nodes if node.alive and node.pid not in self.hit]

    def _executors(self, node: NodeState) -> list[Victim]:
        return [Victim(e.name, e.pid) for e in node.executors if e.pid and e.pid not in self.hit]

    def _others(self, node: NodeState) -> list[NodeState]:
        """Other nodes that can run tasks."""
        return [n for n in self._up() if n.name != node.name and self._executors(n)]

    def _spared(self, node: NodeState) -> bool:
        """Whether tasks, and a scheduler, have a place without this node."""
        heads = [n for n in self._up() if n.name in self.heads and n.name != node.name]
        return bool(heads) and bool(self._others(node))
