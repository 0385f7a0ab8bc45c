"""The program of another session: it runs queries until its stdin ends, or it is killed."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading

import msgspec
import pyarrow as pa

import minishark

_ROWS = 20_000


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    address, keys = msgspec.json.decode(sys.stdin.readline(), type=tuple[str | None, str | None])
    over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    one = None if address else 1
    with minishark.connect(
        address,
        keys=keys,
        nodes=one,
        executors_per_node=one,
        single_task_rows=0,
        disabled_optimizations=["coalesced_tasks"],
    ) as session:
        rows = pa.table({"k": [i % 16 for i in range(_ROWS)], "x": range(_ROWS)})
        session.create_table("t", rows, partition_by="k", partitions=2)
        while not over.wait(0.1):
            session.sql("SELECT k, sum(x) FROM t GROUP BY k ORDER BY k").to_arrow()


if __name__ == "__main__":
    main()
