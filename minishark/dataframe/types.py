"""PySpark's types, for programs that name them: `StructType([StructField("a", LongType())])`.

Wherever minishark takes a type or a schema it takes these, their names ("bigint", "array<string>",
"struct<a:int>"), and DuckDB's ("BIGINT", "VARCHAR[]", "STRUCT(a INTEGER)").

>>> from minishark import types as T
>>> schema = T.StructType().add("id", T.LongType()).add("tags", T.ArrayType(T.StringType()))
>>> session.create_dataframe([(1, ["a"])], schema).dtypes
[('id', 'BIGINT'), ('tags', 'VARCHAR[]')]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from minishark.dataframe.row import Row
from minishark.errors import OptionError
from minishark.model.expressions import quote

_TOKEN = re.compile(r"`(?P<quoted>[^`]+)`|(?P<word>\w+)|(?P<mark>[<>(),:\[\]])")
# PySpark's names of types that DuckDB understands otherwise, or not at all.
_NAMES = {
    "byte": "TINYINT",
    "bool": "BOOLEAN",
    "int64": "BIGINT",
    "long": "BIGINT",
    "short": "SMALLINT",
    "string": "VARCHAR",
    "binary": "BLOB",
    "decimal": "DECIMAL(10, 0)",
    "dec": "DECIMAL(10, 0)",
    "timestamp_ntz": "TIMESTAMP",
    "timestamp_ltz": "TIMESTAMPTZ",
    "variant": "JSON",
    "void": '"NULL"',
}


def duckdb_type(text: str) -> str:
    """A type's name in PySpark as one in DuckDB; what is DuckDB's already is returned unchanged.

    Raises:
        OptionError: brackets do not match.
    """
    folded = text.strip().lower()
    if folded in _NAMES:
        return _NAMES[folded]
    if "<" not in text:
        return text
    words = _Words(text)
    type_ = words.type()
    if words.left:
        raise OptionError(f"{text!r} is no type: {words.left[0]!r} is not expected there.")
    return type_


def duckdb_schema(text: str) -> str:
    """Columns as PySpark writes them ("a: int, b array<int>") as DuckDB's "a INTEGER, b INTEGER[]".

    Raises:
        OptionError: brackets do not match.
    """
    folded = text.strip().lower()
    if folded.startswith("struct<"):
        text = text.strip()[len("struct<") : -1]
    words = _Words(text)
    return ", ".join(f"{quote(name)} {type_}" for name, type_ in words.fields())


class _Words:
    """The words of a type's name, which are read from the left."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.left = [
            token["quoted"] or token["word"] or token["mark"] for token in _TOKEN.finditer(text)
        ]

    def next(self, *expected: str) -> str:
        if not self.left or (expected and self.left[0] not in expected):
            hint = f"; {' or '.join(expected)} is missing" if expected else ""
            raise OptionError(f"{self.text!r} is no type{hint}.")
        return self.left.pop(0)

    def peek(self) -> str:
        return self.left[0] if self.left else ""

    def type(self) -> str:
        word = self.next()
        match word.lower():
            case "array" if self.peek() == "<":
                self.next("<")
                element = self.type()
                self.next(">")
                return f"{element}[]"
            case "map" if self.peek() == "<":
                self.next("<")
                key = self.type()
                self.next(",")
                item = self.type()
                self.next(">")
                return f"MAP({key}, {item})"
            case "struct" if self.peek() == "<":
                self.next("<")
                fields = ", ".join(f"{quote(name)} {type_}" for name, type_ in self.fields())
                self.next(">")
                return f"STRUCT({fields})"
        return self._atomic(word)

    def _atomic(self, word: str) -> str:
        text = word
        while self.peek() and self.peek() not in {"<", ">", ",", ":"}:
            mark = self.next()
            text += f" {mark}" if mark not in "()[]" and text[-1] not in "([" else mark
            if mark == "(":
                while self.peek() not in ("", ")"):
                    text += self.next()
        return _NAMES.get(text.lower(), text)

    def fields(self) -> Iterator[tuple[str, str]]:
        while self.peek() not in ("", ">"):
            name = self.next()
            if self.peek() == ":":
                self.next(":")
            type_ = self.type()
            yield name, re.sub(r"(?i) (not null|comment .*)$", "", type_)
            if self.peek() != ",":
                return
            self.next(",")


class DataType:
    """A type of values."""

    _name: ClassVar[str] = ""  # PySpark's
    _sql: ClassVar[str] = ""  # DuckDB's

    def sql(self) -> str:
        """The type's name in DuckDB."""
        return self._sql

    def simpleString(self) -> str:  # noqa: N802 - PySpark's name
        """The type's name in PySpark."""
        return self._name

    @classmethod
    def typeName(cls) -> str:  # noqa: N802 - PySpark's name
        """The kind of type, in lower case."""
        return cls.__name__.removesuffix("Type").lower()

    def __repr__(self) -> str:
        parts = (repr(part) for name, part in vars(self).items() if name != "metadata")
        return f"{type(self).__name__}({', '.join(parts)})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(repr(self))


def _atomic(class_name: str, name: str, sql: str) -> type[DataType]:
    """A type without parameters."""
    doc = f"PySpark's `{name}`, DuckDB's {sql}."
    return type(class_name, (DataType,), {"_name": name, "_sql": sql, "__doc__": doc})


StringType = _atomic("StringType", "string", "VARCHAR")
BinaryType = _atomic("BinaryType", "binary", "BLOB")
BooleanType = _atomic("BooleanType", "boolean", "BOOLEAN")
ByteType = _atomic("ByteType", "tinyint", "TINYINT")
ShortType = _atomic("ShortType", "smallint", "SMALLINT")
IntegerType = _atomic("IntegerType", "int", "INTEGER")
LongType = _atomic("LongType", "bigint", "BIGINT")
FloatType = _atomic("FloatType", "float", "FLOAT")
DoubleType = _atomic("DoubleType", "double", "DOUBLE")
DateType = _atomic("DateType", "date", "DATE")
TimestampType = _atomic("TimestampType", "timestamp", "TIMESTAMP")
TimestampNTZType = _atomic("TimestampNTZType", "timestamp_ntz", "TIMESTAMP")
TimeType = _atomic("TimeType", "time", "TIME")
NullType = _atomic("NullType", "void", '"NULL"')
VariantType = _atomic("VariantType", "variant", "JSON")
CalendarIntervalType = _atomic("CalendarIntervalType", "interval", "INTERVAL")
DayTimeIntervalType = _atomic("DayTimeIntervalType", "interval day to second", "INTERVAL")
YearMonthIntervalType = _atomic("YearMonthIntervalType", "interval year to month", "INTERVAL")


@dataclass(eq=False, repr=False)
class CharType(DataType):
    """A text of a fixed length, which DuckDB does not check."""

    length: int
    _sql: ClassVar[str] = "VARCHAR"

    def simpleString(self) -> str:  # noqa: N802
        return f"char({self.length})"


@dataclass(eq=False, repr=False)
class VarcharType(DataType):
    """A text of at most a length, which DuckDB does not check."""

    length: int
    _sql: ClassVar[str] = "VARCHAR"

    def simpleString(self) -> str:  # noqa: N802
        return f"varchar({self.length})"


@dataclass(eq=False, repr=False)
class DecimalType(DataType):
    """A decimal of `precision` digits, `scale` of them after the point."""

    precision: int = 10
    scale: int = 0

    def sql(self) -> str:
        return f"DECIMAL({self.precision}, {self.scale})"

    def simpleString(self) -> str:  # noqa: N802
        return f"decimal({self.precision},{self.scale})"


@dataclass(eq=False, repr=False)
class ArrayType(DataType):
    """A list."""

    elementType: DataType  # noqa: N815 - PySpark's name
    containsNull: bool = True  # noqa: N815

    def sql(self) -> str:
        return f"{self.elementType.sql()}[]"

    def simpleString(self) -> str:  # noqa: N802
        return f"array<{self.elementType.simpleString()}>"


@dataclass(eq=False, repr=False)
class MapType(DataType):
    """A map."""

    keyType: DataType  # noqa: N815 - PySpark's name
    valueType: DataType  # noqa: N815
    valueContainsNull: bool = True  # noqa: N815

    def sql(self) -> str:
        return f"MAP({self.keyType.sql()}, {self.valueType.sql()})"

    def simpleString(self) -> str:  # noqa: N802
        return f"map<{self.keyType.simpleString()},{self.valueType.simpleString()}>"


@dataclass(eq=False, repr=False)
class StructField(DataType):
    """A column or a field; every one may be NULL, whatever `nullable` says."""

    name: str
    dataType: DataType  # noqa: N815 - PySpark's name
    nullable: bool = True
    metadata: Any = None

    def sql(self) -> str:
        return f"{quote(self.name)} {self.dataType.sql()}"

    def simpleString(self) -> str:  # noqa: N802
        return f"{self.name}:{self.dataType.simpleString()}"


class StructType(DataType):
    """The columns of a DataFrame, or a struct."""

    def __init__(self, fields: Sequence[StructField] | None = None) -> None:
        self.fields = list(fields or ())

    def add(
        self,
        field: str | StructField,
        data_type: DataType | str | None = None,
        nullable: bool = True,
        metadata: Any = None,
    ) -> StructType:
        """One more field, of a type or a type's name.

        Raises:
            OptionError: a name has no type.
        """
        if isinstance(field, str):
            if data_type is None:
                raise OptionError(f"add({field!r}) needs a type.")
            type_ = _Named(data_type) if isinstance(data_type, str) else data_type
            field = StructField(field, type_, nullable, metadata)
        self.fields.append(field)
        return self

    @property
    def names(self) -> list[str]:
        """The names of the fields."""
        return [field.name for field in self.fields]

    def fieldNames(self) -> list[str]:  # noqa: N802 - PySpark's name
        """The names of the fields."""
        return self.names

    def sql(self) -> str:
        return f"STRUCT({', '.join(field.sql() for field in self.fields)})"

    def simpleString(self) -> str:  # noqa: N802
        return f"struct<{','.join(field.simpleString() for field in self.fields)}>"

    def __iter__(self) -> Iterator[StructField]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return next(field for field in self.fields if field.name == key)
        return StructType(self.fields[key]) if isinstance(key, slice) else self.fields[key]

    def __repr__(self) -> str:
        return f"StructType({self.fields!r})"


class _Named(DataType):
    """A type by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def sql(self) -> str:
        return duckdb_type(self.name)

    def simpleString(self) -> str:  # noqa: N802
        return self.name


__all__ = [
    name
    for name, item in globals().items()
    if isinstance(item, type) and issubclass(item, DataType | Row) and not name.startswith("_")
]
