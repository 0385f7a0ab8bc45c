"""Imports at first use."""

from __future__ import annotations

import gc
import importlib
import sys
from types import ModuleType


def imported(module: str) -> ModuleType:
    """Import a module without garbage collection, which would take an eighth of the time."""
    if module in sys.modules:
        return importlib.import_module(module)  # waits if another thread is importing it
    collects = gc.isenabled()
    try:
        gc.disable()
        return importlib.import_module(module)
    finally:
        if collects:
            gc.enable()
