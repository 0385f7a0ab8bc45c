"""Which modules are the user's own, and those of them in this process, which change while it lives.

Functions of modules are pickled by name, so that an executor imports what they are in. Whoever
edits such a module and runs a program again on a running cluster wants the new code.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

_OWN = frozenset(["minishark", "sparrow_core", "canary_core", "machine_kit"])
"""The packages of minishark, which have its version."""

_State = tuple[int, int]
"""The time of a file's last change, and its size."""


def is_own(module: str) -> bool:
    """Whether a module is minishark's."""
    return module.partition(".")[0] in _OWN


def is_installed(file: str) -> bool:
    """Whether the file of a module is Python's, or that of an installed package."""
    return file.startswith(_folders())


@lru_cache(1)
def _folders() -> tuple[str, ...]:
    return tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib", "stdlib"))


def _state(file: str) -> _State | None:
    try:
        state = Path(file).stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size


@dataclass(slots=True)
class UserModules:
    """Modules that are neither installed nor minishark's, with what their files were."""

    _count: int = 0  # of all modules, when they were looked at
    _seen: dict[str, tuple[str, _State]] = field(default_factory=dict)  # files, by module

    def note(self) -> None:
        """Know the modules that have been imported, as what they are now."""
        if len(sys.modules) == self._count:
            return
        for name, module in tuple(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if (
                name not in self._seen
                and isinstance(file, str)
                and file.endswith(".py")
                and name != "__main__"
                and not is_own(name)
                and not is_installed(file)
                and (state := _state(file)) is not None
            ):
                self._seen[name] = (file, state)
        self._count = len(sys.modules)

    def drop_changed(self) -> bool:
        """Have all of them imported again if a file of one has changed; whether it has."""
        if all(_state(file) == state for file, state in self._seen.values()):
            return False
        for name in self._seen:  # also those that may have taken something from it
            sys.modules.pop(name, None)
        self._seen.clear()
        importlib.invalidate_caches()
        self._count = 0
        return True
