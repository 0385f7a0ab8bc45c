"""What `pyspark.sql.functions` is there: `minishark.functions`, and what Spark has otherwise."""

from minishark.functions import *  # noqa: F403 - this is a public path of it
from minishark.functions import __dir__, __getattr__  # noqa: F401 - DuckDB's functions, too

# These take the place of others.
# isort: split
from minishark.adapters.spark_text import (  # noqa: F401 - this is their public path
    array_join,
    avg,
    concat,
    concat_ws,
    current_catalog,
    current_database,
    current_schema,
    date_part,
    datepart,
    element_at,
    expr,
    extract,
    hash,  # noqa: A004 - PySpark's name
    input_file_name,
    make_ym_interval,
    mean,
    regexp_replace,
    slice,  # noqa: A004 - PySpark's name
    try_avg,
    xxhash64,
)
