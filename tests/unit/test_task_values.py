"""What is pickled for calls, once or again, and what becomes a file."""

from __future__ import annotations

import math
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.session.tasks import files as tasks_files
from minishark.session.tasks.files import Files
from minishark.session.tasks.functions import Functions
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import FileSlice, Value
from minishark.worker.store import InputMissingError, Store
from minishark.worker.values import (
    LARGE_BYTES,
    dump,
    dump_arguments,
    dump_plain,
    load,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "n" / "tasks").mkdir(parents=True)
    return Store(StorePaths(tmp_path, tmp_path), "n")


@pytest.fixture
def files(store: Store) -> Files:
    return Files("tasks", lambda: store, lambda: None)


def _names(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "n" / "tasks").iterdir()}


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
NESTED = st.recursive(
    PLAIN | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(PLAIN, inner),
    max_leaves=30,
)


@given(args=st.lists(NESTED, max_size=4).map(tuple), kwargs=st.dictionaries(st.text(), NESTED))
def test_small_arguments_come_back_equal(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """By both ways of pickling, without a file."""
    nowhere: Any = None
    assert (args, kwargs) == load(dump_arguments(args, kwargs, nowhere), nowhere)
    plain = dump_plain(args, kwargs)
    if plain is not None:
        assert (args, kwargs) == load(Value(plain), nowhere)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(LARGE_BYTES),
        np.arange(LARGE_BYTES * 2).reshape(2, -1).T,
        np.zeros(LARGE_BYTES)[::2],
        pa.table({"a": pa.array(range(LARGE_BYTES))}),
        "x" * LARGE_BYTES,
        b"x" * (LARGE_BYTES - 1),
        {"many": [np.full(LARGE_BYTES, i) for i in range(3)]},
        np.empty(0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_large_values_come_back_equal(value: Any, store: Store, files: Files) -> None:
    """From their files, whatever their layout, and they may be changed."""
    found = load(dump(value, files.put), store)
    if isinstance(value, np.ndarray):
        assert np.array_equal(value, found)
        found[...] = 7
        assert not np.array_equal(value, found) or not value.size
    elif isinstance(value, dict):
        assert all(map(np.array_equal, value["many"], found["many"]))
    else:
        assert value == found


def test_files_are_shared_and_removed(tmp_path: Path, store: Store, files: Files) -> None:
    """The same bytes are one file; it goes when it is unused and others have come."""
    array = np.arange(LARGE_BYTES)
    text = "y" * LARGE_BYTES
    values = [dump_arguments((array, text, i), {}, files.put) for i in range(5)]
    assert 2 == len(_names(tmp_path))
    assert [4, 2] == [load(values[4], store)[0][2], len(values[0].files)]
    for value in values:
        files.release(value.files)
    again = dump_arguments((text,), {}, files.put)
    assert 2 == len(_names(tmp_path))
    for i in range(20):
        files.release(dump(array + i, files.put).files)
    assert {again.files[0].file.rpartition("/")[2]} < _names(tmp_path)
    assert 10 > len(_names(tmp_path))
    with pytest.raises(InputMissingError):
        load(values[0], Store(StorePaths(tmp_path / "no", tmp_path / "no"), "n"))


def test_files_are_written_without_the_lock(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster's thread releases files meanwhile, and the same bytes are not written twice."""
    done = dump(np.arange(LARGE_BYTES), files.put)
    begun, go_on = threading.Event(), threading.Event()
    write = tasks_files.write_file

    def slow(data: memoryview, file: str, store: Store) -> FileSlice:
        begun.set()
        assert go_on.wait(10.0)
        return write(data, file, store)

    monkeypatch.setattr(tasks_files, "write_file", slow)
    found: list[Value] = []
    large = np.ones(LARGE_BYTES)
    writers = [
        threading.Thread(target=lambda: found.append(dump(large, files.put))) for _ in range(2)
    ]
    for each in writers:
        each.start()
    assert begun.wait(10.0)
    released = threading.Thread(target=files.release, args=(done.files,))
    released.start()
    released.join(10.0)
    assert not released.is_alive()
    go_on.set()
    for each in writers:
        each.join(10.0)
    assert found[0].files == found[1].files
    assert 2 == len(_names(tmp_path))


def test_the_same_bytes_can_be_stored_after_a_failure(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(data: memoryview, file: str, store: Store) -> FileSlice:
        raise OSError("full")

    with monkeypatch.context() as patch:
        patch.setattr(tasks_files, "write_file", full)
        with pytest.raises(OSError, match="full"):
            files.put(memoryview(b"x"))
    assert files.put(memoryview(b"x")) == files.put(memoryview(b"x"))


def test_nothing_is_kept_of_what_can_not_be_pickled(tmp_path: Path, files: Files) -> None:
    """Parts that were stored before that turned out go like any that nobody needs."""
    for i in range(20):
        with pytest.raises(TypeError), files.storing() as put:
            dump_arguments((bytes(LARGE_BYTES + i), threading.Lock()), {}, put)
    assert 10 > len(_names(tmp_path))


# Functions


def _twice(x: int) -> int:
    return 2 * x


def _made(source: str, **names: Any) -> Callable[..., Any]:
    """A function `f` as in a script or notebook, which is pickled by value."""
    scope: dict[str, Any] = {"__name__": "__main__", **names}
    exec(source, scope)
    found: Callable[..., Any] = scope["f"]
    return found


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f(): return 1", {}),
        ("def f(x=1): return x + y", {"y": 2}),
        ("def f(): return math.pi, len", {"math": math}),
        ("def g(): return y\ndef f(): return g()", {"y": 2}),
        ("def f(n): return n and f(n - 1)", {}),
        ("def f(): return [y for _ in range(3)]", {"y": 2}),
    ],
)
def test_functions_that_can_not_change_are_pickled_once(
    source: str, names: dict[str, Any], files: Files
) -> None:
    """Until what they refer to is another object."""
    functions, fn = Functions(files), _made(source, **names)
    first = functions.pickled(fn)
    assert first is functions.pickled(fn)
    assert isinstance(fn, types.FunctionType)
    if "y" in names:
        fn.__globals__["y"] = 3
        assert first is not functions.pickled(fn)
        del fn.__globals__["y"]
        assert functions.pickled(fn) is not first


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f(): return seen", {"seen": []}),
        ("def f(): return (lambda: seen)()", {"seen": {}}),
        ("def f(x=[]): return x", {}),
        ("def f(): return later", {}),
        ("def g(): return seen\ndef f(): return g()", {"seen": []}),
        ("class f:\n    pass", {}),
        ("def f(*, x=1): return x", {}),
    ],
)
def test_functions_that_may_change_are_pickled_again(
    source: str, names: dict[str, Any], files: Files
) -> None:
    """Mutable globals, closures and defaults are looked at each time."""
    functions, fn = Functions(files), _made(source, **names)
    assert functions.pickled(fn) is not functions.pickled(fn)
