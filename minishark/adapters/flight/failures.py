"""Errors on the wire: our message and the right code of gRPC, and back."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from minishark import errors

_LOG = logging.getLogger("minishark.adapters.flight")
_DETAIL = re.compile(r"\. (?:Detail|gRPC client debug context): (.*)", re.DOTALL)
_CLASS = re.compile(r"Python exception: (\w+)")


class _Untraced:
    """Keeps Arrow from adding a traceback to the message.

    Arrow appends what `traceback.format_exception` makes of an exception, or only its class if that
    fails, as it does here. Errors of `pyarrow.flight` have no such text, but those lack most codes.
    """

    @property
    def __cause__(self) -> None:
        raise AttributeError("no traceback on the wire") from RuntimeError()

    @__cause__.setter
    def __cause__(self, cause: object) -> None:
        pass


# By what the client gets: INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED. Arrow makes no exception of
# Python ALREADY_EXISTS.
_CODES: dict[type[errors.MinisharkError], type[Exception]] = {
    errors.AlreadyExistsError: pa.ArrowInvalid,
    errors.CatalogError: pa.ArrowKeyError,
    errors.UnsupportedError: pa.ArrowNotImplementedError,
    errors.QueryError: pa.ArrowInvalid,
    errors.DataError: pa.ArrowInvalid,
    errors.OptionError: pa.ArrowInvalid,
    errors.TaskFailedError: pa.ArrowInvalid,
    errors.FunctionError: pa.ArrowInvalid,
    errors.QueryCancelledError: fl.FlightCancelledError,
    errors.TaskTimeoutError: fl.FlightTimedOutError,
    errors.ResourceError: fl.FlightUnavailableError,
    errors.TasksLostError: fl.FlightUnavailableError,
    errors.ClusterError: fl.FlightUnavailableError,
    # "Try again"; Arrow knows no ABORTED, which would say that it is the whole transaction.
    errors.ConflictError: fl.FlightUnavailableError,
    errors.MinisharkError: fl.FlightInternalError,
}


def _wire_error(error: BaseException, *, in_stream: bool) -> Any:
    """What to raise in a call of Flight for an error; the client learns its class, too."""
    if isinstance(error, fl.FlightError) and not in_stream:
        return error
    if not isinstance(error, errors.MinisharkError | fl.FlightError):
        _LOG.error("A call of Flight SQL failed.", exc_info=error)
        error = errors.MinisharkError(
            f"minishark failed, which is a mistake of its own: {type(error).__name__}: {error}"
        )
    name, message = type(error).__name__, str(error)
    base = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), pa.ArrowException)
    if issubclass(base, fl.FlightError):
        if not in_stream:
            return base(message, name.encode())
        base = pa.ArrowException  # where rows are read, Arrow knows no errors of Flight
    return type(name, (_Untraced, base), {})(message)


@contextlib.contextmanager
def answering(*, in_stream: bool = False) -> Iterator[None]:
    """A block whose errors go to the client; with `in_stream`, while it reads rows."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever it is, the client is to be told
        wire_error = _wire_error(error, in_stream=in_stream)
    else:
        return
    raise wire_error


_NAMED = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.MinisharkError)
}


def our_class(error: Exception) -> type[errors.MinisharkError] | None:
    """The class that an error of a server had there; None if it does not say."""
    named = _CLASS.search(str(error))
    extra = getattr(error, "extra_info", None) or b""
    return _NAMED.get(named[1] if named else extra.decode(errors="replace"))


def our_error(error: Exception) -> errors.MinisharkError:
    """The error of a server as one of ours; its message is what the server said."""
    message = _DETAIL.sub("", str(error))
    named = our_class(error)
    if named is not None and not issubclass(named, errors.PartitionsLostError):
        return named(message)
    match error:
        case fl.FlightCancelledError():
            return errors.QueryCancelledError(message)
        case fl.FlightTimedOutError():
            return errors.TaskTimeoutError(message)
        case fl.FlightUnavailableError():
            why = message.rpartition(": ")[2]
            return errors.ClusterError(
                f"The server does not answer ({why}): `minishark serve` starts one."
            )
        case fl.FlightUnauthenticatedError() | fl.FlightUnauthorizedError():
            return errors.OptionError(message)
        case pa.ArrowNotImplementedError():
            return errors.UnsupportedError(message)
        case pa.ArrowInvalid() | pa.ArrowKeyError():
            return errors.QueryError(message)
        case _:
            return errors.ExecutionError(message)
