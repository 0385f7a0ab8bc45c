"""What a task does to a fragment's inputs before it runs; light, as executors import it too."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class InputCodes(msgspec.Struct, frozen=True, array_like=True):
    """Columns that an input gets: the numbers of text in the dictionaries that it is stored with.

    Attributes:
        name: the input.
        relation: what the fragment calls the text: a row with a list for each column.
        columns: each new column and the text column that it has the numbers of.
    """

    name: str
    relation: str
    columns: tuple[tuple[str, str], ...]


class Step(msgspec.Struct, frozen=True, array_like=True):
    """A relation that is computed first, from the inputs and earlier steps.

    Attributes:
        name: what later steps and the fragment call it.
        sql: a SELECT with columns c0, c1, ...
        types: the DuckDB types of these.
        rows: about how many rows it has.
    """

    name: str
    sql: str
    types: tuple[str, ...]
    rows: float


class InputFilter(msgspec.Struct, frozen=True, array_like=True):
    """A semi-join filter: an input keeps only rows whose integer is among the keys of a relation.

    The fragment joins them all the same, so rows without such a key may be left.

    Attributes:
        name: the input.
        column: its column.
        keys: the relation, a step or an input.
        key: the relation's column.
        columns: those of the input's columns that the fragment reads.
        low: the column has no smaller value,
        high: and no larger one.
        most: the largest share of the rows, from 0 to 1, that is worth being copied; if more have
            such a key, all are read as they are.
    """

    name: str
    column: str
    keys: str
    key: str
    columns: tuple[str, ...]
    low: int
    high: int
    most: float


class InputRuns(msgspec.Struct, frozen=True, array_like=True):
    """The groups of an input's rows by a key, which may be found as runs of rows with one key.

    Attributes:
        name: what the fragment and steps call the groups: the key as c0, aggregates as c1, ...
        input: the input.
        key: its column.
        values: aggregates: sum, count, min or max, and the column that it is of; a count may be of
            none.
        sum_max: no value that is summed up is further from 0, in units of the last digit.
        hashed: a SELECT that gives the groups of the input's rows.
        merged: one that gives the groups of runs of which several may have the same key. Runs are
            called `runs`, with the same columns.
        single: one for runs each of which is a group.
    """

    name: str
    input: str
    key: str
    values: tuple[tuple[str, str], ...]
    sum_max: int
    hashed: str
    merged: str
    single: str

    @property
    def runs(self) -> str:
        """What `merged` and `single` call the runs."""
        return f"{self.name}_runs"

    @property
    def columns(self) -> tuple[str, ...]:
        """The input's columns that are aggregated."""
        return tuple(column for _, column in self.values if column)


def with_ctes(sql: str, ctes: Mapping[str, str], views: Mapping[str, str] | None = None) -> str:
    """A SELECT with common table expressions, by name, each of which may read those before it.

    Args:
        sql: the SELECT.
        ctes: are computed once.
        views: come before them, and are computed where they are read.
    """
    texts = [f"{name} AS ({text})" for name, text in (views or {}).items()]
    texts += [f"{name} AS MATERIALIZED ({text})" for name, text in ctes.items()]
    return f"WITH {', '.join(texts)} {sql}" if texts else sql
