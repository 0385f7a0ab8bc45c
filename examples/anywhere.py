"""The same job on one machine, on a cluster, or on Ray: only the environment tells where it runs.

    python examples/anywhere.py                              # on this machine
    MINISHARK_CLUSTER=ray python examples/anywhere.py        # on the Ray cluster that runs here
    MINISHARK_CLUSTER=default python examples/anywhere.py    # on `minishark cluster start`

Each partition makes its own measurements where it is, so no file needs to be on all machines.
"""

from __future__ import annotations

import os

import pyarrow as pa

import minishark
from minishark import Session

PARTITIONS = 8
ROWS = 50_000  # of each partition

DAYS = """
    SELECT station, count(*) AS hours, round(avg(degrees), 2) AS mean, max(degrees) AS hottest
    FROM measurements
    GROUP BY station
    HAVING max(degrees) > 30
    ORDER BY mean DESC, station
    LIMIT 5
"""


def measure(numbers: pa.Table) -> pa.Table:
    """Measurements of some hours, one per row; the same on each run."""
    hours = [each.as_py() for each in numbers["id"]]
    degrees = [10.0 + hour * 7_919 % 2_600 / 100 + hour % 97 / 25 for hour in hours]
    return pa.table(
        {
            "station": [f"station-{hour % 97:02}" for hour in hours],
            "hour": hours,
            "degrees": [round(each, 1) for each in degrees],
        }
    )


def run(session: Session, rows: int = ROWS) -> list[minishark.Row]:
    """The stations with the highest mean, of those where it was hot."""
    hours = session.range(PARTITIONS * rows).repartition(PARTITIONS)
    measured = hours.map_partitions(measure, "station VARCHAR, hour BIGINT, degrees DOUBLE")
    session.create_table("measurements", measured, partition_by="station", replace=True)
    return session.sql(DAYS).collect()


def main() -> None:
    """Run the job where MINISHARK_CLUSTER says."""
    with minishark.connect(os.environ.get("MINISHARK_CLUSTER")) as session:
        print(f"on {sum(node.slots for node in session.nodes())} executors:")
        for row in run(session):
            print(f"  {row.station}: {row.hours} hours, mean {row.mean}, up to {row.hottest}")


if __name__ == "__main__":
    main()
