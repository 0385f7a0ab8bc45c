"""The fixed catalog of the golden files; `pytest --rewrite tests/golden` writes them anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minishark.cli.tpch.tables import TABLES
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.model.catalog import Catalog, ColumnStatistics, Partition, Table, TableStatistics
from minishark.model.expressions import Column

_NODES = ("node0", "node1", "node2")
_PARTITIONS = 4
_REPLICAS = 2


@pytest.fixture(scope="session")
def golden_catalog() -> Catalog:
    """TPC-H at scale 1 on three nodes: statistics and places, no data."""
    file = Path(__file__).with_name("tpch_statistics.json")
    measured = msgspec.json.decode(file.read_bytes())
    catalog = Catalog()
    for name, key in TABLES.items():
        keys = (key,) if key else ()
        catalog.add(_table(name, keys, measured[name]))
    return catalog


def _table(name: str, keys: tuple[str, ...], measured: dict[str, Any]) -> Table:
    schema = tuple(Column(column, type_) for column, type_, *_ in measured["columns"])
    columns = tuple(
        ColumnStatistics(0.0, *rest, without_nulls=True) for _, _, *rest in measured["columns"]
    )
    statistics = TableStatistics(measured["rows"], measured["bytes"], columns)
    count = _PARTITIONS if keys else 1
    replicas = _REPLICAS if keys else len(_NODES)
    partitions = tuple(
        Partition(
            index=i,
            file=f"tables/{name}/{i}.arrow",
            locations=tuple(_NODES[(i + k) % len(_NODES)] for k in range(replicas)),
            rows=statistics.rows // count,
            bytes=statistics.bytes // count,
        )
        for i in range(count)
    )
    return Table(
        name=name, schema=schema, partitions=partitions, partition_by=keys, statistics=statistics
    )


@pytest.fixture(scope="session")
def golden_planning(golden_catalog: Catalog) -> Iterator[PlanningDatabase]:
    """The planning database of that catalog; its miniatures are made once."""
    planning = PlanningDatabase()
    for table in golden_catalog:
        planning.put_table(table)
    yield planning
    planning.close()
