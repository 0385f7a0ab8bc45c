"""Reading sources, beside the library that reads each best alone.

    python benchmarks/sources.py csv --scale 1.4 --json csv.json

`csv` loads TPC-H's lineitem from one CSV file (1 GB at scale 1.4): `session.create_table`, in
parallel tasks, beside DuckDB's CREATE TABLE AS with as many threads, both in memory and with the
file in the page cache. Both times, wall and CPU, are told, and the ratios of medians; runs
alternate. The tables are compared by their row count and by sums, and the exit status is 1 if they
differ.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
from common import CpuClock, Steps, parser_of, tables_of, timed, write_json

import minishark
from minishark.expressions import quote_text

_CHECK = (
    "SELECT count(*), sum(l_extendedprice), min(l_shipdate), max(l_comment), sum(length(l_comment))"
)


def main(arguments: Sequence[str]) -> int:
    parser = parser_of(__doc__, repetitions=3)
    parser.add_argument("source", choices=sorted(COMMANDS), help="what is read")
    parser.add_argument("--quoted", action="store_true", help="with quotes around all CSV values")
    options = parser.parse_args(arguments)
    report, is_right = COMMANDS[options.source](options)
    write_json(options.json, report)
    return 0 if is_right else 1


def read_csv(options: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """A large CSV file into memory."""
    reporter = Steps()
    lineitem = tables_of(options)["lineitem"]
    with tempfile.TemporaryDirectory() as folder, minishark.connect() as session:
        file = Path(folder) / "lineitem.csv"
        quotes = ", FORCE_QUOTE *" if options.quoted else ""
        reporter.step("Writing the file")
        target = quote_text(str(file))
        duckdb.execute(f"COPY (FROM {quote_text(lineitem)}) TO {target} (HEADER{quotes})")
        with duckdb.connect(config={"threads": session.total_slots}) as native:

            def ours() -> None:
                session.create_table("loaded", file, replace=True)

            def theirs() -> None:
                native.execute(f"CREATE OR REPLACE TABLE loaded AS FROM read_csv({target})")

            runs = compared(ours, theirs, options.repetitions, reporter)
            expected = native.execute(f"{_CHECK} FROM loaded").fetchall()
        found = [tuple(row) for row in session.sql(f"{_CHECK} FROM loaded").collect()]
        size = file.stat().st_size
    print(f"{size / 1e9:.2f} GB of CSV, {found[0][0]:,} rows")
    return {"bytes": size, "runs": runs}, found == expected


def compared(
    ours: Callable[[], None], theirs: Callable[[], None], repetitions: int, reporter: Steps
) -> dict[str, list[list[float]]]:
    """Wall and CPU seconds of each run, which alternate; prints medians and ratios."""
    clock = CpuClock()
    found: dict[str, list[list[float]]] = {"minishark": [], "peer": []}
    for repetition in range(repetitions):
        reporter.step(f"Repetition {repetition + 1} of {repetitions}")
        for name, run in (("minishark", ours), ("peer", theirs)):
            before_s = clock.now_s()
            wall_s = timed(run)
            found[name].append([wall_s, clock.now_s() - before_s])
    for place, what in enumerate(("wall", "CPU")):
        own, peer = (
            statistics.median(run[place] for run in found[name]) for name in ("minishark", "peer")
        )
        print(f"{what}: minishark {own:.2f} s, peer {peer:.2f} s, ratio {own / peer:.2f}")
    return found


COMMANDS: dict[str, Callable[[argparse.Namespace], tuple[dict[str, Any], bool]]] = {
    "csv": read_csv,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
