"""A front end that copies a table to files, for a test that kills it: `killed_copy.py TARGET`.

Writes "begins" to its output before the statement, and "done" after it.
"""

from __future__ import annotations

import os
import sys

import minishark

ROWS = 300_000
PARTITIONS = 4
OPTIONS = "(FORMAT parquet, PARTITION_BY (k), {mode})"


def main(target: str, mode: str) -> None:
    with minishark.connect(nodes=1, partitions=PARTITIONS, single_task_rows=0) as session:
        session.sql(
            f"CREATE TABLE t AS SELECT i, i % 3 AS k, 'text ' || hash(i) AS text "
            f"FROM range({ROWS}) r(i)"
        )
        os.write(1, b"begins\n")
        session.sql(f"COPY t TO '{target}' {OPTIONS.format(mode=mode)}")
        os.write(1, b"done\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
