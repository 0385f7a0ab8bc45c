"""The eight TPC-H tables: their keys, and how a run partitions them."""

from __future__ import annotations

import msgspec


class Table(msgspec.Struct, frozen=True):
    """A TPC-H table.

    Attributes:
        name: The table's name, which is that of its folder too.
        primary_key: The columns that identify a row.
        partition_by: The column that its rows are partitioned by. None leaves it to the engine,
            which keeps a copy of a small table on every node.
    """

    name: str
    primary_key: tuple[str, ...]
    partition_by: str | None


# lineitem and orders are partitioned alike, by the order's key, so that they join without a
# shuffle. The small tables come first, so that a mistake shows early.
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
