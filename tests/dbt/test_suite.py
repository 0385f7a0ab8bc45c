"""dbt-tests-adapter's suites, class by class, in a session of the process and on a server.

They are no part of the default run, as dbt's requirements are not among those of development. In
an environment with dbt-core and dbt-tests-adapter: `python -m pytest tests/dbt`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import pytest

pytest.importorskip("dbt.tests.adapter", reason="needs dbt-core and dbt-tests-adapter")

import dbt.tests.adapter as suites

pytestmark = pytest.mark.filterwarnings("ignore")  # of dbt's own code

SUITES = (
    "basic",
    "caching",
    "concurrency",
    "empty",
    "ephemeral",
    "incremental",
    "persist_docs",
    "simple_seed",
    "simple_snapshot",
    "utils",
)
# What is not run, and why.
SKIPPED: dict[str, str] = {}


def _classes() -> dict[str, type]:
    """The classes of the suites with tests, by their names here."""
    found: dict[str, type] = {}
    for suite in SUITES:
        folder = importlib.import_module(f"{suites.__name__}.{suite}")
        for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
            for name, base in inspect.getmembers(
                importlib.import_module(module.name), inspect.isclass
            ):
                if base.__module__ == module.name and name.startswith("Base"):
                    found[f"Test{name.removeprefix('Base')}"] = base
    return found


def _own(name: str, base: type) -> type:
    """A class of the suite as pytest finds it here, with what differs for minishark."""
    return type(name, (base,), {"__module__": __name__, **OWN.get(name, {})})


OWN: dict[str, dict[str, Any]] = {}

for _name, _base in _classes().items():
    if _name not in SKIPPED:
        globals()[_name] = _own(_name, _base)
