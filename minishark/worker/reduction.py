"""Reduces the inputs of a fragment, as its hints say, so that DuckDB has less to do.

Inputs lose rows that the fragment's joins would drop: its early CTEs run one after the other, and
the keys in each filter inputs of those that follow. Groups that are runs of rows are aggregated
without DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa
from msgspec import structs

from minishark.compiler.hints import EarlyCte, FragmentHints, with_ctes
from minishark.worker.dictionary_codes import CodedInputs
from minishark.worker.group_runs import runs_of
from minishark.worker.helpers import Helpers
from minishark.worker.semi_join import semi_joined

Tables: TypeAlias = Mapping[str, pa.Table]
RunCte: TypeAlias = Callable[[EarlyCte, Tables, bool], pa.RecordBatchReader]


@dataclass(slots=True, kw_only=True)
class Reduction:
    """Reduces the inputs of one task.

    Attributes:
        helpers: threads that share the work.
        run: runs an early CTE over tables, which are the unchanged inputs unless `is_new`.
        threads: how many threads may work.
        left_bytes: how many bytes of runs, CTEs and inputs may still be held.
    """

    hints: FragmentHints
    helpers: Helpers
    run: RunCte
    threads: int
    left_bytes: int
    _groups: dict[str, str] = field(default_factory=dict)

    def reduced(self, sql: str, coded: CodedInputs) -> tuple[str, CodedInputs]:
        """The SQL to run for a fragment, and the tables that its names mean.

        If the CTEs have more rows than may be held, DuckDB computes them in the fragment itself,
        over all rows: filters save time, they never decide an answer.
        """
        with_runs = self._with_runs(coded)
        tables, has_filters = self._filtered(with_runs.tables, [*coded.tables])
        is_new = has_filters or not with_runs.are_mapped
        for cte in self.hints.ctes:
            readable = structs.replace(cte, sql=with_ctes(cte.sql, {}, self._groups))
            with self.run(readable, tables, is_new) as reader:
                table = self._held(reader)
            if table is None:
                own = {cte.name: cte.sql for cte in self.hints.ctes}
                return with_ctes(sql, own, self._groups), with_runs
            tables, _ = self._filtered({**tables, cte.name: table}, [cte.name])
            is_new = True
        return with_ctes(sql, {}, self._groups), CodedInputs(tables, are_mapped=not is_new)

    def _with_runs(self, coded: CodedInputs) -> CodedInputs:
        """Inputs with the runs of groups; decides which SQL makes each of the groups."""
        found = dict(coded.tables)
        for each in self.hints.group_runs:
            runs = runs_of(
                found[each.input],
                each,
                self.helpers,
                threads=self.threads,
                bytes_max=self.left_bytes,
            )
            if runs is None:
                self._groups[each.name] = each.hashed
                continue
            self.left_bytes -= runs.table.nbytes
            self._groups[each.name] = each.single if runs.are_groups else each.merged
            found[each.runs] = runs.table
        return CodedInputs(found, coded.are_mapped and len(found) == len(coded.tables))

    def _held(self, reader: pa.RecordBatchReader) -> pa.Table | None:
        """All rows; None if they take more bytes than are left."""
        batches = []
        for batch in reader:
            batches.append(batch)
            self.left_bytes -= batch.nbytes
            if self.left_bytes < 0:
                return None
        return pa.Table.from_batches(batches, reader.schema)

    def _filtered(self, tables: Tables, computed: Collection[str]) -> tuple[Tables, bool]:
        """Tables without rows that lack a key of the `computed` relations, and whether any did."""
        found = dict(tables)
        filters = [each for each in self.hints.key_filters if each.keys in computed]
        for each in filters:
            table = found[each.input].select(each.columns)
            keys = found[each.keys].column(each.key)
            kept = semi_joined(
                table, each, keys, self.helpers, threads=self.threads, bytes_max=self.left_bytes
            )
            if kept is not table:
                self.left_bytes -= kept.nbytes
            found[each.input] = kept
        return found, bool(filters)
