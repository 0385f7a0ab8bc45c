from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

import pytest

from minishark.cluster import folders as folders_module
from minishark.cluster.folders import make_folders, reap, remove_if_orphaned
from minishark.errors import ResourceError


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for shared memory, and a temporary folder of the test's own."""
    for name in ("shm", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(folders_module.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    monkeypatch.setattr(folders_module.tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "shm"


def left(parent: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in parent.iterdir())


def test_folders_are_private_and_go(shared_memory: Path, tmp_path: Path) -> None:
    """A session has two folders that only its user can enter; nothing is left of them."""
    made = make_folders(shared_memory)
    assert (shared_memory, tmp_path / "tmp") == (made.memory.parent, made.disk.parent)
    assert made.warning is None
    modes = [stat.S_IMODE(folder.stat().st_mode) for folder in (made.memory, made.disk)]
    assert [0o700, 0o700] == modes
    (made.memory / "n0").mkdir()
    (made.disk / "log").write_text("x")
    made.remove()
    made.remove()
    assert ([], []) == (left(shared_memory), left(tmp_path / "tmp"))


def test_folder_of_a_dead_session_is_reaped(shared_memory: Path) -> None:
    """Whose lock is free belongs to nobody; a new session removes it when it starts."""
    dead = make_folders(shared_memory)
    (dead.memory / "data").write_text("x")
    for lock in dead._locks:  # as the end of its process does
        lock.close()
    alive = make_folders(shared_memory)
    assert (False, False) == (dead.memory.exists(), dead.disk.exists())
    alive.remove()


def test_folder_of_a_living_session_stays(shared_memory: Path) -> None:
    """Two sessions leave each other alone."""
    first = make_folders(shared_memory)
    second = make_folders(shared_memory)
    assert not remove_if_orphaned(first.memory)
    reap(shared_memory)
    assert sorted([first.memory.name, second.memory.name]) == left(shared_memory)
    first.remove()
    assert [second.memory.name] == left(shared_memory)
    second.remove()


def test_other_folders_are_not_touched(shared_memory: Path) -> None:
    """Only folders that a session could have made are looked at."""
    (shared_memory / "somebody").mkdir()
    (shared_memory / "minishark-file").write_text("x")
    os.utime(shared_memory / "somebody", (0, 0))
    reap(shared_memory)
    assert ["minishark-file", "somebody"] == left(shared_memory)


def test_folder_without_a_lock_stays(shared_memory: Path) -> None:
    """A user's own folder may be called like a session's, and be old."""
    own = shared_memory / "minishark-notes"
    own.mkdir()
    (own / "work.txt").write_text("x")
    os.utime(own, (0, 0))
    (shared_memory / "minishark-link").symlink_to(own)
    reap(shared_memory)
    assert ["minishark-link", "minishark-notes"] == left(shared_memory)
    assert ["work.txt"] == left(own)


def test_folder_has_its_name_only_with_a_lock(
    shared_memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reaps while a folder is being made does not take it, and one that fails is gone."""
    seen = []

    def flock(lock: IO[str], operation: int) -> None:
        del lock, operation
        seen.extend(path.name[:11] for path in (tmp_path / "tmp").iterdir())
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(folders_module.fcntl, "flock", flock)
    with pytest.raises(ResourceError, match="no locks"):
        make_folders(shared_memory)
    assert [".minishark-"] == seen
    assert [] == left(tmp_path / "tmp")


def test_lock_goes_last(shared_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left when a removal breaks off is removed by who comes next."""
    made = make_folders(shared_memory)
    (made.memory / "n0").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(folders_module.shutil, "rmtree", _killed)
        with pytest.raises(KeyboardInterrupt):
            made.remove()
    assert made.memory.exists()
    reap(shared_memory)
    assert [] == left(shared_memory)


def _killed(path: str, *, ignore_errors: bool, dir_fd: int) -> None:
    del path, ignore_errors, dir_fd
    raise KeyboardInterrupt


def test_missing_parent_is_nothing_to_reap(tmp_path: Path) -> None:
    """Reaping never fails."""
    reap(tmp_path / "missing")
    assert not remove_if_orphaned(tmp_path / "missing")


def test_missing_shared_memory_is_a_warning(shared_memory: Path) -> None:
    """Without shared memory all lies on disk, and the user is told."""
    missing = shared_memory / "missing"
    made = make_folders(missing)
    assert made.memory == made.disk
    assert made.warning is not None
    assert made.warning.startswith(f"{missing} can't be used")
    made.remove()


def test_tiny_shared_memory_is_a_warning(
    shared_memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too little shared memory counts as none, and is not even touched."""
    monkeypatch.setattr(folders_module, "SHARED_MEMORY_MIN_BYTES", 1 << 62)
    made = make_folders(shared_memory)
    assert made.memory == made.disk
    assert made.warning is not None
    assert "MB free: data is kept on disk, which is slower." in made.warning
    assert [] == left(shared_memory)
    made.remove()
    assert [] == left(tmp_path / "tmp")


def test_no_temporary_folder_is_an_error(
    shared_memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nowhere to write there is a sentence that says what to set."""
    missing = str(tmp_path / "missing")
    monkeypatch.setattr(folders_module.tempfile, "gettempdir", lambda: missing)
    monkeypatch.setattr(folders_module.tempfile, "tempdir", missing)
    with pytest.raises(ResourceError, match="set TMPDIR"):
        make_folders(shared_memory)
