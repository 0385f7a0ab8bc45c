"""Whatever text or bytes come: every parser takes them or refuses them by its own error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from machine_kit.errors import InsecureTransport
from machine_kit.keys import split_endpoint
from machine_kit.refusal import refuses
from minishark.cli.tpch.queries import parse_selection
from minishark.cluster.connections import MALFORMED
from minishark.cluster.endpoints import service_address
from minishark.cluster.launch import find_cluster
from minishark.cluster.wire import decode_reply, decode_request, encode_message
from minishark.compiler.sql import planning, statements, tokens
from minishark.compiler.sql.changes import parse_change, parse_create
from minishark.errors import DataError, MinisharkError, QueryError, redacted
from minishark.model.events.history import SUFFIX, HistoryReader
from minishark.model.events.kinds import QueryStarted, SessionStarted
from minishark.sources.filesystems import check_readable
from minishark.tables.copy import parsed_copy
from minishark.worker.memory import parse_size
from minishark.worker.protocol import decode_job, decode_outcome, decode_payload, decode_problem

_PIECES = (
    "SELECT", "1", "x", "FROM", "'", '"', "$$", "$a$", "--", "/*", "*/", "\n", ";", ",", "(", ")",
    "[", "]", "{", "}", ":", "::", "?", "$1", "$name", "\\", "E'", "''", '""', ".", "read_csv",
    "INSERT INTO", "CREATE TABLE", "CREATE OR REPLACE TEMP VIEW", "AS", "UPDATE t SET", "DELETE",
    "MERGE INTO t USING", "WHEN MATCHED THEN", "COPY t TO", "COPY t FROM", "PREPARE p AS",
    "EXECUTE p", "SET", "=", "RESET", "PIVOT", "EXPLAIN", "ANALYZE", "BEGIN", "VALUES", "é", "\x00",
    "PARTITIONED BY", "bucket", "WITH", "1e", "0x", "DROP", "TABLE", "IF NOT EXISTS", "VACUUM",
)  # fmt: skip
_SQL = st.lists(st.sampled_from(_PIECES) | st.text(max_size=3), max_size=12).map(" ".join)
_ADDRESS = st.lists(
    st.sampled_from(("tcp", "ipc", "://", ":", "/", "*", "[::1]", "127.0.0.1", "1", "99999", "@"))
    | st.text(max_size=4),
    max_size=7,
).map("".join)
_MESSAGES = st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.integers(-9, 1 << 40) | st.binary(max_size=4)
    | st.sampled_from(("Hello", "Fetch", "KeepSession", "Welcome", "Failure", "a/../b", "")),
    lambda inner: st.lists(inner, max_size=5)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
).map(msgspec.msgpack.encode)  # fmt: skip


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def _history(line: bytes) -> None:
    """A file of events, whose lines may be torn, or another's."""
    began = SessionStarted(
        at=0.0, session="s", user="u", host="h", pid=1, version="1", cluster="", slots=1
    )
    query = QueryStarted(at=1.0, query=1, sql="SELECT 1")
    lines = [msgspec.json.encode(began), line, msgspec.json.encode(query), line]
    with TemporaryDirectory() as folder:
        (Path(folder) / f"a{SUFFIX}").write_bytes(b"\n".join(lines))
        found = [*HistoryReader(folder).read()]
        assert query in found or b"\n" in line, "what follows is read"
        (Path(folder) / f"b{SUFFIX}").write_bytes(line)
        with contextlib.suppress(DataError):
            HistoryReader(folder)


def _record(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.json"
        path.write_bytes(data)
        find_cluster(str(path))


def _change(text: str) -> None:
    """Only what DuckDB has parsed comes there."""
    for each in statements.parse_statements(_database(), text):
        if isinstance(each, statements.Write):
            parse_change(each.sql)


def _split(text: str) -> None:
    """What is split is still all there."""
    with contextlib.suppress(MinisharkError):
        pieces = tokens.split_arguments(text)
        assert sum(map(len, pieces)) <= len(text)
    for call in tokens.find_calls(text, {"read_csv"}):
        assert text[call.first : call.last].lower().startswith("read_csv")


def _endpoint(text: str) -> None:
    split_endpoint(text)
    if text.startswith("ipc://") or "://" not in text:
        refuses(text, 0.01)


Parser = Callable[[Any], object]
_TEXTS: dict[str, tuple[Parser, tuple[type[Exception], ...]]] = {
    "tokens": (tokens.sql_tokens, (MinisharkError,)),
    "arguments": (_split, (MinisharkError,)),
    "call": (tokens.call_arguments, (MinisharkError,)),
    "parameters": (lambda text: tokens.fill_parameters(text, [1, "a", None]), (MinisharkError,)),
    "names": (lambda text: tokens.fill_parameters(text, {"name": 1}), (MinisharkError,)),
    "statements": (lambda text: statements.parse_statements(_database(), text), (MinisharkError,)),
    "files": (lambda text: check_readable(planning.named_files(text)), (MinisharkError,)),
    "setting": (statements.session_setting, (MinisharkError,)),
    "create": (parse_create, (MinisharkError,)),
    "change": (_change, (MinisharkError,)),
    "copy": (parsed_copy, (MinisharkError,)),
    "size": (parse_size, (MinisharkError,)),
    "queries": (parse_selection, (MinisharkError,)),
    "redacted": (redacted, ()),
}
_ADDRESSES: dict[str, tuple[Parser, tuple[type[Exception], ...]]] = {
    "service": (partial(service_address, keys=None), (MinisharkError,)),
    "endpoint": (_endpoint, (InsecureTransport,)),
}
_BYTES: dict[str, tuple[Parser, tuple[type[Exception], ...]]] = {
    "request": (lambda data: encode_message(decode_request(data)), MALFORMED),
    "reply": (lambda data: encode_message(decode_reply(data)), MALFORMED),
    "job": (decode_job, MALFORMED),
    "payload": (decode_payload, MALFORMED),
    "outcome": (decode_outcome, MALFORMED),
    "problem": (decode_problem, MALFORMED),
    "history": (_history, ()),
    "record": (_record, (MinisharkError,)),
}


def _cases() -> Iterator[Any]:
    for inputs, parsers in ((_SQL, _TEXTS), (_ADDRESS, _ADDRESSES), (_MESSAGES, _BYTES)):
        for name, (parser, errors) in parsers.items():
            yield pytest.param(inputs, parser, errors, id=name)


def _fuzz(
    inputs: st.SearchStrategy[Any],
    parser: Parser,
    errors: tuple[type[Exception], ...],
    examples: int,
) -> None:
    # On a busy machine, inputs may come slowly.
    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(inputs)
    def check(given_: Any) -> None:
        with contextlib.suppress(*errors):
            parser(given_)

    check()


@pytest.mark.parametrize(("inputs", "parser", "errors"), [*_cases()])
def test_nothing_but_its_own_error(
    inputs: st.SearchStrategy[Any], parser: Parser, errors: tuple[type[Exception], ...]
) -> None:
    """A few inputs of each kind."""
    _fuzz(inputs, parser, errors, 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE TABLE", "where a name should come"),
        ("CREATE TABLE t PARTITIONED BY", "missing at the end"),
        ("CREATE TABLE t (a INT) PARTITIONED BY a", "missing before A"),
        ("CREATE TABLE t (a INT", "not closed"),
        ("CREATE TABLE t WITH (a = [1)", "not closed"),
    ],
)
def test_tables_of_the_warehouse_whose_statements_break_off(text: str, message: str) -> None:
    """DuckDB has not parsed them: what follows the columns is not its own."""
    with pytest.raises(QueryError, match=message):
        parse_create(text)


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "parser", "errors"), [*_cases()])
def test_nothing_but_its_own_error_for_many(
    inputs: st.SearchStrategy[Any], parser: Parser, errors: tuple[type[Exception], ...]
) -> None:
    """Thousands of inputs of each kind."""
    _fuzz(inputs, parser, errors, 3000)
