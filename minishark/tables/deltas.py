"""Changes of tables in memory, at a cost in proportion to what they change.

A table is never changed in place: a change makes its next version, which shares all files of the
one before but few. Queries read the version that they were planned for.

    partition          its file   (rows 0 and 7 deleted)
                       delta 1    rows added since
                       delta 2    rows added after these

**Rows that are added** become a delta of their partition: by the hash of its keys, or, for a table
without, of the last one, so that rows stay in order; many rows become partitions there. A small
delta takes those before it along (each file is at least `_GROWTH` times as large as the next), so a
partition has few files however many statements added to it, and a row is copied a few times. Text
is encoded with the dictionaries of the partition's own file, longer ones where there are new
values: codes keep their meaning.

**Rows that are deleted** are noted by their places in the file, and readers leave them out
(`worker/visible_rows.py`). Where they leave small pieces of a file only (`SCATTERED_ROWS`), a task
near the partition stores it again as one file, before anybody reads it. The same is done in the
background where deltas have grown to a share of their partition, or half of a file is deleted.

**A column that is added** is the same in all rows: what it is stands beside the names of the files
that lack it, and readers append it.

Everything here is done for one writer at a time; what is published, and when, `Tables` decides.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import structs
from numpy.typing import NDArray

from minishark.cluster.backend import Files
from minishark.cluster.replicas import replica_locations
from minishark.errors import ConflictError
from minishark.model.catalog import (
    FILE_SHIFT,
    ROW_NUMBER,
    Delta,
    Partition,
    Table,
    first_row_number,
    row_place,
)
from minishark.model.expressions import Column
from minishark.model.predicates import Comparison, Predicate
from minishark.query.inputs import lost_partitions, partition_slices
from minishark.sources.bounds import Bounds, may_match_each
from minishark.worker.columns import as_numbers, integers, no_texts, numbers_of
from minishark.worker.dictionaries import dictionary_type, without_dictionaries
from minishark.worker.outputs import BATCH_ROWS
from minishark.worker.protocol import FileSlice
from minishark.worker.seals import Seal
from minishark.worker.statistics import batch_bounds, has_batch_bounds
from minishark.worker.store import FolderMissingError, InputMissingError, Store
from minishark.worker.visible_rows import (
    further_constants,
    packed,
    row_counts,
    row_numbers,
    takeable,
    with_numbers,
    without_rows_of,
)
from minishark.worker.writing import disk_errors

Stored = TypeVar("Stored", Partition, Delta)

_PIECES_FEW, SCATTERED_ROWS = 1_024, 512
"""A file has at most so many pieces between deleted rows, or pieces of so many rows on average."""

versions = itertools.count(1)
"""Numbers for versions of tables: no two of a process have the same."""

_GROWTH = 4
NEW_PARTITION_ROWS = 250_000
"""Rows of a partition that is added, at least."""

_NEW_PARTITIONS_MAX = 8  # that the front end adds at once
_VALUES_MAX = 8_192  # of a dictionary
_BOUNDED_MAX = 4_096  # columns of files of which bounds are remembered
_MEASURED_MAX = 256  # files of which all is remembered that was measured
_SEARCHED_ROWS = 8 << 20  # of which one process compares a column in less time than tasks begin
_UNTESTED_ROWS = 300_000  # the same of rows that DuckDB searches, as no such column tells
_VALUES_TESTED = 100  # of a predicate, against the bounds of each batch
_COMPARISONS = {
    Comparison.EQUAL: "equal",
    Comparison.IN: "is_in",
    Comparison.LESS: "less",
    Comparison.LESS_OR_EQUAL: "less_equal",
    Comparison.GREATER: "greater",
    Comparison.GREATER_OR_EQUAL: "greater_equal",
}
"""Functions of Arrow by what they compare."""

_EPOCH = date(1970, 1, 1)
_SOUGHT_MAX = 16  # lists of values that are remembered: each batch is compared with the same

_DELTA_SHARE = 0.25  # of a partition's rows, from which on its deltas are merged with its file


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of rows from which on files are treated differently."""

    delta: int = 65_536  # a larger delta is not copied into the next one
    merged: int = 100_000  # as many are added or deleted before a partition is stored again
    patched: int = 10_000  # from so many rows of a table on, tasks change them
    stored: int = NEW_PARTITION_ROWS  # from so many rows of an INSERT on, tasks store them


SIZES = Sizes()


def must_merge(partition: Partition) -> bool:
    """Whether a partition has to be stored again, as one file, before it is read."""
    deleted = (partition.deleted, *(delta.deleted for delta in partition.deltas))
    most = max(_PIECES_FEW, partition.rows // SCATTERED_ROWS)
    return any(row_counts(rows)[1] > most for rows in deleted)


def should_merge(partition: Partition, sizes: Sizes = SIZES) -> bool:
    """Whether it is time to store a partition again, as one file."""
    added = sum(delta.rows for delta in settled(partition, sizes).deltas)
    if added >= sizes.merged and added >= _DELTA_SHARE * partition.rows:
        return True
    gone, _ = row_counts(partition.deleted)
    return gone >= sizes.merged and gone >= partition.rows


def settled(partition: Partition, sizes: Sizes = SIZES) -> Partition:
    """A partition without its last deltas, which the next ones may take along."""
    kept = itertools.takewhile(lambda delta: delta.rows >= sizes.delta, partition.deltas)
    deltas = tuple(kept)
    left = partition.deltas[len(deltas) :]
    return dataclasses.replace(
        partition,
        deltas=deltas,
        rows=partition.rows - sum(delta.rows for delta in left),
        bytes=partition.bytes - sum(delta.bytes for delta in left),
    )


def rebased(current: Table, read: Sequence[Partition], merged: Sequence[Partition]) -> Table | None:
    """The next version of a table, in which partitions are merged that were read before.

    Args:
        current: the table as it is now.
        read: the partitions that were read, with their first deltas only.
        merged: the same rows, each stored as one file.

    Returns:
        The version; None if what was read has changed since.
    """
    partitions = list(current.partitions)
    for old, new in zip(read, merged, strict=True):
        now, count = partitions[old.index], len(old.deltas)
        later = now.deltas[count:]
        same = _own(now) == _own(old) and now.deltas[:count] == old.deltas
        nodes = tuple(node for node in new.locations if not later or node in now.locations)
        if same and nodes:
            partitions[old.index] = dataclasses.replace(
                new,
                deltas=later,
                locations=nodes,
                rows=new.rows + sum(delta.rows for delta in later),
                bytes=new.bytes + sum(delta.bytes for delta in later),
            )
    if partitions == list(current.partitions):
        return None
    return dataclasses.replace(current, partitions=tuple(partitions), version=next(versions))


def _own(partition: Partition) -> tuple[str, bytes, bytes]:
    """What decides the rows of its own file."""
    return partition.file, partition.deleted, partition.constants


def with_column(table: Table, column: Column, row: pa.Table) -> Table:
    """The next version of a table, with a column that is the same in all rows.

    No file is written: whoever reads one that lacks the column adds it.

    Args:
        table: the table.
        column: the new one.
        row: its value, in the type in which partitions are stored.
    """

    def filled(stored: Stored) -> Stored:
        constants = further_constants(stored.constants, row)
        return dataclasses.replace(stored, constants=constants)

    partitions = tuple(
        dataclasses.replace(filled(part), deltas=tuple(map(filled, part.deltas)))
        for part in table.partitions
    )
    schema = (*table.schema, column)
    return dataclasses.replace(table, schema=schema, partitions=partitions, version=next(versions))


def marked_rows(partition: Partition, marks: NDArray[np.bool_]) -> Iterator[NDArray[np.int64]]:
    """The rows of each of a partition's files that are marked; `marks` has those that it shows."""
    files = (partition.deleted, *(delta.deleted for delta in partition.deltas))
    counts = [delta.rows for delta in partition.deltas]
    ends = np.cumsum([partition.rows - sum(counts), *counts])[:-1]
    for deleted, own in zip(files, np.split(marks, ends), strict=True):
        rows, gone = np.flatnonzero(own), row_numbers(deleted)
        if len(gone):  # each row comes after those deleted that have no more rows before them
            rows = rows + np.searchsorted(gone - np.arange(len(gone)), rows, "right")
        yield rows


def marked_numbers(table: Table, marks: Sequence[NDArray[np.bool_]]) -> NDArray[np.int64]:
    """The numbers of rows that are marked, by partition."""
    return np.concatenate(
        [
            rows + first_row_number(partition.index, file)
            for partition, own in zip(table.partitions, marks, strict=True)
            for file, rows in enumerate(marked_rows(partition, own))
        ]
    )


def without_marked(table: Table, marks: Sequence[NDArray[np.bool_]]) -> Table:
    """The next version of a table, without the rows that are marked, by partition."""
    partitions = []
    for partition, own in zip(table.partitions, marks, strict=True):
        left = partition
        # The last file first: deltas may vanish.
        for file, rows in reversed([*enumerate(marked_rows(partition, own))]):
            left = _without(left, file, rows) if len(rows) else left
        partitions.append(left)
    return dataclasses.replace(table, partitions=tuple(partitions), version=next(versions))


def without_rows(table: Table, numbers: NDArray[np.int64]) -> Table:
    """The next version of a table, without rows of these numbers; each is of one that it has."""
    if not (np.diff(numbers) > 0).all():
        numbers = np.unique(numbers)
    partitions = list(table.partitions)
    files = numbers >> FILE_SHIFT
    starts = np.flatnonzero(np.diff(files, prepend=-1))
    groups = np.split(numbers & ((1 << FILE_SHIFT) - 1), starts[1:])
    for number, rows in reversed([*zip(files[starts].tolist(), groups, strict=False)]):
        index, file, _ = row_place(number << FILE_SHIFT)  # the last first: deltas may vanish
        partitions[index] = _without(partitions[index], file, rows)
    return dataclasses.replace(table, partitions=tuple(partitions), version=next(versions))


def _without(partition: Partition, file: int, rows: NDArray[np.int64]) -> Partition:
    left = partition.rows - len(rows)
    if not file:
        deleted = _joined(partition.deleted, rows)
        return dataclasses.replace(partition, deleted=deleted, rows=left)
    deltas = list(partition.deltas)
    old = deltas[file - 1]
    deltas[file - 1] = dataclasses.replace(
        old, deleted=_joined(old.deleted, rows), rows=old.rows - len(rows)
    )
    kept = tuple(delta for delta in deltas if delta.rows)
    return dataclasses.replace(partition, deltas=kept, rows=left)


def _joined(deleted: bytes, rows: NDArray[np.int64]) -> bytes:
    before = row_numbers(deleted)
    return packed(np.sort(np.concatenate((before, rows))) if len(before) else rows)


@dataclass(slots=True, kw_only=True)
class DeltaWriter:
    """Adds rows to tables as deltas, which it stores from the front end."""

    cluster: Files
    sizes: Sizes = SIZES
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    # How the text of a table's columns is encoded, by its folder: the longest dictionary of each.
    _known: dict[str, dict[int, pa.Array]] = field(default_factory=dict)
    # The bounds of the batches of files' columns, which are measured when they are asked for.
    _bounds: OrderedDict[tuple[str, bytes, int], list[Bounds]] = field(default_factory=OrderedDict)
    # The large files of partitions, with what tasks have measured of them: among that such bounds.
    _measured: OrderedDict[str, pa.Table | None] = field(default_factory=OrderedDict)

    def forget(self, folder: str) -> None:
        self._known.pop(folder, None)

    def note(self, partitions: Sequence[Partition], measured: Sequence[pa.Table | None]) -> None:
        """Remember what tasks have measured of the files that they have stored, if these are large.

        There, it tells in which batches rows may be.
        """
        for part, own in zip(partitions, measured, strict=True):
            if part.rows > BATCH_ROWS:
                self._measured[part.file] = own
                if len(self._measured) > _MEASURED_MAX:
                    self._measured.popitem(last=False)

    def with_rows(self, table: Table, rows: pa.Table, buckets: pa.Array | None) -> Table:
        """The next version of a table, with rows added.

        Args:
            table: the table.
            rows: its columns, in the types in which partitions are stored.
            buckets: each row's partition, if the table has keys.

        Raises:
            ResourceError: neither memory nor disk has room for them.
            PartitionsLostError: no node has the partitions to which they belong.
            ConflictError: the table was dropped or replaced meanwhile.
        """
        partitions = list(table.partitions)
        store = self.cluster.store()
        with _told(table):
            for index, some in self._placed(table, rows, buckets):
                if index < len(partitions):
                    partitions[index] = self._with_delta(table, partitions[index], some, store)
                else:
                    partitions.append(self._new_partition(table, index, some, store))
        return dataclasses.replace(table, partitions=tuple(partitions), version=next(versions))

    def rows_at(self, table: Table, numbers: NDArray[np.int64]) -> pa.Table:
        """The rows of a table with these numbers, which ascend, and the numbers as a last column.

        Raises:
            PartitionsLostError: no node has their partitions any more.
        """
        store, parts = self.cluster.store(), []
        files, starts = np.unique(numbers >> FILE_SHIFT, return_index=True)
        groups = np.split(numbers & ((1 << FILE_SHIFT) - 1), starts[1:])
        with _told(table):
            for file, rows in zip(files.tolist() or [0], groups, strict=True):
                index, place, _ = row_place(file << FILE_SHIFT)
                item = partition_slices(table.partitions[index])[place]
                whole = store.read((_all_rows(item),))
                parts.append(_plain(_taken(whole, rows)))
        together = pa.concat_tables([part.cast(parts[0].schema) for part in parts])
        return together.append_column(ROW_NUMBER, integers(numbers))

    def all_rows(self, table: Table) -> pa.Table:
        """All rows of a table, and their numbers as a last column.

        Raises:
            PartitionsLostError: no node has some partitions any more.
        """
        parts = [dataclasses.replace(part, is_numbered=True) for part in table.partitions]
        with _told(table):
            slices = tuple(item for part in parts for item in partition_slices(part))
            return self.cluster.store().read(slices)

    def rows_within(
        self, table: Table, predicates: Sequence[Predicate], most: int
    ) -> pa.Table | None:
        """The rows for which the predicates may be true, and their numbers.

        Columns of whole numbers and dates tell: their bounds in each batch, measured once for a
        file, and their values in those that may have such rows.

        Returns:
            None if columns tell of more than `most` rows, or there is too much to be looked at.

        Raises:
            PartitionsLostError: no node has some partitions any more.
        """
        tested = _tested(table, predicates)
        store, parts, found = self.cluster.store(), list[pa.Table](), 0
        searched, untested = 0, 0
        with _told(table):
            for part in table.partitions:
                numbered = dataclasses.replace(part, is_numbered=True)
                for item in partition_slices(numbered):
                    whole = store.read((_all_rows(item),))
                    for first, batch in self._batches_within(item, whole, tested):
                        places = _places_within(batch, tested)
                        searched += len(batch)
                        untested += len(batch) if places is None else 0
                        found += 0 if places is None else len(places)
                        is_much = searched > _SEARCHED_ROWS or untested > _UNTESTED_ROWS
                        if is_much or found > most:
                            return None
                        rows = pa.Table.from_batches([batch], whole.schema)
                        parts.append(_visible(item, first, rows, places))
            if not parts:
                nothing = with_numbers(whole.slice(0, 0), 0)
                return _plain(nothing)
        plain = [_plain(part) for part in parts]
        return pa.concat_tables([part.cast(plain[0].schema) for part in plain])

    def has_bounds(self, table: Table) -> bool:
        """Whether bounds of batches are known of a table's files, or quickly measured."""
        return any(part.file in self._measured for part in table.partitions)

    def narrowed(self, table: Table, places: Sequence[Sequence[Predicate]]) -> Table:
        """A table as a query needs it: some batches of its files, where bounds tell.

        Args:
            table: the table.
            places: predicates of each place that reads it, which the rows meet that it needs.
        """
        tested = [_tested(table, predicates) for predicates in places]
        with _told(table):
            partitions = tuple(
                self._narrowed(part, tested) if part.file in self._measured else part
                for part in table.partitions
            )
        return dataclasses.replace(table, partitions=partitions)

    def _narrowed(
        self, partition: Partition, places: Sequence[Sequence[tuple[int, Predicate]]]
    ) -> Partition:
        item = _all_rows(partition_slices(partition)[0])
        read = functools.cache(lambda: self.cluster.store().read((item,)))
        needed, counts = set[int](), list[int]()
        for tested in places:
            known = self._telling(item, tested, read)
            if not known:
                return partition
            counts = [each.rows or 0 for each in known[0][0]]
            needed.update(_within(known))
        if len(needed) == len(counts):
            return partition
        maybe = sorted(needed)
        starts = [0, *itertools.accumulate(counts)]
        runs = np.split(maybe, np.flatnonzero(np.diff(maybe) != 1) + 1) if maybe else []
        ends = ((int(run[0]), int(run[-1]) + 1) for run in runs)
        kept = tuple((first, last, starts[first]) for first, last in ends)
        return dataclasses.replace(partition, needed=kept)

    def _batches_within(
        self, item: FileSlice, whole: pa.Table, tested: Sequence[tuple[int, Predicate]]
    ) -> list[tuple[int, pa.RecordBatch]]:
        """The batches of a file that may have rows for which predicates are true: what comes first.

        Each with the place of its first row.
        """
        batches = whole.to_batches()
        starts = [0, *itertools.accumulate(map(len, batches))]
        known = self._telling(item, tested, lambda: whole)
        return [(starts[i], batches[i]) for i in (_within(known) if known else range(len(batches)))]

    def _telling(
        self,
        item: FileSlice,
        tested: Sequence[tuple[int, Predicate]],
        read: Callable[[], pa.Table],
    ) -> list[tuple[list[Bounds], Predicate]]:
        """Predicates with the bounds of their columns in each batch of a file, where these tell."""
        bounds = [
            (self._bounds_of(item, position, read), predicate)
            for position, predicate in tested
            if len(predicate.values) <= _VALUES_TESTED
        ]
        return [(of_column, predicate) for of_column, predicate in bounds if of_column]

    def _bounds_of(
        self, item: FileSlice, position: int, read: Callable[[], pa.Table]
    ) -> list[Bounds]:
        """The bounds of a column in each batch of a file; none for types without plain ones."""
        key = item.file, item.constants, position
        bounds = self._bounds.get(key)
        if bounds is None:
            column = read().column(position)
            is_plain = has_batch_bounds(column.type)
            extremes = self._extremes_of(item, column, position) if is_plain else ()
            bounds = [
                Bounds(
                    minimum=_bound(low),
                    maximum=_bound(high),
                    nulls=chunk.null_count,
                    rows=len(chunk),
                )
                for (low, high), chunk in zip(extremes, column.chunks, strict=False)
            ]
            self._bounds[key] = bounds
            if len(self._bounds) > _BOUNDED_MAX:
                self._bounds.popitem(last=False)
        return bounds

    def _extremes_of(
        self, item: FileSlice, column: pa.ChunkedArray, position: int
    ) -> Iterable[tuple[pa.Scalar, pa.Scalar]]:
        """The least and the largest value in each batch of a file's column."""
        measured = self._measured.get(item.file)
        known = None if measured is None else batch_bounds(measured, position)
        is_even = all(len(chunk) == BATCH_ROWS for chunk in column.chunks[:-1])
        if known is not None and is_even and len(known[0]) == column.num_chunks:
            return zip(*known, strict=True)
        import pyarrow.compute as pc  # noqa: PLC0415 - 30 ms that few processes need

        return [tuple(pc.min_max(chunk).values()) for chunk in column.chunks]

    def emptied(self, table: Table) -> Table:
        """The next version of a table, without any row.

        Raises:
            ResourceError: neither memory nor disk has room for a file.
            PartitionsLostError: no node has a partition any more, whose columns are to be kept.
            ConflictError: the table was dropped or replaced meanwhile.
        """
        store = self.cluster.store()
        with _told(table):
            partitions = [
                self._new_partition(table, partition.index, self._none(partition, store), store)
                for partition in table.partitions
            ]
        return dataclasses.replace(table, partitions=tuple(partitions), version=next(versions))

    @staticmethod
    def _none(partition: Partition, store: Store) -> pa.Table:
        first = partition_slices(partition)[0]
        return _plain(store.read((_all_rows(first, 0),)))

    def _placed(
        self, table: Table, rows: pa.Table, buckets: pa.Array | None
    ) -> Iterable[tuple[int, pa.Table]]:
        if buckets is not None:
            numbers = as_numbers(buckets)
            for index in np.unique(numbers).tolist():
                yield index, rows.take(np.flatnonzero(numbers == index))
            return
        last = len(table.partitions) - 1
        if len(rows) >= 2 * NEW_PARTITION_ROWS:
            size = max(NEW_PARTITION_ROWS, -(-len(rows) // _NEW_PARTITIONS_MAX))
            for i, start in enumerate(range(0, len(rows), size), 1):
                yield last + i, rows.slice(start, size)
            return
        there = table.partitions[last].rows
        is_full = there >= NEW_PARTITION_ROWS and there >= 2 * table.rows / len(table.partitions)
        yield last + is_full, rows

    def with_partitions(self, table: Table, added: Table) -> Table:
        """The next version of a table, with the rows of another one in its folder.

        Args:
            table: the table.
            added: a table of the same layout. If that has keys, its files are copied, as text is to
                be encoded as in the partitions to which their rows belong.

        Raises:
            ResourceError: neither memory nor disk has room for them.
            PartitionsLostError: no node has the partitions to which they belong, or the added ones.
            ConflictError: the table was dropped or replaced meanwhile.
        """
        partitions = list(table.partitions)
        if not table.is_hashed:
            first = len(partitions)
            new = (dataclasses.replace(part, index=first + part.index) for part in added.partitions)
            partitions.extend(new)
        else:
            store = self.cluster.store()
            with _told(table), _told(added):
                for index, part in enumerate(added.partitions):
                    if part.rows:
                        rows = store.read(partition_slices(part))
                        partitions[index] = self._with_delta(table, partitions[index], rows, store)
        return dataclasses.replace(table, partitions=tuple(partitions), version=next(versions))

    def _with_delta(
        self, table: Table, partition: Partition, rows: pa.Table, store: Store
    ) -> Partition:
        """A partition with more rows, in a delta that replaces the last ones if they are small."""
        kept = len(partition.deltas)
        count = len(rows)
        while kept and partition.deltas[kept - 1].rows < min(_GROWTH * count, self.sizes.delta):
            kept -= 1
            count += partition.deltas[kept].rows
        slices = partition_slices(partition)
        first = slices[0]
        if kept < len(partition.deltas):
            merged = slices[1 + kept :]
            parts = [_plain(store.read((item,))) for item in merged]
            rows = pa.concat_tables([*parts, _plain(rows).cast(parts[0].schema)])
        folder = table.folder
        encoded = self._encoded(folder, rows, first, store)
        delta, held = self._written(folder, partition.locations, encoded, store)
        if not held:  # else nobody would be known to have the partition's own file
            message = f"no node of partition {partition.index} answers"
            raise InputMissingError(message, (first,), is_silent=True)
        return dataclasses.replace(
            partition,
            deltas=(*partition.deltas[:kept], delta),
            locations=held,
            rows=partition.rows + delta.rows - sum(d.rows for d in partition.deltas[kept:]),
            bytes=partition.bytes + delta.bytes - sum(d.bytes for d in partition.deltas[kept:]),
        )

    def with_same(self, table: Table, new: Partition, old: Partition) -> Partition:
        """A partition on other nodes with the deltas of an old one.

        Raises:
            InputMissingError: one is lost.
            ResourceError: neither memory nor disk has room for them.
            ConflictError: the table was dropped or replaced meanwhile.
        """
        store, deltas, nodes = self.cluster.store(), [], new.locations
        with _stored_for(table):
            for delta, item in zip(old.deltas, partition_slices(old)[1:], strict=True):
                rows = store.read((_all_rows(item),))
                rows = self._encoded(table.folder, rows, partition_slices(new)[0], store)
                copy, nodes = self._written(table.folder, nodes, rows, store)
                deltas.append(dataclasses.replace(copy, rows=delta.rows, deleted=delta.deleted))
        return dataclasses.replace(new, deltas=tuple(deltas), locations=nodes)

    def _new_partition(self, table: Table, index: int, rows: pa.Table, store: Store) -> Partition:
        slices = partition_slices(table.partitions[-1])
        encoded = self._encoded(table.folder, rows, slices[0], store)
        return self._partition(table.folder, index, encoded, table.replicas, store)

    def stored(self, folder: str, rows: pa.Table, replicas: int) -> Partition:
        """The only partition of a new table, in a folder that exists.

        Raises:
            ResourceError: neither memory nor disk has room for it.
        """
        with disk_errors():
            return self._partition(folder, 0, rows, replicas, self.cluster.store())

    def _partition(
        self, folder: str, index: int, rows: pa.Table, replicas: int, store: Store
    ) -> Partition:
        nodes = replica_locations(self.cluster.nodes, index, replicas)
        delta, held = self._written(folder, nodes, rows, store)
        part = Partition(
            index=index,
            file=delta.file,
            locations=(*held, *delta.held),
            rows=delta.rows,
            bytes=delta.bytes,
        )
        self.note([part], [None])
        return part

    def _written(
        self, folder: str, nodes: Sequence[str], rows: pa.Table, store: Store
    ) -> tuple[Delta, tuple[str, ...]]:
        """Rows stored on nodes, and which of these have them."""
        # Several sessions may write into the folder of a table that belongs to the cluster.
        file = f"{folder}/delta-{self.cluster.store_name}-{next(self._numbers)}.arrow"
        batches = rows.combine_chunks().to_batches(BATCH_ROWS)
        stored = store.write(file, rows.schema, [batches], Seal.ALWAYS)
        file = stored.named(file)
        # Also those that drain: they may be the only ones that have the partition's other files.
        there = {*self.cluster.nodes, *self.cluster.draining}
        live = [node for node in nodes if node in there]
        holders = store.replicate(stored, file, live)
        held = tuple(node for node in nodes if node in holders)
        return (
            Delta(
                file=file,
                rows=stored.rows,
                bytes=stored.bytes,
                held=tuple(node for node in holders if node not in held),
            ),
            held,
        )

    def _encoded(self, folder: str, rows: pa.Table, first: FileSlice, store: Store) -> pa.Table:
        """Rows in the layout of their partition's own file, with the dictionaries of its text."""
        dictionaries = self._known.setdefault(folder, {})
        schema = store.read((_all_rows(first, 0),)).schema
        columns = _plain(rows).combine_chunks().columns
        for position, wanted in enumerate(schema):
            if not pa.types.is_dictionary(wanted.type):
                columns[position] = columns[position].cast(wanted.type)
                continue
            chunks = store.read((_all_rows(first, 1),)).column(position).chunks
            values = chunks[0].dictionary if chunks else no_texts().cast(wanted.type.value_type)
            longer = dictionaries.get(position)
            if longer is not None and longer[: len(values)].equals(values):
                values = longer
            encoded = _with_dictionary(columns[position], values)
            if len(encoded.dictionary) <= _VALUES_MAX:
                columns[position] = encoded
                dictionaries[position] = encoded.dictionary
            schema = schema.set(position, wanted.with_type(columns[position].type))
        return pa.Table.from_arrays(columns, schema=schema)


@contextlib.contextmanager
def _told(table: Table) -> Iterator[None]:
    """What goes wrong in the block, as errors for users."""
    try:
        with _stored_for(table):
            yield
    except InputMissingError as error:
        raise lost_partitions(table, error.files) or error from error


@contextlib.contextmanager
def _stored_for(table: Table) -> Iterator[None]:
    """What goes wrong when a file is written in the block, as errors for users."""
    try:
        with disk_errors():
            yield
    except FolderMissingError as error:  # it is removed with the table
        raise ConflictError(replaced_meanwhile(table.name)) from error


def replaced_meanwhile(name: str) -> str:
    """The message of a `ConflictError`."""
    return f"Table {name} was changed or replaced meanwhile; run the statement again."


def _all_rows(item: FileSlice, batches: int | None = None) -> FileSlice:
    """All rows of a file, or of its first batches, those that are deleted, too."""
    return structs.replace(item, last=batches, deleted=b"", numbered_from=None)


def _within(known: Sequence[tuple[Sequence[Bounds], Predicate]]) -> list[int]:
    """The batches that may have rows for which predicates are true, by the bounds of columns."""
    marks = [may_match_each(predicate, bounds) for bounds, predicate in known]
    return [i for i, own in enumerate(zip(*marks, strict=True)) if all(own)]


def _tested(table: Table, predicates: Sequence[Predicate]) -> list[tuple[int, Predicate]]:
    """Predicates with the positions of their columns."""
    positions = {column.name.lower(): i for i, column in enumerate(table.schema)}
    return [(positions[p.column.lower()], p) for p in predicates]


def _places_within(
    batch: pa.RecordBatch, tested: Sequence[tuple[int, Predicate]]
) -> NDArray[np.int64] | None:
    """The rows of a batch for which predicates are true, as far as they tell; None for all rows."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 30 ms that few processes need

    marks = None
    for position, predicate in tested:
        column, function = batch.column(position), _COMPARISONS.get(predicate.comparison)
        if function is None or not has_batch_bounds(column.type):
            continue
        values = _sought(predicate.values, column.type)
        if values is None:
            continue
        given = pc.SetLookupOptions(values) if function == "is_in" else None
        arguments = [column] if given is not None else [column, values[0]]
        own = pc.call_function(function, arguments, given)
        marks = own if marks is None else pc.and_(marks, own)
    return None if marks is None else as_numbers(pc.indices_nonzero(marks)).astype(np.int64)


@functools.lru_cache(_SOUGHT_MAX)
def _sought(values: tuple[int | date, ...], kind: pa.DataType) -> pa.Array | None:
    """Values as a column of this type has them; None if one is beyond what it can have."""
    numbers = [(value - _EPOCH).days if isinstance(value, date) else value for value in values]
    try:
        return numbers_of(numbers, kind)
    except OverflowError:
        return None


def _visible(
    item: FileSlice, first: int, rows: pa.Table, places: NDArray[np.int64] | None
) -> pa.Table:
    """The rows at these places of a batch, or all, that are not deleted, with their numbers.

    Args:
        item: the file.
        first: the place of the batch's first row in it.
        rows: the batch.
        places: of rows in the batch.
    """
    assert item.numbered_from is not None, "it is asked for"
    gone = row_numbers(item.deleted)
    low, high = np.searchsorted(gone, (first, first + len(rows)))
    gone = gone[low:high] - first
    if places is None:
        numbered = with_numbers(rows, item.numbered_from + first)
        return without_rows_of(numbered, gone) if len(gone) else numbered
    places = np.setdiff1d(places, gone, assume_unique=True) if len(gone) else places
    return _taken(rows, places).append_column(
        ROW_NUMBER, integers(places + (item.numbered_from + first))
    )


def _bound(value: pa.Scalar) -> Any:
    """A bound as Python has it; None, for unknown, for a date that Python lacks."""
    try:
        return value.as_py()
    except OverflowError:
        return None


def _taken(rows: pa.Table, places: NDArray[np.int64]) -> pa.Table:
    """Some rows of a file by their places, which ascend; only the batches that have some count."""
    taken, first = [], 0
    for batch in rows.to_batches():
        low, high = np.searchsorted(places, (first, first + len(batch)))
        if low < high:
            some = takeable(pa.Table.from_batches([batch])).combine_chunks().to_batches()[0]
            taken.append(some.take(integers(places[low:high] - first)))
        first += len(batch)
    return pa.Table.from_batches(taken, takeable(rows.slice(0, 0)).schema)


def _plain(rows: pa.Table) -> pa.Table:
    return without_dictionaries(rows, range(rows.num_columns))


def _with_dictionary(text: pa.ChunkedArray, values: pa.Array) -> pa.DictionaryArray:
    """Text as indices into a dictionary that begins with `values`."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 30 ms that few processes need

    texts = text.combine_chunks()
    new = texts.unique().drop_null()
    new = new.filter(pc.invert(pc.is_in(new, value_set=values)))
    longer = pa.concat_arrays([values, new.cast(values.type)]) if len(new) else values
    indices = pc.index_in(texts, value_set=longer).cast(dictionary_type(longer).index_type)
    return pa.DictionaryArray.from_arrays(indices, longer)


def changed_files(old: Table, new: Table) -> Mapping[str, tuple[str, ...]]:
    """The files of a version that the next one has no more, each with its locations."""
    kept = new.homes
    return {file: nodes for file, nodes in old.homes.items() if file not in kept}
