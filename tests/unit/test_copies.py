from __future__ import annotations

from pathlib import Path

import pytest

from minishark.copies import Copy, parsed_copy
from minishark.sql.statements import split_arguments


@pytest.mark.parametrize(
    ("target", "path", "options"),
    [
        ("'/x/a.csv'", "/x/a.csv", {}),
        ("'/x/it''s' (FORMAT csv)", "/x/it's", {"format": "csv"}),
        (
            "'/x/a' WITH (FORMAT 'parquet', PARTITION_BY (a, \"b c\"), header = false, OVERWRITE)",
            "/x/a",
            {
                "format": "'parquet'",
                "partition_by": '(a, "b c")',
                "header": "false",
                "overwrite": "true",
            },
        ),
        ("'/x/a' (DELIMITER ',', QUOTE '(')", "/x/a", {"delimiter": "','", "quote": "'('"}),
    ],
)
def test_targets_are_taken_apart(target: str, path: str, options: dict[str, str]) -> None:
    """A path, and the options by name, each as it was written."""
    assert Copy(Path(path), options) == parsed_copy(target, split_arguments)


@pytest.mark.parametrize(
    "target",
    ["'s3://bucket/x.csv'", "'/dev/stdout'", "'x.csv' CSV HEADER", "('a' || 'b')", "$1",
     "'x' (PARTITION_BY (a), RETURN_FILES)"],
)  # fmt: skip
def test_other_targets_are_left_to_the_front_end(target: str) -> None:
    """What is no local file, old forms, and answers of another form."""
    assert parsed_copy(target, split_arguments) is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, False),
        ({"per_thread_output": "true"}, True),
        ({"per_thread_output": "false"}, False),
        ({"partition_by": "(a)"}, True),
        ({"file_size_bytes": "'1MB'"}, True),
    ],
)
def test_folders(options: dict[str, str], expected: bool) -> None:
    """Options that make several files make a folder of the target."""
    assert expected == Copy(Path("/x"), options).is_folder


def test_tasks_do_not_hear_of_what_is_there() -> None:
    """Each writes to a place of its own; names are unique where files are added."""
    copy = Copy(Path("/x"), {"partition_by": "(a)", "append": "true", "format": "csv"})
    assert "partition_by (a), format csv, filename_pattern '{uuid}'" == copy.text
