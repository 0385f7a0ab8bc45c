"""A stand-in for the engine: the commands are tested without a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

import duckdb
import pyarrow as pa
import pytest

from minishark.compiler.sql.statements import ParsedStatement, parse_statements
from minishark.errors import QueryError


class FakeFrame:
    """A query that DuckDB runs."""

    stages = 1

    def __init__(self, connection: duckdb.DuckDBPyConnection, text: str) -> None:
        self._connection = connection
        self._text = text

    def to_arrow(self) -> pa.Table:
        """The answer."""
        return self._connection.sql(self._text).to_arrow_table()

    def metrics(self) -> SimpleNamespace:
        """Some figures."""
        return SimpleNamespace(
            stages=self.stages,
            tasks=1 if self.stages == 1 else 6,
            constrained_tasks=4,
            local_tasks=3,
            elapsed_s=0.1,
            planning_s=0.05,
            warnings=(),
        )


@contextmanager
def _in_stages(_: FakeSession) -> Iterator[None]:
    FakeFrame.stages = 4
    yield
    FakeFrame.stages = 1


class FakeSession:
    """A session whose tables are views in DuckDB; it records how it was used."""

    total_slots = 2
    warnings = ("shared memory is short",)

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.tables: dict[str, dict[str, Any]] = {}
        self.stopped = False
        self._connection = duckdb.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends it."""
        self.stopped = True
        self._connection.close()

    def create_table(
        self, name: str, data: str, *, on_progress: Callable[[int, int], None], **options: Any
    ) -> None:
        """Makes a table known."""
        self._connection.execute(f"CREATE VIEW {name} AS FROM '{data}'")
        assert not options.pop("replace")
        self.tables[name] = options
        on_progress(1, 1)

    def parse(self, text: str) -> list[ParsedStatement]:
        """What each statement is."""
        return parse_statements(self._connection, text)

    def sql(self, text: str) -> FakeFrame:
        """A query, or an EXPLAIN with a plan that is not real."""
        try:
            (statement,) = self._connection.extract_statements(text)
            if statement.type == duckdb.StatementType.EXPLAIN:
                return FakeFrame(self._connection, "SELECT 'the plan' AS explain_value")
            self._connection.execute(f"EXPLAIN {text}")
        except duckdb.Error as error:
            raise QueryError(str(error)) from error
        return FakeFrame(self._connection, text)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeSession]]:
    """Replaces `connect`; the list holds the sessions that were opened."""
    opened: list[FakeSession] = []

    def connect(cluster: str | None = None, **options: Any) -> FakeSession:
        assert cluster is None
        opened.append(FakeSession(**options))
        return opened[-1]

    for home in ("minishark.session.connect", "minishark_lab.tpch.run"):
        monkeypatch.setattr(f"{home}.connect", connect)
    monkeypatch.setattr("minishark_lab.tpch.run.planned_in_stages", _in_stages)
    yield opened
    assert all(session.stopped for session in opened)
