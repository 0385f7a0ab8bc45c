"""The 22 TPC-H queries straight from Iceberg tables of a warehouse, beside DuckDB on their files.

    python benchmarks/warehouse.py --scale 1 --repetitions 3 --json warehouse.json

Both read the same Parquet files, those that minishark has written, from the page cache, with the
same number of threads; no rows are held in memory between queries. Runs alternate, query by query
and repetition by repetition. Answers are compared before anything is measured, and the exit status
is 1 if one differs. Times of CREATE TABLE AS are told as well.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import dataclass
from typing import Annotated

import duckdb

import minishark
from minishark.cli.tpch.queries import load_queries, parse_selection
from minishark.model.expressions import quote, quote_text
from minishark.query.answers import differences, output_order
from minishark_lab.harness.clocks import CpuClock, Steps, timed
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import TpchOptions, described, run_script

_NAME = "CREATE SCHEMA warehouse.tpch; USE warehouse.tpch"


@dataclass(frozen=True, kw_only=True)
class WarehouseOptions(TpchOptions):
    repetitions: Count = 3
    queries: Annotated[str, described("such as 1,3-5")] = "1-22"


def main(options: WarehouseOptions) -> int:
    queries = load_queries(parse_selection(options.queries))
    reporter = Steps()
    tables = options.tables()
    wrong: list[int] = []
    rows = []
    with tempfile.TemporaryDirectory() as folder, minishark.connect(warehouse=folder) as session:
        session.sql(_NAME)
        reporter.step("Writing the tables")
        created_s = sum(
            timed(
                lambda name=name, path=path: session.sql(
                    f"CREATE TABLE {quote(name)} AS FROM read_parquet({quote_text(path)})"
                )
            )
            for name, path in tables.items()
        )
        clock = CpuClock()
        with duckdb.connect(config={"threads": session.total_slots}) as native:
            for name in tables:
                native.execute(
                    f"CREATE VIEW {quote(name)} AS FROM read_parquet("
                    f"'{folder}/tpch/{name}-*/data/*.parquet')"
                )
            reporter.step("Comparing the answers")
            for number, text in queries.items():
                expected = native.sql(text).to_arrow_table()
                order = output_order(native, text, expected.column_names)
                found = differences(expected, session.sql(text).to_arrow(), ordered_by=order)
                if found:
                    wrong.append(number)
                    print(f"Query {number}: {' '.join(found)}", file=sys.stderr)
            reporter.step("Measuring")
            for number, text in queries.items():
                own, theirs, own_cpu, their_cpu = [], [], [], []
                for _ in range(options.repetitions):
                    before = clock.now_s()
                    own.append(timed(lambda text=text: session.sql(text).to_arrow()))
                    between = clock.now_s()
                    theirs.append(timed(lambda text=text: native.sql(text).to_arrow_table()))
                    own_cpu.append(between - before)
                    their_cpu.append(clock.now_s() - between)
                rows.append(
                    {
                        "query": number,
                        "minishark_s": min(own),
                        "duckdb_s": min(theirs),
                        "ratio": min(own) / min(theirs),
                        "cpu_ratio": statistics.mean(own_cpu) / statistics.mean(their_cpu),
                    }
                )
    for row in rows:
        print(
            f"Q{row['query']:02} {row['minishark_s']:8.3f} s {row['duckdb_s']:8.3f} s "
            f"{row['ratio']:6.2f} (CPU {row['cpu_ratio']:.2f})"
        )
    totals = {
        "ratio": sum(row["minishark_s"] for row in rows) / sum(row["duckdb_s"] for row in rows),
        "geometric_mean": statistics.geometric_mean(row["ratio"] for row in rows),
        "cpu_geometric_mean": statistics.geometric_mean(row["cpu_ratio"] for row in rows),
        "create_s": created_s,
    }
    print(totals)
    options.write({"queries": rows, "totals": totals, "wrong": wrong})
    return 1 if wrong else 0


if __name__ == "__main__":
    run_script(main, quick={"scale": 0.01, "queries": "1,6", "repetitions": 1})
