"""PySpark's API with Spark's meaning (the extra `spark`): the public path of two adapters."""

from minishark.adapters.pyspark import *  # noqa: F403 - this module is its public path
from minishark.adapters.spark import *  # noqa: F403 - this module is its public path
