"""The program that `benchmarks/durable.py` kills: an ETL with a Python function, and 22 queries.

    python benchmarks/durable_program.py DATA OUT [CLUSTER [KEPT]]

It scores the comments of lineitem in Python, row by row, and writes the scores as Parquet files;
then it runs the 22 queries of TPC-H in stages over Parquet files, and writes their answers. It
knows nothing of being killed, but that it writes each answer in one step. Submitted, it runs on the
cluster that it was submitted to. KEPT is a folder for outputs, which outlive the cluster.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import minishark
from minishark.cli.tpch.queries import load_queries, parse_selection
from minishark.cli.tpch.tables import find_tables

_FACTOR, _PRIME = 31, 1_000_003


def scored(rows: pa.Table) -> pa.Table:
    """A number for each comment, by a loop that takes Python some microseconds a row."""
    scores = []
    for text in rows["l_comment"].to_pylist():
        score = 0
        for letter in text:
            score = (score * _FACTOR + ord(letter)) % _PRIME
        scores.append(score)
    return pa.table(
        {
            "l_orderkey": rows["l_orderkey"],
            "l_linenumber": rows["l_linenumber"],
            "score": pa.array(scores, pa.int64()),
        }
    )


def over_files(text: str, tables: Mapping[str, str]) -> str:
    """A query with the files of the tables that it names, as CTEs."""
    named = [name for name in tables if re.search(rf"\b{name}\b", text)]
    files = ", ".join(f"{name} AS (FROM '{tables[name]}')" for name in named)
    text = re.sub(r"^(\s|--.*\n)*", "", text)
    return (
        f"WITH {files}, {text[4:]}" if text.lower().startswith("with") else f"WITH {files} {text}"
    )


def main(data: Path, out: Path, cluster: str | None, kept: str | None) -> None:
    """All of it."""
    tables = find_tables(data)
    with minishark.connect(
        cluster, reuse="cluster", reuse_folder=kept, single_task_rows=0, prints=False
    ) as session:
        lineitem = session.read.parquet(tables["lineitem"])
        comments = lineitem.select("l_orderkey", "l_linenumber", "l_comment")
        scores = comments.map_batches(
            scored, "l_orderkey BIGINT, l_linenumber BIGINT, score BIGINT"
        )
        scores.write.mode("overwrite").parquet(str(out / "scores"))
        for number, text in load_queries(parse_selection("1-22")).items():
            answer = session.sql(over_files(text, tables)).to_arrow()
            pq.write_table(answer, out / f"{number}.new")
            (out / f"{number}.new").rename(out / f"{number}.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *[*sys.argv[3:], None, None][:2])
