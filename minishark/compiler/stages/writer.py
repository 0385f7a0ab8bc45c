"""Writes the SQL of one stage: its fragment, the inputs that this reads, and its hints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from minishark.compiler.hints import (
    DictionaryCodes,
    EarlyCte,
    FragmentHints,
    InputGroupRuns,
    InputKeyFilter,
    KeyFilter,
    with_ctes,
)
from minishark.compiler.logical.operators import Cte, CteRef, Scan, Statement
from minishark.compiler.physical.plan import (
    Exchange,
    Materialize,
    PhysicalPlan,
    RangeShuffle,
    Replicated,
    Share,
    Shuffle,
    Single,
    StageOutput,
)
from minishark.compiler.rules import RULES
from minishark.compiler.stages import fragment
from minishark.compiler.stages.fragment import Aliases, Block, columns
from minishark.compiler.stages.stage import Input, ReadMode, StageInput, TableInput

if TYPE_CHECKING:
    from minishark.compiler.stages.split import Splitter

InputKey: TypeAlias = tuple[str | int, ReadMode, KeyFilter | tuple[Share, ...] | None]
"""A table or stage, which part of it a task reads, and which rows or buckets of that part."""

_LOWERINGS = [rule.lower for rule in RULES if rule.lower is not None]


@dataclass(slots=True, kw_only=True)
class FragmentWriter:
    """The SQL of a stage while it is being written.

    Optimizer rules attach hints to it, under the names of inputs.
    """

    stages: Splitter  # the other stages of the plan, and its common table expressions
    aliases: Aliases = field(default_factory=Aliases)
    # What the fragment reads, by what that is.
    inputs: dict[InputKey, Input] = field(default_factory=dict)
    ctes: dict[str, str] = field(default_factory=dict)  # its common table expressions, by name
    early_ctes: dict[str, EarlyCte] = field(default_factory=dict)  # those that run before it
    # Columns that inputs get in addition, by input.
    dictionary_codes: dict[str, DictionaryCodes] = field(default_factory=dict)
    # Which rows inputs keep, by input.
    key_filters: dict[str, InputKeyFilter] = field(default_factory=dict)
    group_runs: list[InputGroupRuns] = field(default_factory=list)

    def fragment(self, plan: PhysicalPlan, exchange: PhysicalPlan | None) -> str:
        """The SQL of the stage that computes `plan`, whose rows `exchange` may divide."""
        # Blocks first: they add the inputs and CTEs that the final text needs.
        block = self.block(plan)
        sql = fragment.select(block) if exchange is None else self._divided(block, exchange)
        if not self.key_filters:
            # Only filters need early results; without any in this stage, it is one statement.
            early = {name: cte.sql for name, cte in self.early_ctes.items()}
            self.ctes = early | self.ctes
            self.early_ctes.clear()
        return with_ctes(sql, self.ctes)

    def statement(
        self, statement: Statement, exchange: PhysicalPlan | None, *, is_last: bool
    ) -> str:
        for table in statement.tables:
            self.inputs[(table, ReadMode.ALL, None)] = TableInput(table, table, ReadMode.ALL)
        if is_last:
            return statement.sql
        # A user's columns may have any names, or the same ones twice.
        names = columns(statement.schema)
        source = f"({statement.sql}) AS t({', '.join(names)})"
        block = Block(source, tuple(f"t.{name}" for name in names))
        return fragment.select(block) if exchange is None else self._divided(block, exchange)

    def hints(self) -> FragmentHints:
        return FragmentHints(
            dictionary_codes=tuple(self.dictionary_codes.values()),
            ctes=tuple(self.early_ctes.values()),
            key_filters=tuple(self.key_filters.values()),
            group_runs=tuple(self.group_runs),
        )

    def block(self, plan: PhysicalPlan) -> Block:
        """The SQL of a node and all below it in this stage."""
        # Rules first: they may know a better form than the operator's own.
        for lower in _LOWERINGS:
            lowered = lower(plan, self)
            if lowered is not None:
                return lowered
        operator = plan.operator
        match operator:
            case Scan():
                return fragment.scan_block(
                    self.scanned(plan, operator), operator.columns, self.aliases
                )
            case Cte():
                self.stages.definitions[operator.index] = plan.children[0]
                return self.block(plan.children[1])
            case CteRef():
                relation = self.cte(operator.index, whole=_is_whole(plan))
            case Exchange():
                relation = self._exchanged(plan)
            case _:
                blocks = [self.block(child) for child in plan.children]
                return fragment.operator_block(plan, blocks, self.aliases)
        return fragment.table_block(relation, columns(plan.schema), self.aliases)

    def scanned(self, plan: PhysicalPlan, scan: Scan) -> str:
        """The name in the fragment of a table that it scans, a partition or all of it."""
        mode = _mode(whole=_is_whole(plan))
        # Scans with different filters are different inputs: each keeps other rows.
        key = (scan.table.lower(), mode, scan.hints.key_filter)
        if key not in self.inputs:
            self.inputs[key] = TableInput(f"in{len(self.inputs)}", scan.table, mode)
        return self.inputs[key].name

    def cte(self, index: int, *, whole: bool) -> str:
        """The name in the fragment of a common table expression, which is written if it is new.

        Where it is a stage, all its partitions are read if `whole`.
        """
        definition = self.stages.definitions[index]
        if index not in self.stages.inlined:
            return self._staged(self.stages.stage(definition), _mode(whole=whole))
        name = f"cte{index}"
        if name in self.ctes or name in self.early_ctes:
            return name
        # Those that it reads are written on the way, so the order of the dictionaries is right.
        sql = fragment.select(self.block(definition))
        if index in self.stages.early:
            types = tuple(column.type for column in definition.schema)
            rows = definition.rows / definition.distribution.partitions
            self.early_ctes[name] = EarlyCte(name, sql, types, rows)
        else:
            self.ctes[name] = sql
        return name

    def _staged(self, stage: int, mode: ReadMode, shares: tuple[Share, ...] = ()) -> str:
        key = (stage, mode, shares)
        if key not in self.inputs:
            self.inputs[key] = StageInput(f"in{len(self.inputs)}", stage, mode, shares)
        return self.inputs[key].name

    def _exchanged(self, plan: PhysicalPlan) -> str:
        """The name in the fragment of the output of the stage below an exchange."""
        if isinstance(plan.operator, StageOutput):
            mode = _output_mode(plan, plan.operator)
            return self._staged(plan.operator.stage, mode, plan.operator.shares)
        child = plan.children[0]
        if isinstance(plan.operator, Shuffle | RangeShuffle):
            return self._staged(self.stages.stage(child, plan), ReadMode.BUCKET)
        if isinstance(plan.operator, Materialize):
            return self._staged(self.stages.stage(child), ReadMode.OWN)
        if isinstance(child.operator, CteRef):
            # The definition is a stage already: read that, instead of a copy of it.
            child = self.stages.definitions[child.operator.index]
        return self._staged(self.stages.stage(child), ReadMode.ALL)

    def _divided(self, block: Block, exchange: PhysicalPlan) -> str:
        """A fragment with one more column: the bucket that each row belongs to."""
        block = fragment.extensible(block, self.aliases)
        match exchange.operator:
            case Shuffle(keys=keys, partitions=partitions):
                bucket = fragment.bucket_column(keys, block.names, partitions)
                return fragment.select(block, [bucket])
            case RangeShuffle(keys=sort_keys, partitions=partitions):
                boundaries = self._staged(self.stages.stage(exchange.children[1]), ReadMode.ALL)
                return fragment.ranges_select(
                    sort_keys, block, boundaries, partitions, self.aliases
                )
            case _:
                message = "only shuffles divide rows"
                raise AssertionError(message)


def _is_whole(plan: PhysicalPlan) -> bool:
    """Whether a task reads all of a stored relation."""
    return isinstance(plan.distribution, Replicated)


def _output_mode(plan: PhysicalPlan, output: StageOutput) -> ReadMode:
    """Which part of an earlier stage's output a task reads, by where the plan has its rows."""
    if isinstance(plan.distribution, Replicated | Single):
        return ReadMode.ALL
    return ReadMode.BUCKET if output.has_buckets else ReadMode.OWN


def _mode(*, whole: bool) -> ReadMode:
    return ReadMode.ALL if whole else ReadMode.OWN
