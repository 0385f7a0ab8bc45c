"""The table `hits`: made by DuckDB, and read as a view over its Parquet files."""

from __future__ import annotations

from pathlib import Path

import duckdb

from minishark.model.expressions import quote_text

_MADE_BY = Path(__file__).with_name("hits.sql")


def make_hits(file: Path, rows: int, seed: int = 1) -> None:
    """Write that many rows as a Parquet file; the same ones for the same seed."""
    text = _MADE_BY.read_text(encoding="utf-8").replace("'{file}'", quote_text(str(file)))
    with duckdb.connect() as connection:
        connection.execute(f"SET VARIABLE seed = {seed}; SET VARIABLE rows = {rows}; {text}")


def view_of_hits(files: str) -> str:
    """SQL of the view over files as ClickBench's: times are seconds, dates days, texts binary."""
    return (
        "CREATE OR REPLACE VIEW hits AS SELECT * REPLACE "
        "(make_timestamp(EventTime * 1000000) AS EventTime, "
        "DATE '1970-01-01' + EventDate::INTEGER AS EventDate) "
        f"FROM read_parquet({quote_text(files)}, binary_as_string = true)"
    )
