from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from delta_tables import RandomTable
from deltalake import DeltaTable
from reading import assert_equal

from minishark.sources.delta import DeltaSource

_SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed >= 8 else []) for seed in range(200)]


def rows(table: DeltaTable) -> pa.Table:
    """What deltalake itself reads."""
    return pa.RecordBatchReader.from_stream(table.scan()).read_all()


@pytest.mark.parametrize("seed", _SEEDS)
def test_rows_and_types_are_those_of_deltalake(seed: int, tmp_path: Path) -> None:
    """Whatever happened to a table: now, and at earlier versions."""
    path = tmp_path / "a table"
    made = RandomTable.created(path, seed)
    now = rows(DeltaTable(str(path)))
    predicates = list(made.predicates(now))
    chosen = made.chance.sample(predicates, min(len(predicates), 8))
    assert_equal(DeltaSource(path).resolve(), now, chosen)
    last = DeltaTable(str(path)).version()
    for version in range(max(last - 2, 0), last):
        then = rows(DeltaTable(str(path), version=version))
        some = list(made.predicates(then))[:2]
        assert_equal(DeltaSource(path, version=version).resolve(), then, some)
