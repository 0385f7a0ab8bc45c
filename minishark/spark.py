"""PySpark's API by SQLFrame (the extra `spark`): the public path of `minishark.adapters.spark`."""

from minishark.adapters.spark import *  # noqa: F403 - this module is its public path
