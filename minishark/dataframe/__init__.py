"""DataFrames: verbs and expressions that become SQL for the same planner as SQL text."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minishark.dataframe.actions import EXPLAIN_MODES
    from minishark.dataframe.column import Column
    from minishark.dataframe.frame import DataFrame
    from minishark.dataframe.grouped import GroupedData
    from minishark.dataframe.profile import Profile
    from minishark.dataframe.row import Row
    from minishark.dataframe.runtime import Cancellation, Runtime
    from minishark.dataframe.window import Window, WindowSpec
    from minishark.query.metrics import Answer

__all__ = [
    "EXPLAIN_MODES",
    "Answer",
    "Cancellation",
    "Column",
    "DataFrame",
    "GroupedData",
    "Profile",
    "Row",
    "Runtime",
    "Window",
    "WindowSpec",
]

_MODULES = {
    "EXPLAIN_MODES": "minishark.dataframe.actions",
    "Answer": "minishark.query.metrics",
    "Cancellation": "minishark.dataframe.runtime",
    "Column": "minishark.dataframe.column",
    "DataFrame": "minishark.dataframe.frame",
    "GroupedData": "minishark.dataframe.grouped",
    "Profile": "minishark.dataframe.profile",
    "Row": "minishark.dataframe.row",
    "Runtime": "minishark.dataframe.runtime",
    "Window": "minishark.dataframe.window",
    "WindowSpec": "minishark.dataframe.window",
}


def __getattr__(name: str) -> Any:
    """Import the engine when it is first used: `show` is needed where there is none."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
