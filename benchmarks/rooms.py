"""Counts how often statements cross from one room of minishark to another, and which climb back.

    python benchmarks/rooms.py

A call crosses if the caller's module and the called one are in different rooms (`LAYERS` in
tests/test_architecture.py). It climbs if the called room is above the caller's: what is called has
been handed down then, as lower rooms do not import higher ones. Some rooms are vocabulary: what is
called there is a property or a text, and no step. Calls are those of the thread that runs the
statement, without those of executors, which run in other threads or processes.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

import minishark

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.test_architecture import LAYERS  # noqa: E402 - the root is on the path only now

_PACKAGE = str(ROOT / "minishark")
_VOCABULARY = ("model", "errors")
_LARGE = 400_000  # rows of two columns are more than the front end reads by itself


def room(frame: FrameType | None) -> str | None:
    """The room of a frame's module; None if it is not minishark's."""
    if frame is None or not frame.f_code.co_filename.startswith(_PACKAGE):
        return None
    return Path(frame.f_code.co_filename).relative_to(_PACKAGE).parts[0].removesuffix(".py")


def crossings(run: Callable[[], object]) -> Counter[tuple[str, str, str]]:
    """The calls from room to room, and the functions that they call, in this thread."""
    calls: Counter[tuple[str, str, str]] = Counter()
    generators: list[FrameType] = []  # held, so that each has an identity of its own

    def is_new(frame: FrameType) -> bool:
        if not frame.f_code.co_flags & CO_GENERATOR:
            return True
        if any(frame is known for known in generators):  # it is resumed
            return False
        generators.append(frame)
        return True

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        called, caller, below = room(frame), None, frame.f_back
        while below is not None and (caller := room(below)) is None:
            below = below.f_back
        if called is not None and caller is not None and called != caller and is_new(frame):
            calls[caller, called, frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def climbs(caller: str, called: str) -> bool:
    """Whether a call goes from a lower room to a higher one."""
    return called in LAYERS and caller in LAYERS and LAYERS.index(called) > LAYERS.index(caller)


def measured() -> Iterator[tuple[str, Counter[tuple[str, str, str]]]]:
    """The crossings of some statements, each of which has run once before."""
    rows = pa.table({"k": [1, 2, 3]})
    numbers = pa.array(range(_LARGE))
    with minishark.connect(in_process=True) as session:
        session.create_table("large", pa.table({"k": numbers, "v": numbers}))
        runs: dict[str, Callable[[], object]] = {
            "create_table": lambda: session.create_table("t", rows, replace=True),
            "INSERT": lambda: session.sql("INSERT INTO t VALUES (4)"),
            "UPDATE": lambda: session.sql("UPDATE t SET k = k + 1 WHERE k = 2"),
            "SELECT": lambda: session.sql("SELECT sum(k) FROM t").collect(),
            "UPDATE above 1 MB": lambda: session.sql("UPDATE large SET v = v + 1 WHERE k = 2"),
            "its SELECT": lambda: session.sql("SELECT * FROM large WHERE k = 2").collect(),
        }
        for name, run in runs.items():
            run()  # what is done once only is not counted
            yield name, crossings(run)


def main() -> None:
    details = "-v" in sys.argv[1:]
    for name, calls in measured():
        up = {key: count for key, count in calls.items() if climbs(*key[:2])}
        words = sum(count for key, count in calls.items() if key[1] in _VOCABULARY)
        print(
            f"{name}: {calls.total()} crossings, {sum(up.values())} of them up, "
            f"{words} into vocabulary"
        )
        for key, count in sorted((up if not details else calls).items(), key=lambda i: -i[1]):
            print(f"  {count:4} {' -> '.join(key)}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader may be `head`
    main()
