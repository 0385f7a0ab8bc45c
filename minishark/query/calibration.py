"""Measures what work costs on this machine: once, in a fraction of a second, kept on disk.

Single-threaded queries over Arrow tables, each of which does mostly one kind of work; the best of a
few runs each, as other load only adds time. The reference was fitted to whole queries, whose tables
are larger than caches; so each of its figures is multiplied by how much longer a query takes here
than it took on the machine of the reference. What is not measured follows what is.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
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
_RATIO_MAX = 8.0
"""No machine differs more from the reference; a measurement that does was disturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """CPU time of the queries; the defaults are those of the reference's machine."""

    trivial_s: float = 0.33e-3
    scanned_ns: float = 1.0  # per value, as all others per row beyond the scan
    joined_ns: float = 70.0
    grouped_ns: float = 7.4
    matched_ns: float = 24.0
    sorted_ns: float = 54.0


_REFERENCE_TIMES = _Times()


@functools.cache
def machine_costs() -> Costs:
    """The costs of this machine."""
    return read_or_measured()


def read_or_measured() -> Costs:
    """The costs of this machine, from the user's cache folder; measured if they are not there."""
    try:
        file = cache_file()
    except RuntimeError:  # the user has no home folder, as in some containers
        return measured()
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(file.read_bytes(), type=Costs)
    costs = measured()
    with contextlib.suppress(OSError):  # it is measured again then
        _write(file, msgspec.json.encode(costs))
    return costs


def cache_file() -> Path:
    """Where this machine's costs are kept, for these versions and these cores."""
    versions = (duckdb.__version__, pa.__version__, asdict(REFERENCE), asdict(_REFERENCE_TIMES))
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
        return _scaled(_Measurement(connection).times())


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

    def times(self) -> _Times:
        trivial_s = self._best_s("SELECT count(*) FROM few", runs=_TRIVIAL_RUNS)
        scan_s = (self._best_s("SELECT sum(v), max(a) FROM long") - trivial_s) / _REPEATED

        def beyond_scans_ns(sql: str, scans: int = 1) -> float:
            return (self._best_s(sql) - trivial_s - scans * scan_s) / _ROWS * 1e9

        return _Times(
            trivial_s=trivial_s,
            scanned_ns=scan_s / _ROWS / 2 * 1e9,
            joined_ns=beyond_scans_ns("SELECT count(*) FROM t JOIN t AS u ON t.a = u.a", scans=2),
            grouped_ns=beyond_scans_ns("SELECT k, sum(v) FROM t GROUP BY k"),
            matched_ns=beyond_scans_ns("SELECT count(*) FROM t WHERE s LIKE '%x%y%'"),
            sorted_ns=beyond_scans_ns("SELECT v FROM t ORDER BY a"),
        )

    def _best_s(self, sql: str, runs: int = _RUNS) -> float:
        return min(_cpu_s(lambda: self._connection.execute(sql)) for _ in range(runs))


def _cpu_s(call: Callable[[], object]) -> float:
    """The CPU time of a call on this thread, in seconds: other load hardly changes it."""
    started = time.thread_time()
    call()
    return time.thread_time() - started


def _scaled(times: _Times) -> Costs:
    """The reference, scaled by how long the queries took."""
    ratios = {
        name: min(_RATIO_MAX, max(1 / _RATIO_MAX, getattr(times, name) / reference))
        for name, reference in asdict(_REFERENCE_TIMES).items()
    }
    scanned, joined, overhead = (ratios[f] for f in ("scanned_ns", "joined_ns", "trivial_s"))
    others = (scanned * joined) ** 0.5
    return replace(
        REFERENCE,
        scanned_ns=REFERENCE.scanned_ns * scanned,
        computed_ns=REFERENCE.computed_ns * others,
        matched_ns=REFERENCE.matched_ns * ratios["matched_ns"],
        built_ns=REFERENCE.built_ns * joined,
        probed_ns=REFERENCE.probed_ns * joined,
        grouped_ns=REFERENCE.grouped_ns * ratios["grouped_ns"],
        sorted_ns=REFERENCE.sorted_ns * ratios["sorted_ns"],
        moved_ns=REFERENCE.moved_ns * others,
        put_out_ns=REFERENCE.put_out_ns * others,
        stage_s=REFERENCE.stage_s * overhead,
        task_s=REFERENCE.task_s * overhead,
    )
