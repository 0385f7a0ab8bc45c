"""Writers that are killed while they change a table: `python killed_writer.py FOLDER in_process`.

For each line "STATEMENT SECONDS" of its input, a new process begins the statement of that number
and is killed so many seconds later ("none" lets it finish). Answers a line: how long it ran, and
whether it has finished.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

# A process that has imported everything, and has no threads yet, is cheap to begin with.
import pyiceberg.catalog.sql
import pyiceberg.io.pyarrow  # noqa: F401

import minishark

BATCH = 2000
Rows = Counter[int]  # how many rows have which value


@dataclass(frozen=True, slots=True)
class Statement:
    """A change, and what it makes of the rows."""

    sql: str
    done: Callable[[Rows], Rows]  # the table's rows after it, given those before


STATEMENTS = (
    Statement(
        f"INSERT INTO warehouse.t SELECT 0, uuid() FROM range({BATCH})",
        lambda rows: rows + Counter({0: BATCH}),
    ),
    Statement(
        "UPDATE warehouse.t SET a = a + 1",
        lambda rows: Counter({a + 1: n for a, n in rows.items()}),
    ),
    Statement(
        "DELETE FROM warehouse.t WHERE a > 6",
        lambda rows: Counter({a: n for a, n in rows.items() if a <= 6}),
    ),
    Statement(
        f"MERGE INTO warehouse.t USING (SELECT 3 AS a, i FROM range({BATCH}) r(i)) AS n "
        "ON t.a = n.a AND n.i = 0 WHEN MATCHED THEN UPDATE SET a = 2 "
        "WHEN NOT MATCHED THEN INSERT (a) VALUES (5)",
        lambda rows: (
            Counter({a: n for a, n in rows.items() if a != 3})
            + Counter({2: rows[3], 5: BATCH - (rows[3] > 0)})
        ),
    ),
    Statement(
        "CREATE OR REPLACE TABLE warehouse.t AS SELECT a + 1 AS a, b FROM warehouse.t",
        lambda rows: Counter({a + 1: n for a, n in rows.items()}),
    ),
)


def _write(folder: str, statement: int, told: int, *, in_process: bool) -> None:
    with minishark.connect(
        warehouse=folder, in_process=in_process, nodes=2, single_task_rows=0
    ) as session:
        session.sql("SELECT count(*) FROM warehouse.t").collect()
        os.write(told, b"begins\n")
        session.sql(STATEMENTS[statement].sql)
        os.write(told, b"done\n")


def _killed(folder: str, statement: int, after_s: float | None, *, in_process: bool) -> str:
    read, told = os.pipe()
    process = os.fork()
    if process == 0:
        os.setsid()
        try:
            _write(folder, statement, told, in_process=in_process)
        except BaseException:  # noqa: BLE001 - the test sees the end of the pipe
            traceback.print_exc()
        os._exit(0)
    os.close(told)
    with os.fdopen(read) as lines:
        assert lines.readline() == "begins\n", "the writer has a session"
        began = time.monotonic()
        if after_s is not None:
            time.sleep(after_s)
            os.kill(process, signal.SIGKILL)
        done = lines.readline() == "done\n"
        took_s = time.monotonic() - began
        os.waitpid(process, 0)
    return f"{took_s} {int(done)}"


def main(folder: str, in_process: str) -> None:
    for line in sys.stdin:
        statement, after_s = line.split()
        seconds = None if after_s == "none" else float(after_s)
        told = _killed(folder, int(statement), seconds, in_process=in_process == "true")
        sys.stdout.write(f"{told}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
