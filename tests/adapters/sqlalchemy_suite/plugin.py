"""SQLAlchemy's plugin for its suite of tests of dialects, and what it is to know of minishark."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects import registry

_DIALECTS = "minishark.adapters.sqlalchemy"
registry.register("minishark", _DIALECTS, "MinisharkDialect")
registry.register("minishark.session", _DIALECTS, "MinisharkDialect")
registry.register("minishark.flight", _DIALECTS, "FlightDialect")

from sqlalchemy.schema import CreateSchema  # noqa: E402 - the same
from sqlalchemy.testing import provision  # noqa: E402 - the same
from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: E402, F403 - needs the dialects

import minishark  # noqa: E402 - the same


@provision.temp_table_keyword_args.for_db("minishark")
def _temporary(config: Any, engine: Any) -> dict[str, Any]:
    """What makes a table of the suite temporary."""
    return {"prefixes": ["TEMPORARY"]}


@provision.update_db_opts.for_db("minishark")
def _session(url: Any, options: dict[str, Any]) -> None:
    """One session for all engines of the suite; those of a server have its."""
    if "flight" not in str(url):
        session = minishark.connect(in_process=True, nodes=1)
        options["connect_args"] = {"session": session}


@provision.post_configure_engine.for_db("minishark")
def _schemas(url: Any, engine: Any, follower: Any) -> None:
    """The schemas that the suite expects."""
    with engine.begin() as connection:
        for name in ("test_schema", "test_schema_2"):
            connection.execute(CreateSchema(name, if_not_exists=True))
