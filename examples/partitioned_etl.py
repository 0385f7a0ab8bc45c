"""From raw CSV files to a folder of Parquet files, partitioned by country and month.

Run it with `python examples/partitioned_etl.py [folder]`. It generates small raw files,
cleans them with SQL and a Python function over partitions, writes the result in parallel (all files
or none), and reads one month of one country back.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import minishark
from minishark import DataFrame, Session
from minishark import functions as F

COUNTRIES = ("de", "fr", "it")
CLEAN = "id BIGINT, country VARCHAR, day DATE, amount DECIMAL(12, 2), is_large BOOLEAN"


def write_raw_files(folder: Path, files: int = 3, rows: int = 400) -> None:
    """Raw orders, some of them invalid; the same on each run."""
    rng = random.Random(11)
    folder.mkdir(parents=True)
    for number in range(files):
        lines = ["id,country,day,amount"]
        for i in range(rows):
            country = rng.choice((*COUNTRIES, " DE ", ""))
            day = f"2026-{rng.randint(1, 3):02d}-{rng.randint(1, 28):02d}"
            amount = rng.choice((f"{rng.uniform(1, 500):.2f}", "n/a", "-1"))
            lines.append(f"{number * rows + i},{country},{day},{amount}")
        (folder / f"orders-{number}.csv").write_text("\n".join(lines) + "\n")


def flag_large(rows: pa.Table) -> pa.Table:
    """A step in Python: amounts above 300 are large."""
    return rows.append_column("is_large", pc.greater(rows["amount"], pa.scalar(300)))


def cleaned(session: Session, raw: Path) -> DataFrame:
    """Orders with a known country and an amount."""
    orders = session.sql(
        f"""
        SELECT id, lower(trim(country)) AS country, day,
            TRY_CAST(amount AS DECIMAL(12, 2)) AS amount
        FROM read_csv('{raw}/*.csv', all_varchar = false)
        WHERE trim(country) <> '' AND TRY_CAST(amount AS DECIMAL(12, 2)) > 0
        """
    )
    return orders.repartition(4).map_partitions(flag_large, CLEAN)


def run(session: Session, folder: Path) -> list[tuple[object, ...]]:
    """The whole job; the totals of one month of one country, read from its output."""
    raw, target = folder / "raw", folder / "orders"
    write_raw_files(raw)
    orders = cleaned(session, raw).with_column("month", F.expr("strftime(day, '%Y-%m')"))
    session.sql(
        f"COPY ({orders.sql()}) TO '{target}' "
        "(FORMAT parquet, PARTITION_BY (country, month), OVERWRITE_OR_IGNORE)"
    )
    february = session.sql(
        f"""
        SELECT count(*) AS orders, sum(amount) AS amount, count(*) FILTER (is_large) AS large
        FROM read_parquet('{target}/*/*/*.parquet', hive_partitioning = true)
        WHERE country = 'de' AND month = '2026-02'
        """
    )
    return [tuple(row) for row in february.collect()]


if __name__ == "__main__":
    with minishark.connect() as found, tempfile.TemporaryDirectory() as temporary:
        place = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        for count, amount, large in run(found, place):
            print(f"February in Germany: {count} orders, {amount} in all, {large} large ones")
