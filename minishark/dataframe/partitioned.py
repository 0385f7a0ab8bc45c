"""Partitioned jobs: how a DataFrame's rows lie, keeping them, and Python functions over them.

Whatever is made here is lazy. A DataFrame of rows that a function gave, or that are to lie in
another way, reads a table that is only promised; the first action makes it, in the tasks that run
the query before it, and all later ones read it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from minishark.catalog import Partition
from minishark.dataframe.actions import KeptRows, Runner
from minishark.dataframe.applied import check_callable, takes_key, task_function
from minishark.dataframe.column import Column, column_or_name
from minishark.dataframe.local import SchemaLike
from minishark.dataframe.names import ident
from minishark.dataframe.select import Scoped, Select, Source, Written, relation, select_from
from minishark.errors import OptionError
from minishark.expressions import numbered
from minishark.query.sinks import Layout
from minishark.worker.functions import ForEach, MapBatches, MapFrames, MapGroups, MapTable
from minishark.worker.protocol import TaskFunction

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from minishark.dataframe.frame import DataFrame


class JobRunner(Protocol):
    """What keeps rows and runs functions over them: a session, too."""

    def derive(
        self,
        sql: str,
        layout: Layout,
        function: TaskFunction | None = None,
        needs: tuple[object, ...] = (),
    ) -> KeptRows:
        """Promise the rows of a query as a table, for as long as the handle lives.

        Args:
            sql: the query; it runs when another one reads the table.
            layout: how the rows are to lie.
            function: what they go through.
            needs: what must live as long as the query.
        """
        ...

    def forget_rows(self, kept: KeptRows) -> None:
        """Free rows that were kept; a query that needs them makes them again."""
        ...

    def settle_rows(self, kept: KeptRows) -> None:
        """Make rows that were promised, and forget how."""
        ...

    def apply_function(self, sql: str, function: TaskFunction) -> pa.Table:
        """What a function makes of the rows of a query."""
        ...

    def count_partitions(self, sql: str) -> int:
        """In how many tasks a function would run over the rows of a query."""
        ...

    def table_partitions(self, name: str) -> tuple[Partition, ...]:
        """The partitions of a table."""
        ...

    def checkpoint_files(self, sql: str, path: str) -> DataFrame:
        """The rows of a query, written to Parquet files."""
        ...


@dataclass(frozen=True, slots=True)
class StorageLevel:
    """Where a DataFrame's rows are kept: shared memory first, disk where that is full."""

    use_memory: bool
    use_disk: bool
    replicas: int


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """Where a partition lies.

    Attributes:
        partition: its number.
        nodes: the nodes that hold a copy.
        rows: how many.
        bytes: their size as Arrow data.
    """

    partition: int
    nodes: tuple[str, ...]
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Unkept:
    """What a DataFrame was before it was kept."""

    select: Select
    held: tuple[object, ...]
    kept: KeptRows
    replicas: int


class Partitioned:
    """The methods of a DataFrame that concern partitions."""

    if TYPE_CHECKING:
        runner: Runner
        _select: Select | Written | None
        held: tuple[object, ...]
        _unkept: Unkept | None

        @property
        def select_now(self) -> Select:
            """The SELECT that this stands for."""
            ...

        def sql(self) -> str:
            """The statement."""
            ...

    # Keeping rows

    def persist(
        self,
        replicas: int = 2,
        *,
        partition_by: str | Sequence[str] | None = None,
        partitions: int | None = None,
    ) -> DataFrame:
        """Keep the rows in the cluster once an action has made them; this DataFrame itself.

        Args:
            replicas: on how many nodes each partition lies; at most on all.
            partition_by: columns whose hash decides a row's partition; None to leave rows where
                the query has them.
            partitions: how many; None for as many as fit.

        Raises:
            CatalogError: `partition_by` names no column.
            OptionError: a number makes no sense.
        """
        if self._unkept is None:
            select, held = self.select_now, self.held
            kept = self._derived(Layout(_names(partition_by), partitions, replicas))
            self._unkept = Unkept(select, held, kept, replicas)
            self._select, self.held = _kept_select(kept, select), (kept.handle,)
        return self._itself()

    def cache(self) -> DataFrame:
        """As `persist()`."""
        return self.persist()

    def unpersist(self) -> DataFrame:
        """Free what `persist` kept; this DataFrame runs for each action again.

        DataFrames that were made of it meanwhile stay right: they make the rows again.
        """
        if self._unkept is not None:
            self._jobs.forget_rows(self._unkept.kept)
            self._select, self.held = self._unkept.select, self._unkept.held
            self._unkept = None
        return self._itself()

    @property
    def is_cached(self) -> bool:
        """Whether its rows are kept, or will be by the first action."""
        return self._unkept is not None

    @property
    def storage_level(self) -> StorageLevel:
        """Where its rows are kept."""
        if self._unkept is None:
            return StorageLevel(use_memory=False, use_disk=False, replicas=0)
        return StorageLevel(use_memory=True, use_disk=True, replicas=self._unkept.replicas)

    def checkpoint(self, path: str | None = None) -> DataFrame:
        """Run now; a DataFrame of the rows that does not know how they were made.

        Args:
            path: a folder for Parquet files that outlive the session, which must be new or empty;
                None keeps the rows in the cluster.

        Raises:
            UnsupportedError: Parquet can't keep the type of a column.
        """
        if path is not None:
            return self._jobs.checkpoint_files(self.sql(), path)
        kept = self._derived(Layout(replicas=2))
        self._jobs.settle_rows(kept)
        return self._of_kept(kept)

    local_checkpoint = checkpoint

    # How they lie

    def repartition(self, partitions: int | str | Column, *columns: Any) -> DataFrame:
        """The same rows in another number of partitions.

        Args:
            partitions: how many; may be left out where columns follow.
            columns: rows that are equal in these are in one partition; without any, partitions are
                of equal size and keep the order of rows.

        Raises:
            ColumnError: there is no such column.
            OptionError: a number makes no sense.
        """
        count = partitions if isinstance(partitions, int) else None
        names = columns if count is not None else (partitions, *columns)
        if not names:
            return self._of_kept(self._derived(Layout((), count, 1, even=True)))
        return self._of_kept(self._derived(Layout(self._stored_names(names), count)))

    def repartition_by_range(self, partitions: int | str | Column, *columns: Any) -> DataFrame:
        """The same rows with one range of the columns' values in each partition, in their order.

        Ranges are of about the same size, as a sample of the values tells; equal values, and all
        NULLs, lie in one partition, NULLs last.

        Args:
            partitions: how many; may be left out.
            columns: whose values decide.

        Raises:
            ColumnError: there is no such column.
            OptionError: a number makes no sense, or there are no columns.
        """
        count = partitions if isinstance(partitions, int) else None
        names = columns if count is not None else (partitions, *columns)
        if not names:
            raise OptionError("repartition_by_range() needs columns.")
        return self._of_kept(self._derived(Layout((), count, 1, ranges=self._stored_names(names))))

    def coalesce(self, partitions: int) -> DataFrame:
        """The same rows in at most so many partitions."""
        if partitions >= self.num_partitions:
            return self._itself()
        return self.repartition(partitions)

    @property
    def num_partitions(self) -> int:
        """In how many partitions the rows lie: in so many tasks a function would run."""
        return self._jobs.count_partitions(self.sql())

    def placement(self) -> tuple[PartitionPlace, ...]:
        """Which nodes hold which partition, of a table or of rows that are kept.

        Raises:
            OptionError: the rows are computed for each action.
        """
        select = self.select_now
        if not (select.is_bare and len(select.source.relations) == 1):
            raise OptionError("Only rows that are kept have a place; call persist() first.")
        found = self._jobs.table_partitions(select.source.relations[0])
        return tuple(PartitionPlace(p.index, p.locations, p.rows, p.bytes) for p in found)

    # Functions

    def map_partitions(self, fn: Callable[[pa.Table], Any], schema: SchemaLike) -> DataFrame:
        """What a function makes of each partition.

        Args:
            fn: takes a pyarrow table, gives a table: of pyarrow, pandas, polars, or of anything
                else that offers an Arrow stream.
            schema: the columns that it gives: "id BIGINT, name VARCHAR", a mapping of names to
                types, or a pyarrow schema.

        Raises:
            DataError: the schema is none.
            OptionError: the function can't be sent to other processes.

        Examples:
            >>> df = session.create_dataframe([(1,), (2,), (3,)], ["x"])
            >>> df.map_partitions(lambda t: t.slice(1), "x BIGINT").collect()
            [Row(x=2), Row(x=3)]
        """
        check_callable("map_partitions", fn)
        return self._applied(task_function("map_partitions", MapTable(fn), schema))

    def map_in_arrow(
        self, fn: Callable[[Iterator[pa.RecordBatch]], Iterable[Any]], schema: SchemaLike
    ) -> DataFrame:
        """What a function makes of the record batches of each partition, one after the other.

        Args:
            fn: takes an iterator of record batches, gives one.
            schema: the columns that it gives; see `map_partitions`.
        """
        check_callable("map_in_arrow", fn)
        return self._applied(task_function("map_in_arrow", MapBatches(fn), schema))

    def map_in_pandas(
        self, fn: Callable[[Iterator[pd.DataFrame]], Iterable[Any]], schema: SchemaLike
    ) -> DataFrame:
        """What a function makes of the rows of each partition, as pandas frames.

        Args:
            fn: takes an iterator of frames, gives one.
            schema: the columns that it gives; see `map_partitions`.
        """
        check_callable("map_in_pandas", fn)
        return self._applied(task_function("map_in_pandas", MapFrames(fn), schema))

    def foreach_partition(self, fn: Callable[[pa.Table], Any]) -> None:
        """Call a function with each partition, now, for what it does.

        It runs where the rows lie, and perhaps twice if something fails meanwhile.
        """
        check_callable("foreach_partition", fn)
        function = task_function("foreach_partition", ForEach(fn), "done BOOLEAN")
        self._jobs.apply_function(self.sql(), function)

    def apply_to_groups(
        self, keys: Sequence[Column], fn: Callable[..., Any], schema: SchemaLike, *, pandas: bool
    ) -> DataFrame:
        """What a function makes of each group of rows; `GroupedData` calls this."""
        label = "apply_in_pandas" if pandas else "apply_in_arrow"
        with_key = takes_key(label, fn)
        positions = self._positions(keys)
        if not positions:
            raise OptionError(f"{label}() needs columns to group by; see map_partitions().")
        groups = MapGroups(fn, positions, with_key, pandas)
        return self._applied(task_function(label, groups, schema, positions))

    # Inside

    @property
    def _jobs(self) -> JobRunner:
        return cast("JobRunner", self.runner)

    def _itself(self) -> DataFrame:
        return cast("DataFrame", self)

    def _positions(self, columns: Sequence[Any]) -> tuple[int, ...]:
        select = self.select_now
        found = []
        for item in map(column_or_name, columns):
            if item.reference is None:
                raise OptionError("Partitions and groups need columns; use with_column() first.")
            position, fields = select.find(item.reference)
            if fields:
                raise OptionError("A field of a struct is no column; use with_column() first.")
            found.append(position)
        return tuple(found)

    def _stored_names(self, columns: Sequence[Any]) -> tuple[str, ...]:
        """What columns are called where rows are kept."""
        unique = numbered(attribute.name for attribute in self.select_now.attributes)
        return tuple(unique[position] for position in self._positions(columns))

    def _derived(self, layout: Layout) -> KeptRows:
        return self._jobs.derive(self.sql(), layout, needs=self.held)

    def _of_kept(self, kept: KeptRows) -> DataFrame:
        frame = self._itself()
        select = _kept_select(kept, self.select_now)
        return type(frame)(self.runner, select, held=(kept.handle,))

    def _applied(self, function: TaskFunction) -> DataFrame:
        kept = self._jobs.derive(self.sql(), Layout(), function, self.held)
        select = relation(ident(kept.name), kept.schema, kept.name)
        return type(self._itself())(self.runner, select, held=(kept.handle,))


def _names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def _kept_select(kept: KeptRows, select: Select) -> Select:
    """The columns of `select`, read from where they are kept; they are the same columns still."""
    columns = tuple(
        Scoped(attribute, kept.name, column.name)
        for attribute, column in zip(select.attributes, kept.schema, strict=True)
    )
    found = select_from(Source(ident(kept.name), columns, (kept.name,)))
    items = tuple(
        item
        if item.attribute.type == column.type
        else replace(
            item,
            sql=f"CAST({item.sql} AS {item.attribute.type})",
            plain=False,
            aliased=True,
        )
        for item, column in zip(found.items, kept.schema, strict=True)
    )
    return replace(found, items=items)
