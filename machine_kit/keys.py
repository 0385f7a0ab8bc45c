"""CURVE keys and allow-lists.

Keys are written in hexadecimal. An endpoint over tcp ends with the public key of the process that
listens there, `tcp://host:port/<public key>`, so that an address authenticates its server without
a table of keys. Clients are authenticated by the server's allow-list.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import zmq
from zmq.utils import z85

from machine_kit.errors import InsecureTransport

_KEY = re.compile(r"[0-9a-f]{64}")


class Keys(msgspec.Struct, frozen=True):
    """A process's key pair and the public keys that it accepts."""

    public: str
    secret: str
    allowed: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Without the secret, which must not end up in logs."""
        return f"Keys(public={self.public!r}, allowed={self.allowed!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """The same for rich, whose tracebacks show local variables."""
        return [("public", self.public), ("allowed", self.allowed)]


def generate() -> Keys:
    """A fresh key pair that accepts nobody."""
    public, secret = (z85.decode(key).hex() for key in zmq.curve_keypair())
    return Keys(public, secret)


def write_key_file(file: Path, keys: Keys) -> None:
    """Write a key pair into a new file of mode 0600.

    Raises:
        InsecureTransport: The file exists; keys are never overwritten.
    """
    try:
        file.touch(0o600, exist_ok=False)
    except FileExistsError as error:
        raise InsecureTransport(f"{file} exists; keys are not overwritten") from error
    file.write_text(f'public = "{keys.public}"\nsecret = "{keys.secret}"\n', encoding="ascii")


def read_keys(key_file: Path, allowed_file: Path) -> Keys:
    """Read a key pair and an allow-list (one public key per line, optionally a name after it).

    Raises:
        InsecureTransport: Missing or malformed files, or a secret that others may read.
    """
    try:
        if key_file.stat().st_mode & 0o077:
            raise InsecureTransport(f"{key_file} may be read by others: chmod 600 {key_file}")
        pair = tomllib.loads(key_file.read_text())
        lines = allowed_file.read_text().splitlines()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InsecureTransport(f"cannot read the keys: {error}") from error
    words = [line.split("#")[0].split() for line in lines]
    keys = Keys(
        str(pair.get("public")), str(pair.get("secret")), tuple(word[0] for word in words if word)
    )
    for key in (keys.public, keys.secret, *keys.allowed):
        if not _KEY.fullmatch(key):
            raise InsecureTransport(f"{key_file}, {allowed_file}: a key is 64 hexadecimal digits")
    return keys


def split_endpoint(endpoint: str) -> tuple[str, bytes | None]:
    """Split an endpoint into what ZeroMQ connects to and the server's public key.

    Raises:
        InsecureTransport: A tcp endpoint without a key, or not an endpoint.
    """
    if endpoint.startswith("ipc://"):
        return endpoint, None
    socket, _, key = endpoint.rpartition("/")
    if not (socket.startswith("tcp://") and _KEY.fullmatch(key)):
        raise InsecureTransport(f"{endpoint!r} is neither ipc://<path> nor tcp://host:port/<key>")
    return socket, bytes.fromhex(key)


def check_private(socket: Path) -> None:
    """Check that no other user can reach a socket file.

    Raises:
        InsecureTransport: Its folder is accessible to others, or belongs to another user.
    """
    folder = socket.parent
    if not folder.is_dir():
        return  # binding will fail
    status = folder.stat()
    if status.st_uid != os.getuid():
        raise InsecureTransport(f"{folder} is another user's: sockets need a folder of your own")
    if status.st_mode & 0o077:
        raise InsecureTransport(
            f"{folder} is open to others: sockets need a folder of mode 0700: chmod 700 {folder}"
        )
