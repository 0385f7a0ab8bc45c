"""Outputs that have names, for later queries: which there are, who reads them, and which go.

    missing ──claim──► being computed ──keep──► kept ──least recently used, over the quota──► gone
                            │   ▲                │
                            │   └─ others wait   └─ lost with its node, or damaged: gone
                            └─ given up: one of those that wait computes it

The files are the nodes' (`worker/outputs.py` writes them under their names), and this is what is
known of them: an entry that is wrong about a file costs a task, never an answer, as lost outputs
are computed again.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from minishark.query.call_segments import CallSegments
from minishark.query.names import Leaves
from minishark.worker.protocol import KeptOutput

_ENTRY_BYTES = 1_000  # of what is known of an output, about

RANDOM: Callable[[], str] = partial(secrets.token_hex, 16)
"""Gives random texts."""

Waiter = Callable[[KeptOutput | None], None]
"""Told of an output that another query has computed; None if that gave it up."""


class Shared(Protocol):
    """Outputs that belong to the nodes, for all sessions (`cluster/outputs.py`)."""

    def find(self, names: Sequence[str]) -> Mapping[str, KeptOutput]:
        """Those of the outputs that are known."""

    def absent(self, names: Sequence[str]) -> frozenset[str]:
        """Those of the outputs that nobody has, as far as one look tells; may be none of them."""

    def lease(self, outputs: Mapping[str, KeptOutput]) -> frozenset[str]:
        """The names of those that are there, and stay until they are released."""

    def hold(self, output: KeptOutput) -> None:
        """An output that is new stays until it is released; does not wait."""

    def release(self, outputs: Iterable[KeptOutput]) -> None:
        """Outputs were read."""

    def keep(self, outputs: Mapping[str, KeptOutput]) -> None:
        """Let others find outputs."""

    def close(self) -> None:
        """Tell what others are to find, if that does not take long."""


@dataclass(slots=True, kw_only=True)
class Reuse:
    """The named outputs that a session knows; safe to use from several threads.

    Attributes:
        folder: where nodes keep their files, relative to their storage folders.
        chance: gives a random text, another one each time.
        token: such a text, part of the names of what only this session has.
        quota_bytes: the size of all of them, at most.
        remove: deletes files, each with its node.
        now_s: the time, in seconds since 1970.
    """

    folder: str
    quota_bytes: int
    remove: Callable[[Sequence[tuple[str, str]]], None]
    chance: Callable[[], str] = RANDOM
    token: str = field(init=False)
    now_s: Callable[[], float] = time.time
    shared: Shared | None = None  # None: nobody else has any
    # Makes what a run keeps of calls for other clusters; None for none.
    calls: Callable[[], CallSegments] | None = None
    # Names that files of tables have beside their paths, the same in every session.
    contents: MutableMapping[str, str] = field(default_factory=dict)
    _kept: OrderedDict[str, KeptOutput] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _held: Counter[str] = field(default_factory=Counter)  # how many queries read each
    # Who computes an output, and who waits for it.
    _claims: dict[str, tuple[str, list[Waiter]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.token = self.chance()

    def take(self, names: Sequence[str]) -> dict[str, KeptOutput]:
        """Those of the outputs that there are, which stay until they are `given` back."""
        if self.shared is not None:
            return self._take_shared(self.shared, tuple(dict.fromkeys(names)))
        return self._take(names)

    def _take_shared(self, shared: Shared, names: Sequence[str]) -> dict[str, KeptOutput]:
        held = self.look(names)
        left = [name for name in names if name not in held]
        others = shared.find(left) if left else {}
        for name, output in others.items():
            self._put(name, output)
        there = shared.lease({**held, **others})
        waiting: list[tuple[Waiter, KeptOutput]] = []
        with self._lock:
            for name in (*held, *others):
                if name not in there and name in self._kept:
                    self._forget(name)
            # Who has claimed it may take it, too, and then compute nothing.
            for name in (name for name in others if name in there):
                waiting += [(tell, others[name]) for tell in self._claims.pop(name, ("", []))[1]]
        for tell, output in waiting:
            tell(output)
        return self._take(there)

    def absent(self, names: Sequence[str]) -> frozenset[str]:
        """Those of the outputs that need not be asked for one by one, as nobody else has them."""
        if self.shared is None:
            return frozenset()
        held = self.look(names)
        return self.shared.absent([name for name in names if name not in held])

    def look(self, names: Sequence[str]) -> dict[str, KeptOutput]:
        """Those of the outputs that this session knows, which may go at any time."""
        with self._lock:
            return {name: self._kept[name] for name in names if name in self._kept}

    def _take(self, names: Iterable[str]) -> dict[str, KeptOutput]:
        with self._lock:
            outputs = {name: self._kept[name] for name in names if name in self._kept}
            for name in outputs:
                self._kept.move_to_end(name)
                self._held[name] += 1
            return outputs

    def hold(self, names: Iterable[str]) -> None:
        """A query reads outputs that it has just computed, until it lets go of them."""
        with self._lock:
            self._held.update(names)

    @property
    def leaves(self) -> Leaves:
        """How what is read from outside of queries is named."""
        return Leaves(self.token, self.contents, self.now_s)

    def give(self, names: Iterable[str]) -> None:
        """A query has read outputs that it took."""
        names = tuple(names)
        if self.shared is not None:
            self.shared.release(self.look(names).values())
        self.let_go(names)

    def let_go(self, names: Iterable[str]) -> None:
        """A query has read outputs that it held."""
        with self._lock:
            for name in names:
                self._held[name] -= 1
                if self._held[name] <= 0:
                    del self._held[name]
            gone = self._over(self.quota_bytes)
        self._remove(gone)

    def keep(self, outputs: Mapping[str, KeptOutput]) -> None:
        """Outputs were computed; those who wait for them hear of them."""
        for name, output in outputs.items():
            self._put(name, output)
            with self._lock:
                _, waiting = self._claims.pop(name, ("", []))
            for tell in waiting:
                tell(output)
        with self._lock:
            gone = self._over(self.quota_bytes)
        self._remove(gone)
        if self.shared is not None:
            self.shared.keep(outputs)

    def _put(self, name: str, output: KeptOutput) -> None:
        with self._lock:
            old = self._kept.pop(name, None)
            self._bytes += _size(output) - (_size(old) if old is not None else 0)
            self._kept[name] = output
        if old is not None and old.outcome.file not in (None, output.outcome.file):
            self._remove([old])

    def lost(self, files: Collection[str]) -> None:
        """Files are gone, or damaged."""
        if not files:
            return  # each query asks, and much may be kept
        with self._lock:
            for name, output in list(self._kept.items()):
                if output.outcome.file in files:
                    self._forget(name)

    def make_room(self) -> None:
        """Tables need the space: remove what nobody reads."""
        with self._lock:
            gone = self._over(0)
        self._remove(gone)

    def _over(self, limit_bytes: int) -> list[KeptOutput]:
        """Forget outputs until the rest fits into so many bytes."""
        gone = []
        if self._bytes > limit_bytes:
            for name in [name for name in self._kept if name not in self._held]:
                gone.append(self._forget(name))
                if self._bytes <= limit_bytes:
                    break
        return gone

    def _forget(self, name: str) -> KeptOutput:
        output = self._kept.pop(name)
        self._bytes -= _size(output)
        assert self._bytes >= 0, "all that is kept is counted"
        return output

    def _remove(self, outputs: Iterable[KeptOutput]) -> None:
        files = [(o.outcome.file, at) for o in outputs if o.outcome.file for at in o.nodes]
        if files:
            self.remove(files)

    def close(self) -> None:
        """The session ends."""
        if self.shared is not None:
            self.shared.close()

    @property
    def bytes(self) -> int:
        """The size of all that is kept."""
        return self._bytes

    # What is being computed

    def claim(self, name: str, owner: str, tell: Waiter) -> bool:
        """Say that somebody computes an output; False if another does so, or has done so.

        Then `tell` is called with what comes of that. Whoever has claimed it may do so again.
        """
        with self._lock:
            output = self._kept.get(name)
            if output is None:
                other, waiting = self._claims.setdefault(name, (owner, []))
                if other == owner:
                    return True
                waiting.append(tell)
                return False
        tell(output)
        return False

    def disclaim(self, owners: Mapping[str, str]) -> None:
        """Somebody, by the name of the output, does not compute that after all."""
        waiting: list[Waiter] = []
        with self._lock:
            for name, owner in owners.items():
                if name in self._claims and self._claims[name][0] == owner:
                    waiting += self._claims.pop(name)[1]
        for tell in waiting:
            tell(None)


def _size(output: KeptOutput) -> int:
    outcome = output.outcome
    return _ENTRY_BYTES + (outcome.figures.bytes if outcome.inline is None else len(outcome.inline))
