"""A wire with delay and loss between hosts: packets pass through this process.

    python relay.py DELAY_S LOSS SEED PID...

Each PID is a process of a host; its network namespace gets a TUN device `eth0`. Prints `ready` when
all are there; ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import selectors
import struct
import sys
import time
from collections import deque
from pathlib import Path

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x1, 0x1000
_CLONE_NEWNET = 0x40000000
_PACKET_MAX = 1 << 16
_WAITING_MAX = 100_000  # packets on the wire; more are dropped


def device_of(pid: int) -> int:
    """A new TUN device in the network namespace of a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", b"eth0", _IFF_TUN | _IFF_NO_PI))
    return device


def relay(devices: list[int], delay_s: float, loss: float, seed: int) -> None:
    """Pass on packets by the last byte of their IPv4 destination, 1 for the first host."""
    chance = random.Random(seed).random
    wire: deque[tuple[float, int, bytes]] = deque()
    selector = selectors.DefaultSelector()
    for device in (*devices, 0):
        selector.register(device, selectors.EVENT_READ)
    while True:
        now = time.monotonic()
        while wire and wire[0][0] <= now:
            _, target, packet = wire.popleft()
            with contextlib.suppress(OSError):  # its queue is full, or the device is down: lost
                os.write(target, packet)
        wait_s = max(0.0, wire[0][0] - now) if wire else None
        for key, _ in selector.select(wait_s):
            if key.fd == 0:
                return
            due = time.monotonic() + delay_s
            while True:
                try:
                    packet = os.read(key.fd, _PACKET_MAX)
                except OSError:
                    break
                number = packet[19] - 1 if packet[0] >> 4 == 4 else -1
                if 0 <= number < len(devices) and len(wire) < _WAITING_MAX and chance() >= loss:
                    wire.append((due, devices[number], packet))


def main(delay_s: str, loss: str, seed: str, *pids: str) -> None:
    """Run the relay."""
    own = os.open(Path("/proc/self/ns/net"), os.O_RDONLY)
    devices = [device_of(int(pid)) for pid in pids]
    ctypes.CDLL(None).setns(own, _CLONE_NEWNET)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    relay(devices, float(delay_s), float(loss), int(seed))


if __name__ == "__main__":
    main(*sys.argv[1:])
