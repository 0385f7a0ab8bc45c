"""The reader of DuckDB's test files, and what it says of answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def checks(script: Callable[[str], ModuleType]) -> ModuleType:
    """The script as a module."""
    return script("duckdb_tests")


FILE = """\
# name: test/sql/x.test
statement ok con1
CREATE TABLE t{TEST} (i INTEGER)

loop i 0 2

foreach kind,word int,INTEGER <signed> !hugeint

query II rowsort label
# what a comment says
SELECT ${i}, '__kind__'
FROM t
----
1 2

endloop

endloop

skipif duckdb
statement ok
SELECT 'other engines'

mode skip

statement ok
SELECT 'skipped'

mode unskip

statement error
SELECT broken
----
No such column

require httpfs

statement ok
SELECT 'never'
"""


def test_files_are_read(checks: ModuleType) -> None:
    """Loops are unrolled, names filled in, and a file ends where it needs what is not there."""
    steps: list[Any] = []
    with pytest.raises(checks.LeftOutError, match="httpfs"):
        steps.extend(checks.steps_of(FILE, {"TEST": "7"}))
    kinds = ("int", "tinyint", "smallint", "integer", "bigint")
    assert steps == [
        checks.Step(2, "CREATE TABLE t7 (i INTEGER)", "con1"),
        *(checks.Step(9, f"SELECT {i}, '{kind}'\nFROM t") for i in (0, 1) for kind in kinds),
        checks.Step(31, "SELECT broken"),
    ]


PREPARED = "statement ok\nPREPARE p AS SELECT $1 + 1\n\nquery I\nEXECUTE p(2)\n"


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("text", "end", "counts"),
    [
        ("statement ok\nCREATE TABLE t(i INT)\n\nquery I con1\nFROM t\n----\n\n", "", (2, {}, 0)),
        ("statement error\nFROM nothing\n----\n\nrestart\n", "restart", (1, {}, 0)),
        ("statement ok\nSET threads = 2\n\nquery I\nSELECT 1\n", "", (1, {"refused": 1}, 0)),
        (PREPARED, "", (1, {"names of parameters' columns": 1}, 0)),
        ("query I\nSELECT 1 AS other\n\nquery I\nSELECT 2\n", "", (1, {}, 1)),
        ("query I\nCREATE TABLE other AS SELECT 1\n\nquery I\nFROM other\n", "differs", (0, {}, 1)),
    ],
)
def test_verdicts(
    checks: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    end: str,
    counts: tuple[int, dict[str, int], int],
) -> None:
    """A file runs in both engines up to what can't be run, or to a difference of a change."""
    compared = checks.Pair.difference

    def difference(pair: Any, step: Any, folder: Path) -> Any:
        # Nothing that differs is known to stay so.
        return "It differs." if "other" in step.sql else compared(pair, step, folder)

    monkeypatch.setattr(checks.Pair, "difference", difference)
    file = tmp_path / "x.test"
    file.write_text(text)
    verdict = checks.compare(file, limit_s=60)
    assert counts == (verdict.alike, verdict.named, len(verdict.others))
    assert verdict.end.startswith(end)
    assert bool(verdict.end) == bool(end)
    (_, _, row) = checks.table_of({"x": [verdict]})
    assert row.startswith(f"| x | 1 | {verdict.statements} | {counts[0]} |")
