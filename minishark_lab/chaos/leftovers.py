"""Folders in shared memory that processes have left behind."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from minishark.cluster.folders import LOCK, candidates
from sparrow_core.runtime.transport import orphans


def abandoned_folders(parent: Path) -> list[Path]:
    """Folders of this user's sessions and nodes in `parent` whose owner is dead."""
    abandoned = []
    for folder in candidates(parent):
        with (
            contextlib.suppress(OSError),
            orphans.opened(folder) as opened,
            orphans.locked(opened, LOCK, shared=True),
        ):
            abandoned.append(folder)
    return abandoned


def unlocked_folders(parent: Path) -> list[Path]:
    """Folders of this user in `parent` that look like a session's but have no lock: a bug."""
    unlocked = []
    for folder in candidates(parent):
        with (
            contextlib.suppress(OSError),
            orphans.opened(folder) as opened,
            os.scandir(opened) as entries,
        ):
            if all(entry.name != LOCK for entry in entries):
                unlocked.append(folder)
    return unlocked
