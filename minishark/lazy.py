"""Modules that are imported when they are first used."""

from __future__ import annotations

import gc
import importlib
from types import ModuleType


def imported(module: str) -> ModuleType:
    """A module, imported without looks for garbage, of which imports make none: an eighth less."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collects:
            gc.enable()
