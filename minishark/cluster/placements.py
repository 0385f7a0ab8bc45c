"""The placements that users choose by name: which there are, and whether one can be used."""

from __future__ import annotations

from minishark.errors import OptionError
from sparrow_core import InvalidJob, make_placement
from sparrow_core import check_placement as check_policy
from sparrow_core import placement_names as names

__all__ = ["check_import", "check_name", "names"]


def check_name(placement: str) -> None:
    """Raise OptionError if there is no such placement, and it names no plug-in."""
    try:
        check_policy(placement)
    except InvalidJob as error:
        known = ", ".join(names())
        text = f"Unknown placement {placement!r}; choose {known}, or module:factory."
        raise OptionError(text) from error


def check_import(placement: str) -> None:
    """Refuse a plug-in that the schedulers of a new cluster, which have our path, can't import."""
    try:
        make_placement(placement)
    except InvalidJob as error:
        raise OptionError(f"{error}.") from error
