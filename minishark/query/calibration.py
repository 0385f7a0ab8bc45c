"""Measures what work costs on this machine: once, in a fraction of a second, kept on disk.

Single-threaded queries over Arrow tables, each of which does mostly one kind of work; the best of a
few runs each, as other load only adds time. Kinds that are too small to measure keep their share of
the reference. Plans depend on proportions, which differ between machines by little, and on how long
a task's overhead is beside them, which differs by much.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa

from minishark.compiler.physical.costs import REFERENCE, Costs
from minishark.worker.cores import usable_cores

CACHE_VARIABLE = "XDG_CACHE_HOME"
_ROWS = 300_000
_PRIME = 300_007  # keys are scattered, and distinct
_APART = 1_000_003  # too far apart for a hash table without hashes
_KEYS = 1000
_REPEATED = 6  # a scan alone is short
_RUNS = 3
_TRIVIAL_RUNS = 20
_TRIVIAL_S = 0.5e-3
"""How long a trivial query takes where the reference was measured: the unit of overheads."""

_RATIO_MAX = 8.0
"""No machine differs more from the reference; a measurement that does was disturbed."""


@functools.cache
def machine_costs() -> Costs:
    """The costs of this machine."""
    return read_or_measured()


def read_or_measured() -> Costs:
    """The costs of this machine, from the user's cache folder; measured if they are not there."""
    file = cache_file()
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(file.read_bytes(), type=Costs)
    costs = measured()
    with contextlib.suppress(OSError):  # it is measured again then
        _write(file, msgspec.json.encode(costs))
    return costs


def cache_file() -> Path:
    """Where this machine's costs are kept, for these versions and these cores."""
    versions = (duckdb.__version__, pa.__version__, asdict(REFERENCE))
    machine = (platform.machine(), _processor(), usable_cores())
    key = blake2b(repr((versions, machine)).encode(), digest_size=8).hexdigest()
    folder = Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache")
    return folder / "minishark" / f"costs-{key}.json"


def _processor() -> str:
    """The processor's model; on Linux, `platform` does not tell."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line for line in lines if line.startswith("model name")), "")
    return platform.processor()


def _write(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(data)
    temporary.rename(file)


def measured() -> Costs:
    """The costs of this machine, measured now."""
    with duckdb.connect(config={"threads": 1}) as connection:
        return _Measurement(connection).costs()


class _Measurement:
    """Times queries of one connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        rows = connection.sql(
            f"SELECT i * 7919 % {_PRIME} * {_APART} AS a, i % {_KEYS} AS k, i AS v, "
            f"'text ' || i AS s FROM range({_ROWS}) r(i)"
        ).to_arrow_table()
        connection.register("t", rows)
        connection.register("few", rows.slice(0, _KEYS))
        connection.register("long", pa.concat_tables([rows] * _REPEATED))

    def costs(self) -> Costs:
        trivial_s = self._best_s("SELECT count(*) FROM few", runs=_TRIVIAL_RUNS)
        long_s = self._best_s("SELECT sum(v), max(a) FROM long") - trivial_s
        scan_s = long_s / _REPEATED

        def beyond_scans(sql: str, scans: int = 1) -> float:
            """Nanoseconds per row of `t`."""
            return (self._best_s(sql) - trivial_s - scans * scan_s) / _ROWS * 1e9

        ref = REFERENCE
        joined = beyond_scans("SELECT count(*) FROM t JOIN t AS u ON t.a = u.a", scans=2)
        scanned_ns = _plausible(scan_s / _ROWS / 2 * 1e9, ref.scanned_ns)
        built_ns = _plausible(joined - ref.probed_ns, ref.built_ns)
        grouped = beyond_scans("SELECT k, sum(v) FROM t GROUP BY k")
        matched = beyond_scans("SELECT count(*) FROM t WHERE s LIKE '%x%y%'")
        sorted_ns = beyond_scans("SELECT v FROM t ORDER BY a")
        # What is not measured follows what is.
        ratio = (scanned_ns / ref.scanned_ns * built_ns / ref.built_ns) ** 0.5
        overhead = _plausible(trivial_s, _TRIVIAL_S) / _TRIVIAL_S
        return replace(
            ref,
            scanned_ns=scanned_ns,
            computed_ns=ref.computed_ns * ratio,
            matched_ns=_plausible(matched, ref.matched_ns),
            built_ns=built_ns,
            probed_ns=ref.probed_ns * ratio,
            grouped_ns=_plausible(grouped / 2, ref.grouped_ns),
            sorted_ns=_plausible(sorted_ns, ref.sorted_ns),
            moved_ns=ref.moved_ns * ratio,
            put_out_ns=ref.put_out_ns * ratio,
            stage_s=ref.stage_s * overhead,
            task_s=ref.task_s * overhead,
        )

    def _best_s(self, sql: str, runs: int = _RUNS) -> float:
        return min(_cpu_s(lambda: self._connection.execute(sql)) for _ in range(runs))


def _cpu_s(call: Callable[[], object]) -> float:
    """The CPU time of a call on this thread, in seconds: other load hardly changes it."""
    started = time.thread_time()
    call()
    return time.thread_time() - started


def _plausible(value: float, reference: float) -> float:
    """A measured value, within what machines differ by."""
    return min(reference * _RATIO_MAX, max(reference / _RATIO_MAX, value))
