"""Which of DuckDB's operators run distributed, and how; generates a table of docs/sql.md."""

from __future__ import annotations

from minishark.compiler.sql.lower import HANDLERS

DISTRIBUTED = {
    "LOGICAL_GET": (
        "a table's partitions in parallel, small tables by every task; Parquet files that are named "
        "without options, by ranges of their rows"
    ),
    "LOGICAL_FILTER": "in each partition",
    "LOGICAL_PROJECTION": "in each partition",
    "LOGICAL_AGGREGATE_AND_GROUP_BY": (
        "in each partition if it holds whole groups; else in two phases (DISTINCT, ordered and "
        "unsplittable aggregates: after a shuffle on the groups); grouping sets too"
    ),
    "LOGICAL_COMPARISON_JOIN": (
        "inner, left, right, full, semi, anti, right semi, right anti, mark, single: partition by "
        "partition, after a broadcast, or after a shuffle on the equal keys"
    ),
    "LOGICAL_ANY_JOIN": "with one side broadcast, where the kind of join allows it",
    "LOGICAL_CROSS_PRODUCT": "with one side broadcast",
    "LOGICAL_ORDER_BY": "many rows in ranges of sampled keys, few in one task after a gather",
    "LOGICAL_TOP_N": "the first rows of each partition, then of these",
    "LOGICAL_LIMIT": (
        "the first rows of each partition, then of these; tasks that can add nothing are cancelled"
    ),
    "LOGICAL_DISTINCT": "in each partition, then after a shuffle; DISTINCT ON after a shuffle",
    "LOGICAL_WINDOW": "after a shuffle on the partition keys that all windows share, else in one task",
    "LOGICAL_UNNEST": "in each partition",
    "LOGICAL_UNION": "partition by partition",
    "LOGICAL_INTERSECT": "after a shuffle on all columns",
    "LOGICAL_EXCEPT": "after a shuffle on all columns",
    "LOGICAL_MATERIALIZED_CTE": "inside the fragment that reads it, or as a stage that several read",
    "LOGICAL_CTE_REF": "like its definition",
    "LOGICAL_CHUNK_GET": "constants, in every task",
    "LOGICAL_EXPRESSION_GET": "constants (VALUES), in every task",
    "LOGICAL_DUMMY_SCAN": "constants, in every task",
    "LOGICAL_EMPTY_RESULT": "nothing, in every task",
}
"""Operator -> how its work is divided into tasks."""

SINGLE_TASK = {
    "LOGICAL_GET of functions": "range() and the like read no table of the cluster",
    "LOGICAL_GET of other files": (
        "CSV and JSON: their types are found by one reader; Parquet with options, lists of files, "
        "columns of the reader (filename ...), folders that name values, files that differ"
    ),
    "LOGICAL_RECURSIVE_CTE": "each iteration needs all rows of the last one",
    "LOGICAL_ASOF_JOIN": "not yet",
    "LOGICAL_POSITIONAL_JOIN": "pairs rows by their position in the whole relation",
    "LOGICAL_DELIM_JOIN": "rare: DuckDB turns most correlated subqueries into CTEs",
    "LOGICAL_SAMPLE": "a sample of the whole is not a union of samples",
    "LOGICAL_PIVOT": "rare: DuckDB turns most pivots into aggregates",
    "LIMIT of a percentage": "needs the total row count",
    "RANGE frames with an offset": "the plan holds the bound, not the offset",
    "lambdas, row, list_aggregate, named arguments": "their binding is not visible in their arguments",
    "columns of ENUM and other user-defined types": "a plan has no name for the type",
}
"""What runs as a whole statement in one task -> the reason."""


def coverage_table() -> str:
    lines = ["| DuckDB operator | how it runs |", "|---|---|"]
    lines += [f"| `{name}` | distributed: {DISTRIBUTED[name]} |" for name in sorted(HANDLERS)]
    lines += [f"| {name} | single task: {why} |" for name, why in SINGLE_TASK.items()]
    return "\n".join(lines)
