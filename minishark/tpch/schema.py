"""The eight TPC-H tables: their keys and partitioning."""

from __future__ import annotations

import msgspec


class Table(msgspec.Struct, frozen=True):
    """A TPC-H table; without `partition_by`, a single partition, replicated on every node."""

    name: str
    primary_key: tuple[str, ...]
    partition_by: str | None


# lineitem and orders are co-partitioned by the order's key, so that they join without a shuffle.
# Small tables come first, so that errors show early.
TABLES = (
    Table("region", ("r_regionkey",), None),
    Table("nation", ("n_nationkey",), None),
    Table("supplier", ("s_suppkey",), "s_suppkey"),
    Table("part", ("p_partkey",), "p_partkey"),
    Table("partsupp", ("ps_partkey", "ps_suppkey"), "ps_partkey"),
    Table("customer", ("c_custkey",), "c_custkey"),
    Table("orders", ("o_orderkey",), "o_orderkey"),
    Table("lineitem", ("l_orderkey", "l_linenumber"), "l_orderkey"),
)
