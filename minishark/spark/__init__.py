"""PySpark's API with Spark's meaning (the extra `spark`): what imports call `pyspark.sql` there."""

from minishark.adapters.pyspark import *  # noqa: F403 - this module is its public path
from minishark.adapters.spark import *  # noqa: F403 - this module is its public path
from minishark.dataframe import Column, DataFrame, Row, Window, WindowSpec  # noqa: F401 - as there
from minishark.dataframe.partitioned import StorageLevel  # noqa: F401 - `pyspark.StorageLevel`
from minishark.spark import functions, types  # noqa: F401 - as there
