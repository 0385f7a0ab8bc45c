"""A certificate and its private key in files that may be replaced while they are in use."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from minishark.errors import DataError, OptionError

_LOG = logging.getLogger("minishark.certificate")
_Value = TypeVar("_Value")


class Watched(Generic[_Value]):
    """What files hold, which may change."""

    def __init__(
        self, files: Sequence[Path], read: Callable[[], _Value], log: logging.Logger
    ) -> None:
        """Read the files; `log` is told if they can't be read later on."""
        self._files = files
        self._parse = read
        self._log = log
        self._told = self._stamps()
        self._read = self._told, read()

    def value(self) -> _Value:
        """What they hold now; what they held, if that can't be read."""
        before, held = self._read
        now = self._stamps()
        if now != before:
            try:
                held = self._parse()
                self._read = now, held
            except (DataError, OptionError) as error:  # perhaps for a moment
                if now != self._told:
                    self._log.warning("%s What was there before is used on.", error)
                self._told = now
        return held

    def _stamps(self) -> list[tuple[int, int, int]]:
        return [_stamp(file) for file in self._files]


class Certificate:
    """What new connections are encrypted with: the files as they are when a connection begins."""

    def __init__(
        self, files: tuple[str | Path, str | Path], *, protocols: Sequence[str] = ()
    ) -> None:
        """Read the files.

        Args:
            files: PEM files of a certificate (with those that lead to the root) and its key.
            protocols: what is spoken over it, as ALPN names that.

        Raises:
            DataError: they can't be read, or do not belong together.
        """
        certificate, key = files
        self._files = Path(certificate).expanduser(), Path(key).expanduser()
        self._protocols = protocols
        self._context = Watched(self._files, self._load, _LOG)

    def context(self) -> ssl.SSLContext:
        """For a new connection. While files are exchanged one by one, those from before hold."""
        return self._context.value()

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(*self._files, password=_no_password)
        except (OSError, ValueError) as error:
            names = " and ".join(map(str, self._files))
            raise DataError(f"The certificate {names} can't be read: {error}.") from error
        if self._protocols:
            context.set_alpn_protocols(list(self._protocols))
        return context


def _stamp(file: Path) -> tuple[int, int, int]:
    """What is another when a file is."""
    try:
        status = file.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


def _no_password() -> str:
    """Asked for by OpenSSL, which would else ask on the terminal."""
    raise ValueError("the key is encrypted")
