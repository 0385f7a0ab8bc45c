"""dbt's own suite of tests for adapters, with sessions and servers of minishark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

import minishark

if find_spec("dbt") is not None and find_spec("dbt.tests") is not None:
    from dbt.tests.fixtures.project import *  # noqa: F403 - the fixtures of dbt's suite

    # Where an installed minishark has it.
    from minishark.adapters.dbt import plugin

    sys.modules["dbt.adapters.minishark"] = plugin


@pytest.fixture(scope="session", autouse=True)
def _stopped() -> Iterator[None]:
    """Sessions end before the run looks for what it has left."""
    yield
    if "minishark.adapters.dbt.connections" in sys.modules:
        sys.modules["minishark.adapters.dbt.connections"].sessions.stop()


@pytest.fixture(scope="class")
def logs_dir(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch_class: pytest.MonkeyPatch
) -> str:
    """Where dbt logs; its own fixture takes a folder of the repository."""
    folder = str(tmp_path_factory.mktemp("logs"))
    monkeypatch_class.setenv("DBT_LOG_PATH", folder)
    return folder


@pytest.fixture(scope="module")
def test_data_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the suite writes a large seed; its own fixture takes a folder beside the tests."""
    return str(tmp_path_factory.mktemp("seeds") / "data")


@pytest.fixture(scope="class")
def project_root(dbt_profile_target: dict[str, Any], tmpdir_factory: pytest.TempdirFactory) -> Any:
    """A folder for each target; dbt's own fixture has one for each class."""
    return tmpdir_factory.mktemp("project")


@pytest.fixture(scope="class")
def monkeypatch_class() -> Iterator[pytest.MonkeyPatch]:
    """The environment of a class of tests."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a served session."""
    with minishark.connect(in_process=True, nodes=1) as session, session.serve(port=0) as served:
        yield served.address


@pytest.fixture(scope="class", params=["embedded", "server"])
def dbt_profile_target(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A target of profiles.yml; dbt adds a schema for each class of tests."""
    target: dict[str, Any] = {"type": "minishark", "threads": 4}
    if request.param == "server":
        return target | {"server": request.getfixturevalue("server")}
    return target | {"options": {"in_process": True, "nodes": 1}}
