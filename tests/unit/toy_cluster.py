"""Runs stages over partitioned toy tables in plain DuckDB: planning without a cluster.

Nothing here shares code with the executors. After each stage it also checks what the physical plan
says about where rows lie, as later stages rely on it.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from minishark.compiler.hints import with_ctes
from minishark.compiler.logical.plan import LogicalPlan
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import Hashed, PhysicalPlan, Share
from minishark.compiler.physical.planner import Placer, plan_physical
from minishark.compiler.physical.sizes import Situation, StageSize, TaskSize
from minishark.compiler.stages.adapt import adapt
from minishark.compiler.stages.fragment import HASH_SALT
from minishark.compiler.stages.split import split
from minishark.compiler.stages.stage import Input, ReadMode, Stage, TableInput
from minishark.model.catalog import Catalog, ColumnStatistics, Partition, Table, TableStatistics
from minishark.model.expressions import Column, Schema

Row = tuple[object, ...]


@dataclass(frozen=True)
class ToyTable:
    """A table's rows, how they are partitioned, and how many rows the planner shall believe in."""

    name: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    partition_by: tuple[str, ...] = ()
    partitions: int = 1
    believed_rows: int = 1_000

    @property
    def schema(self) -> Schema:
        """The columns."""
        return tuple(Column(name, type_) for name, type_ in self.columns)

    def catalog_table(self, nodes: Sequence[str] = ("n0",)) -> Table:
        """The table as the catalog has it, with sizes that are only believed."""
        share = -(-self.believed_rows // self.partitions)
        partitions = tuple(
            Partition(
                index=i,
                file=f"tables/{self.name}/{i}.arrow",
                locations=tuple(nodes),
                rows=share,
                bytes=share * 10,
            )
            for i in range(self.partitions)
        )
        distinct = max(1, self.believed_rows // 2)
        column = ColumnStatistics(0.0, distinct, without_nulls=True)
        columns = (column,) * len(self.columns)
        statistics = TableStatistics(share * self.partitions, self.believed_rows * 10, columns)
        return Table(
            name=self.name,
            schema=self.schema,
            partitions=partitions,
            partition_by=self.partition_by,
            statistics=statistics,
        )


def believed_catalog(tables: Sequence[ToyTable]) -> Catalog:
    """A catalog of toy tables."""
    catalog = Catalog()
    for table in tables:
        catalog.add(table.catalog_table())
    return catalog


def store(con: duckdb.DuckDBPyConnection, table: ToyTable) -> None:
    """Make the toy table, whole, in DuckDB."""
    columns = ", ".join(f'"{name}" {type_}' for name, type_ in table.columns)
    con.execute(f'CREATE OR REPLACE TABLE "{table.name}" ({columns})')
    if table.rows:
        marks = f"({', '.join('?' for _ in table.columns)})"
        values = list(itertools.chain.from_iterable(table.rows))
        con.execute(
            f'INSERT INTO "{table.name}" VALUES {", ".join([marks] * len(table.rows))}', values
        )


class ToyCluster:
    """Toy tables, divided as their partitioning says, and the stages that run over them."""

    def __init__(self, con: duckdb.DuckDBPyConnection, tables: Sequence[ToyTable]) -> None:
        self._con = con
        self._parts: dict[str, list[pa.Table]] = {}
        self.catalog = believed_catalog(tables)
        con.execute("SET arrow_lossless_conversion = true")  # sums of integers are 128 bits wide
        con.execute("PRAGMA disable_optimizer")  # it takes longer than a few rows do
        for table in tables:
            store(con, table)
            self._parts[table.name.lower()] = self._divided(table)

    def run(self, logical: LogicalPlan, options: PlannerOptions) -> list[Row]:
        """Plan, cut and run a statement; the rows of its answer."""
        return self.run_physical(plan_physical(logical, self.catalog, options))

    def run_physical(self, plan: PhysicalPlan) -> list[Row]:
        """Cut and run a physical plan; the rows of its answer."""
        done: dict[int, list[pa.Table]] = {}
        for stage in split(plan):
            done[stage.index] = [self._task(stage, done, i) for i in range(stage.tasks)]
            last = done[stage.index]
        return [row for part in last for row in self._rows(part)]

    def run_adaptive(
        self,
        logical: LogicalPlan,
        options: PlannerOptions,
        told: Callable[[StageSize], StageSize],
        order: random.Random,
    ) -> tuple[list[Row], list[str]]:
        """Run a statement whose plan is revised after each stage; its rows, and by which rules.

        Args:
            logical: the statement.
            options: how it is planned.
            told: the size of a stage that rules are told, by its true one.
            order: decides which of the stages that can run is next.
        """
        plan = plan_physical(logical, self.catalog, options)
        stages: Sequence[Stage] = split(plan, options.disabled)
        done: dict[int, list[pa.Table]] = {}
        sizes: dict[int, StageSize] = {}
        empty: list[int] = []
        used: list[str] = []
        while stages[-1].index not in done:
            numbers = [stage.index for stage in stages]
            ready = [
                stage
                for stage in stages
                if stage.index not in done
                and all(n in done for n in stage.parents)
                and all(n in done or n not in numbers for n in stage.after)
            ]
            stage = order.choice(ready)
            parts = [self._task(stage, done, i) for i in range(stage.tasks)]
            done[stage.index] = parts
            size = StageSize(tuple(_task_size(part, stage.buckets) for part in parts))
            sizes[stage.index] = told(size)
            empty += [stage.index] * (not size.rows)
            if stage is stages[-1]:
                break
            situation = Situation(
                sizes=sizes,
                empty=empty,
                catalog=self.catalog,
                options=options,
                placing=Placer(self.catalog, options, whole=False),
                free_root=True,
            )
            revision = adapt(plan, stages, done, situation)
            if revision is not None:
                plan = revision.plan
                used += [rule for rule, _ in revision.reasons]
                stages = (*(s for s in stages if s.index in done), *revision.stages)
        return [row for part in done[stages[-1].index] for row in self._rows(part)], used

    def _rows(self, part: pa.Table) -> list[Row]:
        self._con.register("answer", part)
        rows = self._con.execute("FROM answer").fetchall()
        self._con.unregister("answer")
        return rows

    def _divided(self, table: ToyTable) -> list[pa.Table]:
        keys = ", ".join(f'"{key}"' for key in table.partition_by)
        place = f"hash({keys}, {HASH_SALT})" if keys else "row_number() OVER ()"
        numbered = self._con.execute(
            f'SELECT *, {place} % {table.partitions} AS "#part" FROM "{table.name}"'
        ).to_arrow_table()
        places, rows = numbered.column("#part"), numbered.drop_columns(["#part"])
        return [rows.filter(pc.equal(places, i)) for i in range(table.partitions)]

    def _task(self, stage: Stage, done: Mapping[int, list[pa.Table]], index: int) -> pa.Table:
        for item in stage.inputs:
            self._con.register(item.name, self._input(item, done, index))
        groups = {runs.name: runs.hashed for runs in stage.hints.group_runs}
        result = self._con.execute(with_ctes(f"FROM ({stage.sql})", {}, groups)).to_arrow_table()
        for item in stage.inputs:
            self._con.unregister(item.name)
        self._check_place(stage, result, index)
        return result

    def _input(self, item: Input, done: Mapping[int, list[pa.Table]], index: int) -> pa.Table:
        own = isinstance(item, TableInput)
        parts = (
            self._parts[item.table.lower()] if isinstance(item, TableInput) else done[item.stage]
        )
        match item.mode:
            case ReadMode.ALL:
                every = pa.concat_tables(parts)
                # What a shuffle has written may be read whole, too: without the bucket numbers.
                names = [name for name in every.column_names if own or name != "bucket"]
                return every.select(names)
            case ReadMode.OWN:
                assert own or len(parts) > index
                return parts[index]
            case ReadMode.BUCKET:
                assert not isinstance(item, TableInput)
                share = item.shares[index] if item.shares else Share(index, index + 1)
                every = pa.concat_tables(parts[slice(*share.tasks)] if share.tasks else parts)
                numbers = every.column("bucket")
                kept = every.filter(
                    pc.and_(pc.greater_equal(numbers, share.first), pc.less(numbers, share.last))
                )
                return kept.drop_columns(["bucket"])

    def _check_place(self, stage: Stage, rows: pa.Table, index: int) -> None:
        """Rows lie in the partition that the plan's distribution gives them."""
        distribution = stage.plan.distribution
        if not isinstance(distribution, Hashed) or not all(distribution.keys):
            return
        self._con.register("placed", rows)
        for chosen in itertools.islice(itertools.product(*map(sorted, distribution.keys)), 8):
            keys = ", ".join(f"c{i}" for i in chosen)
            wrong = self._con.execute(
                f"SELECT count(*) FROM placed "
                f"WHERE hash({keys}, {HASH_SALT}) % {distribution.partitions} <> {index}"
            ).fetchall()
            assert [(0,)] == wrong, f"rows of {stage.plan.operator} lie in the wrong partition"
        self._con.unregister("placed")


def _task_size(part: pa.Table, buckets: int) -> TaskSize:
    numbers = part.column("bucket").to_pylist() if buckets else []
    counts = tuple(numbers.count(bucket) for bucket in range(buckets))
    return TaskSize(part.num_rows, part.num_rows * 16, counts)


def rounded(row: Row) -> Row:
    """A row whose floating-point numbers are equal where they differ by rounding only."""
    return tuple(map(_rounded, row))


def _rounded(value: object) -> object:
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.9g}") + 0.0  # which of the two zeros is anybody's guess
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return f"{Decimal(value).normalize():f}"
    return value


def as_bag(rows: Sequence[Row]) -> list[str]:
    """Rows in an order that does not depend on where they came from."""
    return sorted(repr(rounded(row)) for row in rows)
