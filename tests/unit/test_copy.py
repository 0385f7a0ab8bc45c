from __future__ import annotations

from pathlib import Path

import pytest

from minishark.errors import DataError
from minishark.tables import copy as copies
from minishark.tables.copy import Copy, Written, parsed_copy, publish, staging_folder


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
    assert Copy(Path(path), options) == parsed_copy(target)


@pytest.mark.parametrize(
    "target",
    ["'/dev/stdout'", "'x.csv' CSV HEADER", "('a' || 'b')", "$1",
     "'x' (PARTITION_BY (a), RETURN_FILES)",
     "'x' (PARTITION_BY (a), FILENAME_PATTERN $$p_{i}$$)",
     "'x' (PARTITION_BY (a), FILENAME_PATTERN ('p_{i}'))",
     "'x' (PARTITION_BY (a), FILENAME_PATTERN E'p_{i}')",
     "'x' (PARTITION_BY (a), FILENAME_PATTERN 'a' || '_{i}')",
     "'x' (PARTITION_BY (a), FILENAME_PATTERN '../p_{i}')",
     "'x' (PARTITION_BY (a), FILENAME_PATTERN '')",
     "'x' (PARTITION_BY (a), FILENAME_PATTERN 'p_{i}', APPEND)"],
)  # fmt: skip
def test_other_targets_are_left_to_the_front_end(target: str) -> None:
    """What is no local file, old forms, answers of another form, names that DuckDB works out."""
    assert parsed_copy(target) is None


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


def _staged(staging: Path, *names: str) -> tuple[Written, ...]:
    """What as many tasks have written: each a file of its own text for each name."""
    tasks = ("t0", "t1")
    for task in tasks:
        for name in names:
            file = staging / task / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{task} {name}")
    return tuple(Written(task, 1) for task in tasks)


def _entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _texts(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ('"Part_{i}"', "Part_{}.csv"),
        ("'it''s_{i}'", "it's_{}.csv"),
        ("'f{i}_{i}'", "f{}_{}.csv"),
        ("'plain'", "plain{}.csv"),
        ("'{uuidx}'", "{{uuidx}}{}.csv"),
    ],
)
def test_files_of_all_tasks_get_names_of_their_own(
    tmp_path: Path, pattern: str, expected: str
) -> None:
    """However the pattern is written; in the order of tasks, and of the numbers in a task."""
    copy = Copy(tmp_path / "x", {"per_thread_output": "true", "filename_pattern": pattern})
    with staging_folder(copy) as staging:
        publish(copy, staging, _staged(staging, "0.csv", "2.csv", "10.csv"))
    texts = [f"{task} {number}.csv" for task in ("t0", "t1") for number in (0, 2, 10)]
    assert {expected.format(i, i): text for i, text in enumerate(texts)} == _texts(copy.path)
    assert ["x"] == _entries(tmp_path)


@pytest.mark.parametrize("mode", ["overwrite", "overwrite_or_ignore"])
def test_two_files_of_one_name_are_an_error(tmp_path: Path, mode: str) -> None:
    """Rather than one of them being lost; the target is as it was."""
    copy = Copy(
        tmp_path / "x", {"partition_by": "(k)", mode: "true", "filename_pattern": "'{uuid}'"}
    )
    copy.path.mkdir()
    (copy.path / "mine").write_text("mine")
    with (
        pytest.raises(DataError, match=r"two files would have the name same\.csv"),
        staging_folder(copy) as staging,
    ):
        publish(copy, staging, _staged(staging, "same.csv"))
    assert {"mine": "mine"} == _texts(tmp_path / "x")
    assert ["x"] == _entries(tmp_path)


def _publish_over(target: Path, mode: str) -> None:
    copy = Copy(target, {"partition_by": "(k)", mode: "true", "format": "csv"})
    with staging_folder(copy) as staging:
        publish(copy, staging, _staged(staging, "k=0/0.csv", "k=2/0.csv"))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("mode", "renames"), [("overwrite", 6), ("overwrite_or_ignore", 6)])
def test_an_interruption_at_each_rename_leaves_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, renames: int, after: bool
) -> None:
    """Right before it or right after it: what was there is there, and nothing else."""
    target = tmp_path / "x"
    before = {"k=0/data_0.csv": "old", "k=0/data_1.csv": "old", "k=1/mine": "mine"}
    for name, text in before.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(text)
    really = Path.rename
    calls, stop_at = 0, 0

    def rename(self: Path, to: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == stop_at and not after:
            raise KeyboardInterrupt
        really(self, to)
        if calls == stop_at:
            raise KeyboardInterrupt
        return to

    monkeypatch.setattr(copies.Path, "rename", rename)
    for number in range(1, renames + 1):
        calls, stop_at = 0, number
        with pytest.raises(KeyboardInterrupt):
            _publish_over(target, mode)
        assert before == _texts(target)
        assert ["k=0", "k=1"] == _entries(target)
        assert ["x"] == _entries(tmp_path)
    calls, stop_at = 0, 0
    _publish_over(target, mode)
    assert renames == calls
    assert "t1 k=2/0.csv" == _texts(target)["k=2/data_1.csv"]


def test_what_can_not_be_moved_back_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The staging folder stays while the old target lies there, and the error says where."""
    target = tmp_path / "x"
    target.mkdir()
    (target / "mine").write_text("mine")
    really = Path.rename

    def rename(self: Path, to: Path) -> Path:
        if to == target:
            raise OSError(5, "Input/output error")
        return really(self, to)

    monkeypatch.setattr(copies.Path, "rename", rename)
    with pytest.raises(DataError, match="Input/output error") as found:
        _publish_over(target, "overwrite")
    (staging,) = tmp_path.iterdir()
    assert {"replaced/all/mine": "mine"}.items() <= _texts(staging).items()
    assert f"{staging / 'replaced'}" in found.value.__notes__[0]


def test_a_new_folder_has_the_permissions_of_any_new_folder(tmp_path: Path) -> None:
    """Though it was made in one that nobody else may enter."""
    (tmp_path / "plain").mkdir()
    _publish_over(tmp_path / "x", "overwrite")
    assert (tmp_path / "plain").stat().st_mode == (tmp_path / "x").stat().st_mode
