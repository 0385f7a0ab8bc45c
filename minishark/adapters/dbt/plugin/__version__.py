"""The version that `dbt --version` shows."""

from importlib.metadata import version as _version

version = _version("minishark")
