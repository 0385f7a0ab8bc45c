"""Ten thousand damaged files of live clusters: no wrong row, all are found, healed if they can be.

Each is damaged after it was written and before it is first read, as that is what is promised; those
of the last test are mapped. `pytest -m slow -s tests/chaos/test_damage.py` prints figures.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import minishark
from minishark.cluster.endpoints import HOST_VARIABLE
from minishark.cluster.launch import (
    ClusterRecord,
    StartOptions,
    make_keys,
    start_cluster,
    stop_cluster,
)
from minishark.session.session import Session
from minishark.worker.protocol import FileSlice
from minishark.worker.seals import checksum, digest_of
from minishark.worker.storage import StorageMeter
from minishark.worker.store import InputMissingError, Store
from minishark.worker.writing import StoredFile
from tests.integration.processes import free_port
from tests.unit.damages import DAMAGES, changed_later, damage

_ROWS = 60_000
_PARTITIONS = 100
_REPLICAS_DAMAGED = 5_000
_LOADED_AGAIN = 2_000
_OUTPUTS_DAMAGED = 1_000
_SPILLED_DAMAGED = 2_000
_MAPPED_ROUNDS = 6
_QUERIES_MAX = 3  # to read what they happen to read, until the rest is asked for
_PAGES_MIN = 3 * 4096  # smaller files have no pages that could change places

_TOTAL = "SELECT count(*) AS n, sum(x)::BIGINT AS s, sum(length(t))::BIGINT AS c FROM t"
_GROUPS = "SELECT x % 5000 AS g, count(*) AS n, sum(x)::BIGINT AS s FROM t GROUP BY g"

_WIDE = "SELECT x, max(t || repeat('-', 50)) AS t FROM t WHERE x >= {} GROUP BY x"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def _tell(figures: str) -> None:
    sys.stdout.write(f"\n{figures}\n")


def _rows() -> pa.Table:
    return pa.table({"x": range(_ROWS), "t": [f"text {i}, {i % 7}" for i in range(_ROWS)]})


def _answer() -> list[dict[str, int]]:
    texts = sum(len(f"text {i}, {i % 7}") for i in range(_ROWS))
    return [{"n": _ROWS, "s": sum(range(_ROWS)), "c": texts}]


def _groups() -> list[dict[str, int]]:
    each = _ROWS // 5000
    return [
        {"g": g, "n": each, "s": sum(range(g, _ROWS, 5000))} for g in range(5000)
    ]  # fmt: skip


def _asked(session: Session, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = session.sql(sql).to_arrow().to_pylist()
    return sorted(rows, key=lambda row: row.get("g", 0))


def _damaged(path: Path, chance: random.Random) -> bool:
    """Damage a file in some way; whether it has other bytes then."""
    ways = DAMAGES if path.stat().st_size > _PAGES_MIN else DAMAGES[:2]
    return damage(path, chance.choice(ways), chance)


def _is_sound(path: Path) -> bool:
    return path.exists() and checksum(path) == digest_of(path.name)


def _files(session: Session, table: str) -> list[str]:
    return sorted(session._group.engine.tables.catalog.get(table).homes)


@contextlib.contextmanager
def _hosts(folder: Path) -> Iterator[tuple[ClusterRecord, ...]]:
    """Two hosts that share nothing but the network, with a node and an executor each."""
    make_keys(folder / "keys")
    ports = (free_port(), free_port())
    heads = tuple(f"tcp://127.0.0.1:{port}" for port in ports)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        records = []
        for name, head in zip(("da", "db"), heads, strict=True):
            patch.setenv(HOST_VARIABLE, name)
            options = StartOptions(
                name=name, nodes=1, listen=head, join=heads, keys=str(folder / "keys")
            )
            records.append(start_cluster(options))
        patch.setenv(HOST_VARIABLE, "front")
        try:
            yield tuple(records)
        finally:
            for record in records:
                stop_cluster(record.name)


def _places(records: Sequence[ClusterRecord], file: str) -> dict[str, Path]:
    """Where a file is, by node."""
    return {
        path.parents[len(Path(file).parts) - 1].name: path
        for record in records
        for node in record.nodes
        for folder in node.folders
        for path in Path(folder).glob(f"*/{file}")
    }


def _told(session: Session, damaged: Mapping[Path, FileSlice]) -> int:
    """How many files nobody has read; each is found to be damaged by whoever asks for it."""
    there = [path for path in damaged if path.exists()]
    for path in there:
        with pytest.raises(InputMissingError):
            session._group.engine.cluster.store().read((damaged[path],))
        assert not path.exists()
    return len(there)


def test_replicas_on_hosts(tmp_path: Path) -> None:
    """One of two is damaged: answers are right, and it is replaced by whoever reads it."""
    done = healed = told = 0
    with (
        _hosts(tmp_path) as records,
        minishark.connect("da", keys=tmp_path / "keys", single_task_rows=0) as session,
    ):
        rows, answer, number = _rows(), _answer(), 0
        while done < _REPLICAS_DAMAGED:
            chance = random.Random(number := number + 1)
            session.create_table("t", rows, partitions=_PARTITIONS, replicas=2, replace=True)
            hit = {}
            for file in _files(session, "t"):
                node, path = chance.choice(sorted(_places(records, file).items()))
                if _damaged(path, chance):
                    hit[path] = FileSlice(file, (node,))
            done += len(hit)
            for _ in range(_QUERIES_MAX):
                assert answer == _asked(session, _TOTAL)
            left = {path: item for path, item in hit.items() if not _is_sound(path)}
            healed += len(hit) - len(left)
            told += _told(session, left)  # which no task has read, since another node has done so
            assert answer == _asked(session, _TOTAL)
    _tell(f"{done} replicas damaged: {healed} replaced, {told} found when only they were asked for")
    assert done == healed + told
    assert healed > 0.8 * done


def test_tables_of_files(tmp_path: Path) -> None:
    """All copies are damaged: they are found, and the table is loaded again."""
    source, done, number = tmp_path / "rows.parquet", 0, 0
    pq.write_table(_rows(), source)
    with minishark.connect(nodes=2, single_task_rows=0) as session:
        paths = session._group.engine.cluster.paths
        while done < _LOADED_AGAIN:
            chance = random.Random(number := number + 1)
            session.create_table(
                "t", str(source), partition_by="x", partitions=_PARTITIONS, replace=True
            )
            hit = []
            for file in _files(session, "t"):
                # On one host, replicas are one file under several names.
                path = min(paths.memory.glob(f"*/{file}"))
                if _damaged(path, chance):
                    hit.append(path)
            done += len(hit)
            assert _answer() == _asked(session, _TOTAL)
            assert not any(path.exists() and not _is_sound(path) for path in hit)
    _tell(f"{done} partitions damaged, and loaded again")


def test_kept_outputs() -> None:
    """What earlier queries have answered is found to be damaged, and computed again."""
    done = told = number = 0
    with minishark.connect(nodes=2, single_task_rows=0, reuse="session") as session:
        session.create_table("t", _rows(), partitions=8, replicas=2)
        memory = session._group.engine.cluster.paths.memory
        hit: dict[Path, FileSlice] = {}
        while True:
            chance = random.Random(number := number + 1)
            for first in range(10):
                sql = (
                    f"SELECT x, max(t || repeat('-', 50)) AS t FROM t WHERE x >= {first} GROUP BY x"
                )
                rows = session.sql(sql).to_arrow()
                assert list(range(first, _ROWS)) == sorted(rows.column("x").to_pylist())
                texts = [f"text {i}, {i % 7}{'-' * 50}" for i in range(first, _ROWS)]
                assert sorted(texts) == sorted(rows.column("t").to_pylist())
            told += _told(session, {path: hit[path] for path in hit if not _is_sound(path)})
            if done >= _OUTPUTS_DAMAGED:
                break
            hit = {}
            for path in sorted(memory.glob("*/outputs/*.arrow")):
                data = path.read_bytes()
                path.unlink()  # who has mapped it has what was there
                path.write_bytes(data)
                if _damaged(path, chance):
                    hit[path] = FileSlice(f"outputs/{path.name}", (path.parents[1].name,))
            assert hit, "outputs are kept as files"
            done += len(hit)
    _tell(f"{done} outputs damaged: {done - told} computed again, {told} found by who asked only")


def test_spilled_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stages hand to each other goes to disk, as there is no room for it elsewhere."""
    chance, lock = random.Random(1), threading.Lock()
    written: list[Path] = []
    hit: list[Path] = []
    true = Store.write

    def torn(self: Store, *args: Any, **options: Any) -> StoredFile:
        stored = true(self, *args, **options)
        with lock:
            if stored.on_disk and "queries" in stored.path.parts:
                written.append(stored.path)
                if chance.random() < 0.3 and _damaged(stored.path, chance):
                    hit.append(stored.path)
        return stored

    expected, number = _groups(), 0
    with minishark.connect(in_process=True, nodes=2, single_task_rows=0) as session:
        session.create_table("t", _rows(), partitions=8)
        monkeypatch.setattr(StorageMeter, "has_room", lambda _, size: size < 0)
        monkeypatch.setattr(Store, "write", torn)
        while len(hit) < _SPILLED_DAMAGED:
            number += 1
            assert expected == _asked(session, f"{_GROUPS} HAVING count(*) > {-number}")
            assert written, "outputs go to disk"
    _tell(f"{len(hit)} of {len(written)} spilled outputs damaged, and computed again")


def _cut(data: bytes) -> bytes:
    return data[:100]


def _without_bounds(data: bytes) -> bytes:
    """Where texts begin and end is far outside the file."""
    last = data.index(b"text ") - 1_000
    return data[: last - 2_000] + b"\x7f\xff\xff\x7f" * 500 + data[last:]


def test_mapped_files_that_end_executors(tmp_path: Path) -> None:
    """They are cut, or have wild offsets, after they were read: replaced, and queries go on.

    Only what makes a file unreadable or ends a process is noticed then.
    """
    chance, answer, done = random.Random(1), _answer(), 0
    with (
        _hosts(tmp_path) as records,
        minishark.connect("da", keys=tmp_path / "keys", single_task_rows=0) as session,
    ):
        for number in range(_MAPPED_ROUNDS):
            session.create_table("t", _rows(), partitions=6, replicas=2, replace=True)
            for _ in range(3):
                assert answer == _asked(session, _TOTAL)
            how = _without_bounds if number % 2 else _cut
            for file in _files(session, "t"):
                path = chance.choice(sorted(_places(records, file).values()))
                changed_later(path, how(path.read_bytes()))
                done += 1
            for _ in range(3):
                assert answer == _asked(session, _TOTAL)
        deaths = sum(node.deaths for node in session.nodes())
    assert deaths
    _tell(
        f"{done} mapped files made unreadable, {deaths} executors ended by that: all answers right"
    )
