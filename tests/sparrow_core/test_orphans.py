"""What another user may plant in a shared folder while a process of ours removes orphans there."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparrow_core.runtime.transport import orphans

LOCK = "owner.lock"


def made(folder: Path, mode: int = 0o700) -> Path:
    """An orphaned folder: files, folders, links, and a lock that nobody holds."""
    folder.mkdir()
    (folder / "file").write_text("x")
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_text("x")
    (folder / LOCK).touch()
    folder.chmod(mode)
    return folder


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of ours elsewhere, which nobody asked to remove."""
    return made(tmp_path / "precious")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder in which everybody may write."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def whole(folder: Path) -> bool:
    """Whether a folder of `made` has all that it had."""
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    return ["file", LOCK, "sub", "sub/file"] == found


def test_an_orphan_goes_with_all_that_is_in_it(shared: Path, precious: Path) -> None:
    """Links in it are removed, what they stand for is not."""
    orphan = made(shared / "orphan")
    (orphan / "link").symlink_to(precious)
    (orphan / "sub" / "link").symlink_to(precious)
    assert orphans.remove_if_orphaned(orphan, LOCK)
    assert [] == list(shared.iterdir())
    assert whole(precious)


def test_what_is_half_removed_is_still_an_orphan(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock stays as long as something in it can't be removed."""
    orphan = made(shared / "orphan")
    monkeypatch.setattr(orphans.shutil, "rmtree", lambda *_, **__: None)
    assert not orphans.remove_if_orphaned(orphan, LOCK)
    orphans.remove(orphan, LOCK)
    assert ["orphan/" + LOCK, "orphan/sub"] == sorted(
        str(path.relative_to(shared)) for path in orphan.iterdir()
    )
    monkeypatch.undo()
    assert orphans.remove_if_orphaned(orphan, LOCK)
    assert [] == list(shared.iterdir())


def test_a_folder_whose_lock_is_held_stays(shared: Path) -> None:
    """Its owner lives."""
    folder = made(shared / "alive")
    with (folder / LOCK).open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not orphans.remove_if_orphaned(folder, LOCK)
    assert whole(folder)


def test_links_are_not_followed(shared: Path, precious: Path) -> None:
    """Neither one in place of the folder nor one in place of its lock."""
    (shared / "link").symlink_to(precious)
    assert not orphans.remove_if_orphaned(shared / "link", LOCK)
    orphans.remove(shared / "link", LOCK)
    folder = made(shared / "folder")
    (folder / LOCK).unlink()
    (folder / LOCK).symlink_to(precious / LOCK)
    assert not orphans.remove_if_orphaned(folder, LOCK)
    assert whole(precious)
    assert (folder / "file").exists()


@pytest.mark.parametrize(
    "plant",
    [
        lambda lock, _: os.mkfifo(lock),
        lambda lock, _: lock.mkdir(),
        lambda lock, precious: os.link(precious / LOCK, lock),
    ],
    ids=["a pipe", "a folder", "a second name of a file"],
)
def test_only_a_file_of_its_own_is_a_lock(
    shared: Path, precious: Path, plant: Callable[[Path, Path], object]
) -> None:
    """Nothing else is waited for, or taken for the lock."""
    folder = made(shared / "folder")
    (folder / LOCK).unlink()
    plant(folder / LOCK, precious)
    assert not orphans.remove_if_orphaned(folder, LOCK)
    assert (folder / "file").exists()


@pytest.mark.parametrize("mode", [0o701, 0o770, 0o777])
def test_what_others_can_enter_is_not_ours_to_remove(shared: Path, mode: int) -> None:
    """They could put anything into it."""
    folder = made(shared / "open", mode)
    assert not orphans.remove_if_orphaned(folder, LOCK)
    orphans.remove(folder, LOCK)
    assert whole(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
@pytest.mark.parametrize("what", [".", LOCK])
def test_what_another_user_owns_stays(shared: Path, what: str) -> None:
    """The folder, or the lock in one of ours."""
    folder = made(shared / "theirs")
    os.chown(folder / what, 12345, -1)
    assert not orphans.remove_if_orphaned(folder, LOCK)
    assert whole(folder)


@pytest.mark.parametrize("at", ["open", "fstat", "flock", "scandir", "rmtree", "unlink", "stat"])
def test_a_name_that_is_exchanged_does_no_harm(
    shared: Path, precious: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Whichever step comes next, only the folder that was opened is removed."""
    orphan, before = made(shared / "orphan"), shared / "before"
    module: Any = {"flock": fcntl, "rmtree": orphans.shutil}.get(at, os)
    step = getattr(module, at)

    def exchanged(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(module, at, step)
        orphan.rename(before)
        orphan.symlink_to(precious)
        return step(*args, **options)

    monkeypatch.setattr(module, at, exchanged)
    orphans.remove_if_orphaned(orphan, LOCK)
    monkeypatch.undo()
    assert whole(precious)
    assert orphan.is_symlink()
    assert at == "open" or [] == list(before.iterdir())


def test_a_folder_of_the_same_name_that_comes_meanwhile_stays(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is empty: it is not the one that was opened."""
    orphan = made(shared / "orphan")
    unlink = os.unlink

    def exchanged(path: Any, **options: Any) -> None:
        unlink(path, **options)
        if path == LOCK:
            orphan.rename(shared / "before")
            orphan.mkdir()

    monkeypatch.setattr(os, "unlink", exchanged)
    orphans.remove_if_orphaned(orphan, LOCK)
    assert {"before", "orphan"} == {path.name for path in shared.iterdir()}
