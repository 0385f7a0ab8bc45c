"""Row: a row of an answer, as a tuple with named values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Self

import pyarrow as pa

from minishark.dataframe.names import no_column
from minishark.dataframe.variants import is_variant, variant_value
from minishark.errors import DataError, OptionError


class Row(tuple[Any, ...]):  # noqa: SLOT001 - a tuple can have no slots
    """A row: a tuple whose values can be accessed by name, too.

    A Row is equal to a tuple of its values, and to a dictionary of its names and values.

    Examples:
        >>> row = Row(name="Ada", age=36)
        >>> row.name, row["age"], row[-1], row == ("Ada", 36)
        ('Ada', 36, 36, True)
        >>> row
        Row(name='Ada', age=36)
        >>> dict(row)
        {'name': 'Ada', 'age': 36}
        >>> Person = Row("name", "age")
        >>> Person("Alan", 41)
        Row(name='Alan', age=41)
    """

    names: tuple[str, ...]

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """A row of named values; or of names alone, which is called with values to make rows."""
        if values and named:
            raise OptionError("Row() takes names with values, or names alone.")
        return (
            cls.of_names(tuple(named), tuple(named.values())) if named else cls.of_names((), values)
        )

    @classmethod
    def of_names(cls, names: Sequence[str], values: Sequence[Any]) -> Self:
        """A row of `values` called `names`, which need not be unique."""
        row = super().__new__(cls, values)
        row.names = tuple(names)
        return row

    def __call__(self, *values: Any) -> Self:
        """A row of these values, called as this row's values say."""
        if self.names or len(values) > len(self):
            raise OptionError(f"{self!r} can't be called with {len(values)} values.")
        return self.of_names(tuple(map(str, self))[: len(values)], values)

    def keys(self) -> tuple[str, ...]:
        """The names; makes `dict(row)` work."""
        return self.names

    def as_dict(self, recursive: bool = True) -> dict[str, Any]:
        """Names and values; with `recursive`, nested rows become dictionaries, too."""
        pairs = zip(self.names, self, strict=True)
        return {name: _plain(value) if recursive else value for name, value in pairs}

    def asDict(self, recursive: bool = False) -> dict[str, Any]:  # noqa: N802 - PySpark's name
        """As `as_dict`; nested rows stay Rows unless `recursive` is true, as in PySpark."""
        return self.as_dict(recursive)

    def __getitem__(self, key: Any) -> Any:
        """The value at a position or of a name; of a slice, a tuple.

        Raises:
            KeyError: no value, or more than one, has that name.
        """
        if not isinstance(key, str):
            return super().__getitem__(key)
        positions = [i for i, name in enumerate(self.names) if name == key]
        if len(positions) == 1:
            return super().__getitem__(positions[0])
        if positions:
            raise KeyError(f"{len(positions)} columns are called {key!r}; use a position.")
        raise KeyError(no_column(key, self.names))

    def __getattr__(self, name: str) -> Any:
        """The value of that name."""
        if name.startswith("__") or name == "names":
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(error.args[0], name=name) from None

    def __contains__(self, key: object) -> bool:
        """Whether there is such a name (as in PySpark), or such a value."""
        return key in self.names or super().__contains__(key)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, dict):
            return len(other) == len(self) and dict(zip(self.names, self, strict=True)) == other
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        if not self.names:
            return f"<Row({', '.join(map(repr, self))})>"
        pairs = zip(self.names, self, strict=True)
        return f"Row({', '.join(f'{name}={value!r}' for name, value in pairs)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (Row.of_names, (self.names, tuple(self)))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.names]


def _plain(value: Any) -> Any:
    match value:
        case Row():
            return value.as_dict()
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case _:
            return value


def rows_of(
    table: pa.Table, integers: Collection[str] = (), *, blob: type = bytes
) -> Iterator[Row]:
    """The rows of an Arrow table: structs as Rows, maps as dictionaries, `integers` as int.

    `integers` names decimal columns, which hold what Arrow has no integer type for.

    Raises:
        DataError: Python can't represent a value, for example a date after the year 9999.
    """
    names = tuple(table.column_names)
    converters = [
        _or_none(int)
        if field.name in integers
        else _or_none(blob)
        if pa.types.is_binary(field.type) and blob is not bytes
        else converter(field, Row.of_names)
        for field in table.schema
    ]
    for batch in table.to_batches():
        try:
            columns = [
                column.to_pylist() if convert is None else [*map(convert, column.to_pylist())]
                for column, convert in zip(batch.columns, converters, strict=True)
            ]
        except (ValueError, OverflowError, pa.ArrowException) as error:
            raise DataError(f"Python can't hold a value: {error}; use to_arrow().") from error
        values = zip(*columns, strict=True) if columns else [()] * batch.num_rows
        yield from (Row.of_names(names, row) for row in values)


def converter(
    of: pa.Field, struct: Callable[[tuple[str, ...], list[Any]], Any] | None = None
) -> Callable[[Any], Any] | None:
    """Converts pyarrow's Python values of a field; None for no change.

    Maps become dictionaries, variants their values; `struct` makes structs' values of names and
    values, which are dictionaries without it.
    """
    types, kind = pa.types, of.type
    if is_variant(of):
        return _or_none(variant_value)
    if isinstance(kind, pa.BaseExtensionType):
        return converter(of.with_type(kind.storage_type), struct)
    if types.is_struct(kind):
        names = tuple(field.name for field in kind)
        inner = [converter(field, struct) for field in kind]
        if struct is None and not any(inner):
            return None
        make = struct or (lambda names, values: dict(zip(names, values, strict=True)))
        return _or_none(
            lambda value: make(
                names, [f(v) if f else v for f, v in zip(inner, value.values(), strict=True)]
            )
        )
    if types.is_map(kind):
        key, item = (converter(f, struct) or _same for f in (kind.key_field, kind.item_field))
        return _or_none(lambda value: {key(k): item(v) for k, v in value})
    if hasattr(kind, "value_field"):
        element = converter(kind.value_field, struct)
        return None if element is None else _or_none(lambda value: [*map(element, value)])
    return None


def _same(value: Any) -> Any:
    return value


def _or_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)
