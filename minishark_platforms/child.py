"""A node's process on a machine that a platform has given; started by `host`, by `python -m`."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading

import msgspec

from minishark.cluster.node import NodeOptions, run
from minishark.worker.protocol import StoreLocation
from minishark_platforms.host import NodeSettings, NodeStarted


def _end_with_parent() -> None:
    """Exit when stdin ends, as the parent is gone then."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    """Run the node that a line of JSON on stdin describes, and say on stdout when it listens."""
    # Not through a buffer: the watching thread must find nothing, and Python's end not wait for it.
    line = bytearray()
    while not line.endswith(b"\n") and (char := os.read(0, 1)):
        line += char
    settings = msgspec.json.decode(bytes(line), type=NodeSettings)
    # Ignored in background jobs, and blocked by threads of Ray's workers, which children inherit.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.register(signal.SIGUSR1)  # `kill -USR1` writes all threads' stacks into the log
    threading.Thread(target=_end_with_parent, name="minishark-parent", daemon=True).start()
    spec = settings.spec
    options = NodeOptions(
        name=spec.name,
        listen=settings.listen,
        cluster=spec.cluster,
        heads=spec.heads,
        executors=spec.executors,
        memory_limit_bytes=spec.memory_limit_bytes,
        keys=settings.keys_folder,
        folders=settings.folders,
        locks=settings.locks,
    )

    def report(own: StoreLocation) -> None:
        os.write(1, msgspec.json.encode(NodeStarted(own.service)) + b"\n")

    try:
        status = run(options, report)
    except Exception as error:  # noqa: BLE001 - the host shows the end of the log
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        status = 1
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
