"""What `pyspark.sql.window` is there."""

from minishark.dataframe import Window, WindowSpec  # noqa: F401 - this is a public path of them
