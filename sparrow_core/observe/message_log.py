"""A log of all messages, as text for people: what a machine took, and what it sent thereupon.

The audit log has what became of jobs; this one is for a machine that does something else than it
should. A line is a time, a machine, `<-` or `->` with the other end of what it sent, and a message:

    1764000000.123456 ipc:///tmp/a#scheduler0 <- Reserve(...)
    1764000000.123456 ipc:///tmp/a#scheduler0 -> ipc:///tmp/b#monitor-node1 AssignTasks(...)

so `sort -n FOLDER/*` puts the lines of all processes in order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from machine_kit.addresses import Address
from machine_kit.machine import Envelope, Message

VARIABLE = "SPARROW_MESSAGES"  # names a folder, to which all processes write that inherit it
_TEXT_MAX = 1_000  # characters of a message: payloads are cut off


class MessageLog:
    """A driver's tap that appends to a file, line by line: none is missing after a crash."""

    def __init__(self, file: Path, offset_s: float | None = None) -> None:
        """Open the file, for its owner only: payloads may hold keys of object stores.

        Args:
            file: Is made if it is missing, and its folder too.
            offset_s: Is added to the driver's clock; None makes `time.monotonic` that of the world.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._out = os.fdopen(descriptor, "a", buffering=1, encoding="utf-8")
        self._offset_s = time.time() - time.monotonic() if offset_s is None else offset_s

    def __call__(self, at: Address, msg: Message, out: Sequence[Envelope], now: float) -> None:
        self.taken(now, at, msg)
        for envelope in out:
            after = f" after {envelope.delay_s:g} s" if envelope.delay_s else ""
            self._write(now, f"{at} -> {envelope.to}{after}", envelope.msg)

    def taken(self, now: float, at: Address, msg: Message) -> None:
        """Write what a machine has taken; it is what the simulator calls its trace."""
        self._write(now, f"{at} <-", msg)

    def _write(self, now: float, what: str, msg: Message) -> None:
        text = repr(msg)
        if len(text) > _TEXT_MAX:
            text = f"{text[:_TEXT_MAX]}... ({len(text):,} characters)"
        self._out.write(f"{now + self._offset_s:.6f} {what} {text}\n")

    def close(self) -> None:
        self._out.close()
