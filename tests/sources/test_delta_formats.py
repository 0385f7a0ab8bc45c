"""What others write into Delta tables: wider types, and columns that are found by their ids."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_tables import _commit, _map_inner, _metadata, _protocol
from deltalake import DeltaTable, write_deltalake
from reading import read

from minishark.errors import DataError
from minishark.model.predicates import Comparison, Predicate, Pushed
from minishark.sources.delta import DeltaSource


def add(path: Path, data: pa.Table, stats: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """The action that adds a file, written as other writers do."""
    name = f"part-{len(list(path.glob('*.parquet')))}.parquet"
    pq.write_table(data, path / name)
    text = {} if stats is None else {"stats": json.dumps({"numRecords": len(data), **stats})}
    size = (path / name).stat().st_size
    plain = {"path": name, "size": size, "modificationTime": 1, "dataChange": True}
    return {"add": {**plain, "partitionValues": {}, **text, **more}}


def changed(
    path: Path, fields: dict[str, dict[str, Any]], feature: str, configuration: dict[str, str]
) -> None:
    """A version in which columns are described otherwise."""
    table = DeltaTable(str(path))
    schema = json.loads(table.schema().to_json())
    schema["fields"] = [{**each, **fields.get(each["name"], {})} for each in schema["fields"]]
    features = [feature, "timestampNtz"]
    _commit(path, _protocol(table, features), _metadata(table, schema, configuration))


_DAY, _MOMENT = date(2024, 1, 1), datetime(2024, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001 - TIMESTAMP
_WIDENED: list[tuple[pa.DataType, str, pa.DataType, Any, Any, Any]] = [
    (pa.int8(), "short", pa.int16(), -3, -3, 300),
    (pa.int32(), "long", pa.int64(), 2**31 - 1, 2**31 - 1, 2**40),
    (pa.int32(), "double", pa.float64(), 3, 3.0, 0.5),
    (pa.float32(), "double", pa.float64(), 0.1, 0.10000000149011612, 0.1),
    (pa.int32(), "decimal(12,0)", pa.decimal128(12, 0), 7, Decimal(7), Decimal(10**11)),
    (pa.decimal128(9, 2), "decimal(12,2)", pa.decimal128(12, 2), Decimal("1.50"), Decimal("1.50"),
     Decimal("1234567890.25")),
    (pa.decimal128(9, 2), "decimal(24,4)", pa.decimal128(24, 4), Decimal("-1.50"),
     Decimal("-1.50"), Decimal("12345678901234567890.2525")),
    (pa.date32(), "timestamp_ntz", pa.timestamp("us"), _DAY,
     datetime(2024, 1, 1), _MOMENT),  # noqa: DTZ001
]  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", _WIDENED, ids=[f"{each[0]} to {each[1]}" for each in _WIDENED])
def test_types_that_became_wider(
    tmp_path: Path, case: tuple[pa.DataType, str, pa.DataType, Any, Any, Any]
) -> None:
    """No other reader here does it. Statistics are as Spark writes them: 0.1 of a FLOAT, too."""
    narrow, name, wide, value, widened, more = case
    path = tmp_path / "t"
    write_deltalake(str(path), pa.table({"x": pa.array([value], narrow), "id": [1]}))
    changed(path, {"x": {"type": name}}, "typeWidening", {"delta.enableTypeWidening": "true"})
    actions = []
    for type_, each, number in ((narrow, value, 2), (wide, more, 3)):
        told = str(each) if isinstance(each, date) else each
        text = float(told) if isinstance(told, Decimal) else told
        stats = {"minValues": {"x": text}, "maxValues": {"x": text}, "nullCount": {"x": 0}}
        actions.append(add(path, pa.table({"x": pa.array([each], type_), "id": [number]}), stats))
    _commit(path, *actions)
    snapshot = DeltaSource(path).resolve()
    rows = {row["id"]: row["x"] for row in read(snapshot).to_pylist()}
    assert {1: widened, 2: widened, 3: more} == rows
    for found in (widened, more):
        for comparison in ("=", "<=", ">=", "IN"):
            pushed = Pushed(predicates=(Predicate("x", Comparison(comparison), (found,)),))
            expected = {number for number, each in rows.items() if each == found}
            assert expected <= set(read(snapshot, pushed)["id"].to_pylist()), (comparison, found)


def test_columns_are_found_by_their_ids(tmp_path: Path) -> None:
    """Whatever they are called in files; partitions and statistics have the physical names."""
    path = tmp_path / "t"
    data = pa.table({"id": [1], "s": ["a"], "k": ["p"]})
    write_deltalake(str(path), data, partition_by=["k"])
    (path / next(path.rglob("*.parquet"))).unlink()  # as if it had been written by ids, too
    table = DeltaTable(str(path))
    gone = table.get_add_actions(flatten=True)
    mapped = {
        name: {
            "name": logical,
            "metadata": {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"col-{number}",
            },
        }
        for name, logical, number in (("id", "number", 4), ("s", "Text", 5), ("k", "key", 6))
    }
    schema = json.loads(table.schema().to_json())
    schema["fields"] = [{**each, **mapped[each["name"]]} for each in schema["fields"]]
    metadata = _metadata(
        table, schema, {"delta.columnMapping.mode": "id", "delta.columnMapping.maxColumnId": "9"}
    )
    metadata["metaData"]["partitionColumns"] = ["key"]
    remove = {"path": pa.table(gone)["path"][0].as_py(), "dataChange": True, "deletionTimestamp": 1}

    def file(names: dict[int, str], rows: dict[int, list[Any]]) -> pa.Table:
        fields = [
            pa.field(
                names[number], pa.array(values).type, metadata={"PARQUET:field_id": f"{number}"}
            )
            for number, values in rows.items()
        ]
        return pa.table([*rows.values()], schema=pa.schema(fields))

    first = file({4: "one", 5: "two"}, {4: [1, 2], 5: ["a", None]})
    second = file({5: "one", 4: "Text"}, {5: ["z"], 4: [30]})  # names that mislead
    third = file({4: "number"}, {4: [40]})  # written before there was a Text
    stats = {"minValues": {"col-4": 30}, "maxValues": {"col-4": 30}, "nullCount": {"col-4": 0}}
    _commit(
        path,
        _protocol(table, ["columnMapping"]),
        metadata,
        {"remove": {**remove, "partitionValues": {"k": "p"}}},
        add(path, first, None, partitionValues={"col-6": "p"}),
        add(path, second, stats, partitionValues={"col-6": None}),
        add(path, third, None, partitionValues={"col-6": "q"}),
    )
    snapshot = DeltaSource(path).resolve()
    assert ["number", "Text", "key"] == [each.name for each in snapshot.schema]
    expected = {(1, "a", "p"), (2, None, "p"), (30, "z", None), (40, None, "q")}
    assert expected == {tuple(row.values()) for row in read(snapshot).to_pylist()}

    def numbers(column: str, comparison: str, *values: Any) -> list[int]:
        pushed = Pushed(predicates=(Predicate(column, Comparison(comparison), values),))
        return sorted(read(snapshot, pushed)["number"].to_pylist())

    assert [1, 2] == numbers("key", "=", "p")
    assert [30] == numbers("key", "IS NULL")
    assert 30 in numbers("number", "=", 30)
    assert 30 not in numbers("number", "<", 30)


def test_wider_types_under_mapped_nested_columns_are_refused(tmp_path: Path) -> None:
    """Those deltalake has to read, and can't: an error that names the table, and no rows."""
    path = tmp_path / "t"
    write_deltalake(str(path), pa.table({"id": [1], "s": [{"a": 1}]}))
    table = DeltaTable(str(path))
    schema = json.loads(table.schema().to_json())
    for number, each in enumerate(schema["fields"]):
        physical = {"delta.columnMapping.physicalName": each["name"]}
        each |= {
            "name": f"new {number}",
            "metadata": {"delta.columnMapping.id": number, **physical},
        }
        _map_inner(each["type"])
    _commit(
        path,
        _protocol(table, ["columnMapping", "typeWidening"]),
        _metadata(table, schema, {"delta.columnMapping.mode": "name"}),
    )
    with pytest.raises(DataError, match=rf"Can't read the Delta table {path}.*TypeWidening"):
        read(DeltaSource(path).resolve())
