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
RunCte: TypeAlias = Callable[[EarlyCte, CodedInputs], pa.RecordBatchReader]


@dataclass(slots=True, kw_only=True)
class Reduction:
    """Reduces the inputs of one task."""

    hints: FragmentHints
    helpers: Helpers  # threads that share the work
    run: RunCte  # runs an early CTE over the inputs as they are by then
    ran: Callable[[str], None]  # told the name of each one whose rows were read
    threads: int  # how many threads may work
    left_bytes: int  # how many bytes of runs, CTEs and inputs may still be held
    _groups: dict[str, str] = field(default_factory=dict)

    def reduced(self, sql: str, coded: CodedInputs) -> tuple[str, CodedInputs]:
        """The SQL to run for a fragment, and the tables that its names mean.

        If the CTEs have more rows than may be held, DuckDB computes them in the fragment itself,
        over all rows: filters save time, they never decide an answer.
        """
        with_runs = self._with_runs(coded)
        inputs = self._filtered(with_runs, [*coded.tables])
        for cte in self.hints.ctes:
            readable = structs.replace(cte, sql=with_ctes(cte.sql, {}, self._groups))
            with self.run(readable, inputs) as reader:
                table = self._held(reader)
            if table is None:
                own = {cte.name: cte.sql for cte in self.hints.ctes}
                return with_ctes(sql, own, self._groups), with_runs
            self.ran(cte.name)
            computed = CodedInputs({**inputs.tables, cte.name: table}, inputs.new | {cte.name})
            inputs = self._filtered(computed, [cte.name])
        return with_ctes(sql, {}, self._groups), inputs

    def _with_runs(self, coded: CodedInputs) -> CodedInputs:
        """Inputs with the runs of groups; decides which SQL makes each of the groups."""
        tables, new = dict(coded.tables), coded.new
        for runs_hint in self.hints.group_runs:
            runs = runs_of(
                tables[runs_hint.input],
                runs_hint,
                self.helpers,
                threads=self.threads,
                bytes_max=self.left_bytes,
            )
            if runs is None:
                self._groups[runs_hint.name] = runs_hint.hashed
                continue
            self.left_bytes -= runs.table.nbytes
            self._groups[runs_hint.name] = runs_hint.single if runs.are_groups else runs_hint.merged
            tables[runs_hint.runs] = runs.table
            new |= {runs_hint.runs}
        return CodedInputs(tables, new)

    def _held(self, reader: pa.RecordBatchReader) -> pa.Table | None:
        """All rows; None if they take more bytes than are left."""
        batches = []
        for batch in reader:
            batches.append(batch)
            self.left_bytes -= batch.nbytes
            if self.left_bytes < 0:
                return None
        return pa.Table.from_batches(batches, reader.schema)

    def _filtered(self, inputs: CodedInputs, computed: Collection[str]) -> CodedInputs:
        """Inputs without rows that lack a key of the `computed` relations."""
        tables, new = dict(inputs.tables), inputs.new
        for filter_ in self.hints.key_filters:
            if filter_.keys not in computed:
                continue
            table = tables[filter_.input].select(filter_.columns)
            keys = tables[filter_.keys].column(filter_.key)
            kept = semi_joined(
                table, filter_, keys, self.helpers, threads=self.threads, bytes_max=self.left_bytes
            )
            if kept is not table:
                self.left_bytes -= kept.nbytes
            tables[filter_.input] = kept
            new |= {filter_.input}
        return CodedInputs(tables, new)
