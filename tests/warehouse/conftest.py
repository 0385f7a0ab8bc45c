"""What the tests of the warehouse share: one session, in which each test has a schema."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import minishark
from minishark.session.session import Session

# The helpers beside this file, and those of the integration tests.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "integration"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse's folder."""
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="session")
def shared(folder: Path) -> Iterator[Session]:
    """A session that distributes even the smallest query."""
    with minishark.connect(
        in_process=True, nodes=2, partitions=3, single_task_rows=0, warehouse=folder
    ) as session:
        yield session


@pytest.fixture
def session(shared: Session) -> Iterator[Session]:
    """The session with an empty schema `s`."""
    shared.sql("CREATE SCHEMA s")
    yield shared
    shared.sql("USE memory")
    shared.sql("DROP SCHEMA s CASCADE")
