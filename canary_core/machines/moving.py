"""A partition as it travels to another worker, with all that is its own.

States are pickled as copies, as what comes must be writable; values that never change leave their
large buffers where they are. Tables are not sent: the new worker reads its own.
"""

from __future__ import annotations

from typing import Any

from canary_core import values
from canary_core.machines.partition import Partition
from canary_core.machines.replica import TABLE, Replica
from canary_core.protocol.messages import Moved
from canary_core.values import Frames


def packed(
    part: Partition, replica: Replica, version: int, along: dict[str, Any]
) -> tuple[Moved, Frames]:
    """A partition and what goes `along` with it, for the worker that has it by the map."""
    tables = [id_ for id_ in part.values if _is_table(replica, id_)]
    inside = {
        "states": {id_: part.values[id_] for id_ in part.states if id_ in part.values},
        "reload": [*part.reload, *tables],
        "pc": part.pc,
        "blocked": part.blocked,
        "frees": part.frees,
        "stored": part.stored,
        "along": along,
    }
    left_out = {*part.states, *tables}
    kept = {id_: value for id_, value in part.values.items() if id_ not in left_out}
    first, second = values.dumps_inside(inside), values.dumps((kept, part.inbox))
    body = Moved(
        size=part.size,
        index=part.index,
        version=version,
        position=part.first_unrun(replica),
        # The driver over there may be behind: until it has recorded as much, nothing is known of
        # the steps from `pc` on.
        known=max(part.known, replica.end),
        inside=len(first),
        frames=len(first) + len(second),
    )
    return body, (*first, *second)


def unpacked(body: Moved, frames: Frames) -> tuple[Partition, dict[str, Any]]:
    """The partition, and what has come along with it."""
    inside = values.loads(frames[: body.inside])
    kept, inbox = values.loads(frames[body.inside :])
    part = Partition(body.size, body.index)
    part.values = kept | inside["states"]
    part.states = dict.fromkeys(inside["states"])
    part.inbox = inbox
    part.reload, part.frees = inside["reload"], inside["frees"]
    part.pc, part.blocked, part.stored = inside["pc"], inside["blocked"], inside["stored"]
    part.position, part.known = body.position, body.known
    return part, inside["along"]


def _is_table(replica: Replica, value: int) -> bool:
    step = replica.loads.get(value)
    return step is not None and step[0] == TABLE
