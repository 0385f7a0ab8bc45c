"""Private folders for sockets and logs.

A folder of sockets is locked while its process lives; whoever makes the next one removes those that
are not locked, which killed processes left behind.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparrow_core.runtime.transport import orphans

_PREFIX = "sparrow-run-"
_LOCK = "lock"


@contextmanager
def socket_folder() -> Iterator[Path]:
    """A new folder of mode 0700 with a short path, removed at the end of the context."""
    _remove_abandoned()
    draft = Path(tempfile.mkdtemp(prefix=".sparrow-"))
    folder = draft.with_name(draft.name.replace(".sparrow-", _PREFIX))
    with (draft / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        draft.rename(folder)  # visible to others only now that it is locked
        try:
            yield folder
        finally:
            orphans.remove(folder, _LOCK)


def _remove_abandoned() -> None:
    """Remove folders of dead processes."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        orphans.remove_if_orphaned(folder, _LOCK)


def log_folder(name: str) -> Path:
    """The default folder of a node's logs, which are kept after its end."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state, "sparrow", name)


def make_private(folder: Path) -> None:
    """Make a folder of mode 0700, and its parents; no effect if it exists."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
