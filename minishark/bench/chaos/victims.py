"""Which process a fault can hit. Pure: a function of the state of the nodes.

A fault hits no executor, node or head unless another one, on another node, is alive and not
stopped: otherwise queries could only fail, which other tests cover.
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
    """The possible victims at a moment."""

    nodes: Sequence[NodeState]
    heads: Collection[str]  # the names of those with a scheduler
    session: int | None  # the process id of the other session, if it runs
    # Processes that must not be hit again: stopped ones, and killed ones that are still reported.
    hit: Collection[int]

    def candidates(self, role: str) -> tuple[Victim, ...]:
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
        """Whether there is a scheduler and an executor without this node."""
        heads = [n for n in self._up() if n.name in self.heads and n.name != node.name]
        return bool(heads) and bool(self._others(node))
