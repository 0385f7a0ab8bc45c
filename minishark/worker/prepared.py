"""Prepared statements for fragments that come again.

For small data, parsing, binding and optimizing take most of a task's time. A fragment is prepared
when it comes a second time: most never do, and a prepared one keeps its plan and its files mapped.

What stays the same are stored tables, which the statement reads directly. What is new in each run,
outputs of stages and what a task computes first, it reads through a `_Source` with the same columns
each time. DuckDB does not know how many rows that will bring, so only small ones are read that way.
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
Scope = Mapping[str, object]
_PREPARED_MAX = 256
_SEEN_MAX = 1024
_NEW_ROWS_MAX = 20_000


class _Source:
    """A relation whose rows change between two runs of a statement; DuckDB reads it as a stream."""

    def __init__(self, schema: pa.Schema) -> None:
        """Without rows until `table` is replaced."""
        self._empty = pa.Table.from_batches([], schema)
        self.table = self._empty

    def clear(self) -> None:
        """Release the rows."""
        self.table = self._empty

    def __arrow_c_schema__(self) -> object:
        return self.table.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A prepared statement, what its names mean, and the folders of its stored tables."""

    name: str
    scope: Scope
    sources: Mapping[str, _Source]
    folders: frozenset[str]

    def read(self, tables: Mapping[str, pa.Table]) -> tuple[str, Scope]:
        """The statement that runs it over the new ones of `tables`, and its scope."""
        for name, source in self.sources.items():
            source.table = tables[name]
        return f"EXECUTE {self.name}", self.scope


class PreparedFragments:
    """The prepared statements of one DuckDB connection."""

    def __init__(self) -> None:
        self._seen: OrderedDict[int, None] = OrderedDict()  # hashes: most are never needed again
        self._known: OrderedDict[Hashable, _Prepared] = OrderedDict()
        self._filled: list[_Source] = []
        self._numbers = itertools.count()

    def statement(
        self,
        sql: str,
        stored: Inputs,
        settings: Hashable,
        scope: Callable[[], CodedInputs],
        run: Callable[[str, Scope], object],
    ) -> tuple[str, Scope]:
        """The statement to run for a fragment: its SQL, or an EXECUTE of the prepared one.

        Its plan depends on the `stored` inputs, files that never change, on the columns of all
        others, and on the `settings`.

        Returns:
            The SQL, and the scope to run it in: DuckDB may have to bind a statement again.

        Raises:
            duckdb.Error: DuckDB does not accept the fragment.
        """
        over_files = (sql, tuple(stored.items()), settings)
        prepared = self._found(over_files)
        if prepared is not None:
            return prepared.read({})
        coded = scope()
        new = {name: coded.tables[name] for name in sorted(coded.new)}
        if any(len(table) > _NEW_ROWS_MAX for table in new.values()):
            return sql, coded.tables
        # Schemas with extension types can't be hashed.
        schemas = tuple((name, bytes(table.schema.serialize())) for name, table in new.items())
        key = (*over_files, schemas) if new else over_files
        prepared = self._found(key)
        if prepared is None:
            if hash(key) not in self._seen:
                self._note(hash(key))
                return sql, coded.tables
            prepared = self._known[key] = self._prepared(sql, stored, coded, run)
        self._filled += prepared.sources.values()
        return prepared.read(new)

    def _found(self, key: Hashable) -> _Prepared | None:
        prepared = self._known.get(key)
        if prepared is not None:
            self._known.move_to_end(key)
        return prepared

    def _note(self, key: int) -> None:
        self._seen[key] = None
        if len(self._seen) > _SEEN_MAX:
            self._seen.popitem(last=False)

    def _prepared(
        self, sql: str, stored: Inputs, coded: CodedInputs, run: Callable[[str, Scope], object]
    ) -> _Prepared:
        if len(self._known) >= _PREPARED_MAX:
            self._drop(next(iter(self._known)), lambda text: run(text, {}))
        name = f"fragment_{next(self._numbers)}"
        sources = {relation: _Source(coded.tables[relation].schema) for relation in coded.new}
        scope = {**coded.tables, **sources}
        run(f"PREPARE {name} AS {sql}", scope)
        files = (item.file for slices in stored.values() for item in slices)
        return _Prepared(name, scope, sources, frozenset(file.rpartition("/")[0] for file in files))

    def release(self) -> None:
        """Release what was read through sources: its task has ended."""
        while self._filled:
            self._filled.pop().clear()

    def folders(self) -> frozenset[str]:
        return frozenset().union(*[prepared.folders for prepared in list(self._known.values())])

    def forget(self, folders: Collection[str], run: Callable[[str], object]) -> None:
        """Deallocate the statements that read files in these folders."""
        read = [
            key
            for key, statement in self._known.items()
            if not statement.folders.isdisjoint(folders)
        ]
        for key in read:
            self._drop(key, run)

    def _drop(self, key: Hashable, run: Callable[[str], object]) -> None:
        run(f"DEALLOCATE {self._known[key].name}")  # may be interrupted: then it is still known
        del self._known[key]

    def clear(self) -> None:
        """Forget all of them: the connection was closed."""
        self._seen.clear()
        self._known.clear()
        self._filled.clear()
