"""Changes a table without end, until it is killed: `python killed_writer.py FOLDER in_process`.

Each statement leaves a multiple of `BATCH` rows of each number, whatever they become.
"""

from __future__ import annotations

import sys

import minishark

BATCH = 2000


def main(folder: str, in_process: str) -> None:
    with minishark.connect(
        warehouse=folder, in_process=in_process == "true", nodes=2, single_task_rows=0
    ) as session:
        session.sql("CREATE TABLE IF NOT EXISTS warehouse.t (a INTEGER, b VARCHAR)")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            session.sql(f"INSERT INTO warehouse.t SELECT 0, uuid() FROM range({BATCH})")
            session.sql("UPDATE warehouse.t SET a = a + 1")
            session.sql("DELETE FROM warehouse.t WHERE a > 3")
            session.sql(
                f"MERGE INTO warehouse.t USING (SELECT 9 AS a FROM range({BATCH})) AS n "
                "ON t.a = n.a WHEN NOT MATCHED THEN INSERT (a) VALUES (n.a)"
            )
            session.sql("DELETE FROM warehouse.t WHERE a = 9")
            session.sql("CREATE OR REPLACE TABLE warehouse.u AS FROM warehouse.t")


if __name__ == "__main__":
    main(*sys.argv[1:])
