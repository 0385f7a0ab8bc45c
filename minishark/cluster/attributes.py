"""What schedulers tell of a node beside its name: where its files and its service are."""

from __future__ import annotations

from minishark.worker.protocol import StoreLocation
from sparrow_core import NodeStatus

IDLE = "no-executors"
"""The attribute of a node that runs no tasks, and stores no tables."""


def attributes_of(node: StoreLocation) -> tuple[str, ...]:
    """A node's location as attributes, which schedulers pass on to sessions."""
    return tuple(f"{name}={getattr(node, name)}" for name in StoreLocation.__struct_fields__[1:])


def store_of(node: NodeStatus) -> StoreLocation | None:
    """The inverse of `attributes_of`; None for a node that is not minishark's."""
    values = dict(attribute.split("=", 1) for attribute in node.attributes if "=" in attribute)
    try:
        return StoreLocation(
            node.name, *(values[field] for field in StoreLocation.__struct_fields__[1:])
        )
    except KeyError:
        return None
