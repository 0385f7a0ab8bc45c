"""Where rows come from: files, object stores, table formats, databases, and users' own sources.

Who writes a source imports its vocabulary from here; docs/sources.md has an example.
"""

from minishark.model.catalog import ColumnStatistics, TableStatistics
from minishark.model.expressions import Column
from minishark.model.predicates import Comparison, Predicate, Pushed
from minishark.sources.contract import Snapshot, Source, Split

__all__ = [
    "Column",
    "ColumnStatistics",
    "Comparison",
    "Predicate",
    "Pushed",
    "Snapshot",
    "Source",
    "Split",
    "TableStatistics",
]
