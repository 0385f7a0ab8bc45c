"""A session that shares a warehouse: `python recorded_writer.py FOLDER SEED FIRST COUNT`.

Runs statements on warehouse.h, and writes a line before and after each: its kind, its numbers, the
time on this machine's monotonic clock, and "begins", "done" or "failed". Numbers are from FIRST on.
"""

from __future__ import annotations

import random
import sys
import time

import minishark
from minishark.errors import ConflictError


def tell(kind: str, numbers: list[int], what: str) -> None:
    line = f"{kind} {','.join(map(str, numbers))} {time.monotonic()} {what}\n"
    sys.stdout.write(line)
    sys.stdout.flush()


def main(folder: str, seed: int, first: int, count: int) -> None:
    rng = random.Random(seed)
    with minishark.connect(in_process=True, nodes=1, warehouse=folder) as session:

        def read() -> list[int]:
            return [row[0] for row in session.sql("SELECT n FROM warehouse.h").collect()]

        known = read()
        for number in range(count):
            kind = rng.choice(("add", "add", "remove", "read", "read"))
            if kind == "read":
                tell(kind, [], "begins")
                known = read()
                tell(kind, sorted(known), "done")
                continue
            added = [first + 3 * number + i for i in range(3)]
            gone = rng.sample(known, min(2, len(known)))
            numbers = added if kind == "add" else gone
            if not numbers:
                continue
            listed = ", ".join(map(str, numbers))
            sql = (
                f"INSERT INTO warehouse.h SELECT unnest([{listed}])"
                if kind == "add"
                else f"DELETE FROM warehouse.h WHERE n IN ({listed})"
            )
            tell(kind, numbers, "begins")
            try:
                session.sql(sql)
            except ConflictError:
                tell(kind, numbers, "failed")
            else:
                tell(kind, numbers, "done")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
