"""DataFrames: verbs and expressions that become SQL for the same planner as SQL text."""

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
