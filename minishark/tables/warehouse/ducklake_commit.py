"""What a change of a DuckLake's table writes into the catalog. Pure.

A commit is one more snapshot: rows of the catalog that it replaces end with it, others begin. Which
other snapshots it can follow is decided by what they say that they have changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from minishark.errors import CatalogError, ConflictError
from minishark.model.expressions import quote_text
from minishark.sources.ducklake import (
    FileStatistics,
    LakeColumn,
    LakeEntry,
    LakeFile,
    LakeTable,
    bound_value,
)

ColumnTotals: TypeAlias = tuple[bool | None, bool | None, str | None, str | None]
"""What is known of all values of a column: whether there are NULLs, and NaN, and bounds."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What a change makes of a table."""

    before: LakeTable | None  # None for a new table
    after: LakeTable | None  # None for a table that is dropped

    @property
    def is_created(self) -> bool:
        return self.after is not None and not self.continues

    @property
    def continues(self) -> bool:
        """Whether the table stays the same one."""
        before, after = self.before, self.after
        return before is not None and after is not None and before.uuid == after.uuid

    @property
    def is_altered(self) -> bool:
        before, after = self.before, self.after
        if before is None or after is None or not self.continues:
            return False
        return self.is_renamed or any(
            getattr(before, name) != getattr(after, name)
            for name in ("columns", "partition", "comments")
        )

    @property
    def is_renamed(self) -> bool:
        before, after = self.before, self.after
        assert before is not None
        assert after is not None
        return (before.name, before.schema_id) != (after.name, after.schema_id)

    @property
    def added(self) -> tuple[LakeFile, ...]:
        return () if self.after is None else tuple(f for f in self.after.files if f.id is None)

    @property
    def removed(self) -> tuple[LakeFile, ...]:
        """Files whose rows are no longer the table's, which goes on."""
        if self.before is None or self.after is None or not self.continues:
            return ()
        kept = {file.id for file in self.after.files}
        return tuple(file for file in self.before.files if file.id not in kept)

    @property
    def emptied(self) -> tuple[str, ...]:
        """Tables of inlined rows whose rows are no longer the table's, which goes on."""
        if self.before is None or self.after is None or not self.continues:
            return ()
        kept = {inlined.table for inlined in self.after.inlined}
        return tuple(i.table for i in self.before.inlined if i.table not in kept)

    def check(self, others: Sequence[LakeEntry], name: object) -> None:
        """Whether the change can follow what others have committed since it began.

        Raises:
            ConflictError: they have changed what it was made of.
            CatalogError: the table was dropped.
        """
        if self.before is None:
            return
        own = [entry for entry in others if entry.table == self.before.id]
        if any(entry.kind == "dropped_table" for entry in own):
            raise CatalogError(f"Table {name} was dropped meanwhile.")
        depends_on_rows = bool(self.removed or self.emptied or self.is_created)
        met = sorted(
            {
                entry.kind
                for entry in own
                if self.after is not None and (depends_on_rows or not entry.is_of_rows)
            }
        )
        if met:
            raise ConflictError(
                f"Another writer has changed {name} meanwhile ({', '.join(met)}); nothing was "
                "written. Run the statement again."
            )


@dataclass(slots=True, kw_only=True)
class Commit:
    """The SQL of one commit, while it is put together."""

    snapshot: int  # its number
    schema_version: int
    next_catalog_id: int
    next_file_id: int
    statements: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    changes_schema: bool = False

    def new_id(self) -> int:
        self.next_catalog_id += 1
        return self.next_catalog_id - 1

    def new_file(self) -> int:
        self.next_file_id += 1
        return self.next_file_id - 1

    def insert(self, table: str, *rows: Sequence[str]) -> None:
        if rows:
            values = ", ".join(f"({', '.join(row)})" for row in rows)
            self.statements.append(f"INSERT INTO {table} VALUES {values}")

    def end(self, table: str, where: str) -> None:
        """Rows of the catalog are no longer those of this snapshot."""
        self.statements.append(
            f"UPDATE {table} SET end_snapshot = {self.snapshot} "
            f"WHERE end_snapshot IS NULL AND {where}"
        )

    def change_schema(self) -> None:
        if not self.changes_schema:
            self.changes_schema = True
            self.schema_version += 1

    def finish(self, now: str) -> list[str]:
        """All statements; the snapshot itself comes last."""
        self.insert(
            "ducklake_snapshot",
            (str(self.snapshot), now, str(self.schema_version), str(self.next_catalog_id),
             str(self.next_file_id)),
        )  # fmt: skip
        made = quote_text(",".join(self.changes))
        self.insert("ducklake_snapshot_changes", (str(self.snapshot), made, "NULL", "NULL", "NULL"))
        return self.statements


@dataclass(frozen=True, slots=True)
class TableTotals:
    """A table's row of ducklake_table_stats, and those of its columns."""

    rows: int
    next_row: int
    bytes: int
    columns: Mapping[int, ColumnTotals]


def text(value: str | None) -> str:
    """SQL of a text or NULL."""
    return "NULL" if value is None else quote_text(value)


def flag(value: bool | None) -> str:
    return "NULL" if value is None else str(value).upper()


def _number(value: int | None) -> str:
    return "NULL" if value is None else str(value)


def quoted_name(schema: str, table: str) -> str:
    """A table as a snapshot's changes name it."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in (schema, table))


def column_rows(
    columns: Sequence[LakeColumn], table: int, commit: Commit, parent: int | None = None
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Rows of ducklake_column, by the column's id."""
    for column in columns:
        yield (
            column.id,
            (
                str(column.id),
                str(commit.snapshot),
                "NULL",
                str(table),
                str(column.order or column.id),
                quote_text(column.name),
                quote_text(column.type),
                text(column.initial_default),
                text(column.default),
                flag(column.nullable),
                _number(parent),
                quote_text(column.default_type),
                "'duckdb'",
            ),
        )
        yield from column_rows(column.children, table, commit, column.id)


def create(commit: Commit, table: LakeTable, schema: str, folder: str) -> int:
    """Add a new table; its id. `folder` is relative to its schema's."""
    id_ = commit.new_id()
    commit.change_schema()
    commit.changes.append(f"created_table:{quoted_name(schema, table.name)}")
    commit.insert(
        "ducklake_table",
        (str(id_), quote_text(table.uuid), str(commit.snapshot), "NULL", str(table.schema_id),
         quote_text(table.name), quote_text(folder), "TRUE"),
    )  # fmt: skip
    commit.insert("ducklake_column", *(row for _, row in column_rows(table.columns, id_, commit)))
    commit.insert(
        "ducklake_schema_versions", (str(commit.snapshot), str(commit.schema_version), str(id_))
    )
    return id_


def partition(commit: Commit, table: LakeTable, id_: int) -> int | None:
    """Add how a table is divided; its id."""
    if not table.partition:
        return None
    number = commit.new_id()
    commit.insert("ducklake_partition_info", (str(number), str(id_), str(commit.snapshot), "NULL"))
    commit.insert(
        "ducklake_partition_column",
        *(
            (str(number), str(id_), str(i), str(by.column), quote_text(by.transform))
            for i, by in enumerate(table.partition)
        ),
    )
    return number


def drop(commit: Commit, table: LakeTable) -> None:
    """End a table."""
    commit.change_schema()
    commit.changes.append(f"dropped_table:{table.id}")
    for name in (
        "ducklake_table",
        "ducklake_partition_info",
        "ducklake_column",
        "ducklake_column_tag",
        "ducklake_data_file",
        "ducklake_delete_file",
        "ducklake_sort_info",
    ):
        commit.end(name, f"table_id = {table.id}")
    commit.end("ducklake_tag", f"object_id = {table.id}")


def alter(commit: Commit, before: LakeTable, after: LakeTable, schema: str, folder: str) -> None:
    """Change name, columns and comments of a table; `folder` as in `create`, but absolute."""
    id_ = before.id
    commit.change_schema()
    commit.changes.append(f"altered_table:{id_}")
    if (before.name, before.schema_id) != (after.name, after.schema_id):
        commit.changes.append(f"created_table:{quoted_name(schema, after.name)}")
        commit.end("ducklake_table", f"table_id = {id_}")
        relative = "FALSE" if folder.startswith("/") or "://" in folder else "TRUE"
        commit.insert(
            "ducklake_table",
            (str(id_), quote_text(before.uuid), str(commit.snapshot), "NULL", str(after.schema_id),
             quote_text(after.name), quote_text(folder), relative),
        )  # fmt: skip
    if before.columns != after.columns:
        old = dict(column_rows(before.columns, id_, commit))
        new = dict(column_rows(after.columns, id_, commit))
        ended = [number for number, row in old.items() if new.get(number) != row]
        if ended:
            commit.end(
                "ducklake_column",
                f"table_id = {id_} AND column_id IN ({', '.join(map(str, ended))})",
            )
        commit.insert(
            "ducklake_column", *(row for number, row in new.items() if old.get(number) != row)
        )
    for number in sorted({*before.comments, *after.comments}):
        was, now = before.comments.get(number), after.comments.get(number)
        if was == now:
            continue
        of_column = f"table_id = {id_} AND column_id = {number} AND key = 'comment'"
        common = (str(commit.snapshot), "NULL", "'comment'", text(now))
        if number:
            commit.end("ducklake_column_tag", of_column)
            commit.insert("ducklake_column_tag", (str(id_), str(number), *common))
        else:
            commit.end("ducklake_tag", f"object_id = {id_} AND key = 'comment'")
            commit.insert("ducklake_tag", (str(id_), *common))
    commit.insert(
        "ducklake_schema_versions", (str(commit.snapshot), str(commit.schema_version), str(id_))
    )


def add_files(
    commit: Commit,
    files: Sequence[LakeFile],
    table: LakeTable,
    id_: int,
    partition_id: int | None,
    first_row: int,
) -> None:
    """Make files part of a table."""
    commit.changes.append(f"inserted_into_table:{id_}")
    rows, statistics, values = [], [], []
    for file in files:
        number = commit.new_file()
        path, is_relative = relative(file.path, table.path)
        rows.append(
            (str(number), str(id_), str(commit.snapshot), "NULL", "NULL", quote_text(path),
             flag(is_relative), "'parquet'", str(file.rows), str(file.bytes),
             "NULL", str(first_row),
             _number(partition_id if file.partition else None), "NULL", "NULL", "NULL")
        )  # fmt: skip
        first_row += file.rows
        statistics += [
            (str(number), str(id_), str(column), str(measured.bytes), _number(measured.values),
             _number(measured.nulls), text(measured.minimum), text(measured.maximum),
             flag(measured.has_nan), "NULL")
            for column, measured in file.statistics.items()
        ]  # fmt: skip
        values += [
            (str(number), str(id_), str(i), text(value)) for i, value in enumerate(file.partition)
        ]
    commit.insert("ducklake_data_file", *rows)
    commit.insert("ducklake_file_column_stats", *statistics)
    commit.insert("ducklake_file_partition_value", *values)


def relative(path: str, folder: str) -> tuple[str, bool]:
    """A path as the catalog has it: relative to a folder if it is in there."""
    root = f"{folder.rstrip('/')}/"
    return (path.removeprefix(root), True) if path.startswith(root) else (path, False)


def remove_rows(
    commit: Commit, files: Sequence[LakeFile], emptied: Sequence[str], id_: int
) -> None:
    """Have files, and rows of the catalog, no longer be a table's."""
    if files:
        commit.changes.append(f"deleted_from_table:{id_}")
        listed = ", ".join(str(file.id) for file in files)
        for name in ("ducklake_data_file", "ducklake_delete_file"):
            commit.end(name, f"table_id = {id_} AND data_file_id IN ({listed})")
    if emptied:
        commit.changes.append(f"inlined_delete:{id_}")
        for name in emptied:
            commit.end(f'"{name}"', "TRUE")


def merged(
    old: ColumnTotals, files: Sequence[FileStatistics | None], column: LakeColumn
) -> ColumnTotals | None:
    """What is known of a column after files were added; None for files: nothing is known of it.

    None if bounds are not known any more: then it must have no row in the catalog, as bounds of
    later files would be taken for those of all rows.
    """
    nulls, nan, low, high = old
    lows, highs = [low] if low is not None else [], [high] if high is not None else []
    for file in files:
        if file is None or file.nulls is None or file.values is None:
            return None
        nulls = None if nulls is None else nulls or file.nulls > 0
        nan = None if nan is None or file.has_nan is None else nan or file.has_nan
        if file.minimum is not None and file.maximum is not None:
            lows.append(file.minimum)
            highs.append(file.maximum)
        elif file.values and not file.has_nan:
            return None
    bounds = [(bound_value(text, column), text) for text in (*lows, *highs)]
    if any(value is None for value, _ in bounds):
        return None
    return nulls, nan, min(bounds)[1] if bounds else None, max(bounds)[1] if bounds else None
