"""A dashboard's queries: many small ones at once, from an event loop and from threads.

Run it with `python examples/dashboard.py`.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import minishark
from minishark import DataFrame, Row, Session
from minishark import functions as F

ROWS = 200_000


def load(session: Session) -> DataFrame:
    """Generated visits of a web site."""
    numbers = session.range(ROWS)
    visits = numbers.select(
        (F.col("id") % 97).alias("page"),
        (F.col("id") % 24).alias("hour"),
        (F.hash("id") % 1000).cast("INTEGER").alias("ms"),
    )
    session.create_table("visits", visits, partition_by="page", partitions=4)
    return session.table("visits")


def tiles(visits: DataFrame) -> dict[str, DataFrame]:
    """One lazy query per tile of the dashboard."""
    return {
        "visits": visits.agg(F.count().alias("n")),
        "by hour": visits.group_by("hour").count().order_by("hour"),
        "slowest pages": visits.group_by("page")
        .agg(F.avg("ms").alias("ms"))
        .order_by(F.desc("ms"), "page")
        .limit(3),
        "percentiles": visits.agg(
            F.percentile("ms", 0.5).alias("p50"), F.percentile("ms", 0.99).alias("p99")
        ),
    }


async def refresh(visits: DataFrame) -> dict[str, list[Row]]:
    """All tiles concurrently, in an event loop."""
    asked = tiles(visits)
    rows = await asyncio.gather(*(frame.collect_async() for frame in asked.values()))
    return dict(zip(asked, rows, strict=True))


def main(session: Session) -> dict[str, list[Row]]:
    """Refresh the dashboard once in an event loop, and for several viewers in threads."""
    visits = load(session)
    shown = asyncio.run(refresh(visits))
    with ThreadPoolExecutor(4) as viewers:
        counts = list(viewers.map(lambda _: visits.count(), range(8)))
    assert counts == [ROWS] * 8
    for name, rows in shown.items():
        print(f"{name}: {rows[:3]}")
    return shown


if __name__ == "__main__":
    with minishark.connect() as opened:
        main(opened)
