"""Who may ask: tokens, users with passwords, and where a server may listen without them."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import re
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.flight as fl

from minishark.errors import DataError, OptionError

COOKIE = "minishark_session"
_TOKEN = re.compile(r"[\w-]{20,}", re.ASCII)
_ISSUED_MAX = 10_000
_REFUSED = "The server does not know this token, or this user and password."
_NEEDED = (
    "The server asks for a token (the header `authorization: Bearer TOKEN`), or for a user and "
    "password."
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls: a user, and the token that the server has issued for a connection, if any."""

    user: str = ""
    issued: str = ""


@dataclass(slots=True, kw_only=True)
class Access:
    """Checks what calls carry; safe to use from several threads.

    Attributes:
        token: what every call must carry; None for none.
        users: passwords by user.
        issued_s: seconds after which an issued token that nobody used is forgotten.
    """

    token: str | None = None
    users: Mapping[str, str] = field(default_factory=dict)
    issued_s: float = 3600.0
    _issued: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_open(self) -> bool:
        """Whether anybody may ask."""
        return self.token is None and not self.users

    def identify(self, headers: Mapping[str, Sequence[str | bytes]]) -> Identity:
        """Who sends these headers.

        Raises:
            FlightUnauthenticatedError: nobody that the server knows.
        """
        scheme, _, given = _header(headers, "authorization").partition(" ")
        match scheme.lower():
            case "bearer":
                return self._by_token(given.strip())
            case "basic":
                return Identity(self._by_password(given.strip()))
        if self.is_open:
            return Identity()
        raise fl.FlightUnauthenticatedError(_NEEDED)

    def issue(self, identity: Identity) -> Identity:
        """The same caller with a token of its own, which stands for one connection."""
        token, now = secrets.token_urlsafe(), time.monotonic()
        with self._lock:
            self._issued[token] = (identity.user, now)
            while self._issued:
                _, used_s = next(iter(self._issued.values()))
                if len(self._issued) <= _ISSUED_MAX and now - used_s < self.issued_s:
                    break
                self._issued.popitem(last=False)
        return Identity(identity.user, token)

    def forget(self, token: str) -> None:
        """An issued token holds no longer."""
        with self._lock:
            self._issued.pop(token, None)

    def _by_token(self, token: str) -> Identity:
        with self._lock:
            issued = self._issued.get(token)
            if issued is not None:
                self._issued[token] = (issued[0], time.monotonic())
                self._issued.move_to_end(token)
                return Identity(issued[0], token)
        if self.token is not None and hmac.compare_digest(self.token.encode(), token.encode()):
            return Identity("token")
        # A server that has been started anew knows no token; without access control, any will do.
        if self.is_open:
            return Identity()
        raise fl.FlightUnauthenticatedError(_REFUSED)

    def _by_password(self, given: str) -> str:
        try:
            padded = given + "=" * (-len(given) % 4)  # which ADBC leaves out
            user, _, password = base64.b64decode(padded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise fl.FlightUnauthenticatedError(_REFUSED) from None
        if self.is_open:
            return user
        # Some tools have no field but that of a password.
        expected = self.users.get(user, self.token if user in ("", "token") else None)
        is_right = hmac.compare_digest(
            (expected or secrets.token_hex()).encode(), password.encode()
        )
        if expected is None or not is_right:
            raise fl.FlightUnauthenticatedError(_REFUSED)
        return user or "token"


def _header(headers: Mapping[str, Sequence[str | bytes]], name: str) -> str:
    values = headers.get(name) or ("",)
    value = values[0]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def cookie_of(headers: Mapping[str, Sequence[str | bytes]]) -> str:
    """The session's cookie among those of a call, or ""."""
    for pair in _header(headers, "cookie").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == COOKIE:
            return value.strip('"')
    return ""


class Caller(fl.ServerMiddleware):
    """Who makes one call, and what it is told to send from now on."""

    def __init__(self, identity: Identity, cookie: str, *, is_handshake: bool) -> None:
        self.identity = identity
        self.cookie = cookie
        self.offered = "" if cookie else secrets.token_urlsafe(16)
        self._is_handshake = is_handshake

    def sending_headers(self) -> dict[str, str]:
        """The token after a handshake, and the cookie of clients that have none."""
        headers = {"set-cookie": f"{COOKIE}={self.offered}"} if self.offered else {}
        if self._is_handshake:
            headers["authorization"] = f"Bearer {self.identity.issued}"
        return headers


class Callers(fl.ServerMiddlewareFactory):
    """Lets calls pass, or not."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def start_call(self, info: fl.CallInfo, headers: Mapping[str, Sequence[str]]) -> Caller:
        """A call begins."""
        identity = self._access.identify(headers)
        is_handshake = info.method == fl.FlightMethod.HANDSHAKE
        if is_handshake:
            identity = self._access.issue(identity)
        return Caller(identity, cookie_of(headers), is_handshake=is_handshake)


class Handshakes(fl.ServerAuthHandler):
    """Answers handshakes; `Callers` has checked by then who asks."""

    def authenticate(self, outgoing: object, incoming: object) -> None:
        """A handshake."""

    def is_valid(self, token: bytes) -> bytes:
        """Any other call."""
        return b""


def read_token(file: Path) -> str:
    """The token in a file.

    Raises:
        DataError: it can't be read.
        OptionError: it holds no token that nobody guesses.
    """
    token = _text(file).strip()
    if not _TOKEN.fullmatch(token):
        raise OptionError(
            f"{file} must hold 20 or more letters, digits, '-' and '_': "
            "python -c 'import secrets; print(secrets.token_urlsafe())' makes such a token."
        )
    return token


def read_users(file: Path) -> dict[str, str]:
    """The passwords in a file of lines `user:password`, by user.

    Raises:
        DataError: it can't be read.
        OptionError: a line is none such.
    """
    users: dict[str, str] = {}
    for number, line in enumerate(_text(file).splitlines(), 1):
        user, colon, password = line.partition(":")
        if not line.strip() or line.startswith("#"):
            continue
        if not colon or not user or not password:
            raise OptionError(f"{file}, line {number}: write user:password.")
        users[user] = password
    if not users:
        raise OptionError(f"{file} has no line user:password.")
    return users


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} can't be read: {error}.") from error


def check_exposure(host: str, access: Access, *, has_tls: bool) -> None:
    """Refuse to be reached from other machines by anybody, or unencrypted.

    Raises:
        OptionError: the address is not this machine's alone, and TLS or access control is missing.
    """
    if _is_loopback(host):
        return
    missing = [] if has_tls else ["a certificate with its key"]
    missing += ["a token, or users with passwords"] if access.is_open else []
    if missing:
        raise OptionError(
            f"Other machines reach {host}: the server needs {' and '.join(missing)}, or listen on "
            "127.0.0.1."
        )


def _is_loopback(host: str) -> bool:
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError) as error:
        raise OptionError(f"{host!r} is no address to listen on: {error}.") from error
    return all(
        ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in addresses
    )
