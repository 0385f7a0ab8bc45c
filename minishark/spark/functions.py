"""What `pyspark.sql.functions` is there: `minishark.functions`, and what Spark has otherwise."""

from minishark.adapters.spark_text import IN_PYTHON as _IN_PYTHON
from minishark.functions import *  # noqa: F403 - this is a public path of it
from minishark.functions import __dir__, __getattr__  # noqa: F401 - DuckDB's functions, too

globals().update(_IN_PYTHON)
