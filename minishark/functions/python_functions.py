"""PySpark's functions that run as Python in executors, as data: DuckDB has nothing like them."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from minishark.dataframe.column import ByType, Column, atom, call, column_or_name, combine, value
from minishark.dataframe.generated_functions import generated
from minishark.dataframe.local import declared_columns, json_structure
from minishark.errors import OptionError
from minishark.functions.arguments import constant_text, literal_text, no_options
from minishark.functions.conversions import date_format
from minishark.functions.python import values as py
from minishark.functions.python import variants, xml
from minishark.functions.templates import Template, by_name, function_of, shown_as


@dataclass(frozen=True, slots=True)
class _Function:
    """A function: how it is called, and what runs."""

    template: Template  # whose SQL calls `call`
    run: Callable[..., Any]
    returns: str
    takes_task: bool = False  # see `ScalarFunction`


def _row(
    signature: str, run: Callable[..., Any], returns: str, sql: str, doc: str, note: str = ""
) -> _Function:
    return _Function(Template(signature, sql, doc, note), run, returns)


def _of_xml(name: str, run: Callable[..., Any], returns: str, doc: str) -> _Function:
    return _row(f"{name}(xml, path)", run, returns, "call({xml}, {path})", doc, _XML)


def _of_variant(
    name: str, run: Callable[..., Any], more: str, doc: str, *, create: str = ""
) -> _Function:
    """A change of a variant at a path; NULL where a value is."""
    new = "CASE WHEN {value} IS NOT NULL THEN to_json({value})::VARCHAR END"
    sql = f"call({{v}}::VARCHAR, {{path}}, {new}{create})::JSON"
    return _row(f"{name}(v, path: value, value{more})", run, "VARCHAR", sql, doc, _VARIANT)


_STRUCT = re.compile(r"\s*struct\s*<(.*)>\s*", re.IGNORECASE | re.DOTALL)


def _of_present(item: str, more: str = "") -> str:
    """A call with a list of those values of a group that are not NULL."""
    return f"call(coalesce(list_filter(@list({item}), lambda x_: x_ IS NOT NULL), []){more})"


_VARIANT = "Variants are JSON."
_XML = "It needs the extra xml (lxml)."
_AES = "It needs the extra crypto (cryptography)."
_AES_PARAMETERS = "key, mode = 'GCM', padding = 'DEFAULT'"
_CREATES = ", create_if_missing=True"
_DECRYPTED = "call({input}, {key}, {mode}, {padding}, {aad})"

_AES_ENCRYPT = Template(
    f"aes_encrypt(input, {_AES_PARAMETERS}, iv = None, aad = '')",
    (
        "drawn({input}, {key}, {mode}, {padding}, {aad})",
        "given({input}, {key}, {mode}, {padding}, {iv}, {aad})",
    ),
    "Encrypted in the mode GCM, CBC or ECB; without `iv`, an initialization vector is drawn.",
    f"{_AES} Without `iv`, the query runs in one task, as results differ from call to call.",
)

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
        "sentences(string, language: value = '', country: value = '')", py.sentences, "VARCHAR[][]",
        "call({string}, {language}, {country})",
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
    # Aggregates
    _row(
        "histogram_numeric(col, nBins)", py.histogram_numeric, "STRUCT(x DOUBLE, y DOUBLE)[]",
        _of_present("{col}::DOUBLE", ", {nBins}::INTEGER"),
        "Centres and weights of at most so many bins.",
        "Centres are doubles; NaN is in no bin.",
    ),
    _row(
        "bitmap_construct_agg(col)", py.bitmap_construct_agg, "BLOB",
        _of_present("DISTINCT {col}::INTEGER"),
        "A bitmap of positions; see `bitmap_bit_position`.",
    ),
    _row(
        "bitmap_or_agg(col)", py.bitmap_or_agg, "BLOB", _of_present("DISTINCT {col}"),
        "The bits that are 1 in any bitmap.",
    ),
    _row(
        "bitmap_and_agg(col)", py.bitmap_and_agg, "BLOB",
        _of_present("DISTINCT {col}"), "The bits that are 1 in all bitmaps.",
    ),
    # Variants
    _row(
        "schema_of_variant(v)", variants.schema_of_variant, "VARCHAR", "call({v}::VARCHAR)",
        "The type of a variant, as PySpark writes it.", _VARIANT,
    ),
    _row(
        "schema_of_variant_agg(v)", variants.schema_of_variant_agg, "VARCHAR",
        _of_present("DISTINCT {v}::VARCHAR"), "The type that fits all variants.",
        _VARIANT,
    ),
    _of_variant(
        "variant_insert", variants.variant_insert, "",
        "With a field more, or an element before the one at a position; an error if it is there.",
    ),
    _of_variant(
        "try_variant_insert", variants.try_variant_insert, "",
        "With a field or an element more; NULL where that does not fit.",
    ),
    _of_variant(
        "variant_set", variants.variant_set, _CREATES, "With another value at a path.",
        create=", {create_if_missing}",
    ),
    _of_variant(
        "try_variant_set", variants.try_variant_set, _CREATES,
        "With another value at a path; NULL where that does not fit.",
        create=", {create_if_missing}",
    ),
    _of_variant(
        "variant_array_append", variants.variant_array_append, "",
        "With one more at the end of the array at a path.",
    ),
    _of_variant(
        "try_variant_array_append", variants.try_variant_array_append, "",
        "With one more at the end of an array; NULL where there is none.",
    ),
    _row(
        "variant_delete(v, *paths: value)", variants.variant_delete, "VARCHAR",
        "call({v}::VARCHAR, [{paths}])::JSON", "Without what is at the paths.", _VARIANT,
    ),
    _row(
        "variant_strip_nulls(v, include_arrays=True)", variants.variant_strip_nulls, "VARCHAR",
        "call({v}::VARCHAR, {include_arrays})::JSON", "Without nulls.", _VARIANT,
    ),
    # XML
    _of_xml("xpath", xml.xpath, "VARCHAR[]", "The values that an XPath selects."),
    _of_xml("xpath_string", xml.xpath_string, "VARCHAR", "The first text that an XPath selects."),
    _of_xml("xpath_boolean", xml.xpath_boolean, "BOOLEAN", "Whether an XPath selects anything."),
    _of_xml("xpath_double", xml.xpath_double, "DOUBLE", "The number that an XPath selects."),
    _of_xml("xpath_number", xml.xpath_double, "DOUBLE", "The number that an XPath selects."),
    _of_xml("xpath_float", xml.xpath_double, "FLOAT", "The number that an XPath selects."),
    _of_xml("xpath_long", xml.xpath_long, "BIGINT", "The whole number that an XPath selects."),
    _of_xml("xpath_int", xml.xpath_long, "INTEGER", "The whole number that an XPath selects."),
    _of_xml("xpath_short", xml.xpath_long, "SMALLINT", "The whole number that an XPath selects."),
    # AES
    _row(
        f"aes_decrypt(input, {_AES_PARAMETERS}, aad = '')", py.aes_decrypt, "BLOB",
        _DECRYPTED, "Decrypted; an error where the key is another.", _AES,
    ),
    _row(
        f"try_aes_decrypt(input, {_AES_PARAMETERS}, aad = '')", py.try_aes_decrypt, "BLOB",
        _DECRYPTED, "Decrypted; NULL where the key is another.", _AES,
    ),
    # Tasks
    _Function(
        Template("spark_partition_id()", "call()", "The number of the row's partition, from 0."),
        py.spark_partition_id, "INTEGER", takes_task=True,
    ),
)  # fmt: skip

PYTHON = by_name([*(function.template for function in _FUNCTIONS), _AES_ENCRYPT])


def _generated(
    run: Callable[..., Any], returns: str, *, takes_task: bool = False, volatile: bool = False
) -> Callable[[], str]:
    # Pickled when it is first called: by name, as executors have the module.
    return functools.cache(
        lambda: generated(
            run.__name__,
            run,
            returns,
            sees_nulls=False,
            volatile=volatile or takes_task,
            parameters=() if takes_task else None,
            takes_task=takes_task,
        )
    )


def _function(described: _Function) -> Callable[..., Column]:
    name = _generated(described.run, described.returns, takes_task=described.takes_task)
    return function_of(described.template, lambda: {"call(": f"{name()}("})


def _parse_url(label: str) -> Callable[..., Column]:
    whole, keyed = _generated(py.parse_url, "VARCHAR"), _generated(py.parse_url_query, "VARCHAR")
    doc = "A part of a URL: HOST, PATH, QUERY, REF, PROTOCOL, FILE, AUTHORITY or USERINFO."
    sql = ("one({url}, {partToExtract})", "two({url}, {partToExtract}, {key})")
    template = Template(f"{label}(url, partToExtract, key=None)", sql, doc)
    return function_of(template, lambda: {"one(": f"{whole()}(", "two(": f"{keyed()}("})


def _aes_encrypt() -> Callable[..., Column]:
    drawn = _generated(py.aes_encrypt, "BLOB", volatile=True)
    given = _generated(py.aes_encrypt_with, "BLOB")
    return function_of(_AES_ENCRYPT, lambda: {"drawn(": f"{drawn()}(", "given(": f"{given()}("})


def _of_options(
    signature: str, run: Callable[..., Any], doc: str, argument: str = "call({col}, {options})"
) -> Callable[..., Column]:
    """A function of a text and PySpark's options, which run as JSON."""
    name = _generated(run, "VARCHAR")
    template = Template(signature, argument, doc, _XML)
    function = function_of(template, lambda: {"call(": f"{name()}("})

    def called(col: Any, options: Mapping[str, str] | None = None) -> Column:
        return function(col, json.dumps(dict(options or {})))

    called.__name__ = called.__qualname__ = template.name
    called.__doc__ = f"{template.name}(col, options=None): {doc}\n\n{_XML}"
    return called


schema_of_xml = _of_options(
    "schema_of_xml(col: value, options: value)",
    xml.schema_of_xml,
    "The type of a text of XML, as PySpark writes it.",
)
to_xml = _of_options(
    "to_xml(col, options: value)",
    xml.to_xml,
    "A struct as XML; options are `rowTag`, `attributePrefix`, `valueTag`, `validateName`.",
    "call(to_json({col})::VARCHAR, {options})",
)
_from_xml = _generated(xml.from_xml, "VARCHAR")
_schema_of_csv = _generated(py.schema_of_csv, "VARCHAR")
_to_char = _generated(py.to_char, "VARCHAR")


def from_xml(col: Any, schema: Any, options: Mapping[str, str] | None = None) -> Column:
    """A text of XML as a struct; what the text lacks, or what does not fit, is NULL.

    It needs the extra xml (lxml).

    Args:
        col: the text, one element, whose name does not matter.
        schema: names and types of the fields; see `from_json`. A field `_a` is the attribute a,
            `_VALUE` the text of an element that has attributes.
        options: `attributePrefix`, `valueTag`, `excludeAttribute`, `nullValue`.

    Raises:
        DataError: the schema is not understood.
    """
    declared = constant_text(schema) if isinstance(schema, Column) else schema
    if isinstance(declared, str) and (struct := _STRUCT.fullmatch(declared)):
        declared = struct[1]
    fields = {name: json_structure(type_) for name, type_ in declared_columns(declared)}
    structure, chosen = json.dumps(fields), json.dumps(dict(options or {}))
    return call(
        "json_transform", call(_from_xml(), column_or_name(col), structure, chosen), structure
    )


def schema_of_csv(csv: Any, options: Mapping[str, str] | None = None) -> Column:
    """The types of a line of CSV, as PySpark writes them; `sep` is the only option.

    Raises:
        UnsupportedError: there are other options.
    """
    chosen = dict(options or {})
    separator = chosen.pop("sep", chosen.pop("delimiter", ","))
    no_options("schema_of_csv", chosen)
    return call(_schema_of_csv(), value(csv), separator)


def to_char(col: Any, format: Any) -> Column:
    """A number in a format such as "$99,999.99", a date or timestamp in one such as "dd.MM.yyyy".

    Bytes become text in the format "base64", "hex" or "utf-8".
    """
    pattern = literal_text(format)

    def make(item: Column, type_: str) -> Column:
        if type_ == "DATE" or type_.startswith("TIMESTAMP"):
            return date_format(item, pattern)
        if type_ == "BLOB":
            names = {"base64": "base64", "hex": "hex", "utf-8": "decode"}
            if pattern.lower() not in names:
                raise OptionError("Bytes become text in the format base64, hex or utf-8.")
            return call(names[pattern.lower()], item)
        return call(_to_char(), item.cast("VARCHAR"), pattern)

    chosen = column_or_name(col)
    shown = f"to_char({shown_as(chosen)}, {pattern})"
    return ByType(argument=chosen, make=make).column().alias(shown)


def _numbers(name: str, run: Callable[..., Any], doc: str) -> Callable[..., Column]:
    called = _generated(run, "VARCHAR")

    def function(col: Any, format: Any) -> Column:
        pattern = literal_text(format)
        whole, _, fraction = pattern.upper().replace("D", ".").partition(".")
        places = [sum(map(part.count, "09")) for part in (whole, fraction)]
        type_ = f"DECIMAL({max(sum(places), 1)}, {places[1]})"
        chosen = column_or_name(col)
        # Not Column.cast: DuckDB would call the function while planning, for its CASE of constants.
        made = combine("CAST(", call(called(), chosen, pattern), f" AS {type_})", bare=True)
        return atom(made).alias(f"{name}({shown_as(chosen)}, {pattern})")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


to_number = _numbers(
    "to_number",
    py.to_number,
    "The number that a text of a format such as '999,999.99' stands for, with its decimals.",
)
try_to_number = _numbers(
    "try_to_number",
    py.try_to_number,
    "The number that a text of a format stands for; NULL where it does not match.",
)
to_varchar = to_char
_OWN = (schema_of_xml, to_xml, from_xml, schema_of_csv, to_char, to_number, try_to_number)


def python_functions() -> dict[str, Callable[..., Column]]:
    """The functions by name."""
    functions = {function.template.name: _function(function) for function in _FUNCTIONS}
    functions |= {function.__name__: function for function in _OWN} | {"to_varchar": to_char}
    functions["aes_encrypt"] = _aes_encrypt()
    return functions | {name: _parse_url(name) for name in ("parse_url", "try_parse_url")}
