"""Large sorts and files in queries beside DuckDB, in one run.

python benchmarks/sorts.py --lineitem 'data/tpch/scale-1/lineitem/*.parquet'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import duckdb

import minishark
from minishark_lab.harness.clocks import timed
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import Options, described, run_script

COLUMNS = {"all": "*", "2": "l_orderkey, l_extendedprice"}
ONE_TASK = 1 << 60


def best_ms(run: Callable[[], object], repetitions: int) -> float:
    """The shortest of some runs, after a warm-up."""
    run()
    return min(timed(run) for _ in range(repetitions)) * 1e3


@dataclass(frozen=True, kw_only=True)
class SortsOptions(Options):
    lineitem: Annotated[str, described("Parquet files of lineitem")]
    repetitions: Count = 3
    keys: tuple[Count, ...] = (600000, 2000000, 6000000)


def main(options: SortsOptions) -> None:
    count = options.repetitions
    with duckdb.connect(config={"threads": 2}) as con, minishark.connect() as session:
        con.execute(f"CREATE TABLE lineitem AS FROM '{options.lineitem}'")
        session.create_table("lineitem", options.lineitem, partition_by="l_orderkey")
        planner = session._runtime.engine.planner  # noqa: SLF001 - to compare what it would not choose
        chosen = planner.options
        print(f"{'query':<28} {'ranges':>8} {'one task':>8} {'DuckDB':>8}  ms")
        for keys in options.keys:
            for name, columns in COLUMNS.items():
                sql = (
                    f"SELECT {columns} FROM lineitem WHERE l_orderkey < {keys} "
                    "ORDER BY l_extendedprice, l_orderkey"
                )
                figures = []
                for values in (0, ONE_TASK):
                    planner.options = replace(chosen, sort_values=values)
                    frame = session.sql(f"{sql} /* {values} */")
                    figures.append(best_ms(frame.to_arrow, count))
                figures.append(best_ms(lambda sql=sql: con.sql(sql).to_arrow_table(), count))
                title = f"keys < {keys:,}, {name} columns"
                print(f"{title:<28} {' '.join(f'{figure:8.0f}' for figure in figures)}")
        sql = f"SELECT l_returnflag, sum(l_tax) FROM '{options.lineitem}' GROUP BY ALL"
        here = best_ms(session.sql(sql).to_arrow, count)
        there = best_ms(lambda: con.sql(sql).to_arrow_table(), count)
        print(f"{'groups over files':<28} {here:8.0f} {'':>8} {there:8.0f}")


if __name__ == "__main__":
    run_script(main, quick={"keys": [10000], "repetitions": 1})
