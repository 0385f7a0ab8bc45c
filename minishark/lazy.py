"""Modules that are imported when they are first used."""

from __future__ import annotations

import gc
import importlib
import sys
from types import ModuleType


def imported(module: str) -> ModuleType:
    """A module; to look for garbage while it is imported would take an eighth of the time."""
    if module in sys.modules:
        return importlib.import_module(module)  # another thread may be about it
    collects = gc.isenabled()
    try:
        gc.disable()
        return importlib.import_module(module)
    finally:
        if collects:
            gc.enable()
