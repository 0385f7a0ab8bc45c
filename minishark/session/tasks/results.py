"""The results of a map: its input is read, and its calls are sent, as the results are taken."""

from __future__ import annotations

import itertools
import secrets
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

from minishark.dataframe.doors import door
from minishark.errors import OptionError
from minishark.session.tasks.call import Call, CallOptions
from minishark.session.tasks.functions import Function
from minishark.session.tasks.future import read
from minishark.session.tasks.kept import Naming
from minishark.session.tasks.pool import CallPool
from minishark.worker.protocol import PythonOutcome

T = TypeVar("T")

_AHEAD_MAX = 8_192  # calls that are under way, or done and not taken
_AHEAD_BYTES = 64 << 20
_CHUNK_S = 0.02  # so long takes a chunk, if its size was not given
_CHUNK_MAX = 1 << 17
_GROWTH = 4
_FIRST_CHUNKS = 4  # per slot, before it is known how long an item takes


@dataclass(slots=True, eq=False, kw_only=True)
class _Chunk:
    """Some items' call, and how it ended."""

    first: int
    size: int
    nbytes: int = 0
    outcome: PythonOutcome | None = None
    node: str = ""
    error: Exception | None = None
    call: Call | None = None
    is_done: bool = False


@dataclass(slots=True, kw_only=True)
class MapPlan:
    """What a map does.

    Attributes:
        function: what is called for each chunk of items.
        options: how the calls run.
        items: the input.
        chunksize: items per call; None for as many as take some milliseconds.
        total: the number of items, if it is known.
        slots: how many calls run at once.
        ordered: whether results come in the order of the items, not as they are done.
        deadline_s: when to give up, by the monotonic clock.
        naming: how the calls are named; None if what they return is not kept.
    """

    function: Function
    options: CallOptions
    items: Iterator[Any]
    chunksize: int | None
    total: int | None
    slots: int
    ordered: bool = True
    deadline_s: float | None = None
    naming: Naming | None = None

    def __post_init__(self) -> None:
        if self.chunksize is not None and self.chunksize < 1:
            raise OptionError("chunksize must be at least 1.")


class Results(Iterator[T], Generic[T]):
    """An iterator over the results of a map.

    Only a bounded number of calls is ahead of what has been taken, so the input may be endless. The
    first exception ends it, and cancels the rest; so does `close`, or forgetting it.

    Attributes:
        done: the number of items whose results have come.
        total: the number of all items; None if the input does not tell.
    """

    def __init__(self, pool: CallPool, plan: MapPlan) -> None:
        self.done = 0
        self.total = plan.total
        self._pool = pool
        self._plan = plan
        self._options = replace(plan.options, group=secrets.token_hex(4))
        self._chunks: deque[_Chunk] = deque()  # not taken, in order
        self._ready: deque[_Chunk] = deque()  # done and not taken, in the order of their ends
        self._arrived = threading.Condition()
        self._awaited: _Chunk | None = None
        self._ahead = 0
        self._ahead_bytes = 0
        self._read = 0
        self._values: Iterator[T] = iter(())
        self._exhausted = False
        self._failure: Exception | None = None  # of the input
        self._size = 1  # of the last chunk
        self._item_s: float | None = None  # what an item of the last chunk that ended took
        self._refill()
        if not self._chunks:
            self._check_input()

    # Input

    def _refill(self) -> None:
        """Read more items and send them, as far as there is room."""
        calls: list[Call] = []
        # Half of the room at a time: jobs of many calls cost less than as many small ones.
        if self._exhausted or 2 * self._ahead > _AHEAD_MAX or 2 * self._ahead_bytes > _AHEAD_BYTES:
            return
        room = self._room()
        while room > 0 and self._ahead_bytes < _AHEAD_BYTES and not self._exhausted:
            call = self._next_call()
            if call is not None:
                calls.append(call)
                room -= 1
        if calls:
            self._pool.submit(calls)

    def _next_call(self) -> Call | None:
        """The call for the next items; None if there are none, or the input fails."""
        plan, items = self._plan, list[Any]()
        try:
            # Not a new list: `extend` keeps what came before an error.
            items.extend(itertools.islice(plan.items, self._chunk_size()))
        except Exception as error:  # noqa: BLE001 - raised after the results of what came before
            self._failure = error
        self._exhausted = self._failure is not None or not items
        if not items:
            return None
        chunk = _Chunk(first=self._read, size=len(items))
        receiver = _Receiver(weakref.ref(self), chunk)
        try:
            call = self._pool.call(
                receiver, plan.function, (items,), {}, self._options, plan.naming
            )
        except OptionError as error:  # an item can't be pickled
            self._failure, self._exhausted = error, True
            return None
        chunk.call, chunk.nbytes = call, len(call.payload)
        self._read += len(items)
        self._ahead += 1
        self._ahead_bytes += chunk.nbytes
        self._chunks.append(chunk)
        return call

    def _check_input(self) -> None:
        """Raise what the input raised, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _room(self) -> int:
        room = _AHEAD_MAX - self._ahead
        if self._plan.chunksize is None:
            # A few at first, or most of the items would be in chunks of one.
            room = min(room, _FIRST_CHUNKS * self._plan.slots - self._ahead)
        return room

    def _chunk_size(self) -> int:
        plan = self._plan
        if plan.chunksize is not None:
            return plan.chunksize
        if plan.total is not None:
            share = -(-plan.total // (_FIRST_CHUNKS * plan.slots))
            return max(1, min(share, _CHUNK_MAX))
        if self._item_s is None:
            return 1
        # Grown step by step, as the first items may not be like the others.
        size = int(_CHUNK_S / max(self._item_s, _CHUNK_S / _CHUNK_MAX))
        self._size = max(1, min(_GROWTH * self._size, size))
        return self._size

    # Arrival, on the cluster's thread

    def arrived(self, chunk: _Chunk) -> None:
        """A chunk's call has ended."""
        with self._arrived:
            chunk.is_done = True
            self.done += chunk.size
            if chunk.call is not None and chunk.call.ran_s is not None:
                self._item_s = chunk.call.ran_s / chunk.size
            chunk.call = None  # which refers to the chunk: a cycle would keep results too long
            if not self._plan.ordered:
                self._ready.append(chunk)
            if not self._plan.ordered or chunk is self._awaited:
                self._arrived.notify_all()

    # Output

    def __iter__(self) -> Iterator[T]:  # noqa: PYI034 - see below
        # A loop in C over the values of a chunk; what a loop leaves is there for the next.
        return itertools.chain.from_iterable(self._parts())

    @door
    def _parts(self) -> Iterator[Iterator[T]]:
        yield self._values
        while self._advance():
            yield self._values

    @door
    def __next__(self) -> T:
        while True:
            for value in self._values:
                return value
            if not self._advance():
                raise StopIteration

    def _advance(self) -> bool:
        """Go on to the values of the next chunk; whether there is one."""
        try:
            self._refill()
            if not self._chunks:
                self._check_input()
                return False
            chunk = self._take()
            if chunk is None:
                return False
            self._ahead -= 1
            self._ahead_bytes -= chunk.nbytes
            self._values = iter(self._values_of(chunk))
        except BaseException:  # also Ctrl-C: nobody wants the rest
            self.close()
            raise
        return True

    def _take(self) -> _Chunk | None:
        """The next chunk that is done; waits for it. None if another thread has closed this."""
        with self._arrived:
            while self._chunks:
                if self._plan.ordered and self._chunks[0].is_done:
                    return self._chunks.popleft()
                if self._ready:
                    chunk = self._ready.popleft()
                    self._chunks.remove(chunk)
                    return chunk
                self._awaited = self._chunks[0]
                self._help()
                self._arrived.wait(self._left_s())
            return None

    def _help(self) -> None:
        call = self._chunks[0].call
        if call is not None and call.nested_in is not None:
            call.nested_in.help()

    def _left_s(self) -> float | None:
        if self._plan.deadline_s is None:
            return None
        left_s = self._plan.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("The results have not come in time.")
        return left_s

    def _values_of(self, chunk: _Chunk) -> Sequence[T]:
        if chunk.error is not None:
            raise chunk.error
        assert chunk.outcome is not None
        if chunk.outcome.problem is not None:
            label = self._plan.function.label
            raise self._pool.error(label, chunk.outcome, chunk.node, chunk.first)
        values: Sequence[T] = read(self._pool, chunk.outcome)
        return values

    def close(self) -> None:
        """Cancel what has not been taken; there are no more results."""
        with self._arrived:
            chunks = list(self._chunks)
            self._chunks.clear()
            self._ready.clear()
            self._exhausted = True
            self._failure = None
            self._values = iter(())
            self._arrived.notify_all()  # a thread may wait for what will not come
        self._pool.cancel([chunk.call for chunk in chunks if chunk.call is not None])
        for chunk in chunks:
            if chunk.outcome is not None:
                self._pool.discard(chunk.outcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_chunks", None) and not sys.is_finalizing():
            self.close()


@dataclass(slots=True)
class _Receiver:
    """Tells a map how the call of a chunk has ended."""

    results: weakref.ref[Results[Any]]  # whoever forgets the results, cancels them
    chunk: _Chunk

    def returned(self, outcome: PythonOutcome, node: str) -> None:
        self.chunk.outcome, self.chunk.node = outcome, node
        self._arrived()

    def failed(self, error: Exception) -> None:
        self.chunk.error = error
        self._arrived()

    def _arrived(self) -> None:
        results = self.results()
        if results is not None:
            results.arrived(self.chunk)


def length_of(iterables: Sequence[Iterable[Any]]) -> int | None:
    """How many items a map over these has, if they tell."""
    try:
        return min(len(iterable) for iterable in iterables)  # type: ignore[arg-type]
    except TypeError:
        return None
