"""Stored partitions that are damaged: their rows come from elsewhere, or are missed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import minishark
from minishark.errors import PartitionsLostError
from minishark.session.session import Session

_ROWS = 20_000
_TOTAL = [(_ROWS, sum(range(_ROWS)))]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session without processes: nobody else has mapped its files."""
    with minishark.connect(in_process=True) as found:
        yield found


def _rows() -> pa.Table:
    return pa.table({"x": range(_ROWS), "t": [f"text {i % 7}" for i in range(_ROWS)]})


def _total(session: Session, table: str) -> list[tuple[object, ...]]:
    found = session.sql(f"SELECT count(*), sum(x)::BIGINT FROM {table}").to_arrow()
    return [tuple(row.values()) for row in found.to_pylist()]


def _damage(session: Session, table: str, seed: int, *, everywhere: bool = True) -> list[Path]:
    """Flip a bit in a file of a table, or cut it short, as if nobody had read it yet.

    Copies on one host are one file, so all are damaged, unless that is not wanted.
    """
    cluster = session._group.engine.cluster
    chance = random.Random(seed)
    name = chance.choice(sorted(session._group.engine.tables.catalog.get(table).homes))
    places = (cluster.paths.memory, cluster.paths.disk)
    paths = [path for place in places for path in sorted(Path(place).glob(f"*/{name}"))]
    data = bytearray(paths[0].read_bytes())
    if chance.random() < 0.3:
        data = data[: chance.randrange(len(data))]
    else:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    for path in paths if everywhere else paths[:1]:
        path.unlink()  # who has mapped it has what was there
        path.write_bytes(data)
    return paths


def test_a_damaged_table_of_a_file_is_loaded_again(session: Session, tmp_path: Path) -> None:
    """Its other partitions stay, and its answers are what they were."""
    file = tmp_path / "rows.parquet"
    pq.write_table(_rows(), file)
    for seed in range(3):
        session.create_table("t", str(file), partitions=3, replace=True)
        paths = _damage(session, "t", seed)
        assert _TOTAL == _total(session, "t")
        assert not any(path.exists() for path in paths)


def test_a_damaged_table_in_memory_is_lost(session: Session) -> None:
    """Its name is told, and what to do; statements that change it do not make it whole."""
    for seed in range(3):
        session.create_table("m", _rows(), partitions=3, replace=True)
        session.sql("INSERT INTO m VALUES (1, 'one')")
        _damage(session, "m", seed)
        with pytest.raises(PartitionsLostError, match="of table m are lost or damaged"):
            _total(session, "m")
        with pytest.raises(PartitionsLostError, match="of table m are lost or damaged"):
            session.sql("UPDATE m SET x = x + 1")


def test_a_damaged_copy_does_no_harm(session: Session) -> None:
    """Another one is read, whichever node is asked first."""
    for seed in range(3):
        session.create_table("r", _rows(), partitions=2, replicas=2, replace=True)
        assert 2 == len(_damage(session, "r", seed, everywhere=False))
        assert _TOTAL == _total(session, "r")
