"""Queries of several shapes: their stages, as the compiler would cut them, and the model's answers.

The compiler is not simulated: its plans are DuckDB's. What runs them is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from minishark.compiler.logical.operators import Values
from minishark.compiler.physical.plan import PhysicalPlan, Spread
from minishark.compiler.stages.stage import Input, ReadMode, Stage, StageInput, TableInput
from minishark.model.catalog import Table
from minishark.model.expressions import Schema
from minishark.worker.protocol import ScalarFunction
from minishark_lab.simulation.work import (
    CHANCE,
    COLUMNS,
    DRIFT,
    Rows,
    coarse,
    joined,
    summed,
    total,
)

_OWN, _ALL, _BUCKET = ReadMode.OWN, ReadMode.ALL, ReadMode.BUCKET
# A function that gives other results each time, so that what calls it varies.
FUNCTIONS = {CHANCE: ScalarFunction(name=CHANCE, pickled=b"", returns="BIGINT", volatile=True)}
_TEXT = re.compile(r"/\* simulated: (.*) \*/")


def _stage(
    index: int,
    fragment: str,
    inputs: tuple[Input, ...],
    tasks: int,
    *,
    buckets: int = 0,
    enough_rows: int | None = None,
    schema: Schema = COLUMNS,
) -> Stage:
    plan = PhysicalPlan(Values((), schema), (), schema, Spread(tasks), 1.0)
    return Stage(
        index=index,
        sql=fragment,
        inputs=inputs,
        schema=schema,
        tasks=tasks,
        buckets=buckets,
        plan=plan,
        enough_rows=enough_rows,
    )


def _table(table: Table, mode: ReadMode = _OWN, name: str = "in0") -> TableInput:
    return TableInput(name, table.name, mode)


def _rows(table: Table) -> list[Stage]:
    count = len(table.partitions)
    return [_stage(0, "rows", (_table(table),), count, schema=table.schema)]


def _total(table: Table) -> list[Stage]:
    return [
        _stage(0, "total", (_table(table),), len(table.partitions)),
        _stage(1, "totals", (StageInput("in0", 0, _ALL),), 1),
    ]


def _grouped(table: Table, buckets: int) -> list[Stage]:
    return [
        _stage(0, "divide", (_table(table),), len(table.partitions), buckets=buckets),
        _stage(1, "sum", (StageInput("in0", 0, _BUCKET),), buckets),
    ]


def _deep(table: Table, buckets: int) -> list[Stage]:
    """Two shuffles, one after the other, and a total over all."""
    return [
        _stage(0, "divide", (_table(table),), len(table.partitions), buckets=buckets),
        _stage(1, "coarse", (StageInput("in0", 0, _BUCKET),), buckets, buckets=2),
        _stage(2, "sum", (StageInput("in0", 1, _BUCKET),), 2),
        _stage(3, "total", (StageInput("in0", 2, _ALL),), 1),
    ]


class _Drifting(Stage):
    """A stage that puts out other rows when it runs again, though it calls nothing volatile."""

    varies = True


def _varying(table: Table, buckets: int, fragment: str = CHANCE) -> list[Stage]:
    """Rows are divided by chance: who recomputes a part must recompute what has read it."""
    first = _stage(0, fragment, (_table(table),), len(table.partitions), buckets=buckets)
    if fragment == DRIFT:
        first = _Drifting(**{each.name: getattr(first, each.name) for each in fields(first)})
    return [
        first,
        _stage(1, "total", (StageInput("in0", 0, _BUCKET),), buckets),
        _stage(2, "totals", (StageInput("in0", 1, _ALL),), 1),
    ]


def _limited(table: Table, count: int) -> list[Stage]:
    return [
        _stage(0, "rows", (_table(table),), len(table.partitions), enough_rows=count),
        _stage(1, f"limit {count}", (StageInput("in0", 0, _ALL),), 1),
    ]


def _joined(table: Table, other: Table, buckets: int) -> list[Stage]:
    if table.is_hashed and other.is_hashed and len(table.partitions) == len(other.partitions):
        inputs = (_table(table), _table(other, name="in1"))
        return [_stage(0, "join", inputs, len(table.partitions))]
    return [
        _stage(0, "divide", (_table(table),), len(table.partitions), buckets=buckets),
        _stage(1, "divide", (_table(other),), len(other.partitions), buckets=buckets),
        _stage(2, "join", (StageInput("in0", 0, _BUCKET), StageInput("in1", 1, _BUCKET)), buckets),
    ]


def _broadcast(table: Table, other: Table) -> list[Stage]:
    """The other table whole to each task, and one output for each."""
    inputs = (_table(table), StageInput("in1", 0, _ALL))
    count = len(table.partitions)
    return [
        _stage(0, "rows", (_table(other),), len(other.partitions)),
        _stage(1, "join", inputs, count),
        _stage(2, "rows", (StageInput("in0", 1, _OWN),), count, buckets=2),
        _stage(3, "sum", (StageInput("in0", 2, _BUCKET),), 2),
    ]


@dataclass(frozen=True, slots=True)
class Query:
    """A query over tables of these names; `number` is its number of buckets or rows."""

    kind: str
    tables: tuple[str, ...]
    number: int = 2

    @property
    def text(self) -> str:
        """What binds to the columns of an answer, and what `read` reads."""
        told = " ".join((self.kind, str(self.number), *self.tables))
        return f"SELECT k, v FROM {self.tables[0]} /* simulated: {told} */"

    @classmethod
    def read(cls, text: str) -> Query | None:
        """A query by its text; None if it is not simulated."""
        told = _TEXT.search(text)
        if told is None:
            return None
        kind, number, *tables = told[1].split()
        return cls(kind, tuple(tables), int(number))

    def stages(self, tables: Sequence[Table]) -> list[Stage]:
        """How it runs over these versions of its tables."""
        first, *others = tables
        match self.kind:
            case "rows":
                return _rows(first)
            case "total":
                return _total(first)
            case "grouped":
                return _grouped(first, self.number)
            case "deep":
                return _deep(first, self.number)
            case "varying":
                return _varying(first, self.number)
            case "drifting":
                return _varying(first, self.number, DRIFT)
            case "limited":
                return _limited(first, self.number)
            case "joined":
                return _joined(first, others[0], self.number)
            case "broadcast":
                return _broadcast(first, others[0])
        message = f"there is no query {self.kind}"
        raise AssertionError(message)

    def is_answer(self, answer: Rows, tables: Mapping[str, Rows]) -> bool:
        """Whether these are the rows that the model gives, of tables with these rows."""
        rows = [tables[name] for name in self.tables]
        if self.kind == "limited":
            left = sorted(rows[0])
            enough = len(answer) == min(self.number, len(left))
            return enough and not any(answer.count(row) > left.count(row) for row in answer)
        return sorted(answer) == sorted(_ANSWERS[self.kind](rows))


_ANSWERS: Mapping[str, Callable[[Sequence[Rows]], Rows]] = {
    "rows": lambda rows: rows[0],
    "total": lambda rows: total(rows[0]),
    "grouped": lambda rows: summed(rows[0]),
    "deep": lambda rows: total(summed(coarse(rows[0]))),
    "varying": lambda rows: total(rows[0]),
    "drifting": lambda rows: total(rows[0]),
    "joined": lambda rows: summed(joined(rows[0], rows[1])),
    "broadcast": lambda rows: summed(joined(rows[0], rows[1])),
}

KINDS = ("rows", "total", "grouped", "deep", "varying", "limited", "joined", "broadcast")
