"""The files of large arguments and results, in one folder of the session.

Arguments are addressed by their content, so that an array that many tasks get is stored once, and
an array that was changed meanwhile is stored anew. A file is removed when no call needs it any
more, except for the latest ones, which the next call may share.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from minishark.worker.protocol import FileSlice
from minishark.worker.store import Store
from minishark.worker.values import Sink, write_file

_UNUSED_MAX = 8
_UNUSED_BYTES = 256 << 20


@dataclass(slots=True)
class _Stored:
    """A file of an argument, and how many calls need it."""

    item: FileSlice
    digest: bytes
    nbytes: int
    uses: int = 0


class Files:
    """Large parts of values that this process sends and gets; safe to use from several threads.

    Attributes:
        folder: relative to each node's storage folder.
        store: this process's view of stored files, with the nodes that live now.
    """

    def __init__(self, folder: str, store: Callable[[], Store], make: Callable[[], None]) -> None:
        """Files in a folder, which `make` creates on all nodes when the first is needed."""
        self.folder = folder
        self.store = store
        self._make = make
        self._is_made = False
        self._stored: dict[bytes, _Stored] = {}
        self._by_name: dict[str, _Stored] = {}
        self._unused: OrderedDict[bytes, None] = OrderedDict()
        self._unused_bytes = 0
        self._unread: dict[str, tuple[str, ...]] = {}  # where results lie, by file
        self._numbers = itertools.count()
        # Guards the above; never held while files are written, as the cluster's thread needs it.
        # Finalizers may come while it is held.
        self._lock = threading.RLock()
        self._making = threading.Lock()
        self._writing: dict[bytes, threading.Event] = {}  # by digest; set when it is over

    def make_folder(self) -> None:
        """Create the folder, unless it was."""
        if self._is_made:
            return
        with self._making:
            if not self._is_made:
                self._make()
                self._is_made = True

    def put(self, data: memoryview) -> FileSlice:
        """Store bytes, unless they are; `release` the file later.

        Raises:
            OSError: memory and disk are full.
        """
        self.make_folder()
        digest = hashlib.sha256(data).digest()
        while True:
            with self._lock:
                item = self._used(digest)
                other = self._writing.get(digest)
                if item is None and other is None:
                    written = self._writing[digest] = threading.Event()
                    break
            if item is not None:
                return item
            assert other is not None
            other.wait()  # another thread writes the same bytes; if that fails, this one will
        try:
            name = f"{self.folder}/{digest.hex()[:32]}-{os.getpid()}-{next(self._numbers)}"
            item = write_file(data, name, self.store())
            with self._lock:
                stored = self._stored[digest] = _Stored(item, digest, data.nbytes, uses=1)
                self._by_name[name] = stored
            return item
        finally:
            with self._lock:
                del self._writing[digest]
            written.set()

    def _used(self, digest: bytes) -> FileSlice | None:
        """The file of these bytes, for one more call; None if there is none. The lock is held."""
        stored = self._stored.get(digest)
        if stored is None:
            return None
        if not stored.uses:
            del self._unused[digest]
            self._unused_bytes -= stored.nbytes
        stored.uses += 1
        return stored.item

    @contextlib.contextmanager
    def storing(self) -> Iterator[Sink]:
        """`put` for a block that pickles something: if it raises, nobody needs what it stored."""
        stored: list[FileSlice] = []

        def put(data: memoryview) -> FileSlice:
            stored.append(self.put(data))
            return stored[-1]

        try:
            yield put
        except BaseException:
            self.release(stored)
            raise

    def release(self, items: Iterable[FileSlice]) -> None:
        """A call does not need these files of `put` any more."""
        unwanted: list[FileSlice] = []
        with self._lock:
            for item in items:
                stored = self._by_name[item.file]
                stored.uses -= 1
                if not stored.uses:
                    self._unused[stored.digest] = None
                    self._unused_bytes += stored.nbytes
            while len(self._unused) > _UNUSED_MAX or self._unused_bytes > _UNUSED_BYTES:
                digest, _ = self._unused.popitem(last=False)
                stored = self._stored.pop(digest)
                del self._by_name[stored.item.file]
                self._unused_bytes -= stored.nbytes
                unwanted.append(stored.item)
        self.remove(unwanted)

    def keep(self, items: Iterable[FileSlice]) -> None:
        """These are a result that somebody may ask for, until they are removed."""
        with self._lock:
            self._unread.update((item.file, item.locations) for item in items)

    def unread_nodes(self) -> frozenset[str]:
        """The nodes that have results which nobody has asked for yet."""
        with self._lock:
            return frozenset(node for nodes in self._unread.values() for node in nodes)

    def remove(self, items: Iterable[FileSlice]) -> None:
        """Delete files: those of this host at once, those of others soon."""
        store = self.store()
        for item in items:
            store.remove(item)
            self.forget((item,))

    def forget(self, items: Iterable[FileSlice]) -> None:
        """Nobody will ask for these results any more."""
        with self._lock:
            for item in items:
                self._unread.pop(item.file, None)
