"""The keys of a cluster: a pair and an allow-list, which are two files of one folder."""

from __future__ import annotations

from pathlib import Path

from machine_kit.errors import TransportError
from machine_kit.keys import Keys, generate, read_keys, write_key_file
from minishark.errors import ClusterError

__all__ = ["ALLOWED_KEYS", "OWN_KEY", "Keys", "fresh_keys", "load_keys", "write_keys"]

OWN_KEY = "own.key"
ALLOWED_KEYS = "allowed.keys"


def fresh_keys() -> Keys:
    """A key pair that accepts itself: all nodes and sessions of a cluster share it."""
    pair = generate()
    return Keys(pair.public, pair.secret, (pair.public,))


def load_keys(folder: str | Keys | None) -> Keys | None:
    if folder is None or isinstance(folder, Keys):
        return folder
    try:
        return read_keys(Path(folder, OWN_KEY), Path(folder, ALLOWED_KEYS))
    except TransportError as error:
        raise ClusterError(f"Can't use the keys in {folder}: {error}") from error


def write_keys(folder: Path, keys: Keys) -> None:
    """Write keys into a folder, which is made if it is not there.

    Raises:
        ClusterError: It has some, or can't be written to.
    """
    others = [key for key in keys.allowed if key != keys.public]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_key_file(folder / OWN_KEY, keys)
        lines = [f"{keys.public} # this cluster", *others]
        (folder / ALLOWED_KEYS).write_text("".join(f"{line}\n" for line in lines))
    except (OSError, TransportError) as error:
        raise ClusterError(f"Can't write keys to {folder}: {error}") from error
