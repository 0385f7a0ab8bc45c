"""Select: the SELECT statement of a DataFrame, as data.

Verbs add clauses to it where that is exact, and nest it as a subquery where it is not. A clause is
added to the same SELECT only if SQL evaluates no clause that is there already after it, and if all
columns that it references are columns of FROM; so no name can be captured by a select-list alias.

Columns have identities besides names. A column keeps its identity through filters, sorts, joins
and SELECTs that only pass it on; so `df["a"]` means the same column in all that is derived from
`df`, even where two columns are called `a`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import textwrap
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb

from minishark.compiler.sql.connection import aside
from minishark.compiler.sql.tokens import sql_tokens
from minishark.dataframe.column import (
    Column,
    Correlated,
    InputFile,
    Kind,
    Level,
    Meanings,
    Outer,
    Reference,
    Resolve,
    has_meanings,
    only_reference,
)
from minishark.dataframe.generated_functions import PREFIX, declare
from minishark.dataframe.names import ident, name_parts, no_column, readable
from minishark.dataframe.subqueries import mark, new_alias
from minishark.errors import ColumnError, OptionError, UnsupportedError
from minishark.model.expressions import Schema, numbered, quote_text

_LINE_MAX = 88
# Of chains of verbs, which are not indented, as each level would add to every line, and not bound
# again with each verb.
_LONG_TEXT = 4_000
_MANY_CONDITIONS = 40
_WITH_FIELDS = ("STRUCT(", "MAP(", "UNION(", "JSON", "VARIANT")
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
_NUMBERS = (*_INTEGERS, *(f"U{name}" for name in _INTEGERS), "FLOAT", "DOUBLE", "BIGNUM")
# Operators that bind less tightly than AND.
_LOOSE = re.compile(r"\bOR\b", re.IGNORECASE)
_READERS = ("read_parquet(", "read_csv(", "read_json(")
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column of a DataFrame."""

    name: str  # what users call it
    type: str
    ids: frozenset[int]  # its identities; a USING column has those of both sides
    qualifiers: frozenset[str] = frozenset()  # aliases of DataFrames, in lower case


def new_attribute(name: str, type_: str = "") -> Attribute:
    return Attribute(name, type_, frozenset({next(_numbers)}))


@dataclass(frozen=True, slots=True)
class Scoped:
    """A column in the scope of FROM."""

    attribute: Attribute
    relation: str  # the alias of its relation; empty if it has none
    name: str  # its name in the relation
    merged: str = ""  # its SQL if it is a USING column, which belongs to no relation

    @property
    def renamed(self) -> bool:
        return self.name != self.attribute.name


@dataclass(frozen=True, slots=True)
class Source:
    """The FROM clause."""

    sql: str
    columns: tuple[Scoped, ...]  # its columns, in the order of `*`
    relations: tuple[str, ...] = ()  # the aliases in it
    query: str = ""
    meanings: Meanings = field(default_factory=dict, compare=False)  # `Dialect.meanings`

    def texts(self) -> tuple[str, ...]:
        """The SQL of each column, qualified only where its name alone is ambiguous."""
        count: dict[str, int] = {}
        for column in self.columns:
            count[column.name.lower()] = count.get(column.name.lower(), 0) + 1

        def text(column: Scoped) -> str:
            unique = count[column.name.lower()] == 1 or not column.relation
            prefix = "" if unique else f"{ident(column.relation)}."
            return column.merged or f"{prefix}{ident(column.name)}"

        return tuple(map(text, self.columns))

    def outline(self) -> Source:
        """See `Select.outline`."""
        is_typed = all(column.attribute.type for column in self.columns)
        if len(self.query) < _LONG_TEXT or not is_typed:
            return self
        nulls = [f"NULL::{c.attribute.type} AS {ident(c.name)}" for c in self.columns]
        alias = f" AS {ident(self.relations[0])}" if self.relations else ""
        return replace(self, sql=f"(SELECT {', '.join(nulls)}){alias}", query="")

    def file_name(self) -> str:
        """The SQL of the name of the file that a row is from.

        Raises:
            UnsupportedError: it is not a function that reads files, whose rows know that.
        """
        if not self.sql.startswith(_READERS):
            raise UnsupportedError(
                "input_file_name() is known of rows right after session.read.parquet(), csv() and "
                "json(): add it as a column there, before other verbs."
            )
        return "filename"


@dataclass(frozen=True, slots=True)
class Item:
    """An item of the select list."""

    attribute: Attribute
    sql: str
    plain: bool = False  # whether that is a column of FROM
    aliased: bool = False  # whether AS names it
    kind: Kind = Kind.ROW  # which SELECTs the expression may stand in

    def text(self) -> str:
        return f"{self.sql} AS {ident(self.attribute.name)}" if self.aliased else self.sql

    def called(self, name: str | None) -> Item:
        """The same under another name; None for the same name."""
        if name is None or name == self.attribute.name:
            return self
        return replace(self, attribute=replace(self.attribute, name=name), aliased=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Select:
    """A SELECT whose clauses are resolved SQL text."""

    source: Source
    items: tuple[Item, ...]  # the select list
    where: tuple[str, ...] = ()  # conditions, combined with AND
    group_by: str = ""  # the text after GROUP BY
    distinct: str = ""  # DISTINCT or DISTINCT ON (...)
    order_by: tuple[str, ...] = ()
    limit: int | None = None  # rows at most; None for all
    offset: int = 0  # rows to skip

    # Properties

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        return tuple(item.attribute for item in self.items)

    @property
    def is_cut(self) -> bool:
        """Whether LIMIT or OFFSET applies, so that the order decides which rows it has."""
        return self.limit is not None or bool(self.offset)

    @property
    def is_open(self) -> bool:
        """Whether it has no clause that SQL evaluates after FROM, WHERE and the select list."""
        return not (self.group_by or self.distinct or self.order_by or self.is_cut)

    @property
    def is_whole(self) -> bool:
        """Whether its columns are those of FROM, perhaps renamed to what users call them."""
        return self.items == select_from(self.source).items

    @property
    def is_star(self) -> bool:
        return self.is_whole and not any(column.renamed for column in self.source.columns)

    @property
    def is_bare(self) -> bool:
        """Whether it passes FROM on unchanged."""
        return self.is_open and not self.where and self.is_whole

    # Derived SELECTs

    def outline(self) -> Select:
        """This without what earlier verbs of a long chain have added, and DuckDB has bound.

        A subquery is a stand-in with columns of the same types, and of conditions the last is
        left, as verbs add one at a time. The columns are the same.
        """
        source = self.source.outline()
        where = self.where if len(self.where) < _MANY_CONDITIONS else self.where[-1:]
        if source is self.source and where is self.where:
            return self
        return replace(self, source=source, where=where)

    def _name_elsewhere(self, column: Column) -> str:
        """What DuckDB calls an expression without the meanings that it has here."""
        named = tuple((attribute.name, attribute.type) for attribute in self.attributes)
        name, _ = _bound(column.sql(_Names(_Resolver(self))), named)
        return readable(name or column.sql(lambda reference: reference.name))

    def nested(self) -> Select:
        """A SELECT of all columns of this one as a subquery."""
        return self if self.is_bare else select_from(self._subquery())

    def _subquery(self, alias: str = "") -> Source:
        made = as_subquery(self.sql(), self.attributes, alias)
        return replace(made, meanings=self.source.meanings)

    def as_relation(self, alias: str) -> Source:
        """This as a relation with an alias; a plain table needs no subquery for that."""
        source = self.source
        unnamed = not source.relations or source.sql == ident(source.relations[0])
        if not self.is_bare or source.query or len(source.relations) > 1 or not unnamed:
            return self._subquery(alias)
        columns = tuple(replace(column, relation=alias) for column in source.columns)
        text = f"{source.sql} AS {ident(alias)}"
        return Source(text, columns, (alias,), meanings=source.meanings)

    def aliased(self, name: str, *, in_sql: bool = True) -> Select:
        """The same columns with identities of their own; with `in_sql`, SQL text can use `name`."""
        source = self.as_relation(name) if in_sql else self.nested().source
        columns = []
        for column in source.columns:
            ids = column.attribute.ids | {next(_numbers)}
            called = replace(column.attribute, ids=ids, qualifiers=frozenset({name.lower()}))
            columns.append(replace(column, attribute=called))
        return select_from(replace(source, columns=tuple(columns)))

    def item(self, column: Column) -> Item:
        reference = only_reference(column)
        if reference is not None:
            index, fields = self.find(reference)
            if not fields:
                return self.items[index].called(column.name)
            # As in PySpark, a field keeps its name.
            column = replace(column, name=column.name or fields[-1])
        if column.name is None and self.source.meanings and has_meanings(column):
            column = replace(column, name=self._name_elsewhere(column))
        return Item(
            new_attribute(column.name or ""),
            column.sql(self.resolve),
            aliased=column.name is not None,
            kind=column.kind,
        )

    def opened(self, columns: Iterable[Column], *, filtering: bool = False) -> Select:
        """This SELECT if expressions can be added to it, else one with it as a subquery."""
        # With `filtering` they go to WHERE, which is evaluated before the select list.
        columns = tuple(columns)
        if any(column.is_correlated for column in columns):
            return select_from(self.as_relation(new_alias()))
        # Beside an aggregate, a new expression would need GROUP BY; beside unnest, it would run on
        # other rows.
        fits = self.is_open and all(item.kind is Kind.ROW for item in self.items)
        if any(column.kind is Kind.FREE for column in columns):
            # The user's text may name any column, and in this SELECT would see those of FROM.
            fits = fits and self.is_star
        if filtering:
            # WHERE would remove rows that the windows among the items see.
            fits = fits and all(item.plain for item in self.items)
        # A select list can't reference its own computed items.
        named = (self.items[self.find(ref)[0]] for c in columns for ref in c.references)
        return self if all(item.plain for item in named) and fits else self.nested()

    def sorted(self, keys: Sequence[Column]) -> Select:
        """The rows sorted by `keys`; an earlier order that nothing depends on is dropped."""
        # LIMIT and DISTINCT ON depend on an earlier order; nothing else does.
        again = bool(self.order_by) and not self.is_cut and not self.distinct
        inner = replace(self, order_by=()) if again else self
        inner = inner.nested() if inner.is_cut or inner.order_by else inner
        texts = [inner.sort_text(key) for key in keys]
        if not all(texts):
            inner = inner.nested()
            texts = [key.sort_key(inner.resolve) for key in keys]
        return replace(inner, order_by=tuple(texts))

    def sorted_by_hidden(self, keys: Sequence[Column]) -> Select | None:
        """The rows sorted by columns of FROM that are not among these; None if all are."""
        if not self.is_open or any(item.kind is not Kind.ROW for item in self.items):
            return None
        try:
            for reference in (reference for key in keys for reference in key.references):
                self.find(reference)
        except ColumnError:
            whole = select_from(self.source)
            with contextlib.suppress(ColumnError):
                return replace(self, order_by=tuple(key.sort_key(whole.resolve) for key in keys))
        return None

    def sort_text(self, key: Column) -> str:
        """A sort key for ORDER BY of this SELECT; empty if it needs a subquery."""
        names = [attribute.name.lower() for attribute in self.attributes]
        reference = only_reference(key)
        if reference is not None:
            # ORDER BY resolves a name to a select alias first, so the alias must be unique.
            index, fields = self.find(reference)
            item = self.items[index]
            if fields or not (item.plain or item.aliased) or names.count(names[index]) > 1:
                return ""
            name = ident(item.attribute.name) if item.aliased else item.sql
            return f"{name} {key.order}".rstrip()
        # An expression in ORDER BY resolves names to aliases, too: so there must be none.
        unchanged = all(item.plain and not item.aliased for item in self.items)
        if not (self.is_open and unchanged) or (key.kind is Kind.FREE and not self.is_star):
            return ""
        return key.sort_key(self.resolve)

    def limited(self, count: int) -> Select:
        """The first `count` rows; SQL applies OFFSET before LIMIT."""
        count = _row_count(count, "limit")
        return replace(self, limit=count if self.limit is None else min(count, self.limit))

    def skipped(self, count: int) -> Select:
        inner = self if self.limit is None else self.nested()
        return replace(inner, offset=inner.offset + _row_count(count, "offset"))

    def typed(self, schema: Schema) -> Select:
        """The same with the names and types that DuckDB bound."""
        if len(schema) != len(self.items):
            raise ColumnError("An expression must be one column here; pass several as several.")
        items = []
        for item, column in zip(self.items, schema, strict=True):
            attribute = replace(item.attribute, name=column.name, type=column.type)
            # DuckDB names an expression by its SQL; users see it as they typed it.
            named = item.plain or item.aliased or item.kind is Kind.FREE
            short = None if named else readable(column.name)
            items.append(replace(item, attribute=attribute).called(short))
        return replace(self, items=tuple(items))

    # Names

    def find(self, reference: Reference) -> tuple[int, tuple[str, ...]]:
        """The position of the referenced column, and the path of struct fields below it."""
        attributes = self.attributes
        if reference.id is not None:
            places = [i for i, a in enumerate(attributes) if reference.id in a.ids]
            return _only(places, reference, attributes), ()
        parts = name_parts(reference.name)
        # The longest column name wins, as names may have dots: then fewer parts are fields.
        for fields in range(len(parts)):
            head = parts[: len(parts) - fields]
            places = [i for i, a in enumerate(attributes) if _is_called(a, head)]
            places = [
                i for i in places if not fields or attributes[i].type.startswith(_WITH_FIELDS)
            ]
            if places:
                return _only(places, reference, attributes), tuple(parts[len(head) :])
        return _only([], reference, attributes), ()

    def column(self, name: str) -> Column:
        """A column by its name, which means it in all that is derived from this SELECT."""
        index, fields = self.find(Reference(name))
        if fields:
            return Column((Reference(name),), level=Level.ATOM)
        return self.column_at(index, name)

    def column_at(self, index: int, name: str = "") -> Column:
        """The column at a position from 0; `name` is how it was written."""
        # The newest identity is the one that no other DataFrame's column has.
        attribute = self.attributes[index]
        reference = Reference(name or attribute.name, max(attribute.ids))
        return Column((reference,), level=Level.ATOM)

    @property
    def resolve(self) -> Resolve:
        """Renders references to columns of this SELECT as SQL."""
        return _Resolver(self)

    # Text

    def sql(self) -> str:
        if self.is_bare and self.source.query:
            return self.source.query
        distinct = f"{self.distinct} " if self.distinct else ""
        lines = [f"SELECT {distinct}{self._items_sql()}", f"FROM {self.source.sql}"]
        if self.where:
            lines += [f"WHERE {_conjunction(self.where)}"]
        if self.group_by:
            lines += [f"GROUP BY {self.group_by}"]
        if self.order_by:
            lines += [f"ORDER BY {_folded(self.order_by, ', ')}"]
        if self.limit is not None:
            lines += [f"LIMIT {self.limit}"]
        if self.offset:
            lines += [f"OFFSET {self.offset}"]
        return "\n".join(lines)

    def _items_sql(self) -> str:
        if self.is_star:
            return "*"
        listed = [item.text() for item in self.items]
        # `*` with EXCLUDE and REPLACE goes by names, which are unique in one relation only.
        starred = self._starred() if len(self.source.relations) <= 1 else listed
        return _folded(min(listed, starred, key=lambda texts: len(", ".join(texts))), ", ")

    def _starred(self) -> list[str]:
        """The select list as `*` with EXCLUDE and REPLACE, and the items after it."""
        excluded, replaced, rest = [], [], list(self.items)
        later = {item.sql for item in self.items if item.plain}
        for text, column in zip(self.source.texts(), self.source.columns, strict=True):
            first = rest[0] if rest else None
            # REPLACE keeps a name as it is in FROM.
            same = first is not None and first.attribute.name == column.name
            if first is not None and same and first.plain and first.sql == text:
                rest.pop(0)
            elif first is not None and same and first.aliased and text not in later:
                replaced.append(rest.pop(0).text())
            else:
                excluded.append(ident(column.name))
        star = "*" + (f" EXCLUDE ({', '.join(excluded)})" if excluded else "")
        star += f" REPLACE ({', '.join(replaced)})" if replaced else ""
        return [star, *(item.text() for item in rest)]


@dataclass(frozen=True, slots=True)
class _Resolver:
    """References and types in the scope of a SELECT."""

    select: Select

    @property
    def meanings(self) -> Meanings:
        return self.select.source.meanings

    def __call__(self, reference: Reference | InputFile | Outer | Correlated) -> str:
        match reference:
            case InputFile():
                return self.select.source.file_name()
            case Outer():
                return mark(reference)
            case Correlated(outer):
                index, fields = self.select.find(outer.reference)
                column = self.select.source.columns[index]
                whole = f"{ident(column.relation)}.{ident(column.name)}"
                return whole + "".join(f"[{quote_text(field)}]" for field in fields)
        index, fields = self.select.find(reference)
        return self.select.items[index].sql + "".join(f"[{quote_text(field)}]" for field in fields)

    def type_of(self, column: Column) -> str:
        """The DuckDB type of an expression; empty if only the session knows what it calls."""
        reference = only_reference(column)
        if reference is not None:
            index, fields = self.select.find(reference)
            if not fields:
                return self.select.items[index].attribute.type
        types = enumerate(attribute.type for attribute in self.select.attributes)
        columns = tuple((f"c{index}", type_) for index, type_ in types)
        _, type_ = _bound(column.sql(_Positions(self, self.meanings)), columns)
        if type_ or not self.meanings:  # which may call what only the session has
            return type_
        return _bound(column.sql(_Positions(self)), columns)[1]


@dataclass(frozen=True, slots=True)
class _Positions:
    """As `_Resolver`, with columns called by their positions: c0, c1 ..."""

    inner: _Resolver
    meanings: Meanings = field(default_factory=dict)

    def __call__(self, reference: Reference | InputFile | Outer | Correlated) -> str:
        match reference:
            case InputFile():
                return "''"
            case Outer():
                return "NULL"
            case Correlated(outer):
                reference = outer.reference
        index, fields = self.inner.select.find(reference)
        return f"c{index}" + "".join(f"[{quote_text(field)}]" for field in fields)

    def type_of(self, column: Column) -> str:
        return self.inner.type_of(column)


@dataclass(frozen=True, slots=True)
class _Names(_Positions):
    """As `_Resolver`, with columns called by their names, and no meanings."""

    def __call__(self, reference: Reference | InputFile | Outer | Correlated) -> str:
        if not isinstance(reference, Reference):
            return _Positions.__call__(self, reference)
        index, fields = self.inner.select.find(reference)
        name = ident(self.inner.select.attributes[index].name)
        return name + "".join(f"[{quote_text(field)}]" for field in fields)


@functools.lru_cache(maxsize=256)
def _bound(sql: str, columns: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    """The name and the type of an expression over columns; empty texts if it does not bind."""
    nulls = ", ".join(f"NULL::{type_} AS {ident(name)}" for name, type_ in columns)
    with duckdb.connect() if PREFIX in sql else aside() as connection:
        try:
            declare(connection, sql)
            bound = connection.sql(f"SELECT {sql} FROM (SELECT {nulls or 'NULL'})")
            return bound.columns[0], str(bound.types[0])
        except duckdb.Error:
            return "", ""


class QueryText:
    """A query in the user's SQL; it becomes a Select only when a verb builds on it."""

    __slots__ = ("_lock", "_select", "_sql", "schema")

    def __init__(self, sql: str, schema: Schema) -> None:
        self._sql = sql
        self.schema = schema
        self._select: Select | None = None
        self._lock = threading.Lock()

    def sql(self) -> str:
        return self._sql

    def select(self) -> Select:
        with self._lock:
            if self._select is None:
                self._select = statement(self._sql, self.schema)
            return self._select


def select_from(source: Source) -> Select:
    pairs = zip(source.columns, source.texts(), strict=True)
    items = tuple(plain_item(column, text) for column, text in pairs)
    return Select(source=source, items=items)


def plain_item(column: Scoped, text: str) -> Item:
    return Item(column.attribute, text, plain=True, aliased=column.renamed)


def relation(sql: str, schema: Schema, alias: str = "") -> Select:
    """All columns of a table, or of a function in FROM."""
    columns = _scoped(_new_attributes(schema), alias)
    return select_from(Source(sql, columns, (alias,) if alias else ()))


def statement(sql: str, schema: Schema) -> Select:
    return select_from(as_subquery(sql, _new_attributes(schema)))


def _new_attributes(schema: Schema) -> list[Attribute]:
    return [new_attribute(column.name, column.type) for column in schema]


def _scoped(attributes: Sequence[Attribute], alias: str) -> tuple[Scoped, ...]:
    """The columns of a relation, whose names there must be unique."""
    names = numbered(attribute.name for attribute in attributes)
    return tuple(Scoped(plain, alias, name) for plain, name in zip(attributes, names, strict=True))


def as_subquery(query: str, attributes: Sequence[Attribute], alias: str = "") -> Source:
    columns = _scoped(attributes, alias)
    if any(column.renamed for column in columns):
        names = ", ".join(ident(column.name) for column in columns)
        called = f" AS {ident(alias or 't')}({names})"
    else:
        called = f" AS {ident(alias)}" if alias else ""
    return Source(parenthesized(query) + called, columns, (alias,) if alias else (), query)


def _row_count(count: Any, verb: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise OptionError(f"{verb}() takes a whole number from 0.")
    return count


def _is_called(attribute: Attribute, parts: Sequence[str]) -> bool:
    folded = [part.lower() for part in parts]
    if ".".join(folded) == attribute.name.lower():
        return True
    qualified = folded[0] in attribute.qualifiers
    return qualified and ".".join(folded[1:]) == attribute.name.lower()


def _only(places: list[int], reference: Reference, attributes: Sequence[Attribute]) -> int:
    if len(places) == 1:
        return places[0]
    if places:
        raise ColumnError(
            f"Column {reference.name!r} is ambiguous: there are {len(places)} of it here. Name "
            'each DataFrame with alias("x") and write col("x.name"), or join on names.'
        )
    names = [attribute.name for attribute in attributes]
    if reference.id is not None:
        raise ColumnError(
            f"This column {reference.name!r} belongs to a DataFrame that is no part of this one; "
            f"the columns here are {', '.join(names)}."
        )
    raise ColumnError(no_column(reference.name, names))


def is_number(type_: str) -> bool:
    return type_ in _NUMBERS or (type_.startswith("DECIMAL(") and not type_.endswith("]"))


def parenthesized(query: str) -> str:
    """A query in parentheses, indented unless it is long, or that would change a literal."""
    if "\n" not in query and len(query) < _LINE_MAX and "--" not in query:
        return f"({query})"
    is_long = len(query) > _LONG_TEXT
    is_fixed = is_long or any("\n" in token.text for token in sql_tokens(query))
    inside = query if is_fixed else textwrap.indent(query, "  ")
    return f"(\n{inside}\n)"


def _folded(texts: Sequence[str], separator: str) -> str:
    """A list on one line, or one item per line if it is long."""
    line = separator.join(texts)
    return line if len(line) < _LINE_MAX else f"{separator.rstrip()}\n  ".join(texts)


def _conjunction(conditions: Sequence[str]) -> str:
    if len(conditions) == 1:
        return conditions[0]
    return _folded([f"({c})" if _LOOSE.search(c) else c for c in conditions], " AND ")
