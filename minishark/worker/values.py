"""Python values between processes: a pickle, with its large parts in files of the store.

Small values travel inside messages. What is large becomes a file on the node where the value is,
once: every process of the host maps it, and other hosts fetch it once per node. That goes for what
offers its bytes out of band (pickle protocol 5: numpy arrays, Arrow tables, pandas frames), and for
pickles that are large themselves.

Files are mapped copy-on-write: a reader may change its arrays, without changing those of others.
"""

from __future__ import annotations

import mmap
import pickle
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cloudpickle
import pyarrow as pa

from minishark.errors import OptionError
from minishark.worker.keeping import keeping
from minishark.worker.protocol import FileSlice, Value
from minishark.worker.seals import Seal
from minishark.worker.store import InputMissingError, Store

LARGE_BYTES = 256 << 10
"""From this size on, a file costs less than copies through messages."""

_PROTOCOL = 5
_FEW = 16
_ABSENT: Any = object()
_store: ContextVar[Store] = ContextVar("minishark_store")  # of the value that is being unpickled
_PLAIN = frozenset((int, float, str, bool, bytes, type(None)))
_SCHEMA = pa.schema([("data", pa.uint8())])


class Sink(Protocol):
    """Where large parts of values go."""

    def __call__(self, data: memoryview) -> FileSlice:
        """Store some bytes; returns where they are."""


UNPICKLABLE = (AttributeError, TypeError, pickle.PicklingError)
"""What pickling raises."""


def unsendable(what: str, error: Exception) -> OptionError:
    """The error of something that can't be pickled."""
    why = str(error).rstrip(".")
    return OptionError(
        f"{what} can't be sent to other processes: {why}. Open files, locks and connections stay "
        "where they are: make them inside the function, or pass what they are made from."
    )


def dump(value: Any, sink: Sink, *, large_bytes: int = LARGE_BYTES) -> Value:
    """Pickle a value, by cloudpickle, its large parts into `sink`.

    Raises what its classes and the sink raise.
    """
    if _is_plain(value):
        return _stored(pickle.dumps(value, _PROTOCOL), (), sink, large_bytes)
    buffers: list[memoryview] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        try:
            view = buffer.raw()
        except BufferError:  # not contiguous: it stays in the pickle, too
            return True
        if view.nbytes >= large_bytes:
            buffers.append(view)
        return view.nbytes < large_bytes

    pickled = cloudpickle.dumps(value, protocol=_PROTOCOL, buffer_callback=is_small)
    return _stored(pickled, tuple(map(sink, buffers)), sink, large_bytes)


def dump_whole(value: Any) -> Value | None:
    """Pickle a value as one piece, however large. Raises what its classes raise.

    None for one that holds what would have to live as long, such as a broadcast value.
    """
    with keeping() as kept:
        pickled = cloudpickle.dumps(value, protocol=_PROTOCOL)
    return None if kept else Value(pickled)


def dump_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], sink: Sink) -> Value:
    """Pickle the arguments of a call, as `dump` does."""
    if any(map(_is_large, args)):
        # On their own, so that calls with other arguments beside them share the file.
        args = tuple([_Apart(dump(arg, sink)) if _is_large(arg) else arg for arg in args])
        value = dump((args, kwargs), sink)
        files = [file for arg in args if isinstance(arg, _Apart) for file in arg.value.files]
        return Value(value.pickled, value.stream, value.buffers, (*value.others, *files))
    return dump((args, kwargs), sink)


def dump_plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes | None:
    """The arguments of a call, if they are few numbers and short texts; else None.

    They take no file and nothing of cloudpickle, which takes longer.
    """
    if kwargs or not all(map(_is_plain, args)):
        return None
    pickled = pickle.dumps((args, kwargs), _PROTOCOL)
    return pickled if len(pickled) < LARGE_BYTES else None


@dataclass(frozen=True, slots=True)
class _Apart:
    """Stands for an argument that is stored on its own, and unpickles as that."""

    value: Value

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded, (self.value,)


def _loaded(value: Value) -> Any:
    return load(value, _store.get())


def _is_plain(value: object) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return True
    # isinstance would let subclasses pass, which have pickles of their own.
    return (
        (kind is list or kind is tuple)
        and len(value) <= _FEW  # type: ignore[arg-type]  # they have a length
        and _PLAIN.issuperset(map(type, value))  # type: ignore[call-overload]
    )


def _is_large(arg: object) -> bool:
    return isinstance(arg, bytes | str) and len(arg) >= LARGE_BYTES


def _stored(
    pickled: bytes, files: tuple[FileSlice, ...], sink: Sink, large_bytes: int = LARGE_BYTES
) -> Value:
    if len(pickled) < large_bytes:
        return Value(pickled, None, files)
    return Value(b"", sink(memoryview(pickled)), files)


def load_small(value: Value) -> Any:
    """Unpickle a value without files; raises what its classes raise."""
    assert not value.files
    return pickle.loads(value.pickled)


def load(value: Value, store: Store) -> Any:
    """Unpickle a value; raises what its classes raise, and InputMissingError for lost files."""
    if not value.files:
        return pickle.loads(value.pickled)
    data = value.pickled if value.stream is None else read_file(value.stream, store)
    buffers = [read_file(item, store) for item in value.buffers]
    token = _store.set(store)
    try:
        return pickle.loads(data, buffers=buffers)
    finally:
        _store.reset(token)


class LoadedValues:
    """Values that many calls of an executor share, each unpickled once; for use by any thread."""

    def __init__(self, store: Store, most: int) -> None:
        """Keep as many as `most`, the latest ones."""
        self._store = store
        self._most = most
        self._values: dict[Value, Any] = {}
        self._loading = threading.RLock()  # a value may load others

    def get(self, value: Value) -> Any:
        """A value; raises as `load` does."""
        with self._loading:
            loaded = self._values.get(value, _ABSENT)
            if loaded is _ABSENT:
                loaded = self._values[value] = load(value, self._store)
                for oldest in tuple(self._values)[: -self._most]:
                    self._values.pop(oldest, None)
            return loaded

    def clear(self) -> None:
        """Drop all values."""
        self._values.clear()

    def forget_removed(self) -> None:
        """Drop values whose files were removed: mapped, these take as much memory as before."""
        # Without the lock, which a slow load may hold: `pop` needs none.
        for value in tuple(self._values):
            if value.files and not all(map(self._store.has_copy, value.files)):
                self._values.pop(value, None)


def write_file(data: memoryview, file: str, store: Store, seal: Seal = Seal.ON_DISK) -> FileSlice:
    """Store bytes as a file of this node. Raises as `Store.write` does."""
    # An Arrow file, because that is what hosts fetch from each other.
    buffer = pa.py_buffer(data)
    array = pa.Array.from_buffers(pa.uint8(), len(buffer), [None, buffer])
    stored = store.write(file, _SCHEMA, [[pa.record_batch([array], schema=_SCHEMA)]], seal)
    return FileSlice(stored.named(file), (store.node,))


def read_file(item: FileSlice, store: Store) -> memoryview:
    """The bytes of a file, mapped copy-on-write.

    Raises:
        InputMissingError: no location has it, as it was.
    """
    path = store.local_path(item)
    if path is None:  # there is no room for a copy on this host
        (column,) = store.read((item,)).column("data").chunks
        return memoryview(bytearray(column.buffers()[1]))
    try:
        return _mapped(path)
    except FileNotFoundError as error:
        raise InputMissingError(f"{item.file} was removed", (item,)) from error


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    whole = pa.py_buffer(mapping)
    column = pa.ipc.open_file(pa.BufferReader(whole)).get_batch(0).column(0)
    start = column.buffers()[1].address - whole.address
    return memoryview(mapping)[start : start + len(column)]
