"""How the slots of a machine share the memory for queries.

Each slot has a share. A task with several threads has the cores of slots that are idle, and needs
their shares, too: it takes those that no other task has, and gives them back while it runs when
others begin. What each slot's task wants stands in a file of one byte in shared memory.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

_WANTED_MAX = 255


class Shares:
    """The shares of one slot; safe to use from several threads."""

    def __init__(self, folder: Path, name: str, slots: int) -> None:
        """For the slot `name`, one of `slots` whose processes have this folder in common."""
        self._folder = folder
        self._slots = slots
        folder.mkdir(exist_ok=True)
        # The pid tells which are of dead processes.
        self._name = f"{os.getpid()}.{name}"
        # Mapped: a system call for each short call of a function would let other threads run.
        with (folder / self._name).open("w+b") as file:
            file.write(b"\0")
            file.flush()
            self._byte = mmap.mmap(file.fileno(), 1)
        self.wanted = 0

    def close(self) -> None:
        """The slot has ended, and wants nothing."""
        self.want(0)
        self._byte.close()

    def want(self, shares: int) -> None:
        """Say how many shares the slot's task can use; 0 if it has none."""
        if shares != self.wanted:
            self.wanted = shares
            with contextlib.suppress(ValueError):  # it is closed: a call has outlived its slot
                self._byte[0] = min(shares, _WANTED_MAX)

    def taken(self) -> float:
        """How many shares the slot has now: 1 at least while a task runs, which may be all of them.

        Without a task 1, or 0 while the task of another slot can use what this one leaves.
        """
        wanted = self.wanted  # a task may begin or end meanwhile, in another thread
        if wanted == 1:
            return 1.0
        others = [*self._others()]
        spare = self._slots - len(others) - (wanted > 0)
        more = sum(other - 1 for other in others)
        if not wanted:
            return 0.0 if more else 1.0
        own = wanted - 1
        return 1.0 + min(own, max(0, spare) * own / (own + more))

    def _others(self) -> Iterator[int]:
        """What the tasks of other slots want."""
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name == self._name:
                    continue
                with contextlib.suppress(OSError):
                    wanted = Path(entry.path).read_bytes()
                    if wanted > b"\0" and _is_alive(int(entry.name.partition(".")[0])):
                        yield wanted[0]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
