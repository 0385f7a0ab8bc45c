"""What `pyspark.sql.types` is there: `minishark.types`."""

from minishark.types import *  # noqa: F403 - this is a public path of it
