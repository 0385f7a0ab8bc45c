"""What `pyspark.sql.functions` is there: `minishark.functions`."""

from minishark.functions import *  # noqa: F403 - this is a public path of it
from minishark.functions import __dir__, __getattr__  # noqa: F401 - DuckDB's functions, too
