"""Values as bytes: pickle, with large buffers apart; and what a driver returns.

Values are pickled by reference where that works, by cloudpickle where it does not: classes and
functions of a driver's own module exist in a worker only because cloudpickle made them there.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

Frames = tuple[memoryview, ...]
OUT_OF_BAND_MIN = 4096  # smaller buffers travel inside: a frame of its own costs more


def dumps(value: Any) -> Frames:
    """A value as its pickle and its large buffers, which are not copied."""
    buffers: list[memoryview] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        try:
            view = buffer.raw()
        except BufferError:  # not contiguous: it travels inside
            return True
        if view.nbytes >= OUT_OF_BAND_MIN:
            buffers.append(view)
        return view.nbytes < OUT_OF_BAND_MIN

    body = _dump(value, is_small)
    return (memoryview(body), *buffers)


def dumps_inside(value: Any) -> Frames:
    """A value as one frame, a copy: what is still changed in place, or must be writable after."""
    return (memoryview(_dump(value, None)),)


def _dump(value: Any, apart: Callable[[pickle.PickleBuffer], bool] | None) -> bytes:
    try:
        return pickle.dumps(value, 5, buffer_callback=apart)
    except (pickle.PicklingError, AttributeError, TypeError):
        return bytes(cloudpickle.dumps(value, 5, buffer_callback=apart))


def loads(frames: Sequence[memoryview]) -> Any:
    """What was dumped."""
    return pickle.loads(frames[0], buffers=frames[1:])


def copied(value: Any) -> Any:
    """A copy that shares nothing with the value."""
    return loads(dumps_inside(value))


def content(value: Any, is_handle: Callable[[Any], bool] = lambda _: False) -> bytes:
    """Bytes that are equal for equal values in all processes, for a digest.

    They depend neither on the order of sets nor on which of equal objects are the same one. A value
    that only cloudpickle can pickle counts by its type.
    """

    class ContentPickler(pickle.Pickler):
        def persistent_id(self, item: Any) -> Any:
            if is_handle(item):
                return "handle"
            if type(item) in {set, frozenset}:
                return type(item).__name__, sorted(content(member) for member in item)
            return None

    target = io.BytesIO()
    pickler = ContentPickler(target, 5)
    pickler.fast = True  # without references to what was pickled before
    try:
        pickler.dump(value)
    except (pickle.PicklingError, AttributeError, TypeError, ValueError, RecursionError):
        return type(value).__qualname__.encode()
    return target.getvalue()


def dump_tree(tree: Any, is_handle: Callable[[Any], bool]) -> tuple[bytes, list[Any]]:
    """What a driver returns, with its handles cut out: their places hold numbers of a list."""
    handles: list[Any] = []

    class TreePickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
        def persistent_id(self, item: Any) -> int | None:
            if not is_handle(item):
                return None
            handles.append(item)
            return len(handles) - 1

    target = io.BytesIO()
    TreePickler(target, 5).dump(tree)
    return target.getvalue(), handles


def load_tree(body: bytes, values: Sequence[Any]) -> Any:
    """The tree with values in the places of its handles."""

    class TreeUnpickler(pickle.Unpickler):
        def persistent_load(self, place: int) -> Any:
            return values[place]

    return TreeUnpickler(io.BytesIO(body)).load()


class _Nothing:
    """What a source has sent to a target for which it has no piece: the target may stop waiting."""

    def __reduce__(self) -> str:
        return "NOTHING"


NOTHING = _Nothing()
