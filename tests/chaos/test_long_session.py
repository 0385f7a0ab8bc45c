"""A session that runs for long takes no more than one that runs for a moment."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import psutil
import pyarrow as pa
import pytest

import minishark
from minishark.errors import QueryCancelledError
from minishark.session.session import Session

_QUERIES = 10_000
_WARM = 100
_GROWTH_MAX = 1.05
_ROWS = 20_000
_LONG = "SELECT count(*) FROM range(200000) a(i), range(200000) b(j) WHERE hash(i + j) % 7 = 1"


def _figures(session: Session) -> dict[str, float]:
    gc.collect()
    pa.default_memory_pool().release_unused()
    time.sleep(3.0)  # executors let go of what is removed
    own = psutil.Process()
    family = [own, *own.children(recursive=True)]
    cluster = session._runtime.cluster
    files = [f for root in (cluster.paths.memory, cluster.scratch) for f in root.rglob("*")]
    return {
        "front end, MiB": own.memory_full_info().uss / (1 << 20),
        "nodes, MiB": sum(each.memory_full_info().uss for each in family[1:]) / (1 << 20),
        "descriptors": sum(each.num_fds() for each in family),
        "threads": own.num_threads(),
        "files": len(files),
        "bytes stored": sum(f.stat().st_size for f in files if f.suffix.startswith(".arrow")),
    }


def _cancelled(session: Session) -> None:
    engine, over = session._runtime.engine, threading.Event()

    def cancel() -> None:
        while not over.wait(0.03):  # it may not have begun yet
            for number in [*engine.running]:
                engine.cancel(number)

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        with pytest.raises(QueryCancelledError):
            session.sql(_LONG).collect()
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_queries_leave_nothing() -> None:
    """Memory, descriptors, threads and files are where they were, cancelled queries included."""
    with minishark.connect(
        nodes=2, executors_per_node=1, partitions=2, single_task_rows=1000
    ) as session:
        keys = pa.array([i % 8 for i in range(_ROWS)])
        session.create_table("t", pa.table({"k": keys, "x": range(_ROWS)}))
        session.create_table("u", pa.table({"k": range(8), "n": [str(i) for i in range(8)]}))
        kinds: tuple[Callable[[int], object], ...] = (
            lambda i: session.sql(f"SELECT k, sum(x) FROM t WHERE x <> {i} GROUP BY k").collect(),
            lambda _: session.sql(
                "SELECT n, count(*) FROM t JOIN u USING (k) GROUP BY n"
            ).collect(),
            lambda _: session.sql("SELECT x FROM t ORDER BY x DESC LIMIT 5").to_arrow(),
            lambda i: session.sql(f"SELECT {i} + 1").collect(),
            lambda i: session.submit(pow, 2, i % 9).result(),
        )
        warm: dict[str, float] = {}
        for number in range(_QUERIES):
            if number % 20 == 7:
                _cancelled(session)
            else:
                kinds[number % len(kinds)](number)
            if number == _WARM:
                warm = _figures(session)
        end = _figures(session)
        print(f"\n{warm}\n{end}")  # noqa: T201
        grown = {
            name: (warm[name], end[name]) for name in warm if end[name] > _GROWTH_MAX * warm[name]
        }
        assert {} == grown
