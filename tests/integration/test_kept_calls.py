"""What calls have returned is kept for later ones: `session.map(..., reuse=True)`."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import program, until

import minishark
from minishark.cluster.launch import ClusterRecord, StartOptions, start_cluster, stop_cluster
from minishark.errors import OptionError, TasksLostError
from minishark.query.names import function_digest
from minishark.session import kept_calls
from minishark.session.session import Session
from minishark.session.tasks.call import CallOptions

ITEMS = 20


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRecord]:
    """A cluster of two nodes with one executor each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield start_cluster(StartOptions(name="calling", nodes=2))
        stop_cluster("calling")


@pytest.fixture
def session() -> Iterator[Session]:
    """A session that keeps its own outputs."""
    with minishark.connect(in_process=True, reuse="session") as session:
        yield session


def _note(path: str, what: int) -> None:
    with Path(path).open("a") as file:
        file.write(f"{what}\n")


class Counted:
    """A function that notes its calls in a file."""

    def __init__(self, path: Path, size: int = 10, factor: int = 1) -> None:
        """Returns `size` bytes for each item."""
        self.path, self.size, self.factor = str(path), size, factor

    def __call__(self, item: int) -> tuple[int, bytes]:
        _note(self.path, item)
        return self.factor * item, bytes([item]) * self.size

    @property
    def calls(self) -> int:
        """How many there were."""
        return len(Path(self.path).read_text().splitlines())

    def expected(self, items: int = ITEMS) -> list[tuple[int, bytes]]:
        return [(self.factor * item, bytes([item]) * self.size) for item in range(items)]


@pytest.mark.parametrize("size", [10, 100_000, 400_000])
def test_equal_calls_are_made_once(session: Session, tmp_path: Path, size: int) -> None:
    """Small and large results; only what is new is called, also in another order."""
    fn = Counted(tmp_path / "calls", size)
    assert fn.expected() == list(session.map(fn, range(ITEMS), reuse=True))
    assert fn.expected() == list(session.map(fn, range(ITEMS), reuse=True))
    assert ITEMS == fn.calls
    assert fn.expected(ITEMS + 2) == list(session.map(fn, range(ITEMS + 2), reuse=True))
    assert ITEMS + 2 == fn.calls
    backwards = session.map(fn, reversed(range(ITEMS)), reuse=True, ordered=False)
    assert fn.expected() == sorted(backwards)
    assert ITEMS + 2 == fn.calls
    with session.executor(reuse=True) as executor:
        assert fn.expected()[3] == executor.submit(fn, 3).result()
        assert fn.expected()[3] == executor.submit(fn, 3).result()
    assert ITEMS + 3 == fn.calls  # a call of one item is another than one of a list
    other = Counted(tmp_path / "calls", size, factor=2)
    assert other.expected() == list(session.map(other, range(ITEMS), reuse=True))
    assert 2 * ITEMS + 3 == fn.calls
    assert fn.expected(3) == list(session.map(fn, range(3)))
    assert 2 * ITEMS + 6 == fn.calls


def test_only_results_are_kept(session: Session, tmp_path: Path) -> None:
    """A call that has raised is made again; so is one that can't be named, with a warning."""
    path = str(tmp_path / "calls")

    def failing(item: int) -> int:
        _note(path, item)
        return 6 // item

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            list(session.map(failing, [1, 0], reuse=True))
    assert ["0", "0", "1"] == sorted(Path(path).read_text().split())

    def dynamic(item: int) -> Any:
        return eval(f"bytes({item})")

    for size in (1, 100_000):
        assert [bytes(size)] == list(session.map(dynamic, [size], reuse=True))
    folder = session._runtime.cluster.store().in_memory(session._runtime.engine.reuse.folder)
    assert [] == [*folder.parent.parent.rglob("call-*")]
    assert any("dynamic returns is not kept" in each for each in session.warnings)


def test_a_session_without_outputs_refuses() -> None:
    """It says what to do."""
    with minishark.connect(in_process=True) as session:
        with pytest.raises(OptionError, match=r"pass reuse=.* to connect\(\)"):
            session.map(abs, [1], reuse=True)
        with pytest.raises(OptionError, match=r"pass reuse=.* to connect\(\)"):
            session.executor(reuse=True)


def test_arguments_count_by_value(session: Session, tmp_path: Path) -> None:
    """Arrays and keyword arguments, too."""
    path = str(tmp_path / "calls")

    def total(array: Any, *, factor: int = 1) -> int:
        _note(path, factor)
        return int(array.sum()) * factor

    with session.executor(reuse=True) as executor:
        answers = [
            executor.submit(total, array, **named).result()
            for array in (np.arange(100_000), np.arange(100_000), np.arange(100_001))
            for named in ({}, {"factor": 2}, {"factor": 2})
        ]
    sums = [sum(range(100_000))] * 2 + [sum(range(100_001))]
    assert [factor * total for total in sums for factor in (1, 2, 2)] == answers
    assert 4 == len(Path(path).read_text().split())


def test_a_lost_or_damaged_result_is_computed_again(session: Session, tmp_path: Path) -> None:
    """Whatever has become of its file, the answer is right."""
    fn = Counted(tmp_path / "calls", 100_000)
    for treat in (lambda path: path.unlink(), _damage, lambda _: None):
        assert fn.expected(4) == list(session.map(fn, range(4), reuse=True))
        cluster = session._runtime.cluster
        folder = cluster.store().in_memory(session._runtime.engine.reuse.folder)
        files = [*folder.parent.parent.rglob("call-*")]
        assert 4 == len(files)
        treat(files[0])
    assert 6 == fn.calls


def _stored_calls(session: Session) -> list[Path]:
    cluster = session._runtime.cluster
    folder = cluster.store().in_memory(session._runtime.engine.reuse.folder)
    return [*folder.parent.parent.rglob("call-*")]


@pytest.mark.parametrize("how", ["removed", "damaged"])
def test_a_result_that_is_lost_before_it_is_read_is_computed_again(
    session: Session, tmp_path: Path, how: str
) -> None:
    """One that an earlier map has left, one of this map, and that of a future."""
    treat = Path.unlink if how == "removed" else _damage
    fn = Counted(tmp_path / "calls", 100_000)
    for made in (4, 5):
        results = session.map(fn, range(4), reuse=True)
        until(lambda results=results: results.done == 4, "all results")
        assert made == fn.calls
        treat(_stored_calls(session)[0])
        assert fn.expected(4) == list(results)
        assert made + 1 == fn.calls
    pool = session._runtime.calls.pool
    with session.executor(reuse=True) as executor:
        for _ in range(2):
            before = {*_stored_calls(session)}
            array = np.full(1_000_000, 3, np.int8)  # arguments in files stay until then
            future, equal = (executor.submit(_doubled, array, str(fn.path)) for _ in range(2))
            assert equal.exception(30) is future.exception(30) is None
            for path in {*_stored_calls(session)} - before or before:
                treat(path)
            assert [6] * 2 == [int(each.result(30).max()) for each in (future, equal)]
    assert not pool._unread
    assert not session._runtime.engine.reuse._held


def _doubled(array: Any, path: str) -> Any:
    _note(path, 7)
    return array * 2


def test_a_lost_result_that_is_not_kept_is_an_error_of_ours(session: Session) -> None:
    """It says what to do."""
    future = session.submit(np.zeros, 1_000_000)
    assert future.exception(30) is None
    outcome = future._outcome
    assert outcome is not None
    assert outcome.value is not None
    for item in outcome.value.files:
        session._runtime.cluster.store().remove(item)
    with pytest.raises(TasksLostError, match="submit the call again"):
        future.result()


def test_a_result_that_holds_a_broadcast_value_is_not_kept(
    session: Session, tmp_path: Path
) -> None:
    """It would be nobody's in a later session; the warning says so. A small one is kept."""
    path = str(tmp_path / "calls")

    def given(shared: Any) -> Any:
        _note(path, 1)
        return [shared]

    for size, made in ((300_000, 2), (10, 3)):
        shared = session.broadcast(bytes(size))
        for _ in range(2):
            (returned,) = session.map(given, [shared], reuse=True)
            assert [size] == list(session.map(lambda s: len(s.value), returned))
        assert made == len(Path(path).read_text().splitlines())
        warned = [each for each in session.warnings if "holds a broadcast value" in each]
        assert 1 == len(warned)


def test_equal_calls_at_the_same_time_have_results_of_their_own(tmp_path: Path) -> None:
    """All are read, however late, and then nothing holds what is kept."""
    with minishark.connect(in_process=True, nodes=2, reuse="session") as session:
        for size in (10, 100_000):
            fn = Counted(tmp_path / str(size), size)
            results = session.map(fn, [1] * 4, reuse=True)
            until(lambda results=results: results.done == 4, "all calls")
            assert fn.expected(2)[1:] * 4 == list(results)
            first, second = (session.map(fn, [1, 1], reuse=True) for _ in range(2))
            assert fn.expected(2)[1:] * 4 == [*first, *second]
            assert fn.calls == 4
            reuse = session._runtime.engine.reuse
            assert not reuse._held
            folder = session._runtime.cluster.store().in_memory(reuse.folder)
            assert (size > 10) == len([*folder.parent.parent.rglob("call-*")])


@pytest.mark.slow
def test_results_that_are_not_read_yet_stay_with_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also more of them than a node keeps."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    start_cluster(StartOptions(name="small", nodes=1, memory_limit_bytes=256 << 20))
    fn = Counted(tmp_path / "calls", 2 << 20)
    try:
        with minishark.connect("small", reuse="cluster") as session:
            results = session.map(fn, range(100), reuse=True)
            until(lambda: results.done == 100, "all calls")
            time.sleep(3.0)  # nodes look at what they keep every two seconds
            assert fn.expected(100) == list(results)
            assert not session._runtime.engine.reuse._held
    finally:
        stop_cluster("small")


def _damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


_NOTEBOOK = """
RATE, LISTED = 2, [1]

def helper(x, by=3):
    return x * RATE + by

def of_globals(x):
    return helper(x)

def of_a_list(x):
    return x * LISTED[0]

def of_a_module(x):
    import edited
    return x * edited.RATE

def closing():
    value = 1
    def of_a_closure(x):
        return x * value
    def assign(other):
        nonlocal value
        value = other
    return of_a_closure, assign

of_a_closure, assign = closing()
"""

_CHANGES = {
    "of_globals": [
        "RATE = 3",
        "def helper(x, by=3): return x - RATE + by",
        "helper.__defaults__ = (4,)",
        "helper.__code__ = (lambda x, by: x).__code__",
        "of_globals.__code__ = (lambda x: x).__code__",
    ],
    "of_a_list": ["LISTED[0] = 2", "LISTED = [3]"],
    "of_a_module": ["Path(edited.__file__).write_text('RATE = 30')"],
    "of_a_closure": [
        "assign(2)",
        "assign([2])",
        "of_a_closure.__closure__[0].cell_contents[0] = 3",
    ],
}


@pytest.mark.parametrize("function", _CHANGES)
def test_a_function_is_named_as_it_is_at_each_call(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """Whatever of it has changed; one that has not is looked into once."""
    (tmp_path / "edited.py").write_text("RATE = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    variables: dict[str, Any] = {
        "__name__": "__main__",
        "__builtins__": __builtins__,
        "Path": Path,
        "edited": importlib.import_module("edited"),
    }
    exec(_NOTEBOOK, variables)
    pool = session._runtime.calls.pool

    def name() -> str:
        naming = pool.naming(pool.functions.pickled(variables[function]), CallOptions(reuse=True))
        assert naming is not None
        return naming((1,), {})

    names = [name()]
    for change in _CHANGES[function]:
        assert names[-1] == name() != ""
        exec(change, variables)
        names.append(name())
    assert len(names) == len({*names})
    looks = []
    monkeypatch.setattr(
        kept_calls,
        "function_digest",
        lambda label, pickled: (looks.append(label), function_digest(label, pickled))[1],
    )
    assert names[-1] == name() == name()
    assert (0 if function == "of_globals" else 2) == len(looks)


_PROGRAM = """
import os, sys, time, minishark

def called(item, path=sys.argv[2], size=int(sys.argv[3])):
    with open(path, "a") as file:
        file.write(f"{item}\\n")
    while item >= 15 and os.path.exists(path + ".wait"):
        time.sleep(0.05)
    return item, bytes([item]) * size

with minishark.connect(sys.argv[1], reuse="cluster") as session:
    for item, data in session.map(called, range(20), reuse=True):
        print(item, len(data), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 100_000])
def test_calls_outlive_the_program_that_made_them(
    running: ClusterRecord, tmp_path: Path, size: int
) -> None:
    """A program that is killed and started again makes those that were not done."""
    calls, wait = tmp_path / "calls", tmp_path / "calls.wait"
    wait.touch()
    arguments = ("-c", _PROGRAM, running.address, str(calls), str(size))
    with program(*arguments) as first:
        until(lambda: calls.exists() and "15" in calls.read_text().split(), "most of its calls")
        time.sleep(0.3)  # until homes were told
        first.kill()
    wait.unlink()
    with program(*arguments) as second:
        output, errors = second.process.communicate(timeout=60)
    assert [f"{item} {size}" for item in range(20)] == output.splitlines(), errors
    made = Counter(map(int, calls.read_text().split()))
    assert [1] * 15 == [made[item] for item in range(15)]
    assert all(made[item] >= 1 for item in range(15, 20))


@pytest.mark.slow
def test_calls_outlive_the_cluster(tmp_path: Path) -> None:
    """In a folder."""
    fn = Counted(tmp_path / "calls", 100_000)
    small = Counted(tmp_path / "small", 10)
    for _ in range(2):
        with minishark.connect(
            in_process=True, reuse="session", reuse_folder=tmp_path / "kept"
        ) as session:
            assert fn.expected() == list(session.map(fn, range(ITEMS), reuse=True))
            assert small.expected() == list(session.map(small, range(ITEMS), reuse=True))
    assert (ITEMS, ITEMS) == (fn.calls, small.calls)
