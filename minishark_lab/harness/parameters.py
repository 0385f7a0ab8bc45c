"""Types of parameters, which say what values make sense, and the check of values from outside."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from minishark_lab.models.express import ExpressCluster
from sparrow_core.policy.placement import make_placement
from sparrow_core.protocol.errors import SparrowError

P = TypeVar("P")

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
# The share of slots that are busy: at 1, queues would grow for ever.
Load = Annotated[float, Meta(gt=0, lt=1)]
Ratio = Annotated[float, Meta(ge=1, le=1000)]  # reservations a task
Some = Meta(min_length=1)
Loads = Annotated[tuple[Load, ...], Some]
Ratios = Annotated[tuple[Ratio, ...], Some]
Counts = Annotated[tuple[Count, ...], Some]
Names = Annotated[tuple[str, ...], Some]
Flags = Annotated[tuple[bool, ...], Some]


def check_names(parameter: str, names: Sequence[str], known: Collection[str]) -> None:
    """Raise ValueError if a name is unknown."""
    for name in names:
        if name not in known:
            raise ValueError(f"{parameter}: {name!r} is none of {', '.join(known)}")


def check_placements(names: Sequence[str], also: Collection[str] = ()) -> None:
    """Raise ValueError if a name is no placement and none of the others; plug-ins are imported."""
    for name in names:
        if name not in also:
            try:
                make_placement(name)
            except SparrowError as error:
                others = f", nor {', '.join(also)}" if also else ""
                raise ValueError(f"placements: {error}{others}") from error


def check_policies(names: Sequence[str]) -> None:
    """Raise ValueError if a name is no queue discipline, or none that `express` simulates."""
    for name in names:
        try:
            ExpressCluster(nodes=1, policy=name)
        except SparrowError as error:
            raise ValueError(f"policies: {error}") from error


def checked(kind: type[P], values: Mapping[str, Any], *, strict: bool = True) -> P:
    """Parameters from plain values, or from their texts if not `strict`.

    Raises:
        ValueError: A value makes no sense; says which, and what would.
    """
    try:
        return msgspec.convert(values, kind, strict=strict, dec_hook=lambda own, text: own(text))
    except msgspec.ValidationError as error:
        raise ValueError(_sentence(str(error), values)) from error


def _sentence(message: str, values: Mapping[str, Any]) -> str:
    """What msgspec says, with the parameter's name and value."""
    what, _, path = message.partition(" - at ")
    found = re.match(r"`\$\.?(\w*)", path)
    name = found.group(1) if found else ""
    if not name:
        return what
    return f"{name} = {values[name]!r}: {what[0].lower()}{what[1:].replace('`', '')}"
