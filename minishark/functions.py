"""Functions for expressions: the public path of `minishark.dataframe.functions`."""

from minishark.dataframe.functions import *  # noqa: F403 - this module is its public path
from minishark.dataframe.functions import __dir__, __getattr__  # noqa: F401 - DuckDB's functions
