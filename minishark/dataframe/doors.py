"""Public methods, as the user's mistakes leave them: without the frames of what they call."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from minishark.dataframe.names import nearest
from minishark.errors import (
    AnalysisException,
    FunctionError,
    OptionError,
    TaskFailedError,
    UnsupportedError,
)
from minishark.model.debugging import debugging

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Class = TypeVar("_Class", bound=type)

_MISTAKES = (AnalysisException, OptionError, TaskFailedError, UnsupportedError)
_UNEXPECTED = re.compile(r"\.(\w+)\(\) got an unexpected keyword argument '(\w+)'$")


def doors(kind: _Class) -> _Class:
    """A class whose public methods show users' mistakes in short; with MINISHARK_DEBUG in full."""
    for name, method in tuple(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _door(method))
    return kind


def _door(method: Callable[_P, _R]) -> Callable[_P, _R]:
    @functools.wraps(method)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            if debugging():
                raise
            if isinstance(error, _MISTAKES):  # the message is all that DuckDB or the system said
                raise error.with_traceback(None) from None
            if isinstance(error, FunctionError) or isinstance(error.__cause__, FunctionError):
                raise error.with_traceback(None)  # noqa: B904 - a note has that of the function
            named = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
            if named and named[1] == method.__name__:
                _, *names = inspect.signature(method).parameters
                near = nearest(named[2], names) or f" It takes {', '.join(names) or 'nothing'}."
                raise TypeError(f"{error}.{near}") from None
            raise

    return called
