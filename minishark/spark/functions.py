"""What `pyspark.sql.functions` is there: `minishark.functions`, and Spark's SQL in `expr`."""

from minishark.functions import *  # noqa: F403 - this is a public path of it
from minishark.functions import __dir__, __getattr__  # noqa: F401 - DuckDB's functions, too

# Its `expr` takes the place of the other.
# isort: split
from minishark.adapters.spark_text import expr  # noqa: F401 - this is its public path
