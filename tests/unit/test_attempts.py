"""Which statements that change a table run again, and how often."""

from __future__ import annotations

import pytest

from minishark.errors import ConflictError, PartitionsLostError
from minishark.model.catalog import Partition, Table, TableStatistics
from minishark.tables.attempts import attempted
from minishark.tables.tables import NUMBERED

TABLE = Table(
    name="t",
    schema=(),
    partitions=(Partition(index=0, file="tables/7/0.arrow", locations=("a",), rows=1, bytes=8),),
    partition_by=(),
    statistics=TableStatistics(1, 1, ()),
)


class Statement:
    """Raises some errors, one at a time, and then gives its number of runs."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.runs = 0
        self.restored: list[tuple[str, tuple[str, ...]]] = []

    def change(self, table: Table) -> int:
        assert table is TABLE
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.runs

    def restore(self, lost: PartitionsLostError) -> None:
        self.restored.append((lost.table, lost.files))

    def run(self, *, is_alone: bool = True) -> int | None:
        return attempted(lambda: TABLE, self.change, self.restore, is_alone=is_alone)


def test_statements_run_again_on_another_version() -> None:
    """Of a table that was replaced, or whose lost partitions are restored, however it is named."""
    files = ("tables/7/0.arrow",)
    lost = (PartitionsLostError(name, (0,), files) for name in ("t", f"{NUMBERED}tables/7"))
    statement = Statement(ConflictError("replaced"), *lost)
    assert 4 == statement.run()
    assert [("t", files)] * 2 == statement.restored
    assert attempted(lambda: None, statement.change, statement.restore, is_alone=True) is None


@pytest.mark.parametrize("error", [ConflictError("replaced"), PartitionsLostError("t", (0,))])
def test_not_for_ever(error: Exception) -> None:
    """The last error is told."""
    statement = Statement(*[error] * 9)
    with pytest.raises(type(error)):
        statement.run()
    assert 4 == statement.runs


def test_what_running_again_does_not_help() -> None:
    """Another table's loss, which its query has tried to mend; a version that others have seen."""
    other = Statement(PartitionsLostError("t2", (0,)))
    with pytest.raises(PartitionsLostError, match="t2"):
        other.run()
    assert (1, []) == (other.runs, other.restored)
    seen = Statement(ConflictError("replaced"))
    with pytest.raises(ConflictError):
        seen.run(is_alone=False)
    assert 1 == seen.runs
