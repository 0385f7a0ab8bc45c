from __future__ import annotations

from collections.abc import Iterator

import pytest
import s3_server
from s3_server import DENIED, EXPIRED, KEY, SECRET, SLOW_DOWN, S3Server

from minishark.errors import DataError
from minishark.sources.filesystems import (
    FileReplacedError,
    StoreAccess,
    list_files,
    read_range,
    stat_file,
)


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
    assert SECRET not in f"{access} {access!r} {[access]}"
    assert "x" == access.of("s3://b/c")["region"]
    assert SECRET == access.of("s3://a/c")["secret_access_key"]
