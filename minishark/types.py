"""Types of columns, and Row: the public path of `minishark.dataframe.types`."""

from minishark.dataframe import Row  # noqa: F401 - where PySpark has it, too
from minishark.dataframe.types import *  # noqa: F403 - this module is its public path
