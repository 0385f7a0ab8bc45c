"""What `pyspark.sql.functions` is there: `minishark.functions`, and Spark's SQL in `expr`."""

from minishark.adapters.spark_text import duckdb_expression
from minishark.dataframe import Column
from minishark.functions import *  # noqa: F403 - this is a public path of it
from minishark.functions import __dir__, __getattr__  # noqa: F401 - DuckDB's functions, too
from minishark.functions import expr as _duckdb_expr


def expr(str: str) -> Column:  # noqa: A002 - PySpark's name
    """An expression in Spark's SQL as a Column."""
    made: Column = _duckdb_expr(duckdb_expression(str, named=False))
    return made
