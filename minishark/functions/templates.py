"""Functions as data: a signature, the SQL that it becomes, and a line of documentation.

    Template("pmod(dividend, divisor)", "((({dividend}) % ...", "The positive remainder.")

A parameter of a signature takes a Column or a column's name, any other value is a literal. One that
ends in `: value` takes text as a literal, too. `*name` takes any number of columns. A default is a
literal after `=`; None leaves the argument out.

In the SQL, `{name}` is an argument, in parentheses where it needs them; `{{` is a brace.
`@name(...)` is a call of an aggregate or a window function, to which FILTER and OVER can be added.
Of several texts, the first is taken that uses all arguments which were not left out.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minishark.dataframe.column import (
    Call,
    Column,
    Kind,
    Level,
    Text,
    atom,
    column_or_name,
    combine,
    separated,
    value,
)
from minishark.dataframe.duckdb_functions import is_text_of_rows
from minishark.dataframe.names import readable
from minishark.errors import OptionError

_PARAMETER = re.compile(r"(?P<star>\*?)(?P<name>\w+)(?:: *(?P<kind>\w+))?(?: *= *(?P<default>.+))?")
_MARK = re.compile(r"(?P<brace>\{\{|\}\})|\{(?P<name>\w+)\}|@(?P<call>\w+)\(")
_ATOM = re.compile(r"\w+\([^()]*\)|CASE .* END|\w+", re.DOTALL)
_REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a function."""

    name: str
    is_text: bool  # whether text is a literal, not a column's name
    is_rest: bool  # whether it takes any number of columns
    default: Any = _REQUIRED


@dataclass(frozen=True, slots=True)
class Template:
    """A function.

    Attributes:
        signature: its name and parameters.
        sql: its SQL, or several texts, of which the arguments choose one.
        doc: what it is, in a sentence.
        note: in what it differs from PySpark's function of the name; empty if in nothing.
        kind: which SELECTs it may stand in, at least.
    """

    signature: str
    sql: str | tuple[str, ...]
    doc: str
    note: str = ""
    kind: Kind = Kind.ROW

    @property
    def name(self) -> str:
        return self.signature.partition("(")[0]

    def parameters(self) -> tuple[Parameter, ...]:
        inside = self.signature.partition("(")[2].removesuffix(")")
        listed = []
        for text in filter(None, (part.strip() for part in inside.split(", "))):
            match = _PARAMETER.fullmatch(text)
            assert match is not None, self.signature
            default = _REQUIRED if match["default"] is None else ast.literal_eval(match["default"])
            listed.append(
                Parameter(
                    name=match["name"],
                    is_text=match["kind"] == "value",
                    is_rest=bool(match["star"]),
                    default=default,
                )
            )
        return tuple(listed)


def function_of(
    template: Template, names: Callable[[], dict[str, str]] | None = None
) -> Callable[..., Column]:
    """The function that users call; `names` are replaced in its SQL."""

    @functools.cache
    def parsed() -> tuple[tuple[Parameter, ...], inspect.Signature]:
        parameters = template.parameters()
        return parameters, inspect.Signature([_signature_of(parameter) for parameter in parameters])

    def function(*args: Any, **kwargs: Any) -> Column:
        parameters, signature = parsed()
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{template.name}(): {error}; it is {template.signature}.") from None
        bound.apply_defaults()
        given = {
            parameter.name: _argument(parameter, bound.arguments[parameter.name])
            for parameter in parameters
        }
        return _column(template, given, {} if names is None else names())

    function.__name__ = function.__qualname__ = template.name
    note = f"\n\n{template.note}" if template.note else ""
    function.__doc__ = f"{template.signature}: {template.doc}{note}"
    return function


def _signature_of(parameter: Parameter) -> inspect.Parameter:
    if parameter.is_rest:
        return inspect.Parameter(parameter.name, inspect.Parameter.VAR_POSITIONAL)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = parameter.default
    if isinstance(default, str):  # else it would be the name of a column
        default = value(default)
    return inspect.Parameter(parameter.name, kind, default=default)


def _argument(parameter: Parameter, given: Any) -> tuple[Column, ...] | None:
    """The columns that stand for a parameter; None if it was left out."""
    if parameter.is_rest:
        flat = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
        return tuple(map(value if parameter.is_text else column_or_name, flat))
    if given is None and parameter.default is None:
        return None
    return (value(given) if parameter.is_text else column_or_name(given),)


def _column(
    template: Template, given: dict[str, tuple[Column, ...] | None], names: dict[str, str]
) -> Column:
    arguments = {name: columns for name, columns in given.items() if columns is not None}
    texts = (template.sql,) if isinstance(template.sql, str) else template.sql
    wanted = {name for name, columns in arguments.items() if columns}
    sql = next((text for text in texts if wanted <= set(re.findall(r"\{(\w+)\}", text))), None)
    if sql is None:
        raise OptionError(f"{template.name}() takes other arguments: {template.signature}.")
    for name, meant in names.items():
        sql = sql.replace(name, meant)
    made = _filled_once(sql, arguments)
    shown = [column for columns in arguments.values() for column in columns]
    return replace(
        made,
        name=f"{template.name}({', '.join(map(shown_as, shown))})",
        level=Level.ATOM if _ATOM.fullmatch(sql) else Level.OTHER,
        kind=max(made.kind, template.kind),
    )


def shown_as(column: Column) -> str:
    """How an argument stands in the name of what a function makes of it."""
    return column.name or readable(column.sql(lambda reference: reference.name))


_VARYING = re.compile(r"\b(random|uuid|uuidv4|uuidv7|gen_random_uuid|nextval|minishark_\w+)\(")


def _varies(column: Column) -> bool:
    """Whether it may give another value, or cost much, where it is computed again."""
    if any(isinstance(piece, Text) and not is_text_of_rows(piece.sql) for piece in column.pieces):
        return True
    return bool(_VARYING.search(column.sql(lambda reference: reference.name)))


def _filled_once(sql: str, arguments: dict[str, tuple[Column, ...]]) -> Column:
    """As `filled`; an argument that varies is computed once, where the text has it twice."""
    if "@" in sql:  # aggregates can't stand in lambdas
        return filled(sql, arguments)
    for name, columns in arguments.items():
        if len(columns) == 1 and sql.count(f"{{{name}}}") > 1 and _varies(columns[0]):
            variable = f"{name}_once_"
            inside = {**arguments, name: (Column((variable,), level=Level.ATOM),)}
            body = _filled_once(sql, inside)
            return combine(
                "list_transform([", atom(columns[0]), f"], lambda {variable}: ", body, ")[1]",
                bare=True,
            )  # fmt: skip
    return filled(sql, arguments)


def filled(sql: str, arguments: dict[str, tuple[Column, ...]]) -> Column:
    """The text of a template with its arguments."""
    parts: list[Any] = []
    place = 0
    while mark := _MARK.search(sql, place):
        parts.append(sql[place : mark.start()])
        if mark["brace"]:
            place = mark.end()
            parts.append(mark["brace"][0])
        elif mark["name"]:
            place = mark.end()
            columns = arguments[mark["name"]]
            alone = sql[: mark.start()].endswith(("(", ", ")) and sql[place:].startswith((")", ","))
            bare = alone or len(columns) != 1
            parts += separated([atom(column) for column in columns] if bare else columns)
        else:
            place = _end(sql, mark.end())
            inner = filled(sql[mark.end() : place - 1], arguments)
            call = Call(function=mark["call"], arguments=inner)
            parts.append(call.column(max(inner.kind, Kind.GROUP)))
    parts.append(sql[place:])
    return combine(*(part for part in parts if not isinstance(part, str) or part))


def _end(sql: str, start: int) -> int:
    """The position after the parenthesis that closes the one before `start`."""
    depth, place, quoted = 1, start, False
    while depth:
        char = sql[place]
        quoted ^= char == "'"
        if not quoted:
            depth += (char == "(") - (char == ")")
        place += 1
    return place


def by_name(templates: Sequence[Template]) -> dict[str, Template]:
    named = {template.name: template for template in templates}
    assert len(named) == len(templates), "a name is there twice"
    return named
