"""Makes TPC-DS data and queries for `benchmarks/tpcds.py`, with DuckDB's generator.

The extension on PyPI is built for one version of DuckDB, another than minishark's, so it needs an
environment of its own:

    python -m venv /tmp/tpcds && /tmp/tpcds/bin/pip install duckdb==1.5.5 duckdb-extension-tpcds
    /tmp/tpcds/bin/python benchmarks/tpcds_data.py FOLDER --scale 0.1
"""

from __future__ import annotations

import argparse
from pathlib import Path

import duckdb
import duckdb_extension_tpcds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scale", type=float, default=0.1)
    options = parser.parse_args()
    package = Path(duckdb_extension_tpcds.__file__).parent
    extension = next(package.rglob("tpcds.duckdb_extension"))
    with duckdb.connect(config={"allow_unsigned_extensions": True}) as connection:
        connection.execute(f"LOAD '{extension}'")
        connection.execute(f"CALL dsdgen(sf = {options.scale})")
        options.folder.mkdir(parents=True, exist_ok=True)
        for (table,) in connection.execute("SHOW TABLES").fetchall():
            connection.execute(f"COPY {table} TO '{options.folder / table}.parquet'")
        for number, text in connection.execute(
            "SELECT query_nr, query FROM tpcds_queries()"
        ).fetchall():
            (options.folder / f"q{number:02}.sql").write_text(text)


if __name__ == "__main__":
    main()
