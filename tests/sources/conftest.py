"""What the tests of sources share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from postgres_server import Server

# Generators of tables are plain modules beside the tests.
sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("reading")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server with a table of 100,000 numbers."""
    from postgres_server import running  # found by the path above

    with running() as found:
        found.sql(
            "CREATE TABLE numbers AS SELECT i AS id, i % 7 AS k, 'text ' || i AS s "
            "FROM generate_series(1, 100000) i",
            "ANALYZE numbers",
        )
        yield found
