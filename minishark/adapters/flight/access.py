"""Who may ask: tokens, users with passwords, and where a server may listen without them."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import hmac
import ipaddress
import logging
import math
import re
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow.flight as fl

from minishark.errors import DataError, OptionError
from minishark.session.page.certificate import Watched

_LOG = logging.getLogger("minishark.adapters.flight")

COOKIE = "minishark_session"
_TOKEN = re.compile(r"[\w-]{20,}", re.ASCII)
_ISSUED_MAX = 10_000
_REFUSED = "The server does not know this token, or this user and password."
_WEAK = (
    "{file} must hold 20 or more letters, digits, '-' and '_': "
    "python -c 'import secrets; print(secrets.token_urlsafe())' makes such a token."
)
_NEEDED = (
    "The server asks for a token (the header `authorization: Bearer TOKEN`), or for a user and "
    "password."
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls: a user, and the token that the server has issued for a connection, if any."""

    user: str = ""
    issued: str = ""
    shown: str = field(default="", repr=False, compare=False)  # by which it was known


@dataclass(slots=True, kw_only=True)
class Access:
    """Checks what calls carry; safe to use from several threads.

    Attributes:
        token: what calls must carry, or a file of such tokens, which may change; None for none.
        users: passwords by user, or a file of them, which may change.
        issued_s: seconds after which an issued token that nobody used is forgotten.

    Raises:
        DataError: a file can't be read.
        OptionError: it holds no tokens, or passwords.
    """

    token: str | Path | None = None
    users: Mapping[str, str] | Path = field(default_factory=dict)
    issued_s: float = 3600.0
    _tokens: Callable[[], Mapping[str, float]] = field(init=False)
    _passwords: Callable[[], Mapping[str, str]] = field(init=False)
    _issued: OrderedDict[str, tuple[Identity, float]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        tokens = {} if self.token is None else {str(self.token): math.inf}
        users = self.users if isinstance(self.users, Mapping) else {}
        self._tokens = lambda: tokens
        self._passwords = lambda: users
        if isinstance(self.token, Path):
            self._tokens = Watched([self.token], partial(read_tokens, self.token), _LOG).value
        if isinstance(self.users, Path):
            self._passwords = Watched([self.users], partial(read_users, self.users), _LOG).value

    @property
    def is_open(self) -> bool:
        """Whether anybody may ask."""
        return self.token is None and not self.users

    def identify(self, headers: Mapping[str, Sequence[str | bytes]]) -> Identity:
        """Who sends these headers.

        Raises:
            FlightUnauthenticatedError: nobody that the server knows.
        """
        return self._identify(_header(headers, "authorization"))

    def _identify(self, shown: str) -> Identity:
        scheme, _, given = shown.partition(" ")
        match scheme.lower():
            case "bearer":
                return self._by_token(given.strip(), shown)
            case "basic":
                return Identity(self._by_password(given.strip()), shown=shown)
        if self.is_open:
            return Identity()
        raise fl.FlightUnauthenticatedError(_NEEDED)

    def issue(self, identity: Identity) -> Identity:
        """The same caller with a token of its own, which stands for one connection."""
        token, now = secrets.token_urlsafe(), time.monotonic()
        with self._lock:
            self._issued[token] = (identity, now)
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

    def _by_token(self, token: str, shown: str) -> Identity:
        with self._lock:
            issued = self._issued.get(token)
            if issued is not None:
                self._issued[token] = (issued[0], time.monotonic())
                self._issued.move_to_end(token)
        if issued is not None:  # what it was issued for may have ended
            shown = issued[0].shown
            return Identity(self._identify(shown).user, token, shown)
        if self._is_token(token):
            return Identity("token", shown=shown)
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
        expected = self._passwords().get(user)
        is_right = hmac.compare_digest(
            (expected or secrets.token_hex()).encode(), password.encode()
        )
        if expected is None and user in ("", "token"):
            is_right = self._is_token(password)
        if not is_right:
            raise fl.FlightUnauthenticatedError(_REFUSED)
        return user or "token"

    def _is_token(self, given: str) -> bool:
        """Whether this is one of the tokens, and has not ended; it takes as long for each."""
        now, shown = time.time(), given.encode()
        right = [
            until_s
            for token, until_s in self._tokens().items()
            if hmac.compare_digest(token.encode(), shown)
        ]
        return any(now < until_s for until_s in right)


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
        raise OptionError(_WEAK.format(file=file))
    return token


def read_tokens(file: Path) -> dict[str, float]:
    """The tokens in a file, and when each ends, in seconds since 1970.

    A line is a token, perhaps with the time at which it ends: `TOKEN 2027-01-31`, or
    `TOKEN 2027-01-31T12:00+01:00`. It is UTC's where it names no zone.

    Raises:
        DataError: it can't be read.
        OptionError: a line is none such.
    """
    tokens: dict[str, float] = {}
    for number, line in enumerate(_text(file).splitlines(), 1):
        token, _, until = line.strip().partition(" ")
        if not token or token.startswith("#"):
            continue
        try:
            ends = dt.datetime.fromisoformat(until.strip()) if until else None
        except ValueError:
            raise OptionError(
                f"{file}, line {number}: a token ends at a date, such as 2027-01-31, or a date and "
                "a time, such as 2027-01-31T12:00+01:00."
            ) from None
        if not _TOKEN.fullmatch(token):
            raise OptionError(_WEAK.format(file=f"{file}, line {number}"))
        if ends is not None and ends.tzinfo is None:
            ends = ends.replace(tzinfo=dt.UTC)
        tokens[token] = math.inf if ends is None else ends.timestamp()
    if not tokens:
        raise OptionError(_WEAK.format(file=file))
    return tokens


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
