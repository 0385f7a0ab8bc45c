"""SQL engines over TPC-H tables in memory, each in its own process.

Processes isolate threads, memory and failures of engines, and can be killed when a query takes too
long. Engines that are not installed are left out.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import pyarrow as pa

from minishark_lab.harness.clocks import native_duckdb
from minishark_lab.tpch.data import Silent

Answer = Callable[[str], pa.Table]
_START_S = 300.0


class EngineError(Exception):
    """Why an engine can't answer, in one line."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How to start an engine.

    Attributes:
        name: for tables.
        module: that must be installed.
        start: loads the tables (name -> Parquet pattern) into memory, given a number of threads;
            returns a function that answers a query.
    """

    name: str
    module: str
    start: Callable[[Mapping[str, str], int], Answer]

    @property
    def is_installed(self) -> bool:
        """Whether its module can be imported (and Java is there, for Spark)."""
        found = importlib.util.find_spec(self.module) is not None
        return found and (self.module != "pyspark" or shutil.which("java") is not None)


class RunningEngine:
    """An engine in a child process; a context manager."""

    def __init__(
        self,
        engine: Engine,
        tables: Mapping[str, str],
        threads: int,
        on_start: Callable[[int], object] = lambda _pid: None,
    ) -> None:
        """Start it; `on_start` is called with its process's id before it has done anything."""
        context = multiprocessing.get_context("spawn")
        self.name = engine.name
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(engine, tables, threads, theirs))
        self._process.start()
        theirs.close()
        try:
            on_start(self.pid)
            self.load_s: float = self._receive(_START_S)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def answer(self, text: str, limit_s: float) -> tuple[pa.Table, float]:
        """The answer to a query, and its time inside the process in seconds.

        Raises:
            EngineError: the engine fails, or takes longer than `limit_s` and is killed.
        """
        self._pipe.send(text)
        answer: tuple[pa.Table, float] = self._receive(limit_s)
        return answer

    def close(self) -> None:
        """Stop the process, if need be by force."""
        with suppress(OSError):
            self._pipe.send(None)
        self._process.join(5)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()

    def _receive(self, limit_s: float) -> object:
        if not self._pipe.poll(limit_s):
            self.close()
            raise EngineError(f"took longer than {limit_s:.0f} s")
        try:
            received = self._pipe.recv()
        except EOFError as error:
            raise EngineError("its process died") from error
        if isinstance(received, EngineError):
            raise received
        return received


def _serve(engine: Engine, tables: Mapping[str, str], threads: int, pipe: Connection) -> None:
    warnings.simplefilter("ignore")
    try:
        started = time.perf_counter()
        answer = engine.start(tables, threads)
        pipe.send(time.perf_counter() - started)
    except Exception as error:  # noqa: BLE001 - reported as this engine's problem
        pipe.send(_problem(error))
        return
    with suppress(EOFError, KeyboardInterrupt):
        while (text := pipe.recv()) is not None:
            try:
                started = time.perf_counter()
                table = answer(text)
                pipe.send((table, time.perf_counter() - started))
            except Exception as error:  # noqa: BLE001 - the same
                pipe.send(_problem(error))


def _problem(error: Exception) -> EngineError:
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return EngineError(f"{type(error).__name__}: {first_line[:200]}")


def _minishark(tables: Mapping[str, str], threads: int) -> Answer:
    import minishark
    from minishark.cli.tpch.tables import load_tables

    nodes = min(2, threads)
    session = minishark.connect(nodes=nodes, executors_per_node=max(1, threads // nodes))
    load_tables(session, tables, Silent(), replicas=nodes)
    return lambda text: session.sql(text).to_arrow()


def _duckdb(tables: Mapping[str, str], threads: int) -> Answer:
    connection = native_duckdb(tables, threads)
    return lambda text: connection.sql(text).to_arrow_table()


def _arrow_tables(tables: Mapping[str, str]) -> dict[str, pa.Table]:
    """The tables with plain strings and decimals, which most engines need."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET produce_arrow_string_view = false")
        return {
            name: connection.sql(f"FROM read_parquet('{path}')").to_arrow_table()
            for name, path in tables.items()
        }


def _datafusion(tables: Mapping[str, str], threads: int) -> Answer:
    from datafusion import SessionConfig, SessionContext

    context = SessionContext(SessionConfig().with_target_partitions(threads))
    for name, table in _arrow_tables(tables).items():
        batches = table.to_batches(8192 * 16)
        parts = [batches[i::threads] for i in range(threads)] if len(batches) > 1 else [batches]
        context.register_record_batches(name, parts)
    return lambda text: pa.table(context.sql(text))


def _polars(tables: Mapping[str, str], threads: int) -> Answer:
    os.environ["POLARS_MAX_THREADS"] = str(threads)  # read when polars is imported
    import polars as pl

    frames = {name: pl.from_arrow(table) for name, table in _arrow_tables(tables).items()}
    context = pl.SQLContext(frames)
    return lambda text: context.execute(text, eager=True).to_arrow()


def _daft(tables: Mapping[str, str], threads: int) -> Answer:
    import daft

    daft.set_runner_native(num_threads=threads)
    frames = {
        name: daft.from_arrow(table).collect() for name, table in _arrow_tables(tables).items()
    }
    return lambda text: daft.sql(text, **frames).to_arrow()


def _pyspark(tables: Mapping[str, str], threads: int) -> Answer:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(f"local[{threads}]")
        .config("spark.driver.memory", "6g")
        .config("spark.sql.shuffle.partitions", str(threads))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    for name, path in tables.items():
        frame = spark.read.parquet(path).cache()
        frame.count()
        frame.createOrReplaceTempView(name)
    return lambda text: spark.sql(text).toArrow()


ENGINES = (
    Engine("minishark", "minishark", _minishark),
    Engine("DuckDB", "duckdb", _duckdb),
    Engine("DataFusion", "datafusion", _datafusion),
    Engine("Polars", "polars", _polars),
    Engine("Daft", "daft", _daft),
    Engine("PySpark", "pyspark", _pyspark),
)
"""All supported engines; Dask has no SQL."""
