"""Few rows, which the front end stores as tasks would."""

import duckdb
import pyarrow as pa
import pytest

from minishark.model.expressions import Column
from minishark.tables.changed_statistics import statistics_of
from minishark.tables.scratch_database import stored_settings
from minishark.tables.sources import PLAIN_TYPES, few_rows
from minishark.worker.dictionaries import DICTIONARY_ROWS_MIN
from minishark.worker.statistics import merge_statistics, partition_statistics


def _nothing_of(*types: pa.DataType) -> pa.Table:
    return pa.schema([(f"c{i}", type_) for i, type_ in enumerate(types)]).empty_table()


def test_plain_types_are_read_and_given_back_as_they_were() -> None:
    given = _nothing_of(*PLAIN_TYPES)
    names = [*PLAIN_TYPES.values()]
    with duckdb.connect() as connection:
        for name, value in stored_settings(names).items():
            connection.execute(f"SET {name} = {value}")
        connection.execute("SET produce_arrow_string_view = false")
        relation = connection.from_arrow(given)
        assert [str(type_) for type_ in relation.types] == names
        assert relation.to_arrow_table().schema.types == [*PLAIN_TYPES]
    few = few_rows(given)
    assert few is not None
    assert few.schema == tuple(Column(f"c{i}", name) for i, name in enumerate(names))


@pytest.mark.parametrize(
    "given",
    [
        _nothing_of(pa.bool_()),  # a byte each where they are stored
        _nothing_of(pa.int64(), pa.decimal128(9, 2)),
        _nothing_of(pa.list_(pa.int64())),
        _nothing_of(pa.large_string()),
        _nothing_of(pa.timestamp("us", "UTC")),
        _nothing_of(),
        pa.table([[1], [2]], names=["a", "A"]),
        pa.table({"": [1]}),
        pa.table({"a": range(DICTIONARY_ROWS_MIN)}),
        pa.schema([pa.field("j", pa.string(), metadata={"ARROW:extension:name": "arrow.json"})])
        .empty_table(),
    ],
    ids=str,
)  # fmt: skip
def test_tasks_store_what_they_may_store_otherwise(given: pa.Table) -> None:
    assert few_rows(given) is None


@pytest.mark.parametrize("rows", [0, 1, 1_000])
def test_their_statistics_are_those_that_tasks_measure(rows: int) -> None:
    given = pa.table(
        {
            "k": pa.array(range(rows), pa.int64()),
            "g": pa.array([i % 7 if i % 3 else None for i in range(rows)], pa.int32()),
            "s": [f"text {i % 50}" for i in range(rows)],
            "d": pa.array([i % 365 for i in range(rows)], pa.int32()).cast(pa.date32()),
            "n": pa.array([None] * rows, pa.string()),
        }
    )
    if not rows:
        given = given.set_column(2, "s", pa.array([], pa.string()))
    few = few_rows(given)
    assert few is not None
    columns = [(column.name, column.type) for column in few.schema]
    with duckdb.connect() as connection:
        connection.register("part", given)
        measured = partition_statistics(connection, "part", given, columns)
        merged = merge_statistics([measured], columns, given.nbytes)
    own = statistics_of(few.schema, few.rows, given.nbytes)
    assert (own.rows, own.bytes) == (merged.rows, merged.bytes)
    for one, other in zip(own.columns, merged.columns, strict=True):
        assert one.null_fraction == pytest.approx(other.null_fraction)
        assert one.distinct == pytest.approx(other.distinct, rel=0.1)
        assert (one.minimum, one.maximum) == (other.minimum, other.maximum)
        assert one.without_nulls == other.without_nulls
