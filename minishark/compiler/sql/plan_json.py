"""Types, constants and expressions of DuckDB's serialized plans, lowered to ours.

DuckDB omits default values when it serializes: a missing index is 0, a missing list is empty.
Constants come as *physical* values (a DATE as days, a DECIMAL as its unscaled integer). Whatever is
not supported raises `PlanNotLowered`, and the statement then runs as a whole in one task.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import math
import re
from typing import Any, TypeAlias

from minishark.compiler.sql.connection import aside
from minishark.model.expressions import (
    AggregateCall,
    Call,
    Case,
    Cast,
    Column,
    ColumnRef,
    Expression,
    FrameBound,
    Infix,
    InList,
    IsNull,
    Literal,
    Prefix,
    Schema,
    SortKey,
    WindowCall,
    is_volatile,
    quote,
    quote_text,
    transform,
)

Json: TypeAlias = dict[str, Any]


class PlanNotLowered(Exception):  # noqa: N818 - a signal inside the planner, never an error for users
    """DuckDB's plan contains something without a distributed form; the message names it."""


_INT64_MAX = 2**63 - 1
_INTEGER_TYPES = frozenset(
    [
        "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT",
        "UINTEGER", "UBIGINT", "UHUGEINT",
    ]
)  # fmt: skip
_SIMPLE_TYPES = _INTEGER_TYPES | frozenset(
    [
        "BOOLEAN", "FLOAT", "DOUBLE", "VARCHAR", "BLOB", "DATE", "TIME", "TIMESTAMP",
        "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "INTERVAL", "UUID", "BIT", "BIGNUM",
    ]
)  # fmt: skip
_RENAMED_TYPES = {
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP WITH TIME ZONE",
    "TIME WITH TIME ZONE": "TIME WITH TIME ZONE",
    "CHAR": "VARCHAR",
    "NULL": '"NULL"',
    "SQLNULL": '"NULL"',
}
COMPARISONS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_DISTINCT_FROM": "IS DISTINCT FROM",
    "COMPARE_NOT_DISTINCT_FROM": "IS NOT DISTINCT FROM",
}


_PLAIN_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@functools.cache
def _keywords() -> frozenset[str]:
    with aside() as connection:
        rows = connection.execute("SELECT keyword_name FROM duckdb_keywords()").fetchall()
    return frozenset(name.lower() for (name,) in rows)


def _field_name(name: str) -> str:
    """A field's name as in the text of DuckDB's types: quoted unless plain and no keyword."""
    plain = _PLAIN_FIELD.fullmatch(name) and name.lower() not in _keywords()
    return name if plain else quote(name)


def lower_type(json: Json) -> str:
    """A DuckDB type as SQL text, spelled as DuckDB spells it."""
    name = json["id"]
    info = json.get("type_info") or {}
    if info.get("alias") or info.get("modifiers") or info.get("collation"):
        raise PlanNotLowered(f"type {info.get('alias') or info.get('collation') or name}")
    if name in _SIMPLE_TYPES:
        return str(name)
    match name:
        case "DECIMAL":
            return f"DECIMAL({info['width']},{info.get('scale', 0)})"
        case "LIST":
            return f"{lower_type(info['child_type'])}[]"
        case "ARRAY":
            return f"{lower_type(info['child_type'])}[{info['size']}]"
        case "STRUCT":
            fields = info.get("child_types", [])
            if not fields or not all(f["first"] for f in fields):
                raise PlanNotLowered("type STRUCT without field names")
            texts = (f"{_field_name(f['first'])} {lower_type(f['second'])}" for f in fields)
            return f"STRUCT({', '.join(texts)})"
        case "MAP":
            fields = info["child_type"]["type_info"]["child_types"]
            key, value = (lower_type(f["second"]) for f in fields)
            return f"MAP({key}, {value})"
        case _ if name in _RENAMED_TYPES:
            return _RENAMED_TYPES[name]
        case _:
            raise PlanNotLowered(f"type {name}")


def lower_value(json: Json) -> Literal:
    """A constant as text that DuckDB reads back as the same value of the same type."""
    type_ = lower_type(json["type"])
    if json.get("is_null"):
        return Literal(f"CAST(NULL AS {type_})", type_)
    return _lower_physical(type_, json.get("value"))


def _lower_physical(type_: str, value: Any) -> Literal:
    if type_ in _INTEGER_TYPES:
        number = _integer(value)
        return Literal(f"CAST({number} AS {type_})", type_, number)
    if type_.startswith("DECIMAL(") and type_.endswith(")"):
        scale = int(type_.rstrip(")").split(",")[1])
        exact = decimal.Decimal(_integer(value)).scaleb(-scale, decimal.Context(prec=50))
        return Literal(f"CAST({exact:f} AS {type_})", type_, float(exact))
    match type_:
        case "BOOLEAN":
            return Literal("true" if value else "false", type_)
        case "VARCHAR":
            if "\0" in (text := value or ""):
                raise PlanNotLowered("constant text with a zero byte")
            return Literal(quote_text(text), type_, text)
        case "FLOAT" | "DOUBLE":
            real = float(0 if value is None else value)
            plain = math.isfinite(real) and (real or math.copysign(1, real) > 0)
            text = repr(real) if plain else quote_text(str(real))  # SQL reads a bare -0.0 as 0.0
            return Literal(f"CAST({text} AS {type_})", type_, real)
        case "DATE":
            try:
                day = dt.date(1970, 1, 1) + dt.timedelta(days=_integer(value))
            except OverflowError:
                raise PlanNotLowered("constant DATE outside of the years 1 to 9999") from None
            return Literal(f"DATE '{day.isoformat()}'", "DATE", day.isoformat())
        case "INTERVAL":
            parts = {unit: int((value or {}).get(unit, 0)) for unit in ("months", "days", "micros")}
            if abs(parts["micros"]) >= _INT64_MAX:
                raise PlanNotLowered("constant INTERVAL at the limits of its type")
            text = f"{parts['months']} months {parts['days']} days {parts['micros']} microseconds"
            return Literal(f"CAST({quote_text(text)} AS INTERVAL)", type_)
        case "TIMESTAMP" if abs(micros := _integer(value)) == _INT64_MAX:
            return Literal(f"TIMESTAMP '{'' if micros > 0 else '-'}infinity'", "TIMESTAMP")
        case "TIMESTAMP":
            return Literal(f"make_timestamp(CAST({_integer(value)} AS BIGINT))", "TIMESTAMP")
        case _:
            raise PlanNotLowered(f"constant of type {type_}")


def _integer(value: Any) -> int:
    """An integer constant; the 128-bit ones come in two halves."""
    if isinstance(value, dict):
        return (int(value.get("upper", 0)) << 64) + int(value.get("lower", 0))
    return int(value or 0)


def lower_expression(json: Json, child: Schema) -> Expression:
    match json["expression_class"]:
        case "BOUND_REF":
            return _lower_reference(json, child)
        case "BOUND_CONSTANT":
            return lower_value(json["value"])
        case "BOUND_FUNCTION":
            return _lower_function(json, child)
        case "BOUND_CONJUNCTION":
            word = {"CONJUNCTION_AND": "AND", "CONJUNCTION_OR": "OR"}[json["type"]]
            return Infix(word, _lower_all(json["children"], child), "BOOLEAN")
        case "BOUND_OPERATOR":
            return _lower_operator(json, child)
        case "BOUND_CASE":
            branches = tuple(
                (lower_expression(c["when_expr"], child), lower_expression(c["then_expr"], child))
                for c in json["case_checks"]
            )
            otherwise = lower_expression(json["else_expr"], child)
            return Case(branches, otherwise, lower_type(json["return_type"]))
        case other:
            raise PlanNotLowered(f"expression {other}")


def _lower_all(items: list[Json], child: Schema) -> tuple[Expression, ...]:
    return tuple(lower_expression(item, child) for item in items)


def _lower_reference(json: Json, child: Schema) -> ColumnRef:
    index = json.get("index", 0)
    type_ = lower_type(json["return_type"])
    if index >= len(child) or child[index].type != type_:
        raise PlanNotLowered(f"column #{index} of type {type_}, which the input does not have")
    return ColumnRef(index, type_)


def _lower_function(json: Json, child: Schema) -> Expression:
    arguments = _lower_all(json.get("children", []), child)
    type_ = lower_type(json["return_type"])
    kind = json["type"]
    if kind in COMPARISONS:
        return Infix(COMPARISONS[kind], arguments, type_)
    if kind == "OPERATOR_CAST":
        lenient = bool((json.get("function_data") or {}).get("try_cast"))
        return Cast(arguments[0], type_, lenient)
    if kind == "COMPARE_BETWEEN":
        return _lower_between(arguments, json.get("function_data") or {})
    name = json["qname"]["path"][-1]
    if kind != "BOUND_FUNCTION" or name.startswith("__internal"):
        raise PlanNotLowered(f"function {name} ({kind})")
    if name == "error":  # its own type is that of NULL
        return Cast(Call(name, arguments, _RENAMED_TYPES["SQLNULL"]), type_)
    if name == "struct_pack":  # the names of the fields are in its type alone
        return Cast(Call("row", arguments, type_), type_)
    if name in _FUNCTIONS_WITH_HIDDEN_ARGUMENTS or json.get("named_arguments"):
        raise PlanNotLowered(f"function {name}")
    if not name.isidentifier():
        return _lower_symbol(name, arguments, type_)
    return Call(name, arguments, type_)


def _lower_between(arguments: tuple[Expression, ...], flags: Json) -> Expression:
    value, low, high = arguments
    if is_volatile(value):
        raise PlanNotLowered("BETWEEN of a volatile function, which must be called once")
    bounds = (
        Infix(">=" if flags.get("lower_inclusive") else ">", (value, low), "BOOLEAN"),
        Infix("<=" if flags.get("upper_inclusive") else "<", (value, high), "BOOLEAN"),
    )
    return Infix("AND", bounds, "BOOLEAN")


# Binding these adds what is not in their arguments: their text would bind to something else.
_FUNCTIONS_WITH_HIDDEN_ARGUMENTS = frozenset(
    [
        "row", "nextval", "currval", "list_transform", "list_filter", "list_reduce",
        "array_transform", "array_filter", "array_reduce", "apply", "filter", "reduce",
        "list_apply", "array_apply", "list_aggregate", "aggregate", "array_aggregate",
        "list_aggr", "array_aggr", "union_value", "constant_or_null", "write_log", "combine",
        "finalize", "getvariable", "unnest", "current_setting", "in_search_path", "alias",
    ]
)  # fmt: skip


def _lower_symbol(name: str, arguments: tuple[Expression, ...], type_: str) -> Expression:
    if len(arguments) == 1 and name in ("-", "+", "~", "@"):
        return Prefix(name, arguments[0], type_)
    if len(arguments) != 2:
        raise PlanNotLowered(f"function {name}")
    if name in ("+", "-") and type_.startswith("DECIMAL("):
        arguments = tuple(map(_bare_decimal, arguments))
    return Infix(name, arguments, type_)


def _bare_decimal(expression: Expression) -> Expression:
    """A DECIMAL constant without its cast."""
    # DuckDB widens constants to the type of the sum when it binds; bound a second time with that
    # type the sum would be one digit wider, and wide decimals are slow.
    if isinstance(expression, Literal) and expression.type.startswith("DECIMAL("):
        text = expression.sql.removeprefix("CAST(").partition(" AS ")[0]
        return Literal(
            f"({text})" if text.startswith("-") else text, expression.type, expression.value
        )
    return expression


def _lower_operator(json: Json, child: Schema) -> Expression:
    arguments = _lower_all(json.get("children", []), child)
    type_ = lower_type(json["return_type"]) if "return_type" in json else "BOOLEAN"
    match json["type"]:
        case "OPERATOR_NOT":
            return Prefix("NOT", arguments[0], type_)
        case "OPERATOR_IS_NULL" | "OPERATOR_IS_NOT_NULL":
            return _lower_null_check(arguments[0], json["type"] == "OPERATOR_IS_NOT_NULL")
        case "COMPARE_IN" | "COMPARE_NOT_IN":
            return InList(arguments[0], arguments[1:], json["type"] == "COMPARE_NOT_IN")
        case "OPERATOR_COALESCE":
            return Call("coalesce", arguments, type_)
        case other:
            raise PlanNotLowered(f"operator {other}")


def _lower_null_check(argument: Expression, negated: bool) -> Expression:
    """IS [NOT] NULL of the operands of arithmetic instead of its result."""
    # DuckDB knows from statistics which columns have nulls, and often computes nothing; without
    # them the arithmetic would be computed, and could overflow where DuckDB answers.
    parts = tuple(dict.fromkeys(_null_parts(argument)))
    checks: tuple[Expression, ...] = tuple(IsNull(part, negated) for part in parts)
    if not checks:
        return Literal("true" if negated else "false", "BOOLEAN")
    return checks[0] if len(checks) == 1 else Infix("AND" if negated else "OR", checks, "BOOLEAN")


def _null_parts(expression: Expression) -> tuple[Expression, ...]:
    """The operands that make a numeric expression NULL."""
    if not _is_numeric(expression.type):
        return (expression,)
    match expression:
        case Infix("+" | "-" | "*", arguments):
            return tuple(part for a in arguments for part in _null_parts(a))
        case Prefix("+" | "-", argument):
            return _null_parts(argument)
        case Cast(argument, _, False) if _is_numeric(argument.type):
            return _null_parts(argument)
        case Literal(value=int() | float()):
            return ()
        case _:
            return (expression,)


def _is_numeric(type_: str) -> bool:
    return type_ in _INTEGER_TYPES or type_ in ("FLOAT", "DOUBLE") or type_.startswith("DECIMAL(")


def lower_sort_keys(items: list[Json], child: Schema) -> tuple[SortKey, ...]:
    return tuple(
        SortKey(
            lower_expression(item["expression"], child),
            item["type"] == "DESCENDING",
            item["null_order"] in ("NULLS FIRST", "NULLS_FIRST"),
        )
        for item in items
    )


def lower_aggregate(json: Json, child: Schema) -> AggregateCall:
    name = json["qname"]["path"][-1]
    if json.get("state_export") or name in ("combine_aggr", "combine"):
        raise PlanNotLowered(f"aggregate state of {name}")
    order_by = (json.get("order_bys") or {}).get("orders", [])
    return AggregateCall(
        name="sum" if name == "sum_no_overflow" else name,
        arguments=_lower_all(json.get("children", []), child),
        type=lower_type(json["return_type"]),
        distinct=json.get("aggregate_type") == "DISTINCT",
        filter=lower_expression(json["filter"], child) if json.get("filter") else None,
        order_by=lower_sort_keys(order_by, child),
    )


_FRAME_UNITS = ("ROWS", "RANGE", "GROUPS")
_EXCLUDES = {"NO_OTHER": "", "CURRENT_ROW": "CURRENT ROW", "GROUP": "GROUP", "TIES": "TIES"}


def lower_window(json: Json, child: Schema) -> WindowCall:
    if json["type"] == "WINDOW_AGGREGATE":
        name = json["qname"]["path"][-1]
    else:
        name = json["type"].removeprefix("WINDOW_").lower()
    start, end = json["start"], json["end"]
    units = {unit for unit in _FRAME_UNITS if start.endswith(unit) or end.endswith(unit)}
    return WindowCall(
        name="sum" if name == "sum_no_overflow" else name,
        arguments=_lower_all(json.get("children", []), child),
        type=lower_type(json["return_type"]),
        partition_by=_lower_all(json.get("partitions", []), child),
        order_by=lower_sort_keys(json.get("orders", []), child),
        unit=units.pop() if units else "ROWS",
        start=_frame_bound(start, json.get("start_expr"), child),
        end=_frame_bound(end, json.get("end_expr"), child),
        exclude=_EXCLUDES[json.get("exclude_clause", "NO_OTHER")],
        filter=lower_expression(json["filters"], child) if json.get("filters") else None,
        distinct=bool(json.get("distinct")),
        ignore_nulls=bool(json.get("ignore_nulls")),
        argument_order=lower_sort_keys(json.get("arg_orders", []), child),
    )


def _frame_bound(kind: str, offset: Json | None, child: Schema) -> FrameBound:
    if kind.startswith("UNBOUNDED"):
        return FrameBound(kind.replace("_", " "))
    if kind.startswith("CURRENT_ROW"):
        return FrameBound("CURRENT ROW")
    _, direction, unit = kind.split("_")
    if unit == "RANGE" or offset is None:
        # DuckDB has replaced the offset by the bound itself, the sort key plus or minus it.
        raise PlanNotLowered("a window frame of RANGE with an offset")
    return FrameBound(direction, lower_expression(offset, child))


def lower_table_filter(json: Json, columns: tuple[ColumnRef, ...]) -> tuple[Expression, ...]:
    """A filter that DuckDB pushed into a scan, as predicates; none for one that is only a hint."""
    match json["filter_type"]:
        case "LEGACY_CONSTANT_COMPARISON":
            comparison = COMPARISONS[json["comparison_type"]]
            return (Infix(comparison, (columns[0], lower_value(json["constant"])), "BOOLEAN"),)
        case "LEGACY_IS_NULL" | "LEGACY_IS_NOT_NULL" as kind:
            return (IsNull(columns[0], kind == "LEGACY_IS_NOT_NULL"),)
        case "LEGACY_CONJUNCTION_AND":
            return tuple(p for c in json["child_filters"] for p in lower_table_filter(c, columns))
        case "LEGACY_CONJUNCTION_OR":
            branches = tuple(_conjunction(c, columns) for c in json["child_filters"])
            return (Infix("OR", branches, "BOOLEAN"),)
        case "LEGACY_IN_FILTER":
            return (InList(columns[0], tuple(map(lower_value, json["values"])), negated=False),)
        case "LEGACY_OPTIONAL_FILTER" | "LEGACY_DYNAMIC_FILTER":
            return ()
        case "EXPRESSION_FILTER":
            own = tuple(Column("", column.type) for column in columns)
            return (transform(lower_expression(json["expr"], own), lambda r: columns[r.index]),)
        case other:
            raise PlanNotLowered(f"filter {other}")


def _conjunction(json: Json, columns: tuple[ColumnRef, ...]) -> Expression:
    predicates = lower_table_filter(json, columns)
    if not predicates:
        raise PlanNotLowered("an optional filter inside OR")
    return predicates[0] if len(predicates) == 1 else Infix("AND", predicates, "BOOLEAN")
