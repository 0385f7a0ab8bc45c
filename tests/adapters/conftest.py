"""What the tests of other front ends share: the bundled sample in a session, and in DuckDB."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

import minishark
from minishark.cli.tpch.locations import sample_folder
from minishark.cli.tpch.tables import find_tables
from minishark.session.session import Session
from minishark_lab.tpch.reference import create_views


@pytest.fixture(scope="session")
def session() -> Iterator[Session]:
    """The sample in a session on threads."""
    with minishark.connect(in_process=True, nodes=2) as opened:
        for name, path in find_tables(sample_folder()).items():
            opened.create_table(name, path)
        yield opened


@pytest.fixture(scope="session")
def plain() -> Iterator[duckdb.DuckDBPyConnection]:
    """The sample in plain DuckDB."""
    with duckdb.connect() as connection:
        create_views(connection, find_tables(sample_folder()))
        yield connection
