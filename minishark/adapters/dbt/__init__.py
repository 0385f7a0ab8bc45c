"""minishark for dbt: a profile of the type `minishark` runs models in a session or on a server.

dbt looks for adapters in the package `dbt.adapters`; `plugin` is installed there.
"""

from __future__ import annotations

from pathlib import Path

from dbt.adapters.base import AdapterPlugin

from minishark.adapters.dbt.connections import Credentials
from minishark.adapters.dbt.impl import MinisharkAdapter

Plugin = AdapterPlugin(
    adapter=MinisharkAdapter,
    credentials=Credentials,
    # The folder's name makes the name of dbt's package of macros, dbt_minishark.
    include_path=str(Path(__file__).parent / "include" / "minishark"),
)
