"""What the integration tests share: data and sessions that are made once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import minishark
from minishark.cli.tpch.tables import tpch_tables
from minishark.session.session import Session
from minishark_lab.tpch.generate import generate

# The helpers beside this file.
sys.path.insert(0, str(Path(__file__).parent))

from toy_tables import load_toy_tables, toy_database


@pytest.fixture(scope="session")
def tpch_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """TPC-H at scale 0.01 in two files a table: a glob by table name."""
    root = tmp_path_factory.mktemp("tpch")
    return tpch_tables(generate(0.01, root, parts=2, on_progress=lambda done, total: None))


@pytest.fixture(scope="session")
def plain() -> Iterator[duckdb.DuckDBPyConnection]:
    """The toy tables in plain DuckDB."""
    with toy_database() as connection:
        yield connection


@pytest.fixture(scope="session")
def toy_session() -> Iterator[Session]:
    """The toy tables in a session that distributes even the smallest query."""
    with minishark.connect(in_process=True, nodes=2, partitions=3, single_task_rows=0) as session:
        load_toy_tables(session)
        yield session
