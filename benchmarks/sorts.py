"""Large sorts and files in queries beside DuckDB, in one run.

python benchmarks/sorts.py --lineitem 'data/tpch/scale-1/lineitem/*.parquet'
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import duckdb
from common import timed

import minishark

COLUMNS = {"all": "*", "2": "l_orderkey, l_extendedprice"}
ONE_TASK = 1 << 60


def best_ms(run: Callable[[], object], repetitions: int) -> float:
    """The shortest of some runs, after a warm-up."""
    run()
    return min(timed(run) for _ in range(repetitions)) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lineitem", required=True, help="Parquet files of lineitem")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--keys", type=int, nargs="+", default=[600_000, 2_000_000, 6_000_000])
    arguments = parser.parse_args()
    count = arguments.repetitions
    with duckdb.connect(config={"threads": 2}) as con, minishark.connect() as session:
        con.execute(f"CREATE TABLE lineitem AS FROM '{arguments.lineitem}'")
        session.create_table("lineitem", arguments.lineitem, partition_by="l_orderkey")
        planner = session._runtime.engine.planner  # noqa: SLF001 - to compare what it would not choose
        options = planner.options
        print(f"{'query':<28} {'ranges':>8} {'one task':>8} {'DuckDB':>8}  ms")
        for keys in arguments.keys:
            for name, columns in COLUMNS.items():
                sql = (
                    f"SELECT {columns} FROM lineitem WHERE l_orderkey < {keys} "
                    "ORDER BY l_extendedprice, l_orderkey"
                )
                figures = []
                for values in (0, ONE_TASK):
                    planner.options = replace(options, sort_values=values)
                    frame = session.sql(f"{sql} /* {values} */")
                    figures.append(best_ms(frame.to_arrow, count))
                figures.append(best_ms(lambda sql=sql: con.sql(sql).to_arrow_table(), count))
                title = f"keys < {keys:,}, {name} columns"
                print(f"{title:<28} {' '.join(f'{figure:8.0f}' for figure in figures)}")
        sql = f"SELECT l_returnflag, sum(l_tax) FROM '{arguments.lineitem}' GROUP BY ALL"
        here = best_ms(session.sql(sql).to_arrow, count)
        there = best_ms(lambda: con.sql(sql).to_arrow_table(), count)
        print(f"{'groups over files':<28} {here:8.0f} {'':>8} {there:8.0f}")


if __name__ == "__main__":
    main()
