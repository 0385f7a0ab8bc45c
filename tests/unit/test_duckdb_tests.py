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

query II rowsort
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
        checks.Step(30, "SELECT broken"),
    ]


@pytest.mark.parametrize(
    ("text", "kind", "statements"),
    [
        ("statement ok\nCREATE TABLE t(i INT)\n\nquery I con1\nFROM t\n----\n\n", "same", 2),
        ("statement error\nFROM nothing\n----\n\nrestart\n", "left out", 1),
        ("statement ok\nSET threads = 2\n", "refused", 0),
        ("query I\nSELECT 1\n", "differs", 0),
    ],
)
def test_verdicts(
    checks: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    kind: str,
    statements: int,
) -> None:
    """A file is run in both engines up to what can't be run, or to the first difference."""
    if kind == "differs":
        # Nothing that differs is known to stay so.
        monkeypatch.setattr(checks, "differences", lambda *_: ["Something differs."])
    file = tmp_path / "x.test"
    file.write_text(text)
    verdict = checks.compare(file, limit_s=60)
    assert (kind, statements) == (verdict.kind, verdict.statements)
