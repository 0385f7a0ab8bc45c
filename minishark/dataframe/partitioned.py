"""Partitions of a query: caching its rows, redistributing them, applying functions to them.

All of this is lazy. The new query reads a table that is only promised; the first action computes
it, in the tasks of the query that it comes from, and later ones read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from minishark.dataframe import verbs
from minishark.dataframe.applied import (
    OfRows,
    check_callable,
    map_calls,
    takes_key,
    task_function,
)
from minishark.dataframe.column import Column, column_or_name, flat, only_reference
from minishark.dataframe.lazy_query import LazyQuery, Persisted, wide_integers
from minishark.dataframe.local import SchemaLike, declared_columns
from minishark.dataframe.names import ident
from minishark.dataframe.row import rows_of
from minishark.dataframe.runtime import Runtime
from minishark.dataframe.select import QueryText, Scoped, Select, Source, relation, select_from
from minishark.errors import OptionError
from minishark.model.expressions import numbered
from minishark.query.sinks import Layout
from minishark.tables.cached import CachedRows
from minishark.tables.store import stored_schema
from minishark.worker.call_policy import CallPolicy
from minishark.worker.call_shapes import Batches, EachRow, Shape
from minishark.worker.calls import REJECTED_FIELDS, rejected_names
from minishark.worker.functions import ForEach, Function, MapGroups, SortRows


@dataclass(frozen=True, slots=True)
class StorageLevel:
    """Where a DataFrame's rows are cached, in PySpark's terms.

    They are in shared memory, and on disk where that is full, whichever level `persist` is given:
    of that, only the number of replicas has an effect.
    """

    use_disk: bool
    use_memory: bool
    use_off_heap: bool = False
    deserialized: bool = False
    replicas: int = 1

    NONE: ClassVar[StorageLevel]
    DISK_ONLY: ClassVar[StorageLevel]
    DISK_ONLY_2: ClassVar[StorageLevel]
    DISK_ONLY_3: ClassVar[StorageLevel]
    MEMORY_ONLY: ClassVar[StorageLevel]
    MEMORY_ONLY_2: ClassVar[StorageLevel]
    MEMORY_AND_DISK: ClassVar[StorageLevel]
    MEMORY_AND_DISK_2: ClassVar[StorageLevel]
    MEMORY_AND_DISK_DESER: ClassVar[StorageLevel]
    OFF_HEAP: ClassVar[StorageLevel]

    def __repr__(self) -> str:
        parts = (self.use_disk, self.use_memory, self.use_off_heap, self.deserialized)
        return f"StorageLevel({', '.join(map(str, (*parts, self.replicas)))})"


StorageLevel.NONE = StorageLevel(use_disk=False, use_memory=False)
for _name, _disk, _memory in (
    ("DISK_ONLY", True, False),
    ("MEMORY_ONLY", False, True),
    ("MEMORY_AND_DISK", True, True),
):
    for _replicas, _end in ((1, ""), (2, "_2"), (3, "_3")):
        _level = StorageLevel(use_disk=_disk, use_memory=_memory, replicas=_replicas)
        setattr(StorageLevel, f"{_name}{_end}", _level)
StorageLevel.MEMORY_AND_DISK_DESER = StorageLevel(use_disk=True, use_memory=True, deserialized=True)
StorageLevel.OFF_HEAP = StorageLevel(use_disk=True, use_memory=True, use_off_heap=True)


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """Where a partition is stored.

    Attributes:
        partition: its number.
        nodes: the nodes with a replica.
        rows: how many.
        bytes: the size of one replica as Arrow data.
    """

    partition: int
    nodes: tuple[str, ...]
    rows: int
    bytes: int


# Caching


def cached_query(runtime: Runtime, cached: CachedRows) -> LazyQuery:
    select = relation(ident(cached.name), cached.schema, cached.name)
    return LazyQuery(runtime=runtime, select=select, held=(cached,))


def persist(query: LazyQuery, layout: Layout, level: StorageLevel) -> None:
    """Make a query read its own rows from the cache; nothing happens if it does so already."""
    if query.persisted is not None:
        return
    select = query.to_select()
    cached = _promise(query, kept(query, layout))
    query.persisted = Persisted(select=select, held=query.held, cached=cached, level=level)
    query.select, query.held = _read_cached(cached, select), (cached,)


def unpersist(query: LazyQuery) -> None:
    """Undo `persist`, and free the rows; derived queries compute them again."""
    if query.persisted is not None:
        query.runtime.release(query.persisted.cached)
        query.select, query.held = query.persisted.select, query.persisted.held
        query.persisted = None


def checkpoint(query: LazyQuery, path: str | None) -> LazyQuery:
    if path is not None:
        reading = query.runtime.write_checkpoint(query.sql(), path, kept=query.repartitioned)
        select = QueryText(reading, query.runtime.bind(reading))
        return LazyQuery(runtime=query.runtime, select=select)
    cached = _promise(query, kept(query, Layout(replicas=2)))
    query.runtime.materialize(cached)
    return _cached(query, cached)


def _promise(query: LazyQuery, layout: Layout) -> CachedRows:
    return query.runtime.cache_query(query.sql(), layout=layout, needs=query.held)


def _cached(query: LazyQuery, cached: CachedRows) -> LazyQuery:
    select = _read_cached(cached, query.to_select())
    return LazyQuery(
        runtime=query.runtime,
        select=select,
        held=(cached,),
        repartitioned=query.repartitioned,
    )


def _read_cached(cached: CachedRows, select: Select) -> Select:
    """A scan of the cached rows of `select`; columns keep their identities, names and types."""
    columns = tuple(
        Scoped(attribute, cached.name, column.name)
        for attribute, column in zip(select.attributes, cached.schema, strict=True)
    )
    read = select_from(Source(ident(cached.name), columns, (cached.name,)))
    # A table stores types that Arrow lacks as others, such as ENUM as VARCHAR: cast back.
    items = tuple(
        item
        if item.attribute.type == column.type
        else replace(
            item, sql=f"CAST({item.sql} AS {item.attribute.type})", plain=False, aliased=True
        )
        for item, column in zip(read.items, cached.schema, strict=True)
    )
    return replace(read, items=items)


# Partitions


def repartition(query: LazyQuery, partitions: Any, columns: Sequence[Any]) -> LazyQuery:
    """Partitions by the hash of columns; of equal size if there are no columns."""
    count, names = _count_and_columns(partitions, columns)
    layout = Layout(partition_by=_stored_names(query, names), partitions=count, even=not names)
    return _repartitioned(query, layout)


def repartition_by_range(query: LazyQuery, partitions: Any, columns: Sequence[Any]) -> LazyQuery:
    count, names = _count_and_columns(partitions, columns)
    if not names:
        raise OptionError("repartition_by_range() needs columns.")
    return _repartitioned(query, Layout(partitions=count, ranges=_stored_names(query, names)))


def _repartitioned(query: LazyQuery, layout: Layout) -> LazyQuery:
    return replace(_cached(query, _promise(query, layout)), repartitioned=True)


def kept(query: LazyQuery, layout: Layout) -> Layout:
    """The layout, which keeps partitions that the user made unless it says what they are."""
    asked = layout.partition_by or layout.partitions is not None
    return layout if asked else replace(layout, kept=query.repartitioned)


def _count_and_columns(
    partitions: Any, columns: Sequence[Any]
) -> tuple[int | None, tuple[Any, ...]]:
    """The first argument is a column if it is no number."""
    if isinstance(partitions, int):
        return partitions, tuple(columns)
    return None, (partitions, *columns)


def placement(query: LazyQuery) -> tuple[PartitionPlace, ...]:
    """Which nodes store which partition of a table, or of cached rows."""
    select = query.to_select()
    if not (select.is_bare and len(select.source.relations) == 1):
        raise OptionError("Only tables and cached rows have a placement; call persist() first.")
    partitions = query.runtime.partitions(select.source.relations[0])
    return tuple(PartitionPlace(p.index, p.locations, p.rows, p.bytes) for p in partitions)


def _positions(query: LazyQuery, columns: Sequence[Any]) -> tuple[int, ...]:
    select = query.to_select()
    positions = []
    for reference in (only_reference(column_or_name(item)) for item in columns):
        if reference is None:
            raise OptionError("Partitions and groups need columns; use with_column() first.")
        position, fields = select.find(reference)
        if fields:
            raise OptionError("A field of a struct is no column; use with_column() first.")
        positions.append(position)
    return tuple(positions)


def _stored_names(query: LazyQuery, columns: Sequence[Any]) -> tuple[str, ...]:
    """The names of columns in a stored table, where they are unique."""
    unique = numbered(attribute.name for attribute in query.to_select().attributes)
    return tuple(unique[position] for position in _positions(query, columns))


def sorted_within(query: LazyQuery, columns: Sequence[Any], ascending: Any) -> LazyQuery:
    """Each partition sorted by itself."""
    select = query.to_select()
    keys = [verbs.sort_key(item, select) for item in flat(columns)]
    ups = list(ascending) if isinstance(ascending, list | tuple) else [ascending] * len(keys)
    if not keys or len(ups) != len(keys):
        raise OptionError("sort_within_partitions() takes columns, and `ascending` for each.")
    orders = [key.order or ("ASC" if up else "DESC") for key, up in zip(keys, ups, strict=True)]
    schema = ", ".join(f"{ident(name)} {type_}" for name, type_ in query.dtypes())
    positions = tuple(zip(_positions(query, keys), orders, strict=True))
    function = SortRows(positions, query.runtime.setting("default_null_order"))
    return _applied(query, "sort_within_partitions", function, schema)


# Functions


def mapped(
    query: LazyQuery,
    label: str,
    kind: Callable[[Callable[..., Any]], Function],
    fn: Callable[..., Any],
    schema: SchemaLike,
) -> LazyQuery:
    """What a function returns for each partition."""
    # `label` is the method that the user called; `kind` is how `fn` takes and returns rows:
    # `MapTable`, `MapBatches` or `MapFrames`.
    check_callable(label, fn)
    return _applied(query, label, kind(fn), schema)


def mapped_batches(
    query: LazyQuery,
    fn: Callable[..., Any],
    schema: SchemaLike,
    batch_rows: int,
    policy: CallPolicy,
) -> LazyQuery:
    """What a function returns for batches of rows."""
    return _called(query, "map_batches", fn, schema, Batches(batch_rows), policy)


def mapped_rows(
    query: LazyQuery, fn: Callable[..., Any], schema: SchemaLike, policy: CallPolicy
) -> LazyQuery:
    """What a function returns for each row."""
    shape = EachRow(partial(rows_of, integers=tuple(wide_integers(query))))
    return _called(query, "map_rows", fn, schema, shape, policy)


def _called(
    query: LazyQuery,
    label: str,
    fn: Callable[..., Any],
    schema: SchemaLike,
    shape: Shape,
    policy: CallPolicy,
) -> LazyQuery:
    calls = map_calls(label, fn, shape, policy)
    if policy.on_error != "quarantine":
        return _applied(query, label, calls, schema)
    declared = dict(declared_columns(schema))
    columns = stored_schema(query.runtime.bind(query.sql()))
    fields = rejected_names(len(columns))
    types = [*(column.type for column in columns), *(type_ for _, type_ in REJECTED_FIELDS)]
    texts = ", ".join(f"{field} {type_}" for field, type_ in zip(fields, types, strict=True))
    *_, aside = numbered([*declared, "rejected"])
    called = _applied(query, label, calls, {**declared, aside: f"STRUCT({texts})[]"})
    flag, names = ident(aside), [ident(name) for name in declared]
    good = called.derived(verbs.filtered(called.to_select(), f"{flag} IS NULL"))
    bad = called.derived(verbs.filtered(called.to_select(), f"{flag} IS NOT NULL"))
    shown = numbered([*(column.name for column in columns), *(n for n, _ in REJECTED_FIELDS)])
    parts = [
        f"{flag}[1].{field} AS {ident(name)}" for field, name in zip(fields, shown, strict=True)
    ]
    rejected = verbs.project_expressions(bad, parts)
    return replace(verbs.project_expressions(good, names), rejected=rejected)


def foreach_partition(query: LazyQuery, label: str, fn: Callable[..., Any]) -> None:
    check_callable(label, fn)
    called = ForEach(OfRows(fn, wide_integers(query)))
    function = task_function(label, called, "done BOOLEAN", only_returns=False)
    query.runtime.apply_function(query.sql(), function)


def apply_to_groups(
    query: LazyQuery,
    keys: Sequence[Column],
    fn: Callable[..., Any],
    schema: SchemaLike,
    *,
    pandas: bool,
) -> LazyQuery:
    label = "apply_in_pandas" if pandas else "apply_in_arrow"
    with_key = takes_key(label, fn)
    positions = _positions(query, keys)
    if not positions:
        raise OptionError(f"{label}() needs columns to group by; see map_partitions().")
    return _applied(query, label, MapGroups(fn, positions, with_key, pandas), schema, positions)


def _applied(
    query: LazyQuery, label: str, function: Function, schema: SchemaLike, keys: tuple[int, ...] = ()
) -> LazyQuery:
    cached = query.runtime.cache_query(
        query.sql(),
        layout=Layout(),
        function=task_function(label, function, schema, keys),
        needs=query.held,
    )
    return replace(cached_query(query.runtime, cached), repartitioned=query.repartitioned)
