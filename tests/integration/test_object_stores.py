from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import s3_server
from s3_server import DENIED, EXPIRED, KEY, SECRET, SLOW_DOWN, S3Server

from minishark.errors import DataError
from minishark.sources.filesystems import (
    FileReplacedError,
    StoreAccess,
    copy_file,
    list_files,
    read_range,
    remove_files,
    stat_file,
    write_file,
)
from minishark.worker.protocol import CopyTarget


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server.running() as running:
        yield running


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of an empty bucket; the environment says how to reach it."""
    for name, text in server.environment.items():
        monkeypatch.setenv(name, text)
    return server.make_bucket()


def paths(pattern: str) -> list[str]:
    return [file.path for file in list_files(pattern)]


NAMES = [
    "t/a.csv",
    "t/b.parquet",
    "t/year=2024/month=1/c.parquet",
    "t/year=2024/month=2/d e+ä.parquet",
    "t/year=2025/month=1/f%20.parquet",
    "t/_k=1/g.parquet",
    "t/_SUCCESS",
    "t/_log/h.parquet",
    "t/.staged/i.parquet",
    "tt/j.parquet",
]


@pytest.mark.sample(13)
@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("/t/*.parquet", [1]),
        ("/t/*/*/*.parquet", [2, 3, 4]),
        ("/t/year=2024/**/*.parquet", [2, 3]),
        ("/t/year=*/month=1/*", [2, 4]),
        ("/t/year=202[5-9]/month=1/*", [4]),
        ("/t/year=202[!5]/**", [2, 3]),
        ("/t/**/?.parquet", [1, 2, 5]),
        ("/t", [0, 1, 2, 3, 4, 5]),
        ("/t/", [0, 1, 2, 3, 4, 5]),
        ("/t/_log/*", [7]),
        ("/t/.staged/i.parquet", [8]),
        ("/t*/j.parquet", [9]),
        ("", [0, 1, 2, 3, 4, 5, 9]),
    ],
)
def test_files_are_found_by_patterns_and_folders(
    server: S3Server, bucket: str, pattern: str, found: list[int]
) -> None:
    for name in NAMES:
        server.put(f"{bucket}/{name}")
    expected = sorted(f"{bucket}/{NAMES[i]}" for i in found)
    assert expected == paths(f"{bucket}{pattern}")


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_a_range_of_a_file_is_read_as_long_as_it_is_the_same_file(
    server: S3Server, bucket: str, name: str
) -> None:
    uri = f"{bucket}/{name}"
    server.put(uri, b"0123456789")
    (listed,) = list_files(uri)
    assert listed == stat_file(uri)
    assert b"345" == bytes(read_range(listed, 3, 6))
    server.put(uri, b"9876543210")
    with pytest.raises(FileReplacedError, match=name.replace("+", r"\+")):
        read_range(listed, 3, 6)
    assert b"654" == bytes(read_range(stat_file(uri), 3, 6))


def test_answers_of_503_are_retried(server: S3Server, bucket: str) -> None:
    server.put(f"{bucket}/a.csv")
    server.requests.clear()
    server.fault = lambda _: SLOW_DOWN if len(server.requests) < 3 else None
    assert [f"{bucket}/a.csv"] == paths(f"{bucket}/*.csv")


@pytest.mark.parametrize(
    ("fault", "text"),
    [(EXPIRED, "credentials have expired"), (DENIED, "access is denied .403 AccessDenied")],
)
def test_errors_name_the_file_but_no_secret(
    server: S3Server, bucket: str, fault: s3_server.Fault, text: str
) -> None:
    server.put(f"{bucket}/a.csv")
    file = stat_file(f"{bucket}/a.csv")
    server.fault = lambda _: fault
    for read in (
        lambda: list_files(f"{bucket}/a.csv"),
        lambda: list_files(f"{bucket}/a*"),
        lambda: read_range(file, 0, 1),
    ):
        with pytest.raises(DataError, match=text) as raised:
            read()
        assert f"{bucket}/a" in str(raised.value)
        assert raised.value.__cause__ is None
        assert KEY not in str(raised.value)
        assert SECRET not in str(raised.value)


def test_what_is_not_there_is_named(server: S3Server, bucket: str) -> None:
    for pattern in ("/a.csv", "/*.csv", "/folder/"):
        with pytest.raises(DataError, match=f"There is no file {bucket}"):
            list_files(f"{bucket}{pattern}")
    with pytest.raises(DataError, match="no such bucket"):
        list_files("s3://no-such-bucket/a/*.csv")
    with pytest.raises(DataError, match="Can't read https://a/b"):
        list_files("https://a/b")


def test_access_tells_prefixes_only() -> None:
    access = StoreAccess({"s3://a": {"secret_access_key": SECRET}, "": {"region": "x"}})
    target = CopyTarget("s3://a/b", "", ".csv", access)
    assert SECRET not in f"{access} {access!r} {[access]} {target}"
    assert "x" == access.of("s3://b/c")["region"]
    assert SECRET == access.of("s3://a/c")["secret_access_key"]


@pytest.mark.slow
def test_files_of_google_cloud_storage_are_read(server: S3Server, bucket: str) -> None:
    """Its XML interface is that of S3, but for credentials: the objects are public."""
    uri = bucket.replace("s3://", "gs://")
    access = StoreAccess({"gs://": {"google_base_url": server.url, "skip_signature": "true"}})
    for name in ("x/a.csv", "x/k=1/b c%20.csv"):
        server.put(f"{bucket}/{name}", b"0123456789", "public-read")
    a, b = list_files(f"{uri}/x", access)
    assert [f"{uri}/x/a.csv", f"{uri}/x/k=1/b c%20.csv"] == [a.path, b.path]
    assert b"345" == bytes(read_range(b, 3, 6, access))
    server.put(f"{bucket}/x/a.csv", b"9876543210", "public-read")
    with pytest.raises(FileReplacedError, match=f"{uri}/x/a.csv"):
        read_range(a, 3, 6, access)
    with pytest.raises(DataError, match="GOOGLE_APPLICATION_CREDENTIALS"):
        remove_files([f"{uri}/x/a.csv"], access)


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreAccess]:
    """Azurite, with a container `cont`."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("There is no Azurite; `npm install -g azurite` installs it.")
    folder = tmp_path_factory.mktemp("azurite")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    command = [program, *options, "--disableTelemetry", "--skipApiVersionCheck"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            _make_container(port)
            settings = {"account_name": _ACCOUNT, "account_key": _AZURITE_KEY}
            endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
            yield StoreAccess({"": {**settings, "azure_storage_endpoint": endpoint}})
        finally:
            process.terminate()


_ACCOUNT = "devstoreaccount1"
# Everybody's: it is in Azurite's documentation.
_AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


def _make_container(port: int) -> None:
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    version = "2021-08-06"
    signed = (
        "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n"
        f"/{_ACCOUNT}/{_ACCOUNT}/cont\nrestype:container"
    )
    digest = hmac.new(base64.b64decode(_AZURITE_KEY), signed.encode(), hashlib.sha256).digest()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{_ACCOUNT}/cont?restype=container",
        method="PUT",
        headers={
            "x-ms-date": date,
            "x-ms-version": version,
            "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}",
            "Content-Length": "0",
        },
    )
    for attempt in range(100):
        try:
            urllib.request.urlopen(request).close()
        except urllib.error.URLError:
            if attempt == 99:
                raise
            time.sleep(0.1)
        else:
            return


def test_files_of_azure_are_read_and_written(azure: StoreAccess, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"0123456789")
    for name in ("x/a.csv", "x/k=1/b c%20.csv", "x/_h/c.csv"):
        write_file(path, f"az://cont/{name}", azure)
    a, b = list_files("az://cont/x", azure)
    assert a == stat_file("az://cont/x/a.csv", azure)
    assert b"345" == bytes(read_range(b, 3, 6, azure))
    copy_file(b, "az://cont/y/z.csv", azure)
    (z,) = list_files("az://cont/y/*", azure)
    assert b"345" == bytes(read_range(z, 3, 6, azure))
    path.write_bytes(b"9876543210")
    write_file(path, "az://cont/x/a.csv", azure)
    with pytest.raises(FileReplacedError, match=r"az://cont/x/a\.csv"):
        read_range(a, 3, 6, azure)
    long = "abfss://cont@devstoreaccount1.dfs.core.windows.net/x/**/*.csv"
    assert 2 == len(list_files(long, azure))
    remove_files(["az://cont/y/z.csv", "az://cont/y/none"], azure)
    with pytest.raises(DataError, match="There is no file az://cont/y"):
        list_files("az://cont/y/", azure)
    with pytest.raises(DataError, match="no such bucket or container"):
        list_files("az://other/*", azure)
