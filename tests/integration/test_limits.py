"""Limits of queries and calls, in a cluster."""

from __future__ import annotations

import time

import pytest

import minishark
from minishark.errors import QueryTimeoutError, ResourceError, TaskTimeoutError

_LONG = """
    SELECT count(*) FROM range(300000) a(i), range(300000) b(j) WHERE hash(i + j) % 7 = 1"""
_SPILLS = """
    SELECT sum(length(x)) FROM (
        SELECT i, 'aaaaaaaaaaaaaaaaaaaa' || i AS x FROM range(4000000) t(i)
        ORDER BY hash(i) LIMIT 3900000)"""


@pytest.mark.slow
def test_limits_of_queries_and_calls() -> None:
    """Each fails with its own error, also in a session made of the first; others run on."""
    with minishark.connect(
        nodes=1, executors_per_node=1, memory_limit="250MiB", query_timeout_s=10.0,
        task_timeout_s=0.5, query_disk_limit="20MB",
    ) as session:  # fmt: skip
        for each in (session, session.new_session()):
            with pytest.raises(ResourceError, match="raise that limit"):
                each.sql(_SPILLS).collect()
            began = time.monotonic()
            with pytest.raises(QueryTimeoutError):
                each.sql(_LONG).collect()
            assert 10.0 <= time.monotonic() - began < 20.0
        with pytest.raises(TaskTimeoutError):
            session.submit(time.sleep, 60).result()
        assert [None] == [*session.map(time.sleep, [1], timeout=30.0)], "it has its own"
        assert [(42,)] == session.sql("SELECT 42").collect()
