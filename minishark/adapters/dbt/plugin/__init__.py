"""Installed as `dbt.adapters.minishark`, where dbt looks for adapters."""

from minishark.adapters.dbt import Plugin

__all__ = ["Plugin"]
