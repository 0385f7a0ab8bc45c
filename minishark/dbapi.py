"""DB-API 2.0 (PEP 249) over a session: the public path of `minishark.adapters.dbapi`."""

from minishark.adapters.dbapi import *  # noqa: F403 - this module is its public path
