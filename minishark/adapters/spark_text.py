"""Spark's SQL as DuckDB's: sqlglot's translation, and what it leaves as it is.

Functions that `minishark.functions` has are its own in text, too. What has another meaning by the
same name is a macro of the session (`pyspark.MACROS`), or a function of one here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import duckdb

from minishark.dataframe.column import (
    Call,
    Meanings,
    as_text,
    as_type,
    combine,
    item_of,
    mean_of,
    whole_sum,
)
from minishark.errors import OptionError, QueryError
from minishark.functions import in_text

try:
    import sqlglot
    from sqlglot import TokenType, exp
    from sqlglot.optimizer.annotate_types import annotate_types
except ImportError as missing:
    raise OptionError("Spark's SQL needs sqlglot: pip install 'minishark[spark]'.") from missing

# Theirs is the order of arguments in SQL, a bare unit, DISTINCT, ORDER BY or IGNORE NULLS within
# the call, or what may stand after it; or both say the same.
_OF_SQLGLOT = {
    "any_value", "approx_count_distinct", "array", "array_agg", "bool_and", "bool_or",
    "coalesce", "collate", "collect_list", "collect_set", "concat", "concat_ws", "count",
    "current_date", "current_timestamp", "date_diff", "dateadd", "datediff", "decode", "encode",
    "first", "first_value", "grouping", "grouping_id", "ifnull", "lag", "last", "last_value",
    "lead", "localtimestamp", "ltrim", "mode", "named_struct", "nth_value", "nvl", "rtrim",
    "session_window", "struct", "sum", "timestampadd", "timestampdiff", "window",
}  # fmt: skip
OURS = (in_text.CALLABLE - _OF_SQLGLOT) | {"hash", "current_database"}
_WITH_SYNTAX = {
    "extract", "listagg", "overlay", "position", "string_agg", "substr", "substring", "trim",
}  # fmt: skip
_GENERATORS = {
    "explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer",
    "stack", "json_tuple",
}  # fmt: skip
_CASTS = {
    "tinyint", "smallint", "bigint", "float", "double", "decimal", "boolean", "binary",
    "timestamp",
}  # fmt: skip
_TAKING_OPTIONS = re.compile(r"(from|to|schema_of)_(json|csv|xml)")
_FORMATS = {"parquet", "csv", "json"}
_WHOLE = exp.DataType.SIGNED_INTEGER_TYPES
_SECONDS = {"SECOND", "SECONDS", "SECS", "SEC", "S"}
_DAYS = {"YEAR", "QUARTER", "MONTH", "WEEK", "DAY"}

_Spark: Any = sqlglot.Dialect.get_or_raise("spark").__class__
_DuckDB: Any = sqlglot.Dialect.get_or_raise("duckdb").__class__


def _aggregate(name: str, kind: Any) -> Callable[[Sequence[Any]], Any]:
    def made(arguments: Sequence[Any]) -> Any:
        call = kind(this=arguments[0] if arguments else None)
        call.meta["name"] = name
        return call

    return made


_AGGREGATES = {"mean": exp.Avg, "try_avg": exp.Avg, "try_sum": exp.Sum}


class _Parser(_Spark.Parser):  # type: ignore[misc]
    STRICT_CAST = True  # what does not fit is an error, as in ANSI mode
    FUNCTIONS: ClassVar[dict[str, Any]] = {
        name: make for name, make in _Spark.Parser.FUNCTIONS.items() if name.lower() not in OURS
    } | {name.upper(): _aggregate(name, kind) for name, kind in _AGGREGATES.items()}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: parse
        for name, parse in _Spark.Parser.FUNCTION_PARSERS.items()
        if name.lower() not in OURS - _WITH_SYNTAX
    }


class SparkText(_Spark):  # type: ignore[misc]
    """Spark's dialect, in which what `minishark.functions` has is left to it."""

    Parser = _Parser
    SAFE_DIVISION = False  # division by zero is an error, as in ANSI mode

    def tokenize(self, sql: str, opts: Any = None) -> list[Any]:
        """ANY and SOME that nothing follows in parentheses are names of columns."""
        tokens: list[Any] = super().tokenize(sql, opts)
        for token, following in zip(tokens, [*tokens[1:], None], strict=True):
            alone = following is None or following.token_type is not TokenType.L_PAREN
            if alone and token.token_type in (TokenType.ANY, TokenType.SOME):
                token.token_type = TokenType.IDENTIFIER  # VAR would be a function again
        return tokens


class SessionText(_DuckDB):  # type: ignore[misc]
    """DuckDB's dialect in a session whose NULLs come first in ascending sorts."""

    NULL_ORDERING = "nulls_are_small"


_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_FRACTION = re.compile(r"(?i)\d[.e]|\.\d")
_BRACES = re.compile(r"\{(\w+)\}")
_BRACED = re.compile(r"braces_of_(\w+)_end")


def duckdb_text(text: str) -> str:
    """Statements in Spark's SQL as DuckDB's.

    Raises:
        QueryError: they are no Spark SQL, with sqlglot's message; or have no counterpart.
    """
    marked = _BRACES.sub(r"braces_of_\1_end", text)  # sqlglot does not read {name}
    made = ";\n".join(_duckdb(each) for each in _parsed(marked) if each)
    return _BRACED.sub(r"{\1}", made)


def duckdb_expression(text: str, *, named: bool = True) -> str:
    """An expression of Spark's SQL as DuckDB's; with a name, if it may have one."""
    first, *others = _parsed(f"SELECT {text}")
    if others:
        raise QueryError(f"This is no expression, but several statements: {text}")
    if not named:
        (item,) = first.expressions
        return _duckdb(item)
    return _duckdb(first).removeprefix("SELECT ")


class DaysColumn(in_text.Column):
    """An interval of days or months, as the text tells: a date plus one is a date."""

    def __radd__(self, other: Any) -> in_text.Column:
        return in_text.call("plus_days", other, self)

    def __rsub__(self, other: Any) -> in_text.Column:
        return in_text.call("plus_days", other, in_text.Column.__neg__(self))

    def __add__(self, other: Any) -> in_text.Column:
        if isinstance(other, DaysColumn):
            return _of_days(in_text.Column.__add__(self, other))
        return in_text.call("plus_days", other, self)

    def __sub__(self, other: Any) -> in_text.Column:
        made = in_text.Column.__sub__(self, other)
        return _of_days(made) if isinstance(other, DaysColumn) else made

    def __neg__(self) -> in_text.Column:
        return _of_days(in_text.Column.__neg__(self))


def _of_days(made: in_text.Column) -> DaysColumn:
    return DaysColumn(made.pieces, made.name, made.level, made.kind)


def expr(str: str) -> in_text.Column:  # noqa: A002 - PySpark's name
    """An expression in Spark's SQL as a Column."""
    text = duckdb_expression(str, named=False)
    (item,) = _parsed(f"SELECT {str}")[0].expressions
    name = _name(item)
    if isinstance(item, exp.Sum | exp.Avg) and (made := _added(item)) and made.expressions[1:]:
        typed, *calls = (each.sql(SessionText) for each in made.expressions)
        added = in_text.of_calls(made.name, typed, *calls)  # which OVER and FILTER may be added to
        return added.alias(name)
    made = in_text.expr(text)
    return _of_days(made) if _is_of_days(item) else made


def hash(*cols: Any) -> in_text.Column:  # noqa: A001 - PySpark's name
    """Spark's hash of 32 bits."""
    return in_text.hashed("hash", cols)


def xxhash64(*cols: Any) -> in_text.Column:
    """Spark's hash of 64 bits."""
    return in_text.hashed("xxhash64", cols)


def extract(field: in_text.Column, source: Any) -> in_text.Column:
    """A part of a time; seconds have fractions."""
    made = in_text.called("extract", [field, source])
    is_whole = in_text.literal_text(field).upper() not in _SECONDS
    return made if is_whole else in_text.call("seconds", in_text.column_or_name(source))


date_part = datepart = extract


def element_at(col: Any, extraction: Any) -> in_text.Column:
    """An element of a list by its position from 1, or from the end; or of a map.

    One that a list has not is an error.
    """
    return in_text.call("element", in_text.column_or_name(col), in_text.value(extraction))


def slice(x: Any, start: Any, length: Any) -> in_text.Column:  # noqa: A001 - PySpark's name
    """Elements from a position from 1, or from the end; an error at 0, or of a negative length."""
    first, count = in_text.column_or_name(start), in_text.column_or_name(length)
    made = in_text.called("slice", [x, first, count])
    wrong = in_text.call("no_element", first, made)
    return (
        in_text.case((first == 0) | (count < 0), wrong).otherwise(made).alias(made.name or "slice")
    )


def regexp_replace(
    string: Any, pattern: Any, replacement: Any, position: int = 1
) -> in_text.Column:
    """All matches of a regular expression replaced, from a position on."""
    whole = in_text.column_or_name(string)
    if position == 1:
        return in_text.called("regexp_replace", [whole, pattern, replacement])
    rest = in_text.called("substring", [whole, position, 2**31 - 1])
    made = in_text.called("regexp_replace", [rest, pattern, replacement])
    return in_text.called("concat", [in_text.call("left", whole, position - 1), made])


_PARTS = dict.fromkeys(("DOUBLE", "FLOAT", "TIMESTAMP WITH TIME ZONE"), "as_string")
_PARTS |= dict.fromkeys(("DOUBLE[]", "FLOAT[]"), "parts")


def _part(col: Any) -> in_text.Column:
    """A part of a joined text; a double is Java's text."""

    def make(item: in_text.Column, type_: str) -> in_text.Column:
        return in_text.call(_PARTS[type_], item) if type_ in _PARTS else item

    return in_text.by_type(in_text.column_or_name(col), make)


def concat(*cols: Any) -> in_text.Column:
    """Texts or lists concatenated; NULL if one of them is."""
    return in_text.called("concat", list(map(_part, cols)))


def concat_ws(sep: Any, *cols: Any) -> in_text.Column:
    """Texts joined; NULLs are skipped."""
    return in_text.called("concat_ws", [sep, *map(_part, in_text.flat(cols))])


def array_join(col: Any, delimiter: Any, *null: Any) -> in_text.Column:
    """The elements of a list as a text."""
    listed = in_text.call("parts", in_text.column_or_name(col))
    return in_text.called("array_join", [listed, delimiter, *null])


def input_file_name() -> in_text.Column:
    """The URI of the file that a row is from."""
    path = in_text.called("input_file_name", [])
    local = in_text.call("concat", "file://", path)
    made = in_text.case(in_text.call("starts_with", path, "/"), local).otherwise(path)
    return made.alias("input_file_name()")


def current_catalog() -> in_text.Column:
    """Spark's name of the catalog in memory, or that of another."""
    return in_text.call("replace", in_text.call("current_catalog"), "memory", "spark_catalog")


def current_schema() -> in_text.Column:
    """Spark's name of the schema that is there from the start, or that of another."""
    return in_text.call("replace", in_text.call("current_schema"), "main", "default")


def avg(col: Any) -> in_text.Column:
    """The mean; of DECIMALs one with 4 more decimals, and of texts one of numbers."""
    return mean_of(in_text.column_or_name(col))


mean = try_avg = avg


def make_ym_interval(years: Any = 0, months: Any = 0) -> in_text.Column:
    """An interval of years and months, with which a date stays one."""
    return _of_days(in_text.called("make_ym_interval", [years, months]))


current_database = current_schema
_OWN: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        hash, xxhash64, extract, element_at, slice, regexp_replace, current_catalog, current_schema,
        array_join,
    )
}  # fmt: skip
_OWN |= {"date_part": extract, "datepart": extract, "current_database": current_schema}


# What Columns mean


def _parts(type_: str) -> dict[str, str]:
    """The names and types of what a nested type is made of."""
    return {name: str(part) for name, part in duckdb.sqltype(type_).children if name != "size"}


def _as_text(item: in_text.Column, type_: str, *, inside: bool = False) -> in_text.Column:
    """A value as Spark's text: `{1, null}` of a struct, `[1, null]` of a list, `{1 -> x}`."""

    def again(one: in_text.Column) -> in_text.Column:
        return _as_text(one, type_, inside=True)

    def part(of: in_text.Column, kind: str) -> in_text.Column:
        return in_text.call("coalesce", _as_text(of, kind, inside=True), "null")

    def joined(
        listed: in_text.Column, function: Callable[[in_text.Column], in_text.Column], ends: str
    ) -> in_text.Column:
        text = in_text.call("array_to_string", each(listed, function), ", ")
        return in_text.call("concat", ends[0], text, ends[1])

    def each(
        listed: in_text.Column, function: Callable[[in_text.Column], in_text.Column]
    ) -> in_text.Column:
        variable = f"v{len(type_)}"  # that of no lambda around it, whose type is longer
        return in_text.called("transform", [listed, in_text.with_parameters(function, [variable])])

    if type_.endswith("]"):
        (kind,) = _parts(type_).values()
        made = joined(item, lambda one: part(one, kind), "[]")
    elif type_.startswith("STRUCT(") and len(item.pieces) > 1 and not inside:
        listed = in_text.call("list_value", item)
        return in_text.call("list_extract", each(listed, again), 1)  # it is computed once
    elif type_.startswith("STRUCT("):
        fields = [part(item.get_field(name), kind) for name, kind in _parts(type_).items()]
        parts = [piece for field in fields for piece in (", ", field)][1:]
        made = in_text.call("concat", "{", *parts, "}")
    elif type_.startswith("MAP("):
        key, kind = _parts(type_).values()

        def entry(one: in_text.Column) -> in_text.Column:
            name = _as_text(one.get_field("key"), key, inside=True)
            return in_text.call("concat", name, " -> ", part(one.get_field("value"), kind))

        made = joined(in_text.call("map_entries", item), entry, "{}")
    elif type_ in ("DOUBLE", "FLOAT", "TIMESTAMP WITH TIME ZONE", ""):
        return in_text.call("as_string", item)
    else:
        return in_text.call("decode", item) if type_ == "BLOB" else as_text(item, type_)
    return in_text.case(item.is_not_null(), made)


def _item(item: in_text.Column, type_: str, key: int) -> in_text.Column:
    """An element; in ANSI mode, one that a list has not is an error."""
    if type_.endswith("]"):
        return in_text.call("element", item, key + 1)
    return item_of(item, type_, key=key)


def _total(made: in_text.Column, type_: str, cast: str) -> in_text.Column:
    """A sum or mean; of texts one of numbers, of DECIMALs one that holds all sums of 10^10."""
    (call,) = made.pieces
    assert isinstance(call, Call)
    if type_ == "VARCHAR":
        modifier, *rest = call.arguments.pieces
        pieces = rest if modifier == "DISTINCT " else call.arguments.pieces
        item = as_type(replace(call.arguments, pieces=tuple(pieces)), "DOUBLE")
        listed = combine(modifier, item, bare=True) if pieces is rest else item
        return replace(made, pieces=(replace(call, arguments=listed),))
    if not type_.startswith("DECIMAL("):
        return made if call.name == "avg" else whole_sum(made, type_, cast)
    digits, scale = _digits(type_)
    if call.name != "avg":
        return as_type(made, f"DECIMAL({min(digits + 10, 38)}, {scale})", cast)
    total, count = (
        replace(made, pieces=(replace(call, function=name),)) for name in ("sum", "count")
    )
    more = min(4, 38 - scale)
    return _divided(
        total,
        in_text.call("nullif", count, 0),
        scales=(scale + more, 0, more),
        digits=min(digits + 4, 38),
    )


_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INTEGER": 10, "BIGINT": 20}


def _digits(type_: str) -> tuple[int, int]:
    """How many digits the numbers of a type have, and how many of them are decimals."""
    if type_.startswith("DECIMAL("):  # as a list of those, of a literal
        digits, scale = (
            type_.removeprefix("DECIMAL(").removesuffix("[]").removesuffix(")").split(",")
        )
        return int(digits), int(scale)
    return _DIGITS.get(type_, 38), 0


def _fitting(whole: int, scale: int) -> int:
    """The decimals that fit beside so many digits before the point; 6 at least."""
    return min(scale, max(38 - whole, min(scale, 6)))


def _quotient(made: in_text.Column, type_: str) -> in_text.Column:
    """A quotient; of DECIMALs a DECIMAL."""
    types = list(_parts(type_).values()) if type_ else []
    if not any(each.endswith(")") for each in types) or {"DOUBLE", "FLOAT"} & {*types}:
        return made
    (digits, scale), (others, by) = map(_digits, types)
    whole = digits - scale + by
    decimals = _fitting(whole, max(6, scale + others + 1))
    place = made.pieces.index(" / ")
    a, b = in_text.Column(made.pieces[:place]), in_text.Column(made.pieces[place + 1 :])
    return _divided(
        a,
        b,
        scales=(decimals, by, decimals + by - scale),
        digits=min(whole + decimals, 38),
    )


def _divided(
    a: in_text.Column, b: in_text.Column, *, scales: tuple[int, int, int], digits: int
) -> in_text.Column:
    """An exact quotient: of doubles that hold whole numbers, or, of more digits, of HUGEINTs."""
    decimals, of_b, more = scales
    type_ = f"DECIMAL({digits}, {decimals})"

    def made(text: str, **put: in_text.Column) -> in_text.Column:
        parts = enumerate(re.split(r"<(\w)>", text))
        return combine(*(put[part] if odd % 2 else part for odd, part in parts), bare=True)

    x = made(f"system.main.round(CAST(<a> AS DOUBLE) * 1e{decimals + of_b})", a=a)
    y = made(f"system.main.round(CAST(<b> AS DOUBLE) * 1e{of_b})", b=b)
    whole = "abs(CAST(replace(CAST(<i> AS VARCHAR), '.', '') || '{}' AS HUGEINT))"
    m, n = made(whole.format("0" * more), i=a), made(whole.format(""), i=b)
    rest = made('system.main."%"(<m>, <n>)', m=m, n=n)
    up = made("CASE WHEN <r> >= <n> - <r> THEN 1 ELSE 0 END", r=rest, n=n)
    long = made('system.main."//"(<m>, <n>) + <u>', m=m, n=n, u=up)
    sign = made("CAST(system.main.sign(<x>) * system.main.sign(<y>) AS HUGEINT)", x=x, y=y)
    return made(
        f"""CASE WHEN abs(<x>) < 4e15 AND abs(<y>) < 4e15 OR <y> = 0
        THEN CAST(system.main.round(<x> / <y>) / 1e{decimals} AS {type_})
        ELSE CAST(CAST(<s> * (<l>) AS DECIMAL(38, 0)) * CAST('1e-{decimals}' AS {type_}) AS {type_})
        END""",
        x=x, y=y, s=sign, l=long,
    )  # fmt: skip


MEANINGS: Meanings = {"text": _as_text, "item": _item, "total": _total, "quotient": _quotient}
"""What expressions of Columns are otherwise: see `Dialect.meanings`."""


def _parsed(text: str) -> list[Any]:
    try:
        parsed: list[Any] = sqlglot.parse(text, read=SparkText)
    except sqlglot.errors.ParseError as error:
        at = error.errors[0]
        near = f"{at['start_context']}{at['highlight']}{at['end_context']}".strip()
        place = f"line {at['line']}, column {at['col']}"
        raise QueryError(f"Parser Error: this is no Spark SQL at {place}: {near}") from error
    except sqlglot.errors.TokenError as error:
        raise QueryError(f"Parser Error: a quote or comment is not closed: {text}") from error
    except RecursionError:
        raise QueryError("Parser Error: the text is nested too deeply.") from None
    return parsed


def _duckdb(node: Any) -> str:
    try:
        made = node.transform(_as_meant)
        text: str = made.sql(SessionText, unsupported_level=sqlglot.ErrorLevel.RAISE)
    except sqlglot.errors.UnsupportedError as error:
        raise QueryError(f"Spark's SQL has no counterpart here: {error}") from error
    return text


def _as_meant(node: Any) -> Any:
    """What sqlglot leaves as it is, though it means something else to DuckDB."""
    match node:
        case exp.Select():
            return _selected(node)
        case exp.Group():
            return _grouped(node)
        case exp.SetOperation() if not isinstance(node.parent, exp.SetOperation):
            return _united(node)
        case exp.Table() | exp.Subquery() | exp.Values() if _is_pivot(node):
            return _pivoted(node)
        case exp.Table() if node.db.lower() == "global_temp":
            node.set("db", None)
        case exp.Table(this=exp.Anonymous(this=name)) if name.lower() == "range":
            named = node.alias_column_names
            return node if named else exp.alias_(node, node.alias or "r", table=["id"])
        case exp.Like() | exp.ILike():
            return _with_escape(node)
        case exp.Anonymous(expressions=[item]) if node.name.lower() in _CASTS:
            return _cast(exp.cast(item, node.name, dialect="spark"))
        case exp.Anonymous() | exp.Filter() | exp.Window() if (made := _made(node)) is not None:
            return exp.Var(this=in_text.sql(made))
        case exp.Table(this=exp.Anonymous() as call) if call.name.lower() in _GENERATORS:
            query = exp.Subquery(this=exp.Select(expressions=[call]), alias=node.args.get("alias"))
            return query.transform(_as_meant)
        case exp.Substring() | exp.Transform():
            name = "substr" if isinstance(node, exp.Substring) else "transform"
            return exp.Var(this=in_text.sql(_called(name, list(node.iter_expressions()))))
        case exp.Sum() | exp.Avg() | exp.Filter() | exp.Window() if (
            added := _added(node)
        ) is not None:
            return added
        case exp.GroupConcat() if isinstance(node.args.get("separator"), exp.Null | None):
            node.set("separator", exp.Literal.string(""))
        case exp.Bracket(this=of, expressions=[key]) if not (
            key.is_string or isinstance(key, exp.Null)
        ):
            parts = [each.transform(_as_meant) for each in (of, key)]
            return exp.Anonymous(this="item", expressions=parts)
        case exp.Any(this=item) if not _is_of_choices(node):
            return exp.LogicalOr(this=_bare(item).transform(_as_meant))
        case exp.Filter(this=exp.IgnoreNulls(this=call), expression=where) if not _is_windowed(
            node
        ):
            known = _known(call.this)
            both = exp.and_(known, where.this.transform(_as_meant))
            return exp.Filter(this=_picking(call), expression=exp.Where(this=both))
        case exp.IgnoreNulls(this=call) if not isinstance(node.parent, exp.Window):
            where = exp.Where(this=_known(call.this))
            return exp.Filter(this=_picking(call), expression=where)
        case exp.IgnoreNulls(this=exp.First() | exp.Last() | exp.AnyValue() as call):
            return exp.IgnoreNulls(this=_picking(call))
        case exp.FirstValue() | exp.LastValue() if not _is_windowed(node):
            return _picking(node)
        case exp.Div(this=span, expression=parts) if isinstance(_bare(span), exp.Interval):
            part = exp.Div(this=exp.cast(exp.Literal.number(1), "DOUBLE"), expression=parts)
            return exp.Mul(this=span, expression=part).transform(_as_meant)
        case exp.Div() if not _is_of_text(node) and not _inner(node):
            return exp.Anonymous(this="quotient", expressions=[*_inside(node).iter_expressions()])
        case exp.Div() | exp.Add() | exp.Sub() | exp.Mul() | exp.Mod() if _is_of_text(node):
            return _counted(node)
        case exp.Interval(this=exp.Literal(this=text), unit=exp.IntervalSpan() as span):
            return _span(text, span)
        case exp.Table(this=exp.Identifier(this=path)) if node.db.lower() in _FORMATS:
            files = path if "." in path.rpartition("/")[2] else f"{path}/**/*.{node.db.lower()}"
            read = exp.Anonymous(
                this=f"read_{node.db.lower()}", expressions=[exp.Literal.string(files)]
            )
            node.set("db", None)
            node.set("this", read)
        case exp.Count(this=first, expressions=[*others]) if others:
            return exp.Anonymous(this="count_if", expressions=[_known(first, *others)])
        case exp.Extract(this=exp.Var(this=part), expression=of):
            return exp.Var(this=in_text.sql(_called("extract", [exp.Literal.string(part), of])))
        case exp.Cast() | exp.TryCast():
            return _cast(node)
        case exp.DPipe() | exp.Concat() | exp.ConcatWs() if not node.meta.get("parted"):
            return _of_parts(node)
        case exp.IntDiv():  # of decimals, DuckDB's has a fraction
            whole = exp.Anonymous(this="trunc", expressions=[_inside(node)])
            return exp.cast(whole, "BIGINT")
        case (
            exp.DateDiff(this=end, expression=start, unit=exp.Var(this=unit))
            | exp.TimestampDiff(this=end, expression=start, unit=exp.Var(this=unit))
        ):
            return _whole_units(unit.upper().removesuffix("S"), start, end)
        case exp.CurrentCatalog() | exp.CurrentSchema():
            return exp.Var(this=in_text.sql(_OWN[f"current_{node.key.removeprefix('current')}"]()))
        case exp.Add(this=span, expression=day) if _is_of_days(span) and not _is_of_days(day):
            return _plus_days(day, span)
        case exp.Add(this=day, expression=span) if _is_of_days(span):
            return _plus_days(day, span)
        case exp.Sub(this=day, expression=span) if _is_of_days(span) and not _is_of_days(day):
            return _plus_days(day, exp.Neg(this=span))
        case exp.Add(this=left, expression=right) | exp.Sub(this=left, expression=right) if (
            _is_of_columns(left) and _is_of_columns(right)
        ):
            name = "plus" if isinstance(node, exp.Add) else "minus"
            return exp.Anonymous(this=name, expressions=[*_inside(node).iter_expressions()])
        case exp.Quantile():
            return exp.Anonymous(
                this="quantile_cont", expressions=[*_inside(node).iter_expressions()]
            )
    return node


_TEXTS = (exp.DPipe, exp.Concat, exp.ConcatWs, exp.Array, exp.Literal, exp.Null)


def _of_parts(node: Any) -> Any:
    """A joined text, in which doubles are Java's texts."""
    made = node.copy()
    made.meta["parted"] = True
    for each in made.iter_expressions():
        part = each.transform(_as_meant)
        each.replace(part if isinstance(each, _TEXTS) else _typed("part", part, times=2))
    return made


def _whole_units(unit: str, start: Any, end: Any) -> Any:
    """How many whole units lie between two times; DuckDB's date_diff() counts beginnings."""
    times = [
        exp.cast(_inside(time.this if isinstance(time, exp.TsOrDsToDate) else time), "TIMESTAMP")
        for time in (start, end)
    ]
    if unit not in _MONTHS:
        return exp.Anonymous(this="date_sub", expressions=[exp.Literal.string(unit), *times])
    months = exp.Anonymous(this="whole_months", expressions=times)
    return exp.IntDiv(this=months, expression=exp.Literal.number(_MONTHS[unit]))


def _added(node: Any) -> Any:
    """A sum or mean of Spark's type, with FILTER and OVER; None of anything else."""
    total = node
    while isinstance(total, exp.Filter | exp.Window):
        total = total.this
    is_sum = isinstance(total, exp.Sum)
    if not (is_sum or isinstance(total, exp.Avg)) or total.meta.get("added"):
        return None
    if is_sum and _is_quotient(total.this):
        return None
    total.meta["added"] = True
    item = total.this.expressions[0] if isinstance(total.this, exp.Distinct) else total.this
    name = "as_avg" if not is_sum else f"as_{total.meta.get('name', 'sum')}"
    if item.find(exp.AggFunc, exp.Window):  # whose type DuckDB does not know there
        return _typed(f"{name}_of_sums", _inside(node)) if is_sum else None
    typed = item.copy().transform(_as_meant)
    item.replace(exp.Anonymous(this="summed", expressions=[item.copy()]))
    least = exp.Min(this=typed.copy())
    if total is not node:
        around = node.copy()
        around.find(type(total)).replace(least)
        least = _inside(around)
    return exp.Anonymous(this=name, expressions=[typed, _inside(node), least])


def _bare(node: Any) -> Any:
    return node.this if isinstance(node, exp.Paren) else node


def _known(*items: Any) -> Any:
    """Whether none of them is NULL, as meant."""
    parts = (exp.Paren(this=each.transform(_as_meant)) for each in items)
    return exp.and_(*(exp.Not(this=exp.Is(this=each, expression=exp.Null())) for each in parts))


def _is_windowed(node: Any) -> bool:
    """Whether a call is over a window, perhaps with FILTER or IGNORE NULLS."""
    around = node.parent
    while isinstance(around, exp.Filter | exp.IgnoreNulls):
        around = around.parent
    return isinstance(around, exp.Window)


_OVER_ROWS = {exp.First: exp.FirstValue, exp.Last: exp.LastValue, exp.AnyValue: exp.FirstValue}
_OF_GROUPS = {exp.FirstValue: exp.First, exp.LastValue: exp.Last}


def _picking(call: Any) -> Any:
    """A call that picks a row, by DuckDB's name of it over a window, or of a group."""
    names: dict[Any, Any] = _OVER_ROWS if _is_windowed(call) else _OF_GROUPS
    made = names.get(type(call), type(call))
    return made(this=call.this.transform(_as_meant)) if type(call) in names else _inside(call)


def _plus_days(*sides: Any) -> Any:
    parts = [each.transform(_as_meant) for each in sides]
    return exp.Anonymous(this="plus_days", expressions=parts)


def _is_of_days(span: Any) -> bool:
    """Whether it is an interval that leaves a date a date, as far as its text tells."""
    match _bare(span):
        case exp.Neg(this=inside):
            return _is_of_days(inside)
        case exp.Add(this=left, expression=right) | exp.Sub(this=left, expression=right):
            return _is_of_days(left) and _is_of_days(right)
        case exp.Mul(this=left, expression=right):
            return any(_is_of_days(each) and _is_of_months(each) for each in (left, right))
        case exp.Interval(unit=exp.Expression() as unit):
            return unit.name.upper().removesuffix("S") in _DAYS and "DAY TO" not in unit.sql()
        case exp.Anonymous() as call:
            return call.name.lower() == "make_ym_interval"
    return False


def _is_of_columns(side: Any) -> bool:
    """Whether it may be a column of dates or intervals, as far as its text tells."""
    match _bare(side):
        case exp.Column():
            return True
        case exp.Neg(this=inside):
            return _is_of_columns(inside)
        case exp.Mul(this=left, expression=right):
            return _is_of_columns(left) or _is_of_columns(right)
    return False


def _is_of_months(span: Any) -> bool:
    """Whether it has no days, so that a multiple of it has no parts of days."""
    units = [
        str(each.args["unit"]).upper().removesuffix("S") for each in span.find_all(exp.Interval)
    ]
    return all(unit in _MONTHS for unit in units)


def _is_of_choices(node: Any) -> bool:
    """Whether ANY is no aggregate, but what one side of a comparison is compared with."""
    if not isinstance(node.parent, exp.Predicate) or node.arg_key != "expression":
        return False
    is_pattern = isinstance(node.parent, exp.Like | exp.ILike)
    return is_pattern or isinstance(_bare(node.this), exp.Query)


def _is_quotient(node: Any) -> bool:
    """Whether it is computed from a quotient, so that it is neither whole nor text."""
    match _bare(node):
        case exp.Div():
            return True
        case exp.Add() | exp.Sub() | exp.Mul() as both:
            return _is_quotient(both.this) or _is_quotient(both.expression)
    return False


def _inner(node: Any) -> bool:
    """Whether a quotient is within one; a macro has its arguments many times, for their types."""
    return any(part.find(exp.Div) for part in node.iter_expressions())


def _is_of_text(node: Any) -> bool:
    """Whether a text is an operand beside a number, which both are then."""
    sides = (_bare(node.this), _bare(node.expression))
    texts = [isinstance(side, exp.Literal) and side.is_string for side in sides]
    return any(texts) and not any(isinstance(side, exp.Interval) for side in sides)


def _counted(node: Any) -> Any:
    """An operation on numbers that are written as texts."""
    sides = (_bare(node.this), _bare(node.expression))
    if all(side.is_string for side in sides):
        raise QueryError("Binder Error: both operands are texts; cast one of them to a number.")
    whole = not isinstance(node, exp.Div) and all(map(_is_whole, sides))
    for name in ("this", "expression"):
        if (side := _bare(node.args[name])).is_string:
            node.set(name, exp.cast(side, "BIGINT" if whole else "DOUBLE"))
    return node.transform(_as_meant)


def _is_whole(side: Any) -> bool:
    """Whether an operand is a whole number, as far as its text tells."""
    if isinstance(side, exp.Cast):
        return side.to.this in _WHOLE
    return not _FRACTION.search(side.this) if side.is_string else side.is_int or not side.is_number


def _span(text: str, span: Any) -> Any:
    """INTERVAL '1-2' YEAR TO MONTH, '1 2:03:04' DAY TO SECOND and their kin."""
    first = span.this.name.upper()
    sign, text = ("-", text[1:]) if text.startswith("-") else ("", text)
    if first == "YEAR":
        years, _, months = text.partition("-")
        return exp.Var(this=f"INTERVAL '{sign}{years} years {sign}{months or 0} months'")
    days, _, time = text.rpartition(" ")
    clock = time.split(":")
    if first == "MINUTE":
        clock = ["0", *clock]
    units = zip(("hours", "minutes", "seconds"), clock, strict=False)
    said = [f"{sign}{count} {unit}" for unit, count in units]
    return exp.Var(this=f"INTERVAL '{sign}{days or 0} days {' '.join(said)}'")


# Clauses


def _selected(node: Any) -> Any:
    """Generators, LATERAL VIEW and SORT BY; expressions have Spark's names."""
    if node.args.get("laterals"):
        for view in node.args.pop("laterals"):
            node.append("joins", _joined(view))
    for clause in ("sort", "cluster"):
        if (order := node.args.pop(clause, None)) and not node.args.get("order"):
            node.set("order", exp.Order(expressions=order.expressions))
    node.args.pop("distribute", None)
    made: list[Any] = []
    for item in _ordered(node):
        generated = _generated(item)
        named = isinstance(item, exp.Alias | exp.Aliases | exp.Column | exp.Star | exp.Dot)
        named_item = item if named else exp.alias_(item, _name(item), quoted=True)
        made += [named_item] if generated is None else generated
    node.set("expressions", made)
    return node


def _is_pivot(node: Any) -> bool:
    pivots = node.args.get("pivots") or []
    return len(pivots) == 1 and not pivots[0].unpivot and bool(pivots[0].args.get("fields"))


def _pivoted(node: Any) -> Any:
    """PIVOT as aggregates with FILTER, which have Spark's types; NULL where there are no rows."""
    source = node.copy()
    (pivot,) = source.args.pop("pivots")
    (field,) = pivot.args["fields"]
    keys, values = field.this, field.expressions
    keys = keys.expressions if isinstance(keys, exp.Tuple) else [_bare(keys)]
    columns = [*keys, *(c for each in pivot.expressions for c in each.find_all(exp.Column))]
    names = dict.fromkeys(column.name for column in columns)
    items: list[Any] = [exp.Star(except_=[exp.to_identifier(name, quoted=True) for name in names])]
    for value in values:
        is_named = isinstance(value, exp.PivotAlias)
        one = _bare(value.this if is_named else value)
        parts = one.expressions if isinstance(one, exp.Tuple) else [one]
        where = functools.reduce(exp.and_, map(_is_same, keys, parts))
        shown = f"{{{', '.join(_name(part) for part in parts)}}}" if parts[1:] else _name(one)
        for each in pivot.expressions:
            called = each.alias or _name(each)
            name = value.alias if is_named else shown
            name += f"_{called}" if pivot.expressions[1:] else ""
            some = exp.Filter(this=exp.Count(this=exp.Star()), expression=exp.Where(this=where))
            made = exp.Case().when(some > 0, _filtered(each.unalias(), where))
            items.append(exp.alias_(made, name, quoted=True))
    query = exp.Select(expressions=items).from_(source)
    query.set("group", exp.Group(all=True))
    return exp.Subquery(this=query.transform(_as_meant), alias=pivot.args.get("alias"))


def _is_same(key: Any, value: Any) -> Any:
    return exp.NullSafeEQ(this=key.copy(), expression=value.copy())


def _filtered(item: Any, where: Any) -> Any:
    """An expression whose aggregates are of the rows for which a condition is true."""

    def put(node: Any) -> Any:
        if isinstance(node, exp.Filter):
            both = exp.and_(node.expression.this, where)
            return exp.Filter(this=node.this, expression=exp.Where(this=both))
        if isinstance(node, exp.AggFunc | exp.IgnoreNulls | exp.WithinGroup | exp.Anonymous):
            return exp.Filter(this=node.copy(), expression=exp.Where(this=where.copy()))
        return node

    return item.copy().transform(put)


def _ordered(node: Any) -> list[Any]:
    """What a query selects: of joins by USING, `*` has the columns of the last one first."""
    keys: list[Any] = []
    joins = node.args.get("joins") or ()
    for join in joins:
        keys = [*(key for key in join.args.get("using") or ()), *keys]
        if join.method == "NATURAL" and any(isinstance(i, exp.Star) for i in node.expressions):
            raise QueryError(
                "Binder Error: * of a NATURAL JOIN has its columns in another order than Spark's:"
                " write JOIN ... USING (columns), or name them."
            )
    names = list(dict.fromkeys(key.name for key in keys))
    columns = [exp.to_identifier(name, quoted=True).sql(_DuckDB) for name in names]
    used = {frozenset(key.name for key in join.args.get("using") or ()) for join in joins}
    alike = len(used) == 1  # all tables have the columns of USING
    items: list[Any] = []
    for item in node.expressions:
        star = item.this if isinstance(item, exp.Column) else item
        if names and isinstance(star, exp.Star) and not any(star.args.values()):
            if star is not item and not alike:
                raise QueryError(
                    f"Binder Error: {item.sql()} of joins by different columns has them in another"
                    " order than Spark's: name the columns."
                )
            of = "" if star is item else f"{item.args['table'].sql(_DuckDB)}."
            first = ", ".join(f"{of}{column}" for column in columns)
            text = f"SELECT {first}, {of}* EXCLUDE ({', '.join(columns)})"
            items += sqlglot.parse_one(text, read=_DuckDB).expressions
        else:
            items.append(item)
    return items


def _name(item: Any) -> str:
    """What Spark calls a column of an expression."""

    def shown(node: Any) -> Any:
        match node:
            case exp.Count(this=exp.Star()):
                return exp.Anonymous(this="count", expressions=[exp.Literal.number(1)])
            case exp.Literal(is_string=True):
                return exp.Var(this=node.this)
            case exp.Identifier(quoted=True):
                return exp.to_identifier(node.this, quoted=False)
            case exp.Sum() | exp.Avg() if name := node.meta.get("name"):
                call = exp.Anonymous(this=name, expressions=[node.this.copy()])
                return call.transform(shown)
            case exp.Binary() if not isinstance(node.parent, exp.Paren | exp.Dot):
                return exp.Paren(this=node.transform(shown, copy=True)) if node.parent else node
        return node

    text: str = (
        exp.Paren(this=item.copy()).transform(shown).sql(_Spark, normalize_functions="lower")
    )
    inside = text.removeprefix("(").removesuffix(")")
    return f"({inside})" if isinstance(item, exp.Binary) else inside


def _generated(item: Any) -> list[Any] | None:
    """The select items of explode() and its kin, with the names after AS; None of others."""
    call = item.this if isinstance(item, exp.Alias | exp.Aliases) else item
    if not isinstance(call, exp.Anonymous) or call.name.lower() not in _GENERATORS:
        return None
    names = [item.alias] if isinstance(item, exp.Alias) else []
    names = [name.name for name in item.expressions] if isinstance(item, exp.Aliases) else names
    made = _called(call.name.lower(), call.expressions)
    first = call.expressions[0] if call.expressions else None
    try:
        parts = in_text.items(made, names, is_map=isinstance(first, exp.Map | exp.VarMap))
    except OptionError as error:
        raise QueryError(f"Binder Error: {error}") from error
    if parts is not None:
        return [exp.alias_(exp.Var(this=text), name, quoted=True) for text, name in parts]
    if names:
        raise QueryError(
            f"{call.name}() takes its columns' names in LATERAL VIEW only:"
            f" LATERAL VIEW {call.name}(...) t AS {', '.join(names)}"
        )
    return [exp.Var(this=in_text.sql(made))]


def _joined(view: Any) -> Any:
    """LATERAL VIEW as a join."""
    call, alias = view.this, view.args["alias"]
    name = call.name.lower() + "_outer" * bool(view.args.get("outer"))
    call = exp.Anonymous(this=name, expressions=list(call.iter_expressions()))
    names = [column.copy() for column in alias.args.get("columns") or ()]
    given = exp.Aliases(this=call, expressions=names) if names else call
    parts = _generated(call if name.startswith("inline") else given)
    if parts is None:
        raise QueryError(f"LATERAL VIEW takes explode() and its kin, not {call.name}().")
    query = exp.Subquery(this=exp.Select(expressions=parts))
    named = alias.this or exp.to_identifier(f"view_{id(view)}")
    table = exp.TableAlias(this=named.copy(), columns=names)
    return exp.Join(this=exp.Lateral(this=query, alias=table), kind="CROSS")


def _united(node: Any) -> Any:
    """UNION and its kin: texts beside values of a type that the text tells are cast to it."""
    queries = [query for query in _united_queries(node) if not query.is_star]
    items = [annotate_types(query.copy(), dialect="spark").selects for query in queries]
    for place in range(min(map(len, items), default=0)):
        kinds = [query[place].type.this for query in items]
        others = {*kinds} - {*exp.DataType.TEXT_TYPES, exp.DType.NULL, exp.DType.UNKNOWN}
        if not others:
            continue
        fractions = others - exp.DataType.INTEGER_TYPES
        wide = "DOUBLE" if fractions <= exp.DataType.NUMERIC_TYPES else min(fractions, key=str)
        for query, kind in zip(queries, kinds, strict=True):
            if kind in exp.DataType.TEXT_TYPES:
                item = query.selects[place]
                value = item.this if isinstance(item, exp.Alias) else item
                cast = exp.cast(value.copy(), wide if fractions else "BIGINT")
                value.replace(cast if value is not item else exp.alias_(cast, item.output_name))
    return node


def _united_queries(node: Any) -> list[Any]:
    """The SELECTs that set operations put together."""
    match node:
        case exp.SetOperation(this=left, expression=right):
            return [*_united_queries(left), *_united_queries(right)]
        case exp.Subquery(this=inside):
            return _united_queries(inside)
    return [node] if isinstance(node, exp.Select) else []


def _grouped(node: Any) -> Any:
    """WITH ROLLUP, WITH CUBE, and GROUPING SETS after the columns that are in them."""
    plain = node.expressions
    for kind in ("rollup", "cube"):
        if any(not each.expressions for each in node.args.get(kind) or ()):
            made = exp.Rollup if kind == "rollup" else exp.Cube
            node.set(kind, [made(expressions=plain)])
            node.set("expressions", [])
    if sets := node.args.get("grouping_sets"):
        inside = {column for each in sets for column in each.find_all(exp.Column)}
        if inside <= set(plain):
            node.set("expressions", [])
    return node


# Calls


def _made(node: Any) -> Any:
    """A call of what `minishark.functions` has, with FILTER and OVER; None of anything else."""
    match node:
        case exp.Anonymous(parent=exp.Table() | exp.Lateral() | exp.WithinGroup()):
            return None
        case exp.Anonymous(parent=exp.Dot(expression=method)) if method is node:
            return None
        case exp.Anonymous():
            return _called(node.name.lower(), node.expressions)
        case exp.Filter(this=exp.Anonymous()) if (made := _made(node.this)) is not None:
            return _checked(made.filter, in_text.expr(_duckdb(node.expression.this)))
        case exp.Window(this=exp.Anonymous() | exp.Filter()):
            made = _made(node.this)
            if made is None:
                return None
            bare = node.copy()
            bare.set("this", exp.Anonymous(this="f"))
            text = _duckdb(bare).partition("(")[2].partition("(")[2].removesuffix(")")
            return _checked(in_text.over, made, text)
    return None


def _called(name: str, given: Sequence[Any]) -> Any:
    taken = not any(isinstance(each, exp.Distinct | exp.Star | exp.Order) for each in given)
    if name not in OURS or not taken:
        return None
    arguments = list(map(_argument, given))
    if given and _TAKING_OPTIONS.fullmatch(name) and isinstance(given[-1], exp.VarMap):
        lists = (given[-1].args[part].expressions for part in ("keys", "values"))
        arguments[-1] = {key.name: item.name for key, item in zip(*lists, strict=True)}
    if name in _OWN:
        return _checked(_OWN[name], *arguments)
    return _checked(in_text.called, name, arguments)


def _checked(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except (TypeError, OptionError) as error:
        raise QueryError(f"Binder Error: {error}") from error


def _argument(node: Any) -> Any:
    """An argument as Python code would pass it."""
    match node:
        case exp.Lambda():
            return _lambda(node)
        case exp.Literal(is_string=True):
            return in_text.lit(node.this)
        case exp.Literal() if node.this.isdecimal():
            return int(node.this)
        case exp.Neg(this=exp.Literal()) if node.this.this.isdecimal():
            return -int(node.this.this)
    return in_text.expr(_duckdb(node))


def _lambda(node: Any) -> Callable[..., Any]:
    names = [each.name for each in node.expressions]

    def function(*columns: Any) -> Any:
        put = {name: in_text.sql(each) for name, each in zip(names, columns, strict=True)}
        return in_text.expr(_duckdb(_with(node.this, put)))

    return in_text.with_parameters(function, names)


def _with(node: Any, put: dict[str, str]) -> Any:
    """An expression in which names stand for texts; inner lambdas have names of their own."""

    def replaced(part: Any) -> Any:
        match part:
            case exp.Lambda():
                own = {each.name for each in part.expressions}
                made = part.copy()
                made.set("this", _with(part.this, {k: v for k, v in put.items() if k not in own}))
                return made
            case exp.Identifier() | exp.Column(table="") if part.name in put:
                return exp.Var(this=put[part.name])
        return part

    return node.transform(replaced)


def _cast(node: Any) -> Any:
    """To whole numbers, fractions are cut off, and text is checked; doubles are Java's text."""
    made, kind = _inside(node), node.args["to"].this
    loose = isinstance(node, exp.TryCast)
    if kind in _WHOLE:
        name = "whole_or_null" if loose else "whole"
    elif kind in exp.DataType.TEXT_TYPES:
        name = "as_string"
    elif kind is exp.DType.TIMESTAMPTZ:
        name = "as_timestamp"
    else:
        return made
    made.set("this", _typed(name, made.this))
    return made


def _typed(name: str, item: Any, *, times: int = 1) -> Any:
    """A call of a macro by its argument's type, which DuckDB does not know of an aggregate."""
    call = exp.Anonymous(this=name, expressions=[item.copy() for _ in range(times)])
    if not item.find(exp.AggFunc, exp.Window, exp.Anonymous, exp.Var):
        return call
    call = exp.Anonymous(this=name, expressions=[exp.Var(this="v_") for _ in range(times)])
    made = f"list_transform([{item.sql(SessionText)}], lambda v_: {call.sql(SessionText)})[1]"
    return exp.Var(this=made)


def _inside(node: Any) -> Any:
    """A node whose operands are as meant: what takes its place is not looked into."""
    made = node.copy()
    for name, part in made.args.items():
        if isinstance(part, exp.Expression):
            made.set(name, part.transform(_as_meant, copy=False))  # which knows its parent
    return made


def _with_escape(node: Any) -> Any:
    """A LIKE in which a backslash escapes, as in Spark, where DuckDB has no escape by default."""
    pattern = node.expression
    is_plain = isinstance(pattern, exp.Literal) and "\\" not in pattern.this
    if is_plain or isinstance(node.parent, exp.Escape):
        return node
    return exp.Escape(this=_inside(node), expression=exp.Literal.string("\\"))
