"""Files on this machine and in object stores: which match a pattern, and their bytes.

Object stores are read with obstore (Rust's object_store): it is as fast as pyarrow.fs, and besides
tells ETags when it lists, and reads on the condition that the ETag is still the same. A file that
is replaced while a query runs is therefore an error, never a mixture of two files.

Patterns are globs as DuckDB has them (`*`, `?`, `[...]`, and `**` for any number of folders), or
name a file, or a folder, which means all files below it. What a wildcard matches in an object
store does not begin with `.` or `_`, unless it is the folder of a Hive partition: such names are
metadata, or files that are not finished, as for Hive and Spark.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import itertools
import os
import re
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, TypeVar

import msgspec

from minishark.errors import DataError, OptionError

OBJECT_STORES = {
    "s3": "S3Store",
    "s3a": "S3Store",
    "gs": "GCSStore",
    "gcs": "GCSStore",
    "az": "AzureStore",
    "azure": "AzureStore",
    "abfs": "AzureStore",
    "abfss": "AzureStore",
}
"""The schemes of URIs that are read, with obstore's class for each."""

Result = TypeVar("Result")

_WILD = re.compile(r"[*?\[]")
_LOCAL_URI = re.compile(r"file:(?://)?/(?!/)", re.IGNORECASE)  # `file:/a` is Java's
# Also of a URI that was made a Path: `s3:/bucket`.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_TOKEN = re.compile(r"\*|\?|\[!?[^\]]+\]|[^*?\[]+|\[")
_NOT_HIDDEN = r"(?!\.|_(?!/*[^/]*=))"
_RETRIES = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}
_STORES_MAX = 64
_S3_COPY_BYTES_MAX = 5 << 30
_FIRST_BYTE_MAX_S = 30.0
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>|\"code\":\s*\"?(\w+)|x-ms-error-code: (\w+)")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
_CREDENTIALS = {
    "S3Store": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "GCSStore": "GOOGLE_APPLICATION_CREDENTIALS",
    "AzureStore": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


_PREFIXES = {
    "S3Store": ("aws_",),
    "GCSStore": ("google_",),
    "AzureStore": ("azure_", "storage_"),
}


_ENDPOINTS = ("endpoint_url", "endpoint_url_s3", "endpoint_override")


class StoredFile(msgspec.Struct, frozen=True, array_like=True):
    """A file, and which version of it."""

    path: str  # absolute, or a URI
    bytes: int
    # Equal versions have equal bytes: an ETag; for local files, size and modification time. Empty
    # for a file that is never replaced.
    version: str

    @property
    def is_remote(self) -> bool:
        return is_remote(self.path)


class StoreAccess(msgspec.Struct, frozen=True, array_like=True):
    """Settings of object stores, with secrets, by the URI prefix that they are for.

    They add to those of the environment. Their representation tells the prefixes only.
    """

    settings: dict[str, dict[str, str]] = {}  # "" is the prefix of all

    def of(self, uri: str) -> Mapping[str, str]:
        """The settings of the longest prefix of `uri`."""
        prefixes = [prefix for prefix in self.settings if uri.startswith(prefix)]
        return self.settings[max(prefixes, key=len)] if prefixes else {}

    def over(self, other: StoreAccess) -> StoreAccess:
        """These settings, and for other prefixes another's."""
        return StoreAccess({**other.settings, **self.settings}) if self.settings else other

    def __repr__(self) -> str:
        return f"StoreAccess({', '.join(map(repr, self.settings))})"

    __str__ = __repr__


FROM_ENVIRONMENT = StoreAccess()


class FileReplacedError(DataError):
    """A file is no longer the version that a query reads."""


def plain_settings(uri: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Settings of the store of `uri`, each under its name without the store's prefix."""
    kind = OBJECT_STORES.get(uri.partition("://")[0].lower(), "")
    return {_plain(name, kind): text for name, text in settings.items()}


def is_remote(path: str) -> bool:
    """Whether a path or pattern is a URI, of whatever scheme."""
    return "://" in path


def destination(path: str | Path) -> str:
    """Where files are to be written: an absolute local path, or a URI without a slash at its end.

    `file:` URIs are local paths.

    Raises:
        DataError: it begins with a scheme, but is no URI of a known object store.
    """
    text = without_file_scheme(str(path))
    scheme = _SCHEME.match(text)
    if scheme is None:
        return str(Path(text).absolute())
    rest = text[scheme.end() :]
    if scheme[1].lower() not in OBJECT_STORES or not rest.strip("/") or not rest.startswith("/"):
        raise DataError(
            f"Can't write to {text}: files are local, or begin with s3://, gs:// or az:// and the "
            "name of a bucket or container. Pass a URI as text: pathlib.Path drops a slash."
        )
    return text.rstrip("/")


def without_file_scheme(path: str) -> str:
    """The local path of a `file:` URI; anything else as it is."""
    scheme = _LOCAL_URI.match(path)
    return path[scheme.end() - 1 :] if scheme else path


def list_files(pattern: str | Path, access: StoreAccess = FROM_ENVIRONMENT) -> list[StoredFile]:
    """The files that match a pattern, or are below a folder, in the order of their paths.

    Raises:
        DataError: there is none, or the store does not answer, or denies access.
    """
    text = without_file_scheme(str(pattern))
    if is_remote(text):
        (files,) = at_once([partial(_list_remote, text, access)])
    else:
        files = _list_local(text)
    if not files:
        raise DataError(f"There is no file {pattern}.")
    return sorted(files, key=lambda file: file.path)


def stat_file(path: str, access: StoreAccess = FROM_ENVIRONMENT) -> StoredFile:
    """The current version of one file.

    Raises:
        DataError: there is none, or the store does not answer, or denies access.
    """
    if not is_remote(path):
        file = _local(path)
        if file is None:
            raise DataError(f"There is no file {path}.")
        return file
    (stored,) = at_once([partial(_stat_remote, path, access)])
    return stored


def _stat_remote(uri: str, access: StoreAccess) -> StoredFile:
    store = ObjectStore.at(uri, access)
    with store.errors(uri):
        return store.head(uri)


def check_readable(patterns: Sequence[str]) -> None:
    """Refuse pipes and devices, and files that don't give their first byte.

    Reads from a dead file server can't be interrupted. Here they hold one thread, instead of
    whatever lock the reader has.

    Raises:
        DataError: a local file at one of these paths or globs is one. Of those that do not exist,
            or may not be read, readers say more.
    """
    local = [pattern for pattern in patterns if not is_remote(pattern)]
    if not local:
        return
    looked_at = ""

    def look() -> None:
        nonlocal looked_at
        answered = set[int]()
        for looked_at in itertools.chain.from_iterable(map(_globbed, local)):
            with contextlib.suppress(OSError, ValueError):
                state = os.stat(looked_at)  # noqa: PTH116 - thousands, perhaps
                if stat.S_ISDIR(state.st_mode):
                    continue
                if not stat.S_ISREG(state.st_mode):
                    raise DataError(
                        f"{looked_at} is no regular file; copy what it gives to one first."
                    )
                # One file tells whether its file system answers, but what the kernel makes up as
                # it is read says nothing of its size, and may wait for the next event.
                if state.st_dev in answered and state.st_size:
                    continue
                with open(looked_at, "rb", buffering=0) as file:  # noqa: PTH123
                    file.read(1)
                answered.add(state.st_dev)

    try:
        at_once([look], limit_s=_FIRST_BYTE_MAX_S)
    except TimeoutError:
        raise DataError(
            f"{looked_at} does not answer: nothing of it came within {_FIRST_BYTE_MAX_S:.0f} s. "
            "Is its file server there?"
        ) from None


def _globbed(pattern: str) -> Iterable[str]:
    return glob.iglob(pattern, recursive=True) if _WILD.search(pattern) else (pattern,)  # noqa: PTH207


def at_once(
    calls: Sequence[Callable[[], Result]], threads: int = 1, limit_s: float | None = None
) -> list[Result]:
    """What calls return, so many of which are made at a time; the first error ends the wait.

    The threads do not keep the process from ending: Ctrl-C does not wait for a store that hangs.

    Raises:
        TimeoutError: for `limit_s`, no call has ended.
    """
    to_do: SimpleQueue[tuple[int, Callable[[], Result]]] = SimpleQueue()
    done: SimpleQueue[tuple[int, Result | BaseException, bool]] = SimpleQueue()
    for item in enumerate(calls):
        to_do.put(item)
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            try:
                number, call = to_do.get_nowait()
            except Empty:
                return
            try:
                done.put((number, call(), True))
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                done.put((number, error, False))

    for _ in range(min(threads, len(calls))):
        threading.Thread(target=work, name="minishark-store", daemon=True).start()
    results: dict[int, Any] = {}
    try:
        for _ in calls:
            try:
                number, result, is_right = done.get(timeout=limit_s)
            except Empty:
                raise TimeoutError from None
            if not is_right:
                assert isinstance(result, BaseException), "it was raised"
                raise result
            results[number] = result
    finally:
        stopped.set()
    return [results[number] for number in range(len(calls))]


def read_range(
    file: StoredFile, first: int, last: int, access: StoreAccess = FROM_ENVIRONMENT
) -> Any:
    """The bytes of a remote file from `first` up to `last`, as a buffer.

    Raises:
        FileReplacedError: it has another version by now.
        DataError: it is gone, or the store does not answer, or denies access.
    """
    store = ObjectStore.at(file.path, access)
    options: dict[str, Any] = {"range": (first, last)}
    if file.version.startswith('"'):
        options["if_match"] = file.version
    with store.errors(file.path):
        answer = store.obstore.get(store.store, store.key(file.path), options=options)
        # Some stores have no ETags, or ignore the condition.
        same = file.version in ("", store.stored(answer.meta).version)
        data = answer.bytes() if same else b""
    if len(data) != last - first:
        raise FileReplacedError(_replaced(file.path))
    return data


def list_below(folder: str, access: StoreAccess = FROM_ENVIRONMENT) -> list[StoredFile]:
    """All files below a folder of an object store, whatever their names; perhaps none.

    Raises:
        DataError: the store does not answer, or denies access.
    """
    store = ObjectStore.at(folder, access)
    with store.errors(folder):
        return [store.stored(meta) for meta in store.listed(store.key(folder))]


def exists(uri: str, access: StoreAccess = FROM_ENVIRONMENT) -> bool:
    """Whether an object store has a file of that name, or any below it.

    Raises:
        DataError: the store does not answer, or denies access.
    """
    store = ObjectStore.at(uri, access)
    if store.key(uri):
        with store.errors(uri), contextlib.suppress(FileNotFoundError):
            store.head(uri)
            return True
    return bool(list_below(uri, access))


def write_file(data: Path | bytes, uri: str, access: StoreAccess = FROM_ENVIRONMENT) -> None:
    """Store a local file, or bytes, as one that is visible when it is complete.

    Raises:
        DataError: the store does not answer, or denies access.
    """
    store = ObjectStore.at(uri, access)
    with store.errors(uri, "write"):
        store.obstore.put(store.store, store.key(uri), data)


def replace_data(
    data: bytes, uri: str, version: str, access: StoreAccess = FROM_ENVIRONMENT
) -> bool:
    """As `write_file`, if the file has that version still, or, with an empty one, if there is none.

    Raises:
        DataError: the store does not answer, denies access, or has no such condition.
    """
    store = ObjectStore.at(uri, access)
    exceptions = _exceptions()
    mode = {"e_tag": version} if version else "create"
    with store.errors(uri, "write"):
        try:
            store.obstore.put(store.store, store.key(uri), data, mode=mode)
        except (exceptions.PreconditionError, exceptions.AlreadyExistsError):
            return False
    return True


def read_file(uri: str, access: StoreAccess = FROM_ENVIRONMENT) -> tuple[bytes, str] | None:
    """The bytes of a small remote file, and its version; None if there is none.

    Raises:
        DataError: the store does not answer, or denies access.
    """
    store = ObjectStore.at(uri, access)
    with store.errors(uri):
        try:
            answer = store.obstore.get(store.store, store.key(uri))
            return bytes(answer.bytes()), store.stored(answer.meta).version
        except FileNotFoundError:
            return None


def copy_file(file: StoredFile, uri: str, access: StoreAccess = FROM_ENVIRONMENT) -> None:
    """Have a store copy a file inside a bucket or container; the copy is visible when complete.

    Raises:
        DataError: the store can't do so, does not answer, or denies access.
    """
    store = ObjectStore.at(uri, access)
    if store.kind == "S3Store" and file.bytes > _S3_COPY_BYTES_MAX:
        raise DataError(
            f"Can't write {uri}: S3 copies files of at most 5 GiB. Write several with the option "
            "FILE_SIZE_BYTES."
        )
    with store.errors(uri, "write"):
        store.obstore.copy(store.store, store.key(file.path), store.key(uri))


def remove_files(uris: Sequence[str], access: StoreAccess = FROM_ENVIRONMENT) -> None:
    """Delete files of one bucket or container, whether they are there or not.

    Raises:
        DataError: the store does not answer, or denies access.
    """
    if not uris:
        return
    store = ObjectStore.at(uris[0], access)
    with store.errors(uris[0], "remove"), contextlib.suppress(FileNotFoundError):
        store.obstore.delete(store.store, [store.key(uri) for uri in uris])


def _replaced(path: str) -> str:
    return f"The file {path} was replaced while it was read: run the statement again."


def _list_local(pattern: str) -> list[StoredFile]:
    path = Path(pattern).absolute()
    if path.is_dir():
        paths = [str(file) for file in path.rglob("*") if file.is_file()]
    elif path.exists() or not _WILD.search(pattern):
        paths = [str(path)]
    else:
        import duckdb  # noqa: PLC0415 - not needed for anything else

        with duckdb.connect() as connection:  # what its own readers would read
            rows = connection.execute("SELECT file FROM glob(?)", [str(path)]).fetchall()
        paths = [file for (file,) in rows]
    return [found for listed in paths if (found := _local(listed)) is not None]


def _local(path: str) -> StoredFile | None:
    try:
        state = os.stat(path)  # noqa: PTH116 - many files
    except OSError:
        return None
    return StoredFile(path, state.st_size, local_version(state))


def local_version(state: os.stat_result) -> str:
    """The version of a local file in that state."""
    return f"{state.st_mtime_ns}-{state.st_size}"


def _list_remote(pattern: str, access: StoreAccess) -> list[StoredFile]:
    store = ObjectStore.at(pattern, access)
    key = store.key(pattern)
    wild = _WILD.search(key)
    if wild is None and key and not key.endswith("/"):
        with store.errors(pattern), contextlib.suppress(FileNotFoundError):
            return [store.head(pattern)]
    folder = key.rstrip("/") if wild is None else key[: wild.start()].rpartition("/")[0]
    rest = "**" if wild is None else key[len(folder) :].lstrip("/")
    matches = re.compile(glob_pattern(f"{folder}/{rest}" if folder else rest)).fullmatch
    with store.errors(pattern):
        metas = store.listed(folder)
    return [store.stored(meta) for meta in metas if matches(meta["path"])]


def glob_pattern(pattern: str) -> str:
    """The regular expression of a glob; a `**` at its end matches all files below."""
    parts = pattern.split("/")
    text = ""
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        if part == "**":
            folders = f"(?:{_NOT_HIDDEN}[^/]+/)*"
            text += f"{folders}{_NOT_HIDDEN}[^/]+" if is_last else folders
            continue
        hidden = _NOT_HIDDEN if part[:1] in ("*", "?", "[") else ""
        text += hidden + "".join(map(_translated, _TOKEN.findall(part))) + ("" if is_last else "/")
    return text


def _translated(token: str) -> str:
    if token == "*":  # noqa: S105 - of a glob
        return "[^/]*"
    if token == "?":  # noqa: S105
        return "[^/]"
    if len(token) > 1 and token[0] == "[" and token[-1] == "]":
        inside = token[1:-1].replace("\\", "\\\\")
        return f"[^/{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return re.escape(token)


class ObjectStore:
    """One bucket or container; safe to use from several threads."""

    _known: ClassVar[OrderedDict[tuple[Any, ...], ObjectStore]] = OrderedDict()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, root: str, kind: str, settings: Mapping[str, str]) -> None:
        self.root = root  # such as `s3://bucket/`
        self.kind = kind  # the name of obstore's class
        self.obstore = _obstore()
        self.store = _opened(root, kind, settings)

    @classmethod
    def at(cls, uri: str, access: StoreAccess) -> ObjectStore:
        """The store that `uri` is in.

        Raises:
            DataError: the scheme is unknown.
            OptionError: a setting is unknown or invalid, or obstore is not installed.
        """
        scheme, _, rest = uri.partition("://")
        kind = OBJECT_STORES.get(scheme.lower())
        bucket = rest.partition("/")[0]
        if kind is None or not bucket:
            raise DataError(
                f"Can't read {uri}: files are local, or begin with s3://, gs:// or az:// and the "
                "name of a bucket or container. Read it with another library, such as pandas, and "
                "pass what it gives to session.create_table."
            )
        settings = access.of(uri)
        key = (scheme, bucket, *sorted(settings.items()), *_environment())
        with cls._lock:
            store = cls._known.get(key)
            if store is None:
                store = cls._known[key] = cls(f"{scheme}://{bucket}/", kind, settings)
                if len(cls._known) > _STORES_MAX:
                    cls._known.popitem(last=False)
            cls._known.move_to_end(key)
        return store

    def key(self, uri: str) -> str:
        """The name inside the store."""
        return uri[len(self.root) :]

    def head(self, uri: str) -> StoredFile:
        try:
            return self.stored(self.obstore.head(self.store, self.key(uri)))
        except _exceptions().BaseError:
            # Answers to HEAD have no body; the one to GET tells the reason.
            self.obstore.get_range(self.store, self.key(uri), start=0, length=1)
            raise

    def listed(self, folder: str) -> list[Mapping[str, Any]]:
        pages = self.obstore.list(self.store, prefix=folder.rstrip("/") or None, chunk_size=1000)
        return [meta for page in pages for meta in page]

    def stored(self, meta: Mapping[str, Any]) -> StoredFile:
        tag = meta["e_tag"]
        version = tag or f"{meta['last_modified'].isoformat()}-{meta['size']}"
        if tag and not tag.endswith('"'):  # in lists, Azure leaves out the quotes
            version = f'"{tag}"'
        return StoredFile(f"{self.root}{meta['path']}", meta["size"], version)

    @contextlib.contextmanager
    def errors(self, uri: str, verb: str = "read") -> Iterator[None]:
        """Turn obstore's errors, which quote requests and answers, into sentences without secrets.

        A FileNotFoundError is let through where nobody minds; else it is a DataError.
        """
        exceptions = _exceptions()
        try:
            yield
        except exceptions.PreconditionError:
            raise FileReplacedError(_replaced(uri)) from None
        except FileNotFoundError:
            if verb != "read":
                raise DataError(f"Can't {verb} {uri}: there is no such bucket, or file.") from None
            raise DataError(f"There is no file {uri}.") from None
        except (exceptions.BaseError, OSError, ValueError) as error:
            raise DataError(f"Can't {verb} {uri}: {self._reason(error)}") from None

    def _reason(self, error: Exception) -> str:
        text = str(error)
        status = match[1] if (match := _STATUS.search(text)) else ""
        code = next(filter(None, match.groups()), "") if (match := _CODE.search(text)) else ""
        answer = f"{status} {code}".strip()
        exceptions = _exceptions()
        denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
        if code in _EXPIRED:
            return f"the credentials have expired ({answer}). Renew them, and connect again."
        if isinstance(error, denied) or status in ("401", "403"):
            return (
                f"access is denied ({answer}). Set {_CREDENTIALS[self.kind]}, or pass "
                "storage_options to connect()."
            )
        if status == "404":
            return f"there is no such bucket or container ({answer})."
        if status in ("429", "500", "502", "503", "504"):
            return f"the store is overloaded or failing ({answer}), also after retries."
        if status:
            return f"the store answers {answer}."
        if "error sending request" in text or "timed out" in text or "connect" in text.lower():
            return "the store can't be reached. Check the endpoint and the network."
        return (
            "no credentials were found, or the name is invalid. Pass storage_options to connect()."
        )


def _environment() -> tuple[str, ...]:
    """What of the environment is read when a store is opened."""
    prefixes = ("AWS_", "GOOGLE_", "AZURE_")
    return tuple(
        f"{name}={text}" for name, text in sorted(os.environ.items()) if name.startswith(prefixes)
    )


def _obstore() -> Any:
    try:
        return importlib.import_module("obstore")
    except ImportError as error:
        raise OptionError(
            "Files in object stores need obstore: pip install 'minishark[objects]'."
        ) from error


def _exceptions() -> Any:
    return importlib.import_module("obstore.exceptions")


def _opened(root: str, kind: str, settings: Mapping[str, str]) -> Any:
    scheme, _, place = root.rstrip("/").partition("://")
    config = {_plain(name, kind): text for name, text in settings.items()}
    client = {"timeout": timedelta(seconds=30), "connect_timeout": timedelta(seconds=5)}
    client["allow_http"] = _is_http(config, kind)  # type: ignore[assignment]
    keywords: dict[str, Any] = {"client_options": client, "retry_config": _RETRIES}
    bucket = place
    if kind == "AzureStore" and "@" in place:  # container@account.dfs.core.windows.net
        bucket, _, host = place.partition("@")
        config.setdefault("account_name", host.partition(".")[0])
    if kind == "S3Store":
        default = os.environ.get("AWS_DEFAULT_REGION", "us-east-1")
        config.setdefault("region", os.environ.get("AWS_REGION", default))
        provider = _profile(config)
        if provider is not None:
            keywords["credential_provider"] = provider
    try:
        store = importlib.import_module("obstore.store")
        return getattr(store, kind)(bucket, config=config, **keywords)
    except (_exceptions().BaseError, ValueError, TypeError) as error:
        names = ", ".join(sorted(config)) or "none"
        raise OptionError(
            f"The storage options for {scheme}://{place} are invalid, or some are missing "
            f"({_option_error(str(error))}; given: {names})."
        ) from None


def _option_error(text: str) -> str:
    """The first sentence of what obstore says of options, unless it quotes a value."""
    problem = re.search(r"key: '\w+' is not valid|[Mm]issing \w+|Account must be specified", text)
    return problem[0] if problem else "they can't be parsed"


def _plain(name: str, kind: str) -> str:
    """The shortest of a setting's names: `aws_access_key_id` is `access_key_id`, too."""
    plain = name.lower()
    for prefix in _PREFIXES.get(kind, ()):
        plain = plain.removeprefix(prefix)
    return "endpoint" if plain in _ENDPOINTS else plain


def _is_http(config: Mapping[str, str], kind: str) -> bool:
    """Whether an endpoint was given that has no TLS, as emulators and private stores may."""
    given = [text for name, text in config.items() if "endpoint" in name or "url" in name]
    if kind == "S3Store":
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        given += [os.environ.get(name, "") for name in names]
    if kind == "AzureStore":
        given += [os.environ.get("AZURE_STORAGE_ENDPOINT", "")]
    return any(text.startswith("http://") for text in given)


def _profile(config: Mapping[str, str]) -> Any:
    """Credentials of an AWS profile, if one was named or there are files with one; else None."""
    named = os.environ.get("AWS_PROFILE")
    if config.keys() & {"access_key_id", "skip_signature"} or "AWS_ACCESS_KEY_ID" in os.environ:
        return None
    default = Path("~/.aws").expanduser()
    file = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", default / "credentials"))
    if not named and not file.exists():
        return None
    try:
        return importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider()
    except ImportError as error:
        raise OptionError("Profiles of AWS need boto3: pip install boto3.") from error
    except Exception as error:  # noqa: BLE001 - botocore's have no common base
        raise OptionError(
            f"The AWS profile gives no credentials ({type(error).__name__})."
        ) from None
