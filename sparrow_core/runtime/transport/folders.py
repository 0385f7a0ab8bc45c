"""Where a process keeps sockets and logs: in private folders that do not pile up.

A folder of sockets is locked for as long as its process lives, so that whoever makes the next one
can tell those that a killed process has left behind, and removes them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "sparrow-run-"
_LOCK = "lock"


@contextmanager
def socket_folder() -> Iterator[Path]:
    """A new folder of mode 0700 with a short path; it goes with the context, or the process."""
    _remove_abandoned()
    draft = Path(tempfile.mkdtemp(prefix=".sparrow-"))
    folder = draft.with_name(draft.name.replace(".sparrow-", _PREFIX))
    with (draft / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        draft.rename(folder)  # from now on others may find it, and it is locked
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned() -> None:
    """Remove our folders whose processes are dead."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # its process lives, or it is another user's, or going already


def log_folder(name: str) -> Path:
    """Where the logs of a node go by default: they outlive the node, for who looks for a cause."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state, "sparrow", name)


def make_private(folder: Path) -> None:
    """Make a folder that nobody else may enter, with its parents; leave one that is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
