"""The statements that threads run while faults are injected, and their outcomes.

Each statement is first run by plain DuckDB over the same files, to know the right answer. Besides
queries there are statements that load, persist, create and write rows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import duckdb
import pyarrow as pa

from minishark.cli.tpch.queries import load_queries
from minishark.query.answers import differences
from minishark.session.session import Session
from minishark_lab.tpch.reference import Reference

_SHUFFLES = {
    "shuffle-join": """
        SELECT ps_suppkey % 50 AS s, count(*) AS n, sum(l_extendedprice) AS e
        FROM lineitem JOIN partsupp ON l_partkey = ps_partkey GROUP BY s ORDER BY s""",
    "shuffle-sort": """
        SELECT l_partkey, l_orderkey, l_linenumber FROM lineitem
        ORDER BY l_partkey DESC, l_orderkey, l_linenumber""",
}
_SOURCE = "SELECT o_orderkey, o_custkey, o_totalprice FROM orders WHERE o_orderkey % 3 <> 1"
_SUMS = "SELECT count(*) AS n, sum(o_totalprice) AS s, sum(o_orderkey)::BIGINT AS k"
_CUSTOMERS = "SELECT count(*) AS n, sum(c_acctbal) AS s, min(c_name) AS first"


@dataclass(frozen=True, slots=True)
class Work:
    """A statement with its right answer."""

    name: str  # a TPC-H query's number, or what it does
    ask: Callable[[Session, int], pa.Table]  # runs it for the worker of that number
    expected: pa.Table  # plain DuckDB's answer
    order: tuple[int, ...] = ()  # the columns by which the answer is ordered


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome of a statement."""

    work: str
    began_s: float  # its start (`time.monotonic`); `ended_s` is its end
    ended_s: float
    wrong: tuple[str, ...] = ()  # differences from the right answer, if any
    failure: str = ""  # type and message of the error, if any

    @property
    def took_s(self) -> float:
        return self.ended_s - self.began_s

    @property
    def is_right(self) -> bool:
        return not self.wrong and not self.failure


def work_list(tables: Mapping[str, str], queries: Sequence[int], folder: Path) -> tuple[Work, ...]:
    texts = {f"q{number:02}": text for number, text in load_queries(queries).items()} | _SHUFFLES
    changes: dict[str, tuple[Callable[[Session, int], pa.Table], str]] = {
        "load": (partial(_load, tables["customer"]), f"{_CUSTOMERS} FROM customer"),
        "create": (_create, f"{_SUMS} FROM ({_SOURCE})"),
        "persist": (_persist, f"{_SUMS} FROM ({_SOURCE})"),
        "copy": (partial(_copy, folder), f"{_SUMS} FROM ({_SOURCE})"),
    }
    with Reference(tables, 1) as reference:
        found = []
        for name, text in texts.items():
            answer, _ = reference.run(text)
            ask = partial(_query, text)
            found.append(Work(name, ask, answer, reference.order(text, answer)))
        found += [Work(n, ask, reference.run(sql)[0]) for n, (ask, sql) in changes.items()]
    return tuple(found)


def _query(text: str, session: Session, _: int) -> pa.Table:
    return session.sql(text).to_arrow()


def _load(files: str, session: Session, worker: int) -> pa.Table:
    name = f"loaded_{worker}"
    session.create_table(name, files, partition_by="c_custkey", replace=True)
    return session.sql(f"{_CUSTOMERS} FROM {name}").to_arrow()


def _create(session: Session, worker: int) -> pa.Table:
    session.sql(f"CREATE OR REPLACE TABLE made_{worker} AS {_SOURCE}")
    return session.sql(f"{_SUMS} FROM made_{worker}").to_arrow()


def _persist(session: Session, worker: int) -> pa.Table:
    kept = session.sql(_SOURCE).persist()
    kept.create_or_replace_temp_view(f"kept_{worker}")
    answer = session.sql(f"{_SUMS} FROM kept_{worker}").to_arrow()
    kept.unpersist()
    return answer


def _copy(folder: Path, session: Session, worker: int) -> pa.Table:
    target = folder / f"copy-{worker}"
    session.sql(f"COPY ({_SOURCE}) TO '{target}' (FORMAT parquet, PER_THREAD_OUTPUT, OVERWRITE)")
    with duckdb.connect() as plain:
        return plain.sql(f"{_SUMS} FROM '{target}/*.parquet'").to_arrow_table()


class Worker(threading.Thread):
    """A thread that runs one random statement after the other."""

    def __init__(self, number: int, session: Session, works: Sequence[Work], rng: Random) -> None:
        super().__init__(name=f"chaos-worker-{number}", daemon=True)
        self.done: list[Done] = []
        self._once: list[Work] | None = None
        self.number = number
        self._session = session
        self._works = list(works)
        self._rng = rng
        self._over = threading.Event()
        self._busy: tuple[str, float] | None = None

    def once(self, works: Sequence[Work]) -> None:
        self._once = list(works)

    def run(self) -> None:
        for work in self._once or ():
            self._do(work)
        while self._once is None and not self._over.is_set():
            self._do(self._rng.choice(self._works))

    def _do(self, work: Work) -> None:
        began_s = time.monotonic()
        self._busy = (work.name, began_s)
        try:
            answer = work.ask(self._session, self.number)
            wrong = tuple(differences(work.expected, answer, ordered_by=work.order))
            self.done.append(Done(work.name, began_s, time.monotonic(), wrong))
        except Exception as error:  # noqa: BLE001 - recorded, whatever it is
            failure = f"{type(error).__name__}: {error}"
            self.done.append(Done(work.name, began_s, time.monotonic(), failure=failure))
        finally:
            self._busy = None

    def finish(self) -> None:
        self._over.set()

    def busy_for(self) -> tuple[str, float]:
        """The current statement, and its elapsed seconds."""
        busy = self._busy
        return ("", 0.0) if busy is None else (busy[0], time.monotonic() - busy[1])
