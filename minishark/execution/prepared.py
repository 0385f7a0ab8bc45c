"""Fragments that come again over the same stored files: parsed, bound and optimized once.

For small data that is most of a task's time. A fragment is prepared when it comes a second time:
most never do, and what is prepared keeps its plan and its files mapped.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping

from minishark.execution.task import FileSlice

Inputs = Mapping[str, tuple[FileSlice, ...]]
_PREPARED_MAX = 64
_SEEN_MAX = 1024


class PreparedFragments:
    """The prepared statements of one DuckDB connection."""

    def __init__(self) -> None:
        self._seen: OrderedDict[int, None] = OrderedDict()  # hashes: most are never needed again
        self._names: OrderedDict[Hashable, str] = OrderedDict()
        self._folders: dict[Hashable, frozenset[str]] = {}
        self._numbers = itertools.count()

    def statement(
        self, sql: str, inputs: Inputs, settings: Hashable, run: Callable[[str], object]
    ) -> str:
        """What to run for a fragment: itself, or the statement that was prepared for it.

        Args:
            sql: the fragment.
            inputs: what it reads: files that never change.
            settings: what else its plan depends on.
            run: runs SQL where the inputs are known.

        Raises:
            duckdb.Error: DuckDB does not accept the fragment.
        """
        key = (sql, tuple(inputs.items()), settings)
        name = self._names.get(key)
        if name is not None:
            self._names.move_to_end(key)
            return f"EXECUTE {name}"
        if hash(key) not in self._seen:
            self._seen[hash(key)] = None
            if len(self._seen) > _SEEN_MAX:
                self._seen.popitem(last=False)
            return sql
        if len(self._names) >= _PREPARED_MAX:
            self._drop(next(iter(self._names)), run)
        name = f"fragment_{next(self._numbers)}"
        run(f"PREPARE {name} AS {sql}")
        self._names[key] = name
        files = (item.file for slices in inputs.values() for item in slices)
        self._folders[key] = frozenset(file.rpartition("/")[0] for file in files)
        return f"EXECUTE {name}"

    def folders(self) -> frozenset[str]:
        """The folders of all files that are held."""
        return frozenset().union(*list(self._folders.values()))

    def forget(self, folders: Collection[str], run: Callable[[str], object]) -> None:
        """Let go of what reads files in these folders."""
        for key in [k for k, read in self._folders.items() if not read.isdisjoint(folders)]:
            self._drop(key, run)

    def _drop(self, key: Hashable, run: Callable[[str], object]) -> None:
        run(f"DEALLOCATE {self._names[key]}")  # may be interrupted: then it is still known
        del self._names[key], self._folders[key]

    def clear(self) -> None:
        """Forget all, as the connection is closed."""
        self._seen.clear()
        self._names.clear()
        self._folders.clear()
