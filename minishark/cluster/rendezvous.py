"""For launchers that start all nodes alike, as srun does: nodes meet in a file that all can see.

The first one to come writes its address there and runs the scheduler; the others read it. The file
is complete when it appears, also on NFS: a link to a draft is made, which fails if there is one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from minishark.errors import ClusterError, OptionError

MARK = "@"
_ELSEWHERE = ("192.0.2.1", 9)  # reserved for documentation (RFC 5737); nothing is sent there
_PORT_TRIES = 100
_FIRST_S = 60.0
_POLL_S = 0.1


def is_rendezvous(address: object) -> bool:
    """Whether this names a file, as in `@/shared/job-17`, instead of an address."""
    return isinstance(address, str) and address.startswith(MARK)


def own_address() -> str:
    """An address for a node on this machine: its default interface, two free ports.

    Raises:
        OptionError: its interface can't be found out.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_ELSEWHERE)
            ip = probe.getsockname()[0]
    except OSError:  # no default route
        try:
            ip = socket.gethostbyname(socket.gethostname())
        except OSError as error:
            raise OptionError("This machine's address is unknown: pass --listen.") from error
    for _ in range(_PORT_TRIES):
        held = hold_ports(ip, 0)
        if held is not None:
            port = held[0].getsockname()[1]
            for socket_ in held:
                socket_.close()
            return f"tcp://{ip}:{port}"
    raise OptionError(f"No two adjacent ports are free at {ip}: pass --listen.")


def hold_ports(ip: str, port: int) -> tuple[socket.socket, socket.socket] | None:
    """Two sockets that hold a port (0 for any) and the next one; None if one is taken."""
    with contextlib.ExitStack() as undo, contextlib.suppress(OSError, OverflowError):
        first, second = (undo.enter_context(socket.socket()) for _ in range(2))
        for listener in (first, second):  # connections that have ended do not hold them
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        first.bind((ip, port))
        second.bind((ip, first.getsockname()[1] + 1))
        undo.pop_all()
        return first, second
    return None


@contextlib.contextmanager
def met(address: str, own: str) -> Iterator[str]:
    """The head's address: `own` for the first one to come, which removes the file at its end.

    Raises:
        ClusterError: the file can't be read or written.
    """
    file = Path(address.removeprefix(MARK)).absolute()
    draft = file.with_name(f"{file.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        draft.write_text(own)
        try:
            os.link(draft, file)
            is_first = True
        except FileExistsError:
            is_first = False
        finally:
            draft.unlink()
    except OSError as error:
        raise ClusterError(f"Nodes can't meet in {file}: {error}") from error
    try:
        yield own if is_first else head_in(address)
    finally:
        if is_first:
            file.unlink(missing_ok=True)


def head_in(address: str, wait_s: float = _FIRST_S) -> str:
    """The address in the file of a rendezvous; waits for the first node to come.

    Raises:
        ClusterError: none has come in time, or the file can't be read.
    """
    file = Path(address.removeprefix(MARK)).absolute()
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return file.read_text().strip()
        except FileNotFoundError as error:
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"No node has written its address to {file} within {wait_s:g} s."
                ) from error
        except OSError as error:
            raise ClusterError(f"Can't read {file}: {error}") from error
        time.sleep(_POLL_S)
