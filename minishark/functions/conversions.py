"""Functions whose SQL depends on their arguments: patterns, schemas, names of fields."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from minishark.dataframe.column import (
    ByType,
    Call,
    Column,
    Generator,
    InputFile,
    Kind,
    Level,
    SessionWindow,
    atom,
    call,
    case,
    column_or_name,
    combine,
    flat,
    generator,
    infix,
    only_reference,
    sql_type,
    value,
)
from minishark.dataframe.dates import date_pattern
from minishark.dataframe.generated_functions import generated
from minishark.dataframe.local import declared_columns, json_structure
from minishark.dataframe.names import ident
from minishark.dataframe.structs import json_text, struct
from minishark.errors import OptionError, UnsupportedError
from minishark.functions.arguments import constant_text, literal_text, no_options
from minishark.functions.python.values import parsed_time
from minishark.functions.templates import filled, shown_as

_UTF8 = ("utf-8", "utf8", "us-ascii", "ascii")
_UNITS = (
    "microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter",
    "year",
)  # fmt: skip
_DEFAULT_PATTERN = "yyyy-MM-dd HH:mm:ss"
_INTERVAL = re.compile(r"(?:interval\s+)?(\d+\s+\w+)((?:\s+\d+\s+\w+)*)", re.IGNORECASE)


def _call(function: str, *columns: Any) -> Column:
    return call(function, *map(column_or_name, columns))


# Text


def regexp_replace(string: Any, pattern: Any, replacement: Any) -> Column:
    r"""All matches of a regular expression (RE2) replaced; groups are $1, $2 ... or \1, \2 ..."""
    if isinstance(replacement, Column):
        with contextlib.suppress(OptionError):
            replacement = literal_text(replacement)
    if isinstance(replacement, str):
        replacement = re.sub(r"(?<!\\)\$(\d)", r"\\\1", replacement).replace("\\$", "$")
    return call("regexp_replace", column_or_name(string), value(pattern), value(replacement), "g")


def split(str: Any, pattern: Any, limit: Any = -1) -> Column:
    """The parts between the matches of a regular expression; with a limit, at most so many."""
    text, most = column_or_name(str), column_or_name(limit)
    if isinstance(limit, int) and limit <= 0:
        return call("string_split_regex", text, value(pattern))
    # The last part is what follows the first `limit - 1` parts and the separators after them.
    parts = call("string_split_regex", text, value(pattern))
    marks = call("regexp_extract_all", text, value(pattern))
    head = most - 1
    lengths = (", 1, ", head, "), lambda p_: length(p_))), 0)")
    summed = "coalesce(list_sum(list_transform(list_slice("
    before = (summed, parts, *lengths, " + ", summed, marks, *lengths)
    rest = combine("substring(", text, ", 1 + (", *before, ")::BIGINT)", bare=True)
    listed = ("list_append(list_slice(", parts, ", 1, ", head, "), ", rest, ")")
    limited = combine(*listed, bare=True)
    few = (most <= 0) | (call("len", parts) <= most)
    return case(few, parts).when(text.is_not_null(), atom(limited))


def substring(str: Any, pos: Any, len: Any) -> Column:
    """`len` characters, or bytes, from the one at `pos`, from 1, or from the end if negative."""
    start = 1 if isinstance(pos, int) and pos == 0 else pos
    first = column_or_name(start)
    count = column_or_name(max(len, 0) if isinstance(len, int) else len)
    if not isinstance(len, int):  # DuckDB goes back from there
        count = case(count < 0, value(0)).otherwise(count)

    def make(item: Column, type_: str) -> Column:
        if type_ != "BLOB":
            return call("substring", item, first, count)
        begin = case(first < 0, call("octet_length", item) + first + 1).otherwise(first)
        return call("array_slice", item, begin, begin + count - 1)

    chosen = column_or_name(str)
    return ByType(argument=chosen, make=make).column()


def length(col: Any) -> Column:
    """The number of characters of a text, or of bytes of a blob."""
    return ByType(argument=column_or_name(col), make=_length).column()


def _length(item: Column, type_: str) -> Column:
    return call("octet_length" if type_ == "BLOB" else "length", item)


def encode(col: Any, charset: str = "utf-8") -> Column:
    """A text as bytes.

    Raises:
        UnsupportedError: the charset is not UTF-8.
    """
    return call("encode", _utf8(col, charset))


def decode(col: Any, charset: str = "utf-8") -> Column:
    """Bytes as text.

    Raises:
        UnsupportedError: the charset is not UTF-8.
    """
    return call("decode", _utf8(col, charset))


def _utf8(col: Any, charset: str) -> Column:
    if charset.lower() not in _UTF8:
        raise UnsupportedError(f"Text is encoded as UTF-8, not {charset}; use a udf.")
    return column_or_name(col)


def reverse(col: Any) -> Column:
    """A text or a list from its end."""
    return ByType(argument=column_or_name(col), make=_reversed).column()


def _reversed(item: Column, type_: str) -> Column:
    return call("list_reverse" if type_.endswith("]") else "reverse", item)


def concat(*cols: Any) -> Column:
    """Texts or lists concatenated; NULL if one of them is (DuckDB's concat skips NULLs)."""
    made = column_or_name(cols[0])
    for col in cols[1:]:
        made = infix(made, "||", column_or_name(col))
    return made


def _joined(name: str, modifier: str = "") -> Callable[..., Column]:
    """An aggregate that joins texts, or blobs."""

    def function(col: Any, delimiter: Any = None) -> Column:
        chosen = column_or_name(col)
        mark = value("" if delimiter is None else delimiter)

        def joined(item: Column, between: Column) -> Column:
            listed = combine(modifier, item, ", ", between, bare=True)
            return Call(function="string_agg", arguments=listed).column(Kind.GROUP)

        def make(item: Column, type_: str) -> Column:
            return call("unhex", item) if type_ == "BLOB" else item

        def inside(item: Column, type_: str) -> Column:
            return call("hex", item) if type_ == "BLOB" else item

        def each(item: Column) -> Column:
            return ByType(argument=item, make=inside, decides=chosen).column()

        between = each(call("coalesce", mark, value("")))  # NULL stands for nothing, too
        made = ByType(argument=joined(each(chosen), between), make=make, decides=chosen).column()
        shown = f"{modifier}{shown_as(chosen)}, {shown_as(mark)}"
        return made.alias(f"{name.removesuffix('_distinct')}({shown})")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = "The values joined to one text, or one blob of blobs."
    return function


listagg = _joined("listagg")
string_agg = _joined("string_agg")
listagg_distinct = _joined("listagg_distinct", "DISTINCT ")
string_agg_distinct = _joined("string_agg_distinct", "DISTINCT ")


# Dates and times


def to_date(col: Any, format: str | None = None) -> Column:
    """A text as a date; the format is one such as "dd.MM.yyyy" or "%d.%m.%Y"."""
    return (column_or_name(col) if format is None else to_timestamp(col, format)).cast("DATE")


def try_to_date(col: Any, format: str | None = None) -> Column:
    """A text as a date; NULL where it is none."""
    moment = column_or_name(col) if format is None else try_to_timestamp(col, format)
    return moment.try_cast("DATE")


def to_timestamp(col: Any, format: str | None = None) -> Column:
    """A text as a timestamp; the format is one such as "dd.MM.yyyy HH:mm"."""
    if format is None:
        return column_or_name(col).cast("TIMESTAMP")
    return _call("strptime", col, _pattern(format))


def try_to_timestamp(col: Any, format: Any = None) -> Column:
    """A text as a timestamp; NULL where it is none."""
    if format is None:
        return column_or_name(col).try_cast("TIMESTAMP")
    return _call("try_strptime", col, _pattern(format))


def to_timestamp_ntz(timestamp: Any, format: Any = None) -> Column:
    """A text as a timestamp without a time zone; the format may be a column."""
    return _by_row(timestamp, format)


def to_timestamp_ltz(timestamp: Any, format: Any = None) -> Column:
    """A text as a timestamp with a time zone, in the session's unless it names one.

    The format may be a column.
    """
    return _by_row(timestamp, format).cast("TIMESTAMPTZ")


def _by_row(text: Any, format: Any) -> Column:
    """`to_timestamp`, whose format may be a column, too, or the name of one."""
    chosen = format if isinstance(format, Column) else None
    if chosen is None or only_reference(chosen) is None:
        try:
            return to_timestamp(text, format)
        except OptionError:
            chosen = column_or_name(format)
            if only_reference(chosen) is None:
                raise
    run = generated("parsed_time", parsed_time, "TIMESTAMP", sees_nulls=False)
    return call(run, column_or_name(text), chosen)


def to_time(str: Any, format: Any = None) -> Column:
    """A text as a time of day."""
    return (column_or_name(str) if format is None else to_timestamp(str, format)).cast("TIME")


def try_to_time(str: Any, format: Any = None) -> Column:
    """A text as a time of day; NULL where it is none."""
    moment = column_or_name(str) if format is None else try_to_timestamp(str, format)
    return moment.try_cast("TIME")


def date_format(date: Any, format: str) -> Column:
    """A date or timestamp formatted by a pattern such as "dd.MM.yyyy" or "%d.%m.%Y"."""
    return _call("strftime", column_or_name(date), _pattern(format))


def from_unixtime(timestamp: Any, format: str = _DEFAULT_PATTERN) -> Column:
    """Seconds since 1970 as a text, in the session's time zone."""
    stamp = call("to_timestamp", column_or_name(timestamp)).cast("TIMESTAMP")
    return call("strftime", stamp, _pattern(format))


def _part(name: str, doc: str) -> Callable[[Any], Column]:
    """A function of dates, timestamps, or texts of these."""

    def make(item: Column, type_: str) -> Column:
        return call(name, item.cast("TIMESTAMP") if type_ == "VARCHAR" else item)

    def function(col: Any) -> Column:
        chosen = column_or_name(col)
        shown = chosen.name or chosen.sql(lambda reference: reference.name)
        return ByType(argument=chosen, make=make).column().alias(f"{name}({shown})")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


year = _part("year", "The year.")
quarter = _part("quarter", "The quarter, from 1 to 4.")
month = _part("month", "The month, from 1 to 12.")
weekofyear = _part("weekofyear", "The week of the year, by ISO 8601.")
day = _part("day", "The day of the month.")
dayofmonth = _part("dayofmonth", "The day of the month.")
dayofyear = _part("dayofyear", "The day of the year.")
hour = _part("hour", "The hour, from 0 to 23.")
minute = _part("minute", "The minute.")
second = _part("second", "The whole second.")


def unix_timestamp(timestamp: Any = None, format: str | None = None) -> Column:
    """The whole seconds since 1970 of a timestamp, of a text with a format, or of now."""
    if timestamp is None:
        return call("epoch", call("now")).cast("BIGINT")
    moment = _by_row(timestamp, format)
    return call("floor", call("epoch", moment)).cast("BIGINT")


def to_unix_timestamp(timestamp: Any, format: Any = None) -> Column:
    """The whole seconds since 1970 of a timestamp, or of a text with a format, or a column's."""
    return unix_timestamp(timestamp, format)


def _pattern(format: Any) -> Column:
    """A pattern as DuckDB's; PySpark's users pass some in `lit()`."""
    if isinstance(format, Column):
        text = "".join(piece for piece in format.pieces if isinstance(piece, str))
        format = text[1:-1].replace("''", "'") if text.startswith("'") else text
    return value(date_pattern(format))


def timestamp_add(unit: str, quantity: Any, ts: Any) -> Column:
    """A timestamp some units later; the unit is "DAY", "HOUR" ..."""
    one = combine(f"INTERVAL 1 {_unit(unit)}")
    return infix(column_or_name(ts), "+", infix(column_or_name(quantity), "*", one))


def timestamp_diff(unit: str, start: Any, end: Any) -> Column:
    """The whole units from start to end; the unit is "DAY", "HOUR" ..."""
    return call("date_sub", _unit(unit), column_or_name(start), column_or_name(end))


def _unit(unit: str) -> str:
    if unit.lower() not in _UNITS:
        raise OptionError(f"{unit!r} is no unit of time; there are {', '.join(_UNITS)}.")
    return unit.lower()


def window(
    timeColumn: Any,
    windowDuration: str,
    slideDuration: str | None = None,
    startTime: str | None = None,
) -> Column:
    """The window of time that a timestamp is in, a struct of `start` and `end`, to group by.

    Args:
        timeColumn: the timestamps.
        windowDuration: how long windows are, such as "10 minutes".
        slideDuration: the time between the starts of two windows; None for `windowDuration`. With
            a shorter one, each timestamp is in several windows: a row for each.
        startTime: when the first window starts, counted from 1970-01-01 00:00.

    Raises:
        OptionError: a duration is not understood.
    """
    stamp, duration = column_or_name(timeColumn).cast("TIMESTAMP"), _interval(windowDuration)
    slide = _interval(slideDuration or windowDuration)
    origin = "TIMESTAMP '1970-01-01'" + (f" + {_interval(startTime)}" if startTime else "")
    last = f"time_bucket({slide}, {{stamp}}, {origin})"
    whole = f'struct_pack(start := {{start}}, "end" := {{start}} + {duration})'
    kind = Kind.ROW
    if slide == duration:
        sql = whole.replace("{start}", last)
    else:
        kind = Kind.FREE
        first = f"time_bucket({slide}, {{stamp}} - {duration}, {origin}) + {slide}"
        starts = f"generate_series({first}, {last}, {slide})"
        sql = f"unnest(list_transform({starts}, lambda w_: {whole.replace('{start}', 'w_')}))"
    made = filled(sql, {"stamp": (stamp,)})
    return Column(made.pieces, "window", level=Level.ATOM, kind=max(kind, made.kind))


def _interval(text: str) -> str:
    parts = _INTERVAL.fullmatch(text.strip())
    if parts is None:
        raise OptionError(f"{text!r} is no duration; write one such as '10 minutes'.")
    return f"INTERVAL '{parts[1]}{parts[2]}'"


def session_window(timeColumn: Any, gapDuration: Any) -> SessionWindow:
    """The window of a session, a struct of `start` and `end`, to group by.

    Rows of one session follow one another within a gap, among rows that are equal in the other
    columns of `group_by`; it ends when the gap after its last row is over. Rows without a time are
    left out. In a SELECT, it is the window of the row alone.

    Args:
        timeColumn: the timestamps.
        gapDuration: the gap, such as "10 minutes", or a Column of such texts or intervals.

    Raises:
        OptionError: a duration is not understood.
    """
    stamp = column_or_name(timeColumn).cast("TIMESTAMP")
    gap: Any = gapDuration
    gap = combine(_interval(gap)) if isinstance(gap, str) else gap.cast("INTERVAL")
    end = infix(stamp, "+", gap)
    window_ = combine("struct_pack(start := ", stamp, ', "end" := ', end, ")", bare=True)
    return SessionWindow(
        window_.pieces, "session_window", Level.ATOM, window_.kind, start=stamp, end=end
    )


# Structs, maps, lists


def named_struct(*cols: Any) -> Column:
    """A struct of alternating names, as literals, and values."""
    if not cols or len(cols) % 2:
        raise OptionError("named_struct() takes a name, a value, a name, a value ...")
    fields = []
    for name, item in zip(cols[::2], cols[1::2], strict=True):
        fields.append(column_or_name(item).alias(literal_text(name)))
    return struct(*fields)


def create_map(*cols: Any) -> Column:
    """A map of alternating keys and values."""
    columns = [column_or_name(item) for item in flat(cols)]
    return call("map", call("list_value", *columns[::2]), call("list_value", *columns[1::2]))


def map_concat(*cols: Any) -> Column:
    """The entries of all maps; of equal keys, the last."""
    columns = [column_or_name(item) for item in flat(cols)]
    return _if_all(columns, call("map_concat", *columns))


def _if_all(columns: Sequence[Column], result: Column) -> Column:
    """The result where no column is NULL."""
    return case(functools.reduce(Column.__and__, (c.is_not_null() for c in columns)), result)


def element_at(col: Any, extraction: Any) -> Column:
    """An element of a list by its position from 1, or from the end if negative; or of a map."""
    return combine(column_or_name(col), "[", value(extraction), "]")


def arrays_zip(*cols: Any) -> Column:
    """A list of structs of the elements at each position; shorter lists are filled with NULLs."""
    columns = [column_or_name(item) for item in flat(cols)]
    fields: list[Any] = []
    for number, item in enumerate(columns):
        reference = only_reference(item)
        name = item.name or (reference.name.rpartition(".")[2] if reference else str(number))
        fields.append(f"{ident(name)} := zip_[{number + 1}]")
    zipped = call("list_zip", *columns)
    body = f", lambda zip_: struct_pack({', '.join(fields)}))"
    return _if_all(columns, atom(combine("list_transform(", zipped, body, bare=True)))


def sequence(start: Any, stop: Any, step: Any = None) -> Column:
    """The values from `start` to `stop`, both included; by 1 or -1, unless there is a step.

    Dates need a step, such as `expr("INTERVAL 1 DAY")`, and become timestamps.
    """
    first, last = column_or_name(start), column_or_name(stop)
    if step is None:
        step = case(first > last, -1).otherwise(1)
    return call("generate_series", first, last, column_or_name(step))


# Files and collations


def input_file_name() -> Column:
    """The path of the file that a row is from, of rows right after `session.read`.

    Raises:
        UnsupportedError: when used: the rows are not read from files there.
    """
    return Column((InputFile(),), "input_file_name()", level=Level.ATOM)


_BASES = {"utf8_binary": "", "utf8_lcase": "NOCASE", "unicode": "en"}
_MODIFIERS = {"ci": "NOCASE", "ai": "NOACCENT", "cs": "", "as": ""}


def collate(col: Any, collation: str) -> Column:
    """A text that is compared and sorted by a collation.

    Args:
        col: the text.
        collation: PySpark's name, such as "UTF8_LCASE", "UNICODE_CI" or "de_AI".

    Raises:
        OptionError: that is no name of a collation.
    """
    name = collation.lower()
    if re.fullmatch(r"\w+", name) is None:
        raise OptionError(f"{collation!r} is no collation; write one such as 'UNICODE_CI'.")
    parts: list[str] = []
    while (tail := name.rpartition("_"))[2] in _MODIFIERS:
        name, parts = tail[0], [_MODIFIERS[tail[2]], *parts]
    meant = ".".join(filter(None, [_BASES.get(name, name), *parts]))
    return combine(column_or_name(col), f" COLLATE {meant}") if meant else column_or_name(col)


# JSON and CSV


def from_json(col: Any, schema: Any, options: Any = None) -> Column:
    """A JSON text as a struct, list or map; what the text lacks is NULL.

    Args:
        col: the text.
        schema: names and types of the fields ("a INT, b ARRAY<STRING>", a mapping, a StructType, a
            pyarrow schema), or one type that is no struct: "array<int>", an ArrayType.
        options: of PySpark's; none is known.

    Raises:
        DataError: the schema is not understood.
        UnsupportedError: there are options.
    """
    no_options("from_json", options)
    text = column_or_name(col)
    declared = constant_text(schema) if isinstance(schema, Column) else schema
    whole = _type_without_fields(declared)
    if whole is not None and whole.endswith("]"):  # a value alone is an array of one
        alone = ~call("starts_with", call("ltrim", text), "[")
        text = case(alone, combine("'[' || ", text, " || ']'")).otherwise(text)
    if whole is not None:
        return text.try_cast("JSON").try_cast(whole)
    fields = {name: json_structure(type_) for name, type_ in declared_columns(declared)}
    parsed = case(call("json_valid", text), text).when(text.is_not_null(), "{}")
    return call("json_transform", parsed, json.dumps(fields))


def _type_without_fields(schema: Any) -> str | None:
    """The DuckDB type of a schema that is one type, but no struct."""
    if isinstance(schema, str):
        text = schema.strip()
        type_ = (
            sql_type(text)
            if re.fullmatch(r"\w+(\([\d, ]+\))?(\[\])*|\w+\s*<.*>", text, re.DOTALL)
            else ""
        )
    else:
        type_ = schema.sql() if hasattr(schema, "sql") else ""
    return type_ if type_ and (type_.endswith("]") or not type_.startswith("STRUCT")) else None


def to_json(col: Any, options: Any = None) -> Column:
    """A value as JSON; fields of structs that are NULL are left out, nulls of variants are not.

    Timestamps are written without T and time zone, and entries of maps that are NULL are left out.

    Raises:
        UnsupportedError: there are options other than `ignoreNullFields`.
    """
    chosen = dict(options or {})
    keeps = f"{chosen.pop('ignoreNullFields', True)}".lower() == "false"
    no_options("to_json", chosen)

    def make(item: Column, type_: str) -> Column:
        if type_ == "JSON":
            return item.cast("VARCHAR")
        return call("to_json", item).cast("VARCHAR") if keeps else json_text(item)

    item = column_or_name(col)
    return ByType(argument=item, make=make).column().alias(f"to_json({shown_as(item)})")


def json_tuple(col: Any, *fields: str) -> Generator:
    """The values of an object's fields as text, in columns `c0`, `c1` ..."""
    parsed = column_or_name(col).try_cast("JSON")
    columns = [
        call("json_extract_string", parsed, f'$."{literal_text(name)}"').alias(f"c{number}")
        for number, name in enumerate(flat(fields))
    ]
    if not columns:
        raise OptionError("json_tuple() takes the names of fields.")
    return generator(None, columns)


def variant_get(v: Any, path: Any, targetType: str) -> Column:
    """The value at a path of JSON, in a type."""
    return call("json_extract_string", column_or_name(v), value(path)).cast(targetType)


def try_variant_get(v: Any, path: Any, targetType: str) -> Column:
    """The value at a path of JSON, in a type; NULL where it does not fit."""
    return call("json_extract_string", column_or_name(v), value(path)).try_cast(targetType)


def from_csv(col: Any, schema: Any, options: Any = None) -> Column:
    """A line of CSV as a struct; what does not fit is NULL.

    Args:
        col: the line; commas within quotes are not recognized.
        schema: names and types of the fields; see `from_json`.
        options: `sep`, `ignoreLeadingWhiteSpace`, `ignoreTrailingWhiteSpace`.

    Raises:
        DataError: the schema is not understood.
        UnsupportedError: there are other options.
    """
    chosen = dict(options or {})
    separator = chosen.pop("sep", chosen.pop("delimiter", ","))
    trims = [
        function
        for side, function in (("Leading", "ltrim"), ("Trailing", "rtrim"))
        if f"{chosen.pop(f'ignore{side}WhiteSpace', False)}".lower() == "true"
    ]
    no_options("from_csv", chosen)
    declared = constant_text(schema) if isinstance(schema, Column) else schema
    parts = call("string_split", column_or_name(col), separator)
    fields = [
        Column((*parts.pieces, f"[{number}]"), level=Level.ATOM, kind=parts.kind)
        for number, _ in enumerate(declared_columns(declared), 1)
    ]
    fields = [functools.reduce(lambda field, trim: call(trim, field), trims, f) for f in fields]
    typed = [
        call("nullif", field, "").try_cast(type_).alias(name)
        for field, (name, type_) in zip(fields, declared_columns(declared), strict=True)
    ]
    return case(column_or_name(col).is_not_null(), struct(*typed))


__all__ = [
    name
    for name, item in globals().items()
    if not name.startswith("_") and getattr(item, "__module__", None) == __name__
]
__all__ += ["struct"]
