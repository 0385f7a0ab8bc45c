"""What DuckDB's profiler says of a statement, condensed to what travels to the front end. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from minishark.worker.protocol import Profiled

_OPERATORS_MAX = 2_000
"""Of larger plans nothing is said: profiles travel with the outcomes of all tasks."""


def profiled(text: str) -> Profiled | None:
    """The root of the operators in DuckDB's profile, which is JSON; None if there is none."""
    roots = json.loads(text).get("operator", ())
    if len(roots) != 1 or text.count('"type"') > _OPERATORS_MAX:
        return None
    return _operator(roots[0])


def _operator(node: Mapping[str, Any]) -> Profiled:
    extra = node.get("extra_info", {})
    columns, estimate = extra.get("Projections", ()), extra.get("Estimated Cardinality", "")
    # DuckDB knows the number of rows of Arrow data, so it estimates just that.
    is_arrow = extra.get("Function") == "PYTHON_ARROW_SCAN"
    return Profiled(
        kind=node["type"],
        rows=node.get("intermediate_rows", 0),
        run_s=node.get("timing", 0.0),
        inputs=tuple(map(_operator, node.get("children", ()))),
        join=extra.get("Join Type", ""),
        columns=((columns,) if isinstance(columns, str) else tuple(columns)) if is_arrow else (),
        read_rows=int(estimate) if is_arrow and estimate.isdecimal() else None,
    )
