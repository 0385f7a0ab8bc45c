"""Connections for what needs no session."""

from __future__ import annotations

import multiprocessing
import os

import duckdb
import pytest

from minishark.compiler.sql import connection as module
from minishark.compiler.sql.connection import aside

_TABLES = "SELECT table_name FROM duckdb_tables()"
_SETTING = "SELECT current_setting('arrow_lossless_conversion')"


@pytest.mark.parametrize("large", [False, True])
def test_nothing_stays_of_a_connection(large: bool) -> None:
    """Neither for others at the same time, nor for later ones."""
    with aside(large=large) as one, aside() as other:
        one.execute("CREATE TEMP TABLE mine (i INTEGER)")
        one.execute("SET SESSION arrow_lossless_conversion = true")
        assert ([("mine",)], [(True,)]) == (
            one.execute(_TABLES).fetchall(),
            one.execute(_SETTING).fetchall(),
        )
        for connection in (other, other.cursor()):
            assert ([], [(False,)]) == (
                connection.execute(_TABLES).fetchall(),
                connection.execute(_SETTING).fetchall(),
            )
    with aside() as later:
        assert [] == later.execute(_TABLES).fetchall()
        assert [(False,)] == later.execute(_SETTING).fetchall()


def test_they_share_a_database_until_it_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is large has one of its own."""
    opened = []
    connect = duckdb.connect

    def counted(**options: object) -> duckdb.DuckDBPyConnection:
        opened.append(options)
        return connect(**options)  # type: ignore[arg-type]

    with aside():
        pass
    monkeypatch.setattr(module.duckdb, "connect", counted)
    for _ in range(3):
        with aside() as connection:
            connection.execute("SELECT 1")
    assert [] == opened
    with aside(large=True):
        pass
    assert [{}] == opened
    with pytest.raises(duckdb.InternalException), aside():
        raise duckdb.InternalException("a bug")
    with aside() as connection:
        assert [(1,)] == connection.execute("SELECT 1").fetchall()
    assert [{}, {"config": {"threads": "1"}}] == opened


def _answer() -> None:
    with aside() as connection:
        os._exit(connection.execute("SELECT 7").fetchall()[0][0])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_has_a_database_of_its_own() -> None:
    """The parent's threads are not in it."""
    with aside():
        pass
    child = multiprocessing.get_context("fork").Process(target=_answer)
    child.start()
    child.join(30)
    assert 7 == child.exitcode
    with aside() as connection:
        assert [(1,)] == connection.execute("SELECT 1").fetchall()
