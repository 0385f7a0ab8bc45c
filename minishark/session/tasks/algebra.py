"""What calls do with the items of a partition, for `session.tasks.items`; pure but for files."""

from __future__ import annotations

import bisect
import copy
import datetime as dt
import functools
import itertools
import os
import random
import selectors
import shlex
import subprocess
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import cloudpickle

from minishark.errors import OptionError
from minishark.worker.protocol import FileSlice, Value
from minishark.worker.values import dump, load_small

_NEVER = 1 << 62  # bytes, from which on a part of a pickle would be stored apart
_SAMPLE = 200  # keys of each partition
_PIPE_BYTES = 1 << 16
_LOOK_S = 0.1  # an interruption comes after a wait at the latest
_FOREVER_S = 1e9  # with a limit, a wait is made of short ones
_NUMBERS = (int, float, Decimal, Fraction, complex)


# Buckets


def stable_hash(key: Any) -> int:
    """A hash that is the same in all processes, and equal for equal keys.

    Raises:
        OptionError: of keys of that type there is none.
    """
    match key:
        case None:
            return 0
        case str():
            return zlib.crc32(key.encode("utf-8", "surrogatepass"))
        case bytes():
            return zlib.crc32(key)
        case tuple() | frozenset():
            parts = map(stable_hash, key)
            listed = parts if isinstance(key, tuple) else sorted(parts)
            return functools.reduce(lambda a, b: (a * 1_000_003 ^ b) & 0xFFFFFFFF, listed, len(key))
        case dt.datetime() if key.tzinfo is not None:
            return stable_hash(key.astimezone(dt.UTC).isoformat())
        case dt.date() | dt.time():
            return stable_hash(key.isoformat())
        case dt.timedelta():
            return stable_hash(key.total_seconds())
    if isinstance(key, _NUMBERS):
        return hash(key)  # of numbers, Python's is the same everywhere
    raise OptionError(
        f"A {type(key).__name__} can't be a key: keys are numbers, texts, bytes, dates, times, "
        "None, and tuples of these."
    )


@dataclass(frozen=True, slots=True)
class ByKey:
    """The bucket of a pair's key."""

    count: int

    def __call__(self, pair: Any) -> int:
        return stable_hash(pair[0]) % self.count


@dataclass(frozen=True, slots=True)
class ByFunction:
    """The bucket that a user's function of the key says."""

    count: int
    fn: Callable[[Any], int]

    def __call__(self, pair: Any) -> int:
        return int(self.fn(pair[0])) % self.count


@dataclass(frozen=True, slots=True)
class Range:
    """The bucket of a range of sort keys."""

    key: Callable[[Any], Any]
    limits: tuple[Any, ...]
    ascending: bool
    count: int

    def __call__(self, item: Any) -> int:
        place = bisect.bisect_right(self.limits, self.key(item))
        return place if self.ascending else self.count - 1 - place


class RoundRobin:
    """One bucket after another."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._next = itertools.count()

    def __call__(self, _: Any) -> int:
        return next(self._next) % self._count

    def __reduce__(self) -> tuple[Any, ...]:
        return RoundRobin, (self._count,)


# Exchanges


def _refused(data: memoryview) -> FileSlice:  # noqa: ARG001 - a sink
    message = "no part of these pickles is stored apart"
    raise AssertionError(message)


def pickled(items: list[Any]) -> bytes:
    return dump(items, _refused, large_bytes=_NEVER).pickled


@dataclass(frozen=True, slots=True)
class Pickled:
    """All items as one pickle."""

    def __call__(self, items: Iterator[Any]) -> bytes:
        return pickled(list(items))


@dataclass(frozen=True, slots=True)
class Divided:
    """The items of each bucket as a pickle; empty for none."""

    bucket: Callable[[Any], int]
    count: int

    def __call__(self, items: Iterator[Any]) -> list[bytes]:
        buckets: list[list[Any]] = [[] for _ in range(self.count)]
        for item in items:
            buckets[self.bucket(item)].append(item)
        return [pickled(bucket) if bucket else b"" for bucket in buckets]


@dataclass(frozen=True, slots=True)
class Pieces:
    """A partition of pickles, which are read one after another."""

    pieces: list[bytes]

    def __iter__(self) -> Iterator[Any]:
        for piece in self.pieces:
            yield from load_small(Value(piece))


# Transformations and actions


@dataclass(frozen=True, slots=True)
class WithIndex:
    """A function of a partition's number and items."""

    fn: Callable[[int, Iterator[Any]], Iterable[Any]]
    first: int  # the number of the first partition

    def of(self, number: int, items: Iterator[Any]) -> Iterable[Any]:
        return self.fn(self.first + number, items)

    def __call__(self, items: Iterator[Any]) -> Iterable[Any]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Sampled:
    """The items whose random number is from `low` to `high`."""

    high: float
    seed: int | None
    low: float = 0.0

    def __call__(self, number: int, items: Iterator[Any]) -> Iterator[Any]:
        generator = random.Random(None if self.seed is None else f"{self.seed} {number}")
        return (item for item in items if self.low <= generator.random() < self.high)


@dataclass(frozen=True, slots=True)
class SampledByKey:
    """The pairs whose random number is below the share of their key."""

    shares: dict[Any, float]
    seed: int | None

    def __call__(self, number: int, items: Iterator[Any]) -> Iterator[Any]:
        generator = random.Random(None if self.seed is None else f"{self.seed} {number}")
        return (pair for pair in items if generator.random() < self.shares.get(pair[0], 0.0))


def seeded(seed: int | None) -> int:
    """A seed, or a random one, so that several samples fit each other."""
    return random.randrange(1 << 62) if seed is None else seed


def bounds(weights: Sequence[float]) -> list[float]:
    """The shares of weights, added up from 0 to 1."""
    if not weights or any(weight <= 0 for weight in weights):
        raise OptionError("random_split() takes positive weights.")
    total = sum(weights)
    return [0.0, *itertools.accumulate(weight / total for weight in weights[:-1]), 1.0]


@dataclass(frozen=True, slots=True)
class Sample:
    """Some items' sort keys."""

    key: Callable[[Any], Any]

    def __call__(self, items: Iterator[Any]) -> list[Any]:
        keys = list(map(self.key, items))
        step = max(1, len(keys) // _SAMPLE)
        return sorted(keys)[::step]


def fresh(zero: Any) -> Any:
    """A copy of an initial value, which functions may change."""
    return copy.deepcopy(zero)


@dataclass(frozen=True, slots=True)
class Folded:
    """The items into one value, which begins as `zero`."""

    zero: Any
    fn: Callable[[Any, Any], Any]

    def __call__(self, items: Iterator[Any]) -> Any:
        return functools.reduce(self.fn, items, fresh(self.zero))


@dataclass(frozen=True, slots=True)
class Each:
    """A call for each item; no result."""

    fn: Callable[[Any], Any]

    def __call__(self, items: Iterator[Any]) -> list[Any]:
        for item in items:
            self.fn(item)
        return []


@dataclass(frozen=True, slots=True)
class OfPartition:
    """A call for a partition; no result."""

    fn: Callable[[Iterator[Any]], Any]

    def __call__(self, items: Iterator[Any]) -> list[Any]:
        self.fn(items)
        return []


@dataclass(frozen=True, slots=True)
class TextFile:
    """A partition's items as lines of a file."""

    path: str

    def __call__(self, number: int, items: Iterator[Any]) -> list[Any]:
        with (Path(self.path) / f"part-{number:05}").open("w") as out:
            out.writelines(f"{item}\n" for item in items)
        return []


@dataclass(frozen=True, slots=True)
class PickleFile:
    """A partition's items as pickles in a file."""

    path: str

    def __call__(self, number: int, items: Iterator[Any]) -> list[Any]:
        with (Path(self.path) / f"part-{number:05}").open("wb") as out:
            for item in items:
                out.write(cloudpickle.dumps(item))
        return []


@dataclass(frozen=True, slots=True)
class Piped:
    """The lines that a command writes for a partition's items, which it reads as lines.

    Neither is held as a whole. All is done on the thread of the call, which can be interrupted.
    """

    command: str
    env: dict[str, str]
    checks: bool

    def __call__(self, items: Iterator[Any]) -> Iterator[str]:
        lines = (f"{item}".rstrip("\n").encode() + b"\n" for item in items)
        process = subprocess.Popen(
            shlex.split(self.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **self.env},
        )
        with process:
            try:
                begun: list[bytes] = []  # a line whose end has not come
                for data in _exchanged(process, _in_chunks(lines)):
                    *ends, rest = data.split(b"\n")
                    for end in ends:
                        yield b"".join((*begun, end)).decode()
                        begun.clear()
                    begun.append(rest)
                if last := b"".join(begun):
                    yield last.decode()
                if process.wait(_FOREVER_S) and self.checks:
                    raise subprocess.CalledProcessError(process.returncode, self.command)
            finally:
                process.kill()  # unless it has ended


def _in_chunks(lines: Iterator[bytes]) -> Iterator[bytes]:
    gathered: list[bytes] = []
    size = 0
    for line in lines:
        gathered.append(line)
        size += len(line)
        if size >= _PIPE_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    yield b"".join(gathered)


def _exchanged(process: subprocess.Popen[bytes], chunks: Iterator[bytes]) -> Iterator[bytes]:
    """What a process writes, while it is given chunks as fast as it reads them."""
    assert process.stdin is not None
    assert process.stdout is not None
    os.set_blocking(process.stdin.fileno(), False)
    views = (memoryview(chunk) for chunk in chunks)  # what is left of one is no copy
    waiting = next(views, None)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(_LOOK_S):
                if key.fileobj is process.stdout:
                    data = os.read(key.fd, _PIPE_BYTES)
                    if not data:
                        selector.unregister(process.stdout)
                    yield data
                else:
                    assert waiting is not None
                    try:
                        waiting = waiting[os.write(key.fd, waiting) :]
                    except BrokenPipeError:  # it wants no more
                        waiting = None
                    else:
                        waiting = waiting or next(views, None)
                    if waiting is None:
                        selector.unregister(process.stdin)
                        process.stdin.close()
