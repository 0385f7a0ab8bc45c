"""Column: an expression over the columns of a DataFrame, which becomes SQL where it is used.

A Column is a sequence of pieces: SQL, references to columns by name, and calls of aggregates and
window functions. References are resolved only when a DataFrame uses the Column, as only its SELECT
can qualify them. Calls become SQL only then, too, so that FILTER and OVER can be added to each call
within an expression. Operands that are not atomic get parentheses, so no operator precedence can
change the meaning.
"""

from __future__ import annotations

import datetime as dt
import difflib
import functools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias

import duckdb
import pyarrow as pa

from minishark.compiler.sql.connection import aside
from minishark.compiler.sql.tokens import sql_tokens, without_comments
from minishark.dataframe.duckdb_functions import (
    WINDOWS_ONLY,
    is_aggregate,
    is_text_of_rows,
    single_call,
)
from minishark.dataframe.literals import literal
from minishark.dataframe.names import (
    CamelCase,
    ident,
    name_parts,
    readable,
    snake_case,
    spelt_otherwise,
)
from minishark.dataframe.pandas_names import column_hint
from minishark.dataframe.types import DataType, duckdb_type
from minishark.errors import OptionError, QueryError

if TYPE_CHECKING:
    from minishark.dataframe.window import WindowSpec


class Level(IntEnum):
    """The precedence of an expression's outermost operator, as far as all SQL dialects agree."""

    ATOM = 0  # needs no parentheses anywhere
    CONDITION = 1  # a comparison: needs none beside AND and OR
    AND = 2
    OR = 3
    OTHER = 4


class Kind(IntEnum):
    """Which SELECTs an expression may stand in."""

    ROW = 0  # a scalar expression whose columns are all known references
    GROUP = 1  # an aggregate: the SELECT has one row per group
    FREE = 2  # the user's SQL text, or something like unnest: needs a SELECT of its own


@dataclass(frozen=True, slots=True)
class Reference:
    """A column by its name, or by its identity if it was taken from a DataFrame."""

    name: str  # as the user wrote it, perhaps with a qualifier or a field: `alias.name.field`
    id: int | None = None  # the identity of the column; None for a name alone


@dataclass(frozen=True, slots=True)
class InputFile:
    """The name of the file that a row is from, which only what reads files has."""

    name: str = "input_file_name()"


@dataclass(frozen=True, slots=True)
class Outer:
    """In a subquery, a column of the query around it."""

    reference: Reference

    @property
    def name(self) -> str:
        return self.reference.name


@dataclass(frozen=True, slots=True)
class Subquery:
    """A query as a part of an expression, with its handles.

    Its text has marks where it needs columns of the query around it (`subqueries`).
    """

    before: str  # what stands before the query, such as "EXISTS "
    parts: tuple[str | Outer, ...]
    held: tuple[object, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A variable of a lambda."""

    name: str
    like: Column  # what has its type, and means something outside of the lambda, too


@dataclass(frozen=True, slots=True)
class Text:
    """An expression in the user's SQL, which may contain anything."""

    sql: str


_FIELD = re.compile(r"struct_extract\(.*, '(\w+)'\)")  # of a struct, or a method that is missing
_FILTERING = ("filter()", "FILTER (WHERE true)")
_PICKING = frozenset({"first", "last", "first_value", "last_value"})


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Call:
    """A call of an aggregate or window function, to which FILTER and OVER can be added."""

    function: str
    arguments: Column  # the text in the parentheses
    condition: Column | None = None  # of FILTER; None for all rows
    window: Column | None = None  # the text in the parentheses of OVER; None over groups
    skips_nulls: bool = False  # whether to filter out NULLs that the function would take
    certain: bool = True  # False if it may be a scalar function after all, as a macro may be

    @property
    def name(self) -> str:
        return self.function.strip('"').lower()

    def column(self, kind: Kind) -> Column:
        return Column((self,), level=Level.ATOM, kind=kind)

    def written(self) -> Column:
        narrowed = self.skips_nulls or self.condition is not None
        if self.window is not None and self.name in _PICKING and narrowed:
            return self._picked(self.window)
        conditions = [self.arguments.is_not_null()] if self.skips_nulls else []
        conditions += [] if self.condition is None else [self.condition]
        parts: list[Any] = [f"{self.function}(", self.arguments, ")"]
        if conditions:
            parts += [" FILTER (WHERE ", functools.reduce(Column.__and__, conditions), ")"]
        if self.window is not None:
            parts += [" OVER (", self.window, ")"]
        return combine(*parts, bare=True)

    def _picked(self, window: Column) -> Column:
        """`first` etc. over a window: IGNORE NULLS, as DuckDB has no FILTER for these."""
        chosen = self.arguments
        if not self.skips_nulls:  # wrapped in a struct, a NULL is a value that may be picked
            chosen = combine("struct_pack(v := ", chosen, ")", bare=True)
        if self.condition is not None:
            chosen = case(self.condition, chosen)
        picked = (f"{self.function}(", chosen, " IGNORE NULLS) OVER (", window, ")")
        wrapped = picked if self.skips_nulls else ("struct_extract(", *picked, ", 'v')")
        return combine(*wrapped, bare=True)

    def filtered(self, condition: Column) -> Call:
        if self.window is not None:
            return self._filtered_inside(condition)
        if self.name in WINDOWS_ONLY:
            raise OptionError(
                f"{self.function} is a window function, which takes no condition; filter the rows, "
                "or put functions.when() into its arguments."
            )
        both = condition if self.condition is None else self.condition & condition
        return replace(self, condition=both)

    def _filtered_inside(self, condition: Column) -> Call:
        """A window over groups: the condition goes to the aggregates inside."""
        changed = {}
        for field in ("arguments", "condition", "window"):
            part: Column | None = getattr(self, field)
            pieces = _opened(part, *_FILTERING) if part is not None else ()
            if part is not None and is_grouped(pieces):
                made = _changed(pieces, lambda call: call.filtered(condition))
                changed[field] = replace(part, pieces=made)
        if not changed:
            raise OptionError(
                "What is computed over a window takes no condition any more, and no pivot; write "
                "functions.sum('a').filter(condition).over(window)."
            )
        return replace(self, **changed)  # type: ignore[arg-type]

    @property
    def is_grouped(self) -> bool:
        inside = (self.arguments, self.window, self.condition)
        return self.window is None or any(
            is_grouped(part.pieces) for part in inside if part is not None
        )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ByType:
    """An expression whose SQL depends on a type, such as a cast to a whole number.

    The type is known where a SELECT writes the expression; elsewhere, as in names, it is empty.
    """

    argument: Column
    make: Callable[[Column, str], Column]  # of the argument and a DuckDB type
    decides: Column | None = None  # whose type it is; None for the argument's
    meaning: tuple[Any, ...] = ()  # its name among `Dialect.meanings`, and their last arguments
    is_plain: bool = False  # whether `make` needs no type

    def column(self) -> Column:
        return Column((self,), level=Level.ATOM, kind=self.argument.kind)


Piece: TypeAlias = str | Reference | InputFile | Outer | Subquery | Variable | Text | Call | ByType
Resolve: TypeAlias = Callable[[Any], str]  # of a Reference, and what else only a SELECT knows
TypeOf: TypeAlias = Callable[["Column"], str]
Meanings: TypeAlias = Mapping[str, Callable[..., "Column"]]


def _unknown(_: Column) -> str:
    return ""


_AS_ELSEWHERE: Meanings = {}


def item_of(item: Column, type_: str, *, key: int) -> Column:
    """An element of a list by its position from 0, or of a map by its key."""
    return atom(combine(item, f"[{key if type_.startswith('MAP(') else key + 1}]"))


def as_type(item: Column, type_: str, cast: str = "CAST") -> Column:
    return combine(f"{cast}(", item, f" AS {type_})", bare=True)


def as_text(item: Column, _: str) -> Column:
    return as_type(item, "VARCHAR")


def infix(left: Any, operator: str, right: Any) -> Column:
    return combine(value(left), f" {operator} ", value(right))


def _short(side: Any) -> Column:
    """A literal such as 3 as a list of DECIMALs of its digits; anything else unchanged."""
    match value(side):
        case Column(pieces=(str() as text,)) if (digits := text.removeprefix("-")).isdecimal():
            return Column((f"CAST([] AS DECIMAL({len(digits)}, 0)[])",))
    return value(side)


def _quotient(left: Any, _: Any, right: Any) -> Column:
    made = infix(left, "/", right)
    both = combine("struct_pack(a := ", _short(left), ", b := ", _short(right), ")", bare=True)
    typed = ByType(argument=made, make=_same, decides=both, meaning=("quotient",), is_plain=True)
    return replace(typed.column(), level=Level.OTHER)


def condition(*parts: Any) -> Column:
    return replace(combine(*parts), level=Level.CONDITION)


def compare(left: Any, operator: str, right: Any) -> Column:
    """`left operator right`, a condition."""
    return condition(value(left), f" {operator} ", value(right))


def _like(text: Column, operator: str, pattern: Any) -> Column:
    # DuckDB's optimizer knows more of patterns without ESCAPE.
    is_plain = isinstance(pattern, str) and "\\" not in pattern
    escape = "" if is_plain else r" ESCAPE '\'"
    return condition(text, f" {operator} ", value(pattern), escape)


def _logical(left: Any, operator: Level, right: Any) -> Column:
    """AND or OR; a chain of one of them needs no parentheses."""
    parts: list[Any] = []
    for side in (value(left), value(right)):
        parts += [f" {operator.name} "] * bool(parts)
        parts += [side] if side.level <= operator else ["(", side, ")"]
    return replace(combine(*parts, bare=True), level=operator)


def _left(make: Callable[..., Column], operator: Any) -> Callable[[Column, Any], Column]:
    """The method of an operator: `self operator other`."""
    return lambda self, other: make(self, operator, other)


def _right(make: Callable[..., Column], operator: Any) -> Callable[[Column, Any], Column]:
    """The reflected method of an operator: `other operator self`."""
    return lambda self, other: make(other, operator, self)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Column(CamelCase):
    """An expression; made by `functions.col`, `functions.lit`, `df["name"]` and operators.

    Attributes:
        pieces: SQL text, references and calls, in order.
        name: the alias; None leaves the name to DuckDB.
        level: beside which operators it needs parentheses.
        kind: which SELECTs it may stand in.
        order: ASC or DESC, NULLS FIRST or LAST; for sort keys only.

    Examples:
        >>> from minishark import functions as F
        >>> df = session.create_dataframe([(1, "a"), (2, "b")], ["n", "s"])
        >>> df.select((df.n * 10 + 1).alias("m"), F.upper("s").alias("t")).collect()
        [Row(m=11, t='A'), Row(m=21, t='B')]
    """

    pieces: tuple[Piece, ...]
    name: str | None = None
    level: Level = Level.OTHER
    kind: Kind = Kind.ROW
    order: str = ""
    _hidden: ClassVar[tuple[str, ...]] = ("is_correlated", "references", "sort_key", "sql")

    # SQL

    def sql(self, resolve: Resolve) -> str:
        """The text, each reference written out by `resolve`."""
        type_of: TypeOf = getattr(resolve, "type_of", _unknown)
        meanings: Meanings = getattr(resolve, "meanings", _AS_ELSEWHERE)
        written = _written(self.pieces, type_of, meanings)
        return "".join(p if isinstance(p, str) else resolve(p) for p in written)

    def sort_key(self, resolve: Resolve) -> str:
        """The text for ORDER BY."""
        return f"{self.sql(resolve)} {self.order}".rstrip()

    @property
    def references(self) -> tuple[Reference, ...]:
        """All columns in it."""
        pieces = (
            piece.outer.reference if isinstance(piece, Correlated) else piece
            for piece in _written(self.pieces)
        )
        return tuple(piece for piece in pieces if isinstance(piece, Reference))

    @property
    def is_correlated(self) -> bool:
        """Whether a subquery in it reads columns of the query that it is in."""
        return any(isinstance(piece, Correlated) for piece in _written(self.pieces))

    def __repr__(self) -> str:
        text = self.sort_key(lambda reference: reference.name)
        return f"Column<'{text if self.name is None else f'{text} AS {ident(self.name)}'}'>"

    def __getattr__(self, name: str) -> Any:
        """A method in camelCase, or else a field of a struct: `col("address").city`.

        Raises:
            AttributeError: it looks like a misspelt method.
        """
        attributes = [item for item in dir(type(self)) if not item.startswith("_")]
        alike = difflib.get_close_matches(snake_case(name), attributes, n=1, cutoff=0.75)
        if name.startswith("_") or spelt_otherwise(name, attributes) or alike:
            return CamelCase.__getattr__(self, name)
        return self.get_field(name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Columns are expressions, not functions.

        Raises:
            TypeError: always; the message says what to write instead of methods that pandas has.
        """
        field = _FIELD.search(str(self))
        if field is None:
            raise TypeError("A Column is an expression and can't be called.")
        hint = column_hint(field[1]) or " Functions of columns are in minishark.functions."
        raise TypeError(f"A Column is an expression and has no method {field[1]!r}.{hint}")

    # Operators

    __add__, __radd__ = _left(infix, "+"), _right(infix, "+")
    __sub__, __rsub__ = _left(infix, "-"), _right(infix, "-")
    __mul__, __rmul__ = _left(infix, "*"), _right(infix, "*")
    __truediv__, __rtruediv__ = _left(_quotient, "/"), _right(_quotient, "/")
    __mod__, __rmod__ = _left(infix, "%"), _right(infix, "%")
    __and__, __rand__ = _left(_logical, Level.AND), _right(_logical, Level.AND)
    __or__, __ror__ = _left(_logical, Level.OR), _right(_logical, Level.OR)
    __eq__ = _left(compare, "=")  # type: ignore[assignment]
    __ne__ = _left(compare, "<>")  # type: ignore[assignment]
    __lt__, __le__ = _left(compare, "<"), _left(compare, "<=")
    __gt__, __ge__ = _left(compare, ">"), _left(compare, ">=")

    def __pow__(self, other: Any) -> Column:
        return call("pow", self, other)

    def __rpow__(self, other: Any) -> Column:
        return call("pow", other, self)

    def __neg__(self) -> Column:
        return combine("-", self)

    def __invert__(self) -> Column:
        return condition("NOT ", self)

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "A Column has no truth value, as it has one in each row: combine conditions with & | ~ "
            "(in parentheses) instead of and, or, not, and chain comparisons with between()."
        )

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "A Column can't be iterated; functions.explode makes a row of each element."
        )

    def __contains__(self, item: object) -> NoReturn:
        raise TypeError(
            "`in` has no Column as its answer; use contains(), isin() or array_contains."
        )

    # Names, types, order

    def alias(self, *names: str) -> Column:
        """The same under another name; a generator such as `posexplode` takes one per column."""
        if len(names) != 1:
            raise OptionError(f"alias() takes one name here, not {len(names)}.")
        if not isinstance(names[0], str):
            raise OptionError(f"alias() takes a name as text, not {names[0]!r}.")
        return replace(self, name=names[0])

    def cast(self, type_: Any) -> Column:
        """The value in another type; a value that does not fit is an error.

        To whole numbers, fractions are cut off, and text with a fraction is an error, as in
        PySpark; SQL's CAST rounds.

        Args:
            type_: a name of DuckDB's or PySpark's ("bigint", "string", "decimal(10,2)"), a Python
                type such as `int`, or a pyarrow type.
        """
        return self._cast("CAST", type_)

    astype = cast

    def try_cast(self, type_: Any) -> Column:
        """The value in another type, as `cast`; NULL where it does not fit."""
        return self._cast("TRY_CAST", type_)

    def _cast(self, function: str, type_: Any) -> Column:
        wanted = sql_type(type_)
        made = combine(f"{function}(", self, f" AS {wanted})", bare=True)
        if _SPARKS_OWN.match(wanted):
            made = ByType(argument=self, make=_Cast(function, wanted)).column()
        elif wanted.upper() == "VARCHAR":
            made = ByType(argument=self, make=as_text, meaning=("text",), is_plain=True).column()
        # As in PySpark, a column keeps its name through a cast.
        reference = only_reference(self)
        name = reference.name if reference else self.name
        return replace(made, level=Level.ATOM, name=name)

    def asc(self) -> Column:
        """Ascending; NULLs last, as in DuckDB."""
        return replace(self, order="ASC")

    def desc(self) -> Column:
        """Descending; NULLs last, as in DuckDB."""
        return replace(self, order="DESC")

    def asc_nulls_first(self) -> Column:
        """Ascending, NULLs first."""
        return replace(self, order="ASC NULLS FIRST")

    def asc_nulls_last(self) -> Column:
        """Ascending, NULLs last."""
        return replace(self, order="ASC NULLS LAST")

    def desc_nulls_first(self) -> Column:
        """Descending, NULLs first."""
        return replace(self, order="DESC NULLS FIRST")

    def desc_nulls_last(self) -> Column:
        """Descending, NULLs last."""
        return replace(self, order="DESC NULLS LAST")

    # Conditions

    def is_null(self) -> Column:
        """Whether it is NULL."""
        return condition(self, " IS NULL")

    def is_not_null(self) -> Column:
        """Whether it is not NULL."""
        return condition(self, " IS NOT NULL")

    def is_nan(self) -> Column:
        """Whether it is the float NaN; no NULL is."""
        return call("coalesce", call("isnan", self), False)

    def eq_null_safe(self, other: Any) -> Column:
        """Whether both are equal, or both NULL."""
        return compare(self, "IS NOT DISTINCT FROM", other)

    def between(self, low: Any, high: Any) -> Column:
        """Whether `low <= self <= high`."""
        return condition(self, " BETWEEN ", value(low), " AND ", value(high))

    def isin(self, *values: Any) -> Column:
        """Whether it is one of the values; they may be passed as one list, too."""
        if len(values) == 1 and isinstance(values[0], list | tuple | set | frozenset):
            values = tuple(values[0])
        if not values:
            return Column(("false",), level=Level.ATOM)
        return condition(self, " IN (", *separated([value(item) for item in values]), ")")

    is_in = isin

    def like(self, pattern: Any) -> Column:
        r"""Whether it matches a SQL pattern, with % and _; `\%`, `\_` and `\\` mean themselves."""
        return _like(self, "LIKE", pattern)

    def ilike(self, pattern: Any) -> Column:
        """Whether it matches a SQL pattern as of `like`, ignoring case."""
        return _like(self, "ILIKE", pattern)

    def rlike(self, pattern: Any) -> Column:
        """Whether a regular expression (RE2) matches a part of it."""
        return call("regexp_matches", self, pattern)

    # Bits

    def bitwise_and(self, other: Any) -> Column:
        """The bits that are 1 in both."""
        return infix(self, "&", other)

    def bitwise_or(self, other: Any) -> Column:
        """The bits that are 1 in either."""
        return infix(self, "|", other)

    def bitwise_xor(self, other: Any) -> Column:
        """The bits that differ."""
        made = call("xor", self, other)
        sides = (each.sql(lambda reference: reference.name) for each in (self, value(other)))
        return replace(made, name=readable(f"({' ^ '.join(sides)})"))

    # Text

    def contains(self, other: Any) -> Column:
        """Whether the text, or list, contains `other`."""
        return call("contains", self, other)

    def startswith(self, other: Any) -> Column:
        """Whether the text starts with `other`."""
        return call("starts_with", self, other)

    starts_with = startswith

    def endswith(self, other: Any) -> Column:
        """Whether the text ends with `other`."""
        return call("ends_with", self, other)

    ends_with = endswith

    def substr(self, start: Any, length: Any) -> Column:
        """`length` characters from the one at `start`, counted from 1."""
        if isinstance(start, Column):
            start = case(start == 0, 1).otherwise(start)
        start = 1 if isinstance(start, int) and not start else start
        return call("substring", self, start, length)

    # Parts of nested values

    def get_item(self, key: Any) -> Column:
        """An element of a list by its position from 0, or of a map or struct by its key.

        A whole number is the key itself of a map, and no position.

        Raises:
            OptionError: `key` is no position and no text; see `functions.element_at`.
        """
        if isinstance(key, str):
            return atom(combine(self, f"[{literal(key)}]"))
        if isinstance(key, int) and not isinstance(key, bool) and key >= 0:
            make = functools.partial(item_of, key=key)
            return ByType(argument=self, make=make, meaning=("item", key)).column()
        raise OptionError(
            "get_item takes a position from 0 or a text; for other keys use functions.element_at."
        )

    def get_field(self, name: str) -> Column:
        """A field of a struct."""
        return call("struct_extract", self, value(name))

    def with_field(self, name: str, item: Any) -> Column:
        """A struct with a field more, or replaced; `a.b` is a field of the struct `a` within it."""
        first, *inner = name_parts(name)
        if inner:
            item = self.get_field(first).with_field(_joined(inner), item)
        made = combine("struct_update(", self, f", {ident(first)} := ", value(item), ")", bare=True)
        return case(self.is_not_null(), atom(made))

    def drop_fields(self, *names: str) -> Column:
        """A struct without some of its fields; `a.b` is a field of the struct `a` within it."""
        return ByType(argument=self, make=_Without(names)).column()

    def transform(self, function: Callable[[Column], Column]) -> Column:
        """`function(self)`, to chain functions of Columns like methods."""
        return function(self)

    def __getitem__(self, key: Any) -> Column:
        """`get_item`; a slice is a substring: `col[1:3]` is `substr(1, 3)`."""
        if isinstance(key, slice):
            if key.step is not None:
                raise OptionError("A slice of a Column is [start:length], without a step.")
            return self.substr(key.start, key.stop)
        return self.get_item(key)

    def outer(self) -> Column:
        """In a subquery: this column of the query around it; see `DataFrame.exists`.

        Raises:
            OptionError: it is not a plain column.
        """
        reference = only_reference(self)
        if reference is None:
            raise OptionError("outer() goes with a column: col('a').outer() + 1.")
        return Column((Outer(reference),), level=Level.ATOM)

    # Windows and cases

    def over(self, window: WindowSpec) -> Column:
        """The function computed over a window of rows; see `Window`.

        The window applies to each call in an expression: `(F.max("a") - F.min("a")).over(window)`.

        Raises:
            OptionError: the expression has no aggregate or window function.
        """
        definition = window.definition()
        pieces = _opened(self, "over()", "OVER ()")
        if not any(call.window is None for call in _calls(pieces)):
            raise OptionError(
                "over() takes an aggregate or a window function without a window, such as "
                f"functions.sum('a'), or an expression with one; {self!r} has none."
            )

        def windowed(call: Call) -> Call:
            return replace(call, window=definition) if call.window is None else call

        made = _changed(pieces, windowed)
        free = Kind.FREE in (self.kind, definition.kind)
        kind = Kind.FREE if free else Kind.GROUP if is_grouped(made) else Kind.ROW
        return self._again(made, kind)

    def filter(self, condition: Column | str) -> Column:
        """An aggregate over only the rows that fulfil a condition: SQL's FILTER.

        It applies to each aggregate in an expression: `(F.sum("a") / F.count("b")).filter(...)`.
        Conditions of several calls are combined with AND.

        Args:
            condition: a Column, or SQL text.

        Raises:
            OptionError: the expression has no aggregate, or has a window function.
        """
        chosen = filter_condition(condition)
        pieces = _opened(self, *_FILTERING)
        if not any(_calls(pieces)):
            raise OptionError(
                "Only aggregates, such as functions.sum('a'), and expressions with some can have "
                f"a condition, or be pivoted; {self!r} has none."
            )
        made = _changed(pieces, lambda call: call.filtered(chosen))
        return self._again(made, max(self.kind, chosen.kind))

    @property
    def _has_own_name(self) -> bool:
        """Whether it is count(*) with its default name."""
        match self.pieces:
            case (Call(arguments=Column(pieces=("*",)), condition=None, window=None),):
                return self.name == "count"
            case _:
                return False

    def _again(self, pieces: tuple[Piece, ...], kind: Kind) -> Column:
        """The expression with other calls."""
        alone = len(pieces) == 1
        level = Level.OTHER if alone else self.level
        return Column(pieces, None if self._has_own_name else self.name, level, kind)

    def when(self, condition: Column, result: Any) -> Column:
        """Another branch after `functions.when`."""
        raise OptionError("when() goes with functions.when(condition, value) only.")

    def otherwise(self, result: Any) -> Column:
        """The value if no branch of `functions.when` was taken."""
        raise OptionError("otherwise() goes with functions.when(condition, value) only.")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CaseColumn(Column):
    """`functions.when(...)`, to which branches can be added."""

    def when(self, condition: Column, result: Any) -> CaseColumn:
        """Another branch."""
        branch = combine(" WHEN ", condition, " THEN ", value(result), " END", bare=True)
        pieces = (*self.pieces[:-1], *branch.pieces)
        return replace(self, pieces=pieces, kind=max(self.kind, branch.kind))

    def otherwise(self, result: Any) -> Column:
        """The value if no branch is taken; NULL without this."""
        last = value(result)
        pieces = (*self.pieces[:-1], " ELSE ", *last.pieces, " END")
        return Column(pieces, self.name, level=Level.ATOM, kind=max(self.kind, last.kind))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Generator(Column):
    """Several columns with a row for each element of a list or map, in a select list.

    Attributes:
        argument: the list or map.
        of_list: the columns if it is a list.
        of_map: the columns if it is a map; empty if it can't be one.
    """

    argument: Column | None = None
    of_list: tuple[Column, ...] = ()
    of_map: tuple[Column, ...] = ()

    def alias(self, *names: str) -> Column:
        """The same with a name for each of its columns."""
        if len(names) == 1 and len(self.of_list) == 1:
            return replace(self, name=names[0], of_list=_called(self.of_list, names))
        parts = self.of_map if len(names) == len(self.of_map) else self.of_list
        if len(names) != len(parts):
            raise OptionError(f"alias() takes {len(self.of_list)} names here, not {len(names)}.")
        field = "of_map" if parts is self.of_map else "of_list"
        return replace(self, **{field: _called(parts, names)})  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class SessionWindow(Column):
    """`functions.session_window`: in a SELECT the window of a row alone; groups join them.

    Attributes:
        start: the timestamp.
        end: the timestamp and the gap after it.
    """

    start: Column
    end: Column


def _called(columns: Sequence[Column], names: Sequence[str]) -> tuple[Column, ...]:
    return tuple(replace(column_, name=name) for column_, name in zip(columns, names, strict=True))


def generator(
    argument: Column | None, of_list: Sequence[Column], of_map: Sequence[Column] = ()
) -> Generator:
    first = of_list[0]
    return Generator(
        first.pieces,
        level=first.level,
        kind=max(column.kind for column in of_list),
        argument=argument,
        of_list=tuple(of_list),
        of_map=tuple(of_map),
    )


@dataclass(frozen=True, slots=True)
class Correlated:
    """A column that a subquery reads, where the query around it is written."""

    outer: Outer

    @property
    def name(self) -> str:
        return self.outer.name


Written: TypeAlias = str | Reference | InputFile | Outer | Correlated


def _written(
    pieces: Iterable[Piece], type_of: TypeOf = _unknown, meanings: Meanings = _AS_ELSEWHERE
) -> Iterator[Written]:
    """The pieces with calls and the user's text as SQL."""
    for piece in pieces:
        match piece:
            case Call():
                yield from _written(piece.written().pieces, type_of, meanings)
            case ByType():
                decides = _outside(piece.argument if piece.decides is None else piece.decides)
                name, *rest = piece.meaning or ("",)
                if name in meanings:
                    made = meanings[name](piece.argument, type_of(decides), *rest)
                else:
                    made = piece.make(piece.argument, "" if piece.is_plain else type_of(decides))
                yield from _written(made.pieces, type_of, meanings)
            case Text():
                yield piece.sql
            case Variable():
                yield piece.name
            case Subquery():
                yield f"{piece.before}("
                yield from (p if isinstance(p, str) else Correlated(p) for p in piece.parts)
                yield ")"
            case _:
                yield piece


def _changed(pieces: Iterable[Piece], change: Callable[[Call], Call]) -> tuple[Piece, ...]:
    return tuple(_changed_piece(piece, change) for piece in pieces)


def _changed_piece(piece: Piece, change: Callable[[Call], Call]) -> Piece:
    match piece:
        case Call():
            return change(piece)
        case ByType(argument=argument):
            made = replace(argument, pieces=_changed(argument.pieces, change))
            return replace(piece, argument=made)
    return piece


def _calls(pieces: Iterable[Piece]) -> Iterator[Call]:
    """The calls among the pieces, and in arguments whose type decides."""
    for piece in pieces:
        match piece:
            case Call():
                yield piece
            case ByType(argument=argument):
                yield from _calls(argument.pieces)


def has_meanings(column: Column) -> bool:
    """Whether a part of it may be otherwise in sessions of other dialects."""
    return any(isinstance(piece, ByType) and piece.meaning for piece in column.pieces)


def has_windows(column: Column) -> bool:
    """Whether it contains a function over a window, as far as that is known."""
    return any(call.window is not None for call in _calls(column.pieces))


def row_number() -> Column:
    """The number of the row from 1, in the order of rows, which seeds draw by."""
    return _ROW_NUMBER.column(Kind.ROW)


def with_row_numbers(column: Column, number: Column) -> Column:
    """An expression with a column in place of the number of the row; unchanged without that."""
    return _with(column, lambda piece: number if piece is _ROW_NUMBER else None)


def _outside(column: Column) -> Column:
    """An expression of the same type as one within a lambda, without the lambda's variables."""
    return _with(column, lambda p: _outside(p.like) if isinstance(p, Variable) else None)


def _with(column: Column, put: Callable[[Piece], Column | None]) -> Column:
    """An expression with others in place of some of its pieces; the same one without any."""
    pieces = tuple(piece for whole in column.pieces for piece in _put(whole, put))
    same = len(pieces) == len(column.pieces) and all(map(operator.is_, pieces, column.pieces))
    return column if same else replace(column, pieces=pieces)


def _put(piece: Piece, put: Callable[[Piece], Column | None]) -> tuple[Piece, ...]:
    other = put(piece)
    if other is not None:
        return other.pieces
    match piece:
        case Call() | ByType(argument=Column()):
            changed = {
                name: _with(part, put)
                for name in ("arguments", "condition", "window", "argument", "decides")
                if isinstance(part := getattr(piece, name, None), Column)
            }
            same = all(part is getattr(piece, name) for name, part in changed.items())
            return (piece,) if same else (replace(piece, **changed),)  # type: ignore[arg-type]
    return (piece,)


def is_grouped(pieces: Iterable[Piece]) -> bool:
    return any(call.is_grouped for call in _calls(pieces))


def _opened(column: Column, verb: str, clause: str) -> tuple[Piece, ...]:
    """The pieces, with calls in the user's text as Calls; `verb` adds `clause` to each."""
    pieces = tuple(_opened_piece(piece, verb, clause) for piece in column.pieces)
    for call in _calls(pieces):
        # DuckDB itself resolves a call that is alone; within an expression, a macro might hide
        # an aggregate that FILTER and OVER would miss.
        if not call.certain and len(pieces) > 1:
            raise _no_view(call.function, verb)
    return pieces


def _opened_piece(piece: Piece, verb: str, clause: str) -> Piece:
    """The user's text as a Call, if it is one; unchanged, if it contains no aggregate."""
    if isinstance(piece, ByType):
        argument = replace(piece.argument, pieces=_opened(piece.argument, verb, clause))
        return replace(piece, argument=argument)
    if not isinstance(piece, Text) or is_text_of_rows(piece.sql):
        return piece
    opened = single_call(piece.sql, clause)
    if opened is None:
        raise _no_view(piece.sql, verb)
    function, arguments = opened
    inner = Column((Text(arguments),), kind=Kind.FREE)
    certain = is_aggregate(function.strip('"'))
    return Call(function=function, arguments=inner, certain=certain)


def _no_view(sql: str, verb: str) -> OptionError:
    return OptionError(
        f"{verb} can't tell which aggregates are in {sql!r}, which minishark does not look into; "
        "write them as Columns, such as functions.sum('a')."
    )


def only_reference(column: Column) -> Reference | None:
    """The referenced column, if the expression is nothing else."""
    only = column.pieces[0] if len(column.pieces) == 1 else None
    return only if isinstance(only, Reference) else None


def case(condition: Column, result: Any) -> CaseColumn:
    """`CASE WHEN condition THEN result END`."""
    made = combine("CASE WHEN ", condition, " THEN ", value(result), " END", bare=True)
    return CaseColumn(made.pieces, level=Level.ATOM, kind=made.kind)


_WHOLE = re.compile(
    r"\s*(tinyint|smallint|integer|int|bigint|hugeint|int[1248]|long|short)\s*$", re.IGNORECASE
)
_FRACTION = re.compile(r"\s*(double|float|real|decimal|numeric)\b", re.IGNORECASE)
_BOOLEAN = re.compile(r"\s*(boolean|bool)\s*$", re.IGNORECASE)
# The types to which PySpark casts otherwise than SQL does here.
_SPARKS_OWN = re.compile(
    "|".join(pattern.pattern for pattern in (_WHOLE, _FRACTION, _BOOLEAN)), re.IGNORECASE
)


def _joined(parts: Sequence[str]) -> str:
    """The name of a field within a field."""
    return ".".join(f"`{part}`" for part in parts)


@dataclass(frozen=True, slots=True)
class _Without:
    """A struct without some fields."""

    names: tuple[str, ...]

    def __call__(self, item: Column, type_: str) -> Column:
        if not type_.startswith("STRUCT("):
            return item
        dropped: dict[str, list[str]] = {}  # by the field, what is dropped within it
        for first, *inner in map(name_parts, self.names):
            dropped.setdefault(first.lower(), []).append(_joined(inner))
        parts: list[Any] = []
        for name, kind in duckdb.sqltype(type_).children:
            inside = dropped.get(name.lower(), ())
            if "" in inside:
                continue
            field = item.get_field(name)
            field = _Without(tuple(inside))(field, str(kind)) if inside else field
            parts += [", "] * bool(parts) + [f"{ident(name)} := ", field]
        if not parts:
            raise OptionError("drop_fields() would drop all fields; a struct has one at least.")
        made = combine("struct_pack(", *parts, ")", bare=True)
        return case(item.is_not_null(), atom(made))


@dataclass(frozen=True, slots=True)
class _Cast:
    """A cast to a number or a BOOLEAN, as PySpark's.

    To whole numbers, fractions are cut off; of times they are seconds since 1970. Text has to be a
    number as it is written in decimals; DuckDB takes `1_000`, and rounds the text of a fraction.
    """

    function: str  # CAST or TRY_CAST
    type: str

    def __call__(self, item: Column, type_: str) -> Column:
        if type_ == "VARCHAR":
            item = self._text(item)
        elif type_.startswith("TIMESTAMP") and not _BOOLEAN.match(self.type):
            seconds = call("epoch", item)
            item = call("floor", seconds) if _WHOLE.match(self.type) else seconds
        elif _WHOLE.match(self.type):
            item = _cut_off(item, type_)
        return combine(f"{self.function}(", item, f" AS {self.type})", bare=True)

    def _text(self, item: Column) -> Column:
        """The text, or NULL, or for CAST a text that is an error, if it is none for PySpark."""
        if _BOOLEAN.match(self.type):
            return call("trim", item)
        if _WHOLE.match(self.type):
            fits, reason = call("regexp_full_match", item, r"\s*[+-]?[0-9]+\s*"), "no whole number"
        else:
            fits, reason = ~call("contains", item, "_"), "no number"
        chosen = case(fits, item)
        return (
            chosen
            if self.function == "TRY_CAST"
            else chosen.otherwise(infix(item, "||", f" ({reason})"))
        )


def _cut_off(item: Column, type_: str) -> Column:
    if type_ in ("DOUBLE", "FLOAT"):
        return call("trunc", item)
    if type_.startswith("DECIMAL("):
        # trunc() of a DECIMAL rounds above 15 digits, as it computes with DOUBLEs.
        return call("split_part", combine("CAST(", item, " AS VARCHAR)", bare=True), ".", 1)
    return item


_ROW_NUMBER = Call(function="row_number", arguments=Column(("",)), window=Column(("",)))


def column(name: str) -> Column:
    return Column((Reference(name),), level=Level.ATOM)


def value(item: Any) -> Column:
    """A Column unchanged, any other value as a literal."""
    if isinstance(item, Column):
        return item
    text = literal(item)
    simple = not text.startswith("-") and " || " not in text
    return Column((text,), level=Level.ATOM if simple else Level.OTHER)


def flat(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments of a call that also takes them as one list."""
    is_list = len(arguments) == 1 and isinstance(arguments[0], list | tuple)
    return tuple(arguments[0]) if is_list else tuple(arguments)


def column_or_name(item: Any) -> Column:
    """A Column unchanged, text as the column of that name, any other value as a literal."""
    return column(item) if isinstance(item, str) else value(item)


def text_column(sql: Any) -> Column:
    """The user's SQL text, without comments."""
    if not isinstance(sql, str) or not sql.strip():
        raise OptionError("An expression is SQL text, such as 'a + 1'.")
    if ";" in sql and any(token.text == ";" for token in sql_tokens(sql)):
        raise QueryError(f"This is no expression, but several statements: {sql}")
    return Column((Text(without_comments(sql)),), kind=Kind.FREE)


def filter_condition(item: Any) -> Column:
    """What `filter` takes, of columns and of DataFrames: a Column, or SQL text."""
    chosen = text_column(item) if isinstance(item, str) else item
    if not isinstance(chosen, Column):
        raise OptionError("filter() takes a Column or SQL text; compare with == and not `is`.")
    return chosen


def combine(*parts: Any, bare: bool = False) -> Column:
    """Text and Columns concatenated; Columns in parentheses, unless they are atoms or `bare`."""
    pieces: list[Piece] = []
    kind = Kind.ROW
    for part in parts:
        if isinstance(part, str):
            pieces.append(part)
            continue
        plain = bare or part.level is Level.ATOM
        pieces += part.pieces if plain else ("(", *part.pieces, ")")
        kind = max(kind, part.kind)
    return Column(tuple(pieces), kind=kind)


def atom(column: Column) -> Column:
    """The same without parentheses: it has its own, or needs none where it is to stand."""
    return replace(column, level=Level.ATOM)


def separated(columns: Iterable[Column]) -> tuple[Any, ...]:
    parts: list[Any] = []
    for item in columns:
        parts += [", ", item] if parts else [item]
    return tuple(parts)


def call(function: str, *arguments: Any, kind: Kind = Kind.ROW) -> Column:
    """`function(arguments)`; arguments that are no Columns are literals."""
    # The kind is GROUP for an aggregate or a window function.
    listed = combine(*separated([value(argument) for argument in arguments]), bare=True)
    if kind is Kind.GROUP:
        only = value(arguments[0]) if len(arguments) == 1 else listed
        return Call(function=function, arguments=only).column(max(listed.kind, kind))
    made = combine(f"{function}(", listed, ")", bare=True)
    return replace(made, level=Level.ATOM, kind=max(made.kind, kind))


_SUMMED = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")


def sum_of(item: Column, *, modifier: str = "", cast: str = "CAST") -> Column:
    """A sum; of whole numbers a BIGINT, as in PySpark, where SQL's has 128 bits.

    Args:
        item: the values.
        modifier: what stands before them, such as "DISTINCT ".
        cast: what becomes of a sum that is no BIGINT: CAST for an error, TRY_CAST for NULL.
    """
    listed = combine(modifier, item, bare=True) if modifier else item
    added = Call(function="sum", arguments=listed).column(max(item.kind, Kind.GROUP))

    make = functools.partial(whole_sum, cast=cast)
    return ByType(argument=added, make=make, decides=item, meaning=("total", cast)).column()


def whole_sum(added: Column, type_: str, cast: str) -> Column:
    """A sum of values of a type; of whole numbers a BIGINT."""
    if type_ not in _SUMMED:
        return added
    return as_type(added, "BIGINT", cast)


def mean_of(item: Column) -> Column:
    """A mean."""
    made = Call(function="avg", arguments=item).column(max(item.kind, Kind.GROUP))
    meant = ("total", "CAST")
    typed = ByType(argument=made, make=_same, decides=item, meaning=meant, is_plain=True)
    return typed.column()


def _same(item: Column, _: str) -> Column:
    return item


def count_of_rows() -> Column:
    return replace(star_call("count"), name="count")


def star_call(function: str) -> Column:
    return Call(function=function, arguments=Column(("*",))).column(Kind.GROUP)


_PYTHON_TYPES = {
    bool: "BOOLEAN",
    int: "BIGINT",
    float: "DOUBLE",
    str: "VARCHAR",
    bytes: "BLOB",
    Decimal: "DECIMAL(38, 18)",
    dt.date: "DATE",
    dt.datetime: "TIMESTAMP",
    dt.time: "TIME",
    dt.timedelta: "INTERVAL",
}


def sql_type(type_: Any) -> str:
    """The DuckDB name of a type that is text, a Python type or a pyarrow type."""
    if isinstance(type_, str):
        return duckdb_type(type_)
    if isinstance(type_, type) and issubclass(type_, DataType):
        type_ = type_()
    if isinstance(type_, DataType):
        return type_.sql()
    if isinstance(type_, type) and type_ in _PYTHON_TYPES:
        return _PYTHON_TYPES[type_]
    if isinstance(type_, pa.DataType):
        with aside() as connection:
            empty = pa.table({"a": pa.array([], type_)})
            return str(connection.from_arrow(empty).types[0])
    raise OptionError(f"{type_!r} is no type; write one such as 'bigint' or 'decimal(10, 2)'.")
