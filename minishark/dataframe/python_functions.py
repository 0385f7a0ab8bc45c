"""PySpark's functions that run as Python in executors, as data: DuckDB has nothing like them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minishark.dataframe.column import Column
from minishark.dataframe.made_functions import made
from minishark.dataframe.templates import Template, by_name, function_of
from minishark.worker import pyspark_functions as py


@dataclass(frozen=True, slots=True)
class _Function:
    """A function: how it is called, and what runs."""

    template: Template  # whose SQL calls `call`
    run: Callable[..., Any]
    returns: str


def _row(
    signature: str, run: Callable[..., Any], returns: str, sql: str, doc: str, note: str = ""
) -> _Function:
    return _Function(Template(signature, sql, doc, note), run, returns)


_FUNCTIONS = (
    _row(
        "conv(col, fromBase, toBase)", py.conv, "VARCHAR",
        "call({col}::VARCHAR, {fromBase}::INTEGER, {toBase}::INTEGER)",
        "A number's notation in another base, from 2 to 36.",
    ),
    _row("crc32(col)", py.crc32, "BIGINT", "call({col})", "The cyclic redundancy check."),
    _row(
        "sha2(col, numBits)", py.sha2, "VARCHAR", "call({col}, {numBits}::INTEGER)",
        "The SHA-2 hash of 224, 256 (or 0), 384 or 512 bits, in hexadecimals.",
    ),
    _row(
        "hmac(key, message, algorithm: value = 'SHA256')", py.hmac, "BLOB",
        "call({key}, {message}, {algorithm})", "The authentication code of a message.",
    ),
    _row("soundex(col)", py.soundex, "VARCHAR", "call({col})", "How an English word sounds."),
    _row(
        "sentences(string)", py.sentences, "VARCHAR[][]", "call({string})",
        "The words of each sentence.",
        "Sentences end at full stops, question and exclamation marks, in all languages.",
    ),
    _row("to_base32(col)", py.to_base32, "VARCHAR", "call({col})", "Bytes in base 32."),
    _row(
        "from_base32(col)", py.from_base32, "BLOB", "call({col})",
        "The bytes that a text in base 32 stands for.",
    ),
    _row(
        "to_csv(col)", py.to_csv, "VARCHAR", "call({col})", "A struct as a line of CSV.",
        "It takes no options.",
    ),
    _row(
        "schema_of_json(json: value)", py.schema_of_json, "VARCHAR", "call({json})",
        "The type of a JSON text, as PySpark writes it.",
    ),
    _row(
        "bitmap_count(col)", py.bitmap_count, "BIGINT", "call({col})",
        "How many bits of a bitmap are 1.",
    ),
    _row(
        "to_number(col, format: value)", py.to_number, "VARCHAR",
        "call({col}, {format})::DECIMAL(38, 6)",
        "The number that a text of a format such as '999,999.99' stands for.",
        "Its type is DECIMAL(38, 6), whatever the format.",
    ),
    _row(
        "try_to_number(col, format: value)", py.try_to_number, "VARCHAR",
        "call({col}, {format})::DECIMAL(38, 6)",
        "The number that a text of a format stands for; NULL where it does not match.",
        "Its type is DECIMAL(38, 6), whatever the format.",
    ),
)  # fmt: skip

PYTHON = by_name([each.template for each in _FUNCTIONS])


def _made(run: Callable[..., Any], returns: str) -> Callable[[], str]:
    # Pickled when it is first called: by name, as executors have the module.
    return functools.cache(lambda: made(run.__name__, run, returns, sees_nulls=False))


def _function(found: _Function) -> Callable[..., Column]:
    name = _made(found.run, found.returns)
    return function_of(found.template, lambda: {"call(": f"{name()}("})


def _parse_url(label: str) -> Callable[..., Column]:
    whole, keyed = _made(py.parse_url, "VARCHAR"), _made(py.parse_url_query, "VARCHAR")
    doc = "A part of a URL: HOST, PATH, QUERY, REF, PROTOCOL, FILE, AUTHORITY or USERINFO."
    sql = ("one({url}, {partToExtract})", "two({url}, {partToExtract}, {key})")
    template = Template(f"{label}(url, partToExtract, key=None)", sql, doc)
    return function_of(template, lambda: {"one(": f"{whole()}(", "two(": f"{keyed()}("})


def python_functions() -> dict[str, Callable[..., Column]]:
    """The functions by name."""
    found = {each.template.name: _function(each) for each in _FUNCTIONS}
    return found | {name: _parse_url(name) for name in ("parse_url", "try_parse_url")}
