from __future__ import annotations

from pathlib import Path

import pytest
from iceberg_tables import RandomTable
from reading import assert_equal

from minishark.sources.iceberg import IcebergSource

_SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed >= 8 else []) for seed in range(200)]


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
@pytest.mark.parametrize("seed", _SEEDS)
def test_rows_and_types_are_those_of_pyiceberg(seed: int, tmp_path: Path) -> None:
    """Whatever happened to a table: now, at each snapshot, and at each tag."""
    made = RandomTable.created(tmp_path, seed)
    now = made.table.scan().to_arrow()
    predicates = list(made.predicates(now))
    chosen = made.chance.sample(predicates, min(len(predicates), 8))
    assert_equal(IcebergSource(made.table).resolve(), now, chosen)
    for snapshot in made.table.snapshots()[:-1][-2:]:
        number = snapshot.snapshot_id
        then = made.table.scan(snapshot_id=number).to_arrow()
        source = IcebergSource(made.table, snapshot_id=number)
        assert_equal(source.resolve(), then, list(made.predicates(then))[:2])
    for tag in made.tags[:1]:
        then = made.table.scan().use_ref(tag).to_arrow()
        assert_equal(IcebergSource(made.table, ref=tag).resolve(), then, ())
