"""Public methods, as the user's mistakes leave them: without the frames of what they call."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from minishark.dataframe.names import nearest
from minishark.errors import (
    AnalysisException,
    FunctionError,
    OptionError,
    TaskFailedError,
    UnsupportedError,
)
from minishark.model.debugging import debugging, shorten

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Class = TypeVar("_Class", bound=type)

_MISTAKES = (
    AnalysisException, KeyboardInterrupt, OptionError, TaskFailedError, UnsupportedError,
)  # fmt: skip
_UNEXPECTED = re.compile(r"\.(\w+)\(\) got an unexpected keyword argument '(\w+)'$")


def doors(kind: _Class) -> _Class:
    """A class whose public methods show users' mistakes in short; with MINISHARK_DEBUG in full."""
    for name, method in tuple(vars(kind).items()):
        if inspect.isfunction(method) and (name == "__getitem__" or not name.startswith("_")):
            setattr(kind, name, door(method))
    return kind


def door(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function, or a generator's, that shows users' mistakes in short."""
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def called(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            try:
                yield from method(*args, **kwargs)
            except (Exception, KeyboardInterrupt) as error:
                _tell(error, method)
                raise

    else:

        @functools.wraps(method)
        def called(*args: _P.args, **kwargs: _P.kwargs) -> Any:
            try:
                return method(*args, **kwargs)
            except (Exception, KeyboardInterrupt) as error:
                _tell(error, method)
                raise

    return called


def _tell(error: BaseException, method: Callable[..., Any]) -> None:
    """Shorten an error that a user's mistake, function or Ctrl-C has made."""
    if debugging():
        return
    if isinstance(error, _MISTAKES):  # the message is all that DuckDB or the system said
        shorten(error)
    elif isinstance(error, FunctionError) or isinstance(error.__cause__, FunctionError):
        # Nobody asks what was tried before; a note has the traceback of the function.
        shorten(error, cause=error.__cause__)
    named = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    if named and named[1] == method.__name__:
        _, *names = inspect.signature(method).parameters
        near = nearest(named[2], names) or f" It takes {', '.join(names) or 'nothing'}."
        error.args = (f"{error}.{near}",)
        shorten(error)
