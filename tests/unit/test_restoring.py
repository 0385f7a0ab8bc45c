"""Tables that are lost while a query runs."""

from __future__ import annotations

from typing import Any, cast

import pytest

from minishark.compiler.physical.options import PlannerOptions
from minishark.errors import PartitionsLostError
from minishark.query.planner import Queries, Rows


def queries(restore: Any) -> Queries:
    """What runs queries, without a cluster."""
    nothing = cast("Any", None)
    options = PlannerOptions(partitions=2)
    return Queries(nothing, nothing, nothing, nothing, options, nothing, nothing, restore=restore)


def test_all_tables_of_a_query_may_be_lost_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt finds one more; all of them are restored."""
    lost = list("abcdefgh")
    restored: list[str] = []

    def attempt(*_: Any) -> tuple[str, None]:
        if lost:
            raise PartitionsLostError(lost.pop(), (0,))
        return "rows", None

    monkeypatch.setattr(Queries, "_attempt", attempt)
    found = queries(lambda error: restored.append(error.table)).run_for("", cast("Any", Rows()))
    assert (("rows", None), list("hgfedcba")) == (found, restored)


def test_a_table_that_is_lost_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nodes keep dying."""
    restored: list[str] = []

    def attempt(*_: Any) -> None:
        raise PartitionsLostError("t", (0,))

    monkeypatch.setattr(Queries, "_attempt", attempt)
    with pytest.raises(PartitionsLostError):
        queries(lambda error: restored.append(error.table)).run_for("", cast("Any", Rows()))
    assert ["t"] * 3 == restored
