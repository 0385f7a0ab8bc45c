"""Libraries of sources that come with an extra."""

from __future__ import annotations

import importlib
from types import ModuleType

from minishark.errors import OptionError


def library(module: str, extra: str) -> ModuleType:
    """A library that not everybody has.

    Raises:
        OptionError: it is not installed; the message says how to.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise OptionError(
            f"This needs {module}, which is not installed: pip install 'minishark[{extra}]'."
        ) from error
