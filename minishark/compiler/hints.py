"""Hints that optimizer rules attach to a plan, from the planner to the executors.

A rule annotates scans with `ScanHints`. When the plan is cut into stages, these are resolved into
one `FragmentHints` for each stage, which travels unchanged: Stage -> StageTask -> worker. A hint
never changes which rows a fragment gives, so an executor may ignore any of them.
Light, as executors import it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from minishark.model.predicates import Pushed

# In a physical plan


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFilter:
    """A semi-join filter of a scan: rows whose integer is not among the keys may be dropped."""

    column: str
    cte: int  # the common table expression that holds the keys
    key: int  # in the column at this position
    whole: bool  # whether the keys of all its partitions count, not only those of the scan's own
    low: int
    high: int
    copied_max: float  # if more of the rows than this share have a key, all are read


@dataclass(frozen=True, slots=True)
class GroupRuns:
    """Facts about the groups of the aggregate above a scan."""

    key: str  # the table's column that they are grouped by
    # For each aggregate the function (sum, count, min or max) and the table's column, which is
    # empty for a count of rows.
    values: tuple[tuple[str, str], ...]
    sum_max: int  # an upper bound of |value| for all summed values, in units of the last digit


UNNAMED_SOURCE = "_source_"
"""How the names of tables start that stand for sources without a name of their own."""

_WHOLE = 0.995


@dataclass(frozen=True, slots=True)
class SourceScan:
    """What a scan reads of a source."""

    source: str  # the source's name
    pushed: Pushed
    splits: int | None = None  # how many parts of it; None before they are chosen
    all_splits: int | None = None  # of how many; None where that was not asked for
    share: float = 1.0  # of the bytes of all parts

    @property
    def label(self) -> str:
        counts = "" if self.splits is None else f", {self._count()}"
        return f" from {self.source}{counts}{self.pushed.label}"

    def _count(self) -> str:
        of = "" if self.all_splits is None else f" of {self.all_splits}"
        noun = "split" if (self.all_splits or self.splits) == 1 else "splits"
        share = f", {self.share:.0%} of the bytes," if self.share < _WHOLE else ""
        return f"{self.splits}{of} {noun}{share}"


@dataclass(frozen=True, slots=True)
class ScanHints:
    """Hints of a scan."""

    dictionary_codes: tuple[tuple[str, str], ...] = ()  # columns of codes, and their text columns
    key_filter: KeyFilter | None = None
    group_runs: GroupRuns | None = None  # the groups of its rows, if they may be stored as runs
    source: SourceScan | None = None  # what it reads of a source; None for a stored table

    @property
    def label(self) -> str:
        text = "" if self.source is None else self.source.label
        if self.key_filter is not None:
            text += f" where {self.key_filter.column} in #{self.key_filter.cte}"
        if self.group_runs is not None:
            text += f" possibly in runs of {self.group_runs.key}"
        return text


NO_HINTS = ScanHints()


# In a stage, and on the wire


class DictionaryCodes(msgspec.Struct, frozen=True, array_like=True):
    """Columns that an input gets in addition: the dictionary codes of text columns."""

    input: str  # the input's name in the fragment
    relation: str  # what the fragment calls the dictionaries: one row with a list for each column
    columns: tuple[tuple[str, str], ...]  # each new column and the text column that it encodes


class EarlyCte(msgspec.Struct, frozen=True, array_like=True):
    """A common table expression that runs before the fragment, from inputs and earlier ones."""

    name: str  # what later ones and the fragment call it
    sql: str  # a SELECT with columns c0, c1, ...
    types: tuple[str, ...]  # the DuckDB types of these columns
    rows: float


class InputKeyFilter(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A semi-join filter: an input keeps only rows whose integer is among the keys of a relation.

    The fragment still joins both, so rows without a key may be left. The bounds and `copied_max`
    are those of the scan's `KeyFilter`.
    """

    input: str
    column: str
    keys: str  # the relation that holds the keys: an early CTE or an input
    key: str  # that relation's column
    columns: tuple[str, ...]  # the columns of the input that the fragment reads
    low: int
    high: int
    copied_max: float


class InputGroupRuns(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The groups of an input's rows by a key, which may be stored as runs of rows with one key.

    `key`, `values` and `sum_max` are those of the scan's `GroupRuns`.
    """

    name: str  # what the fragment calls the groups: the key as c0, aggregates as c1, ...
    input: str
    key: str
    values: tuple[tuple[str, str], ...]
    sum_max: int
    hashed: str  # a SELECT of the groups from the input's rows
    merged: str  # of the groups from several runs of one key, in a relation `runs` like this
    single: str  # a SELECT of the groups from runs each of which is a group

    @property
    def runs(self) -> str:
        """The name of the runs in `merged` and `single`."""
        return f"{self.name}_runs"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column for _, column in self.values if column)


class FragmentHints(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Hints of a fragment."""

    dictionary_codes: tuple[DictionaryCodes, ...] = ()  # columns that inputs get in addition
    ctes: tuple[EarlyCte, ...] = ()  # relations that a task computes first, in this order
    key_filters: tuple[InputKeyFilter, ...] = ()  # rows of inputs that a task drops
    group_runs: tuple[InputGroupRuns, ...] = ()  # groups of inputs that may be stored as runs
    build_sides: bool = False  # whether DuckDB builds from the right sides of joins
    aggregates_early: bool = False  # whether DuckDB may push aggregates below joins
    prepares: bool = False  # whether a fragment that comes again is prepared
    inline_bytes: int = 0  # an output below this size travels in messages; 0 for none

    @property
    def reduces_inputs(self) -> bool:
        """Whether a task does something to its inputs before the fragment runs."""
        return bool(self.key_filters or self.group_runs)


NO_FRAGMENT_HINTS = FragmentHints()


def with_ctes(sql: str, ctes: Mapping[str, str], views: Mapping[str, str] | None = None) -> str:
    """A SELECT with common table expressions, by name, each of which may read those before it."""
    # The `views` come first, and are computed wherever they are read; the `ctes` are computed once.
    texts = [f"{name} AS ({text})" for name, text in (views or {}).items()]
    texts += [f"{name} AS MATERIALIZED ({text})" for name, text in ctes.items()]
    return f"WITH {', '.join(texts)} {sql}" if texts else sql
