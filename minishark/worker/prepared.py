"""Prepared statements for fragments that come again over the same stored files.

For small data, parsing, binding and optimizing take most of a task's time. A fragment is prepared
when it comes a second time: most never do, and a prepared one keeps its plan and its files mapped.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from minishark.worker.dictionary_codes import CodedInputs
from minishark.worker.protocol import FileSlice

Inputs = Mapping[str, tuple[FileSlice, ...]]
Scope = Mapping[str, pa.Table]
_PREPARED_MAX = 64
_SEEN_MAX = 1024


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A prepared statement, the tables that its names mean, and the folders of their files."""

    name: str
    scope: Scope
    folders: frozenset[str]


class PreparedFragments:
    """The prepared statements of one DuckDB connection."""

    def __init__(self) -> None:
        self._seen: OrderedDict[int, None] = OrderedDict()  # hashes: most are never needed again
        self._known: OrderedDict[Hashable, _Prepared] = OrderedDict()
        self._numbers = itertools.count()

    def statement(
        self,
        sql: str,
        inputs: Inputs,
        settings: Hashable,
        scope: Callable[[], CodedInputs],
        run: Callable[[str, Scope], object],
    ) -> tuple[str, Scope]:
        """The statement to run for a fragment: its SQL, or an EXECUTE of the prepared one.

        Its plan depends on the `inputs`, files that never change, and on the `settings`. A fragment
        over tables in memory is not prepared, as that would keep them.

        Returns:
            The SQL, and the scope to run it in: DuckDB may have to bind a statement again.

        Raises:
            duckdb.Error: DuckDB does not accept the fragment.
        """
        key = (sql, tuple(inputs.items()), settings)
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return f"EXECUTE {known.name}", known.scope
        found = scope()
        tables = found.tables
        if hash(key) not in self._seen:
            self._seen[hash(key)] = None
            if len(self._seen) > _SEEN_MAX:
                self._seen.popitem(last=False)
            return sql, tables
        if not found.are_mapped:
            return sql, tables
        if len(self._known) >= _PREPARED_MAX:
            self._drop(next(iter(self._known)), lambda text: run(text, {}))
        name = f"fragment_{next(self._numbers)}"
        run(f"PREPARE {name} AS {sql}", tables)
        files = (item.file for slices in inputs.values() for item in slices)
        folders = frozenset(file.rpartition("/")[0] for file in files)
        self._known[key] = _Prepared(name, tables, folders)
        return f"EXECUTE {name}", tables

    def folders(self) -> frozenset[str]:
        return frozenset().union(*[known.folders for known in list(self._known.values())])

    def forget(self, folders: Collection[str], run: Callable[[str], object]) -> None:
        """Deallocate the statements that read files in these folders."""
        read = [key for key, each in self._known.items() if not each.folders.isdisjoint(folders)]
        for key in read:
            self._drop(key, run)

    def _drop(self, key: Hashable, run: Callable[[str], object]) -> None:
        run(f"DEALLOCATE {self._known[key].name}")  # may be interrupted: then it is still known
        del self._known[key]

    def clear(self) -> None:
        """Forget all of them: the connection was closed."""
        self._seen.clear()
        self._known.clear()
