"""How memory is shared: a pure policy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from minishark.cluster.machine import node_memory
from minishark.errors import OptionError
from minishark.model.expressions import Column
from minishark.query.job_builder import function_bytes
from minishark.worker.memory import (
    PROCESS_BYTES,
    NodeMemory,
    front_end_bytes,
    machine_bytes,
    parse_size,
)
from sparrow_core.runtime.transport.spawning import process_environment

MEMORY = NodeMemory(2 * PROCESS_BYTES + 1000_000_000, slots=2)


def test_queries_get_what_files_do_not_take() -> None:
    """Each slot's DuckDB has most of its part of what is free; the processes' own is taken off."""
    assert 1000_000_000 == MEMORY.usable_bytes
    assert [375_000_000, 337_500_000] == [MEMORY.duckdb_bytes(n) for n in (0, 100_000_000)]


def test_queries_always_keep_a_share() -> None:
    """Whatever files take, and should they take too much, DuckDB keeps the same minimum."""
    assert 600_000_000 == MEMORY.storage_bytes
    least = [MEMORY.duckdb_bytes(n) for n in (600_000_000, 900_000_000, 1 << 50)]
    assert [150_000_000] * 3 == least


@pytest.mark.parametrize("stored", [0, 1, 300_000_000, 600_000_000])
def test_all_parts_are_below_the_limit(stored: int) -> None:
    """Processes, files, DuckDBs and what tasks hold beside them are never more than the limit."""
    parts = (
        MEMORY.slots * (PROCESS_BYTES + MEMORY.duckdb_bytes(stored)),
        stored,
        MEMORY.beside_duckdb_bytes,
    )
    assert sum(parts) <= MEMORY.limit_bytes
    assert MEMORY.slots * MEMORY.buffer_bytes <= MEMORY.beside_duckdb_bytes


def test_too_small_a_limit_is_refused() -> None:
    """A limit with which nothing could run says how much is needed, and that suffices."""
    with pytest.raises(OptionError, match="at least 384 MiB, not 200 MiB"):
        node_memory(200 << 20, nodes=2, executors=1)
    assert NodeMemory(192 << 20, 1) == node_memory(384 << 20, nodes=2, executors=1)
    assert NodeMemory(192 << 20, 1).duckdb_bytes(1 << 40) > 24_000_000


def test_the_front_end_has_a_part_of_its_own() -> None:
    """A quarter of the limit, but never too little to run."""
    assert [1 << 30, 24 << 20] == [front_end_bytes(4 << 30), front_end_bytes(1 << 20)]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (12345, 12345),
        ("4GiB", 4 << 30),
        ("400MB", 400_000_000),
        (" 1.5 g ", 1_500_000_000),
        ("64mib", 64 << 20),
        ("1T", 10**12),
        ("4096", 4096),
        ("512 KiB", 512 << 10),
    ],
)
def test_sizes_are_read_as_duckdb_reads_them(text: int | str, size: int) -> None:
    """Decimal and binary units, in any case."""
    assert size == parse_size(text)


@pytest.mark.parametrize("text", ["", "4 apples", "-1GB", "GiB", "0", 0, -5, True, "4iB", "1e3"])
def test_what_is_no_size_is_refused(text: int | str) -> None:
    """It is quoted, with an example of how to write it."""
    with pytest.raises(OptionError, match="write one such as 4GiB"):
        parse_size(text)


def _machine(root: Path, groups: str, files: dict[str, str]) -> int:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return machine_bytes(1000, root / "proc", root / "sys")


def test_control_groups_limit_a_machine(tmp_path: Path) -> None:
    """Version 2: the tightest limit of the group and those above it counts."""
    files = {"a/b/memory.max": "max\n", "a/memory.max": "700\n", "memory.max": "800\n"}
    assert 700 == _machine(tmp_path, "0::/a/b\n", files)


def test_older_control_groups_limit_a_machine(tmp_path: Path) -> None:
    """Version 1: the memory controller's limit counts, at the root where the path is another's."""
    groups = "5:cpu:/x\n4:hugetlb,memory:/docker/1\n"
    assert 600 == _machine(tmp_path, groups, {"memory/memory.limit_in_bytes": "600\n"})


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    """The physical memory is all that there is."""
    assert 1000 == machine_bytes(1000, tmp_path, tmp_path)
    assert 1000 == _machine(tmp_path / "x", "0::/\n", {"memory.max": "max\n"})


def test_functions_need_their_rows_several_times() -> None:
    """Rows of the function's columns, but no more than what the task reads."""
    schema = (Column("a", "BIGINT"), Column("b", "VARCHAR"), Column("c", "DECIMAL(15,2)"))
    assert 3 * 1000 * 48 == function_bytes(schema, 1000, 1e9)
    assert 3 * 500 == function_bytes(schema, 1000, 500)
    assert 3 * 1000 * 64 == function_bytes((Column("l", "STRUCT(a INTEGER)"),), 1000, 0)


def test_what_pyarrow_reserves_leaves_an_executor_its_memory() -> None:
    """Its pool would reserve a GiB at once, and DuckDB find none of what it may use."""
    program = (
        "import resource\n"
        "from minishark.cluster.machine import _own_bytes, Confinement\n"
        "import pyarrow as pa\n"
        "Confinement(1 << 30)\n"
        "rows = pa.array(range(1000))\n"
        "print(resource.getrlimit(resource.RLIMIT_DATA)[0] - _own_bytes()[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=process_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) > 1 << 30


def test_addresses_of_memory_that_was_given_back_do_not_count() -> None:
    """Allocators keep them: an executor would find no memory after some large queries."""
    program = (
        "import mmap\n"
        "from minishark.cluster.machine import Confinement\n"
        "limits = Confinement(64 << 20)\n"
        "kept = []\n"
        "for _ in range(20):\n"
        "    block = mmap.mmap(-1, 48 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "    block.write(bytes(1) * (48 << 20))\n"
        "    block.madvise(mmap.MADV_DONTNEED)\n"
        "    kept.append(block)\n"
        "    limits.fit()\n"
        "try:\n"
        "    print([bytearray(b'1') * (48 << 20) for _ in range(20)] and 'none')\n"
        "except MemoryError:\n"
        "    print('limited')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=process_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "limited\n"


def test_memory_that_is_taken_slowly_is_limited_too() -> None:
    """What an executor allows is fitted while a function runs."""
    program = (
        "from minishark.cluster.machine import Confinement\n"
        "limits = Confinement(64 << 20)\n"
        "kept = []\n"
        "try:\n"
        "    for _ in range(40):\n"
        "        kept.append(bytearray(b'1') * (16 << 20))\n"
        "        limits.fit()\n"
        "except MemoryError:\n"
        "    pass\n"
        "print(len(kept) * 16)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=process_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) <= 64 + 256
