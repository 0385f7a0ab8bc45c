"""What calls for batches or rows take and give: arguments, and the declared columns."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from minishark.compiler.sql.connection import aside
from minishark.worker.columns import column_of
from minishark.worker.functions import (
    FunctionFailedError,
    as_arrow,
    check_names,
    conformed,
)

_ROWS = 4096  # that are converted together


class Shape(Protocol):
    """What a function is called with: it travels with the function."""

    @property
    def block_rows(self) -> int:
        """How many rows are converted together."""

    @property
    def of_rows(self) -> bool:
        """Whether there is a call for each row of a block, and not one for all."""

    def arguments(self, rows: pa.Table) -> Iterable[Any]:
        """What the function is called with for a block: one call after the other."""

    def accepted(self, value: Any, declared: Declared) -> Any:
        """What a call returned, if it can be what is declared: else an exception.

        It can be pickled.
        """

    def table(self, values: Sequence[Any], declared: Declared) -> pa.Table:
        """What the calls of a block returned, as a table; None for calls that failed."""


@dataclass(frozen=True, slots=True)
class Batches:
    """`fn(table) -> table`, for each batch of so many rows."""

    block_rows: int
    of_rows = False

    def arguments(self, rows: pa.Table) -> Iterable[pa.Table]:
        return (rows,)

    def accepted(self, value: Any, declared: Declared) -> pa.Table:
        return declared.checked(as_arrow(value))

    def table(self, values: Sequence[Any], declared: Declared) -> pa.Table:
        (table,) = values
        return table


@dataclass(frozen=True, slots=True)
class EachRow:
    """`fn(row) -> row`, for each row."""

    rows_of: Callable[[pa.Table], Iterable[Any]]
    block_rows: int = _ROWS
    of_rows = True

    def arguments(self, rows: pa.Table) -> Iterable[Any]:
        return self.rows_of(rows)

    def accepted(self, value: Any, declared: Declared) -> tuple[Any, ...]:
        return declared.row(value)

    def table(self, values: Sequence[Any], declared: Declared) -> pa.Table:
        return declared.checked(declared.table(values))


@dataclass(slots=True, kw_only=True)
class Declared:
    """The columns that a function declares, to check what it returns."""

    returns: Sequence[tuple[str, str]]
    label: str
    is_checked: bool  # whether values are compared now; else once, for all rows of the task
    names: list[str] = field(init=False)
    _types: list[pa.DataType] = field(default_factory=list)  # in Arrow
    _fitting: dict[pa.Schema, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = [name for name, _ in self.returns]

    def row(self, value: Any) -> tuple[Any, ...]:
        """The values of a row, in order.

        Raises:
            FunctionFailedError: they are not those of the declared columns.
        """
        names = getattr(value, "names", ()) or getattr(value, "_fields", ())
        if isinstance(value, tuple) and not names:
            if len(value) == len(self.names):
                return value
            raise FunctionFailedError(
                f"The function of {self.label} gave {len(value)} values; "
                f"its schema has {len(self.names)} columns."
            )
        if isinstance(value, tuple):
            value = dict(zip(names, value, strict=True))
        if isinstance(value, Mapping):
            check_names([*value], self.names, self.label)
            return tuple([value[name] for name in self.names])
        if isinstance(value, Coroutine):
            value.close()
            raise FunctionFailedError(
                f"The function of {self.label} gave a coroutine: define it with `async def`."
            )
        if len(self.names) == 1:
            return (value,)
        raise FunctionFailedError(
            f"The function of {self.label} gave a {type(value).__name__}; it must give a row: "
            "a tuple, a mapping or a Row."
        )

    def table(self, rows: Sequence[tuple[Any, ...] | None]) -> pa.Table:
        """Rows as a table; None as NULLs. Raises what their conversion raises."""
        if not self._types:
            nulls = ", ".join(f"CAST(NULL AS {type_})" for _, type_ in self.returns)
            with aside() as connection:
                self._types = connection.sql(f"SELECT {nulls}").to_arrow_table().schema.types
        nothing = (None,) * len(self.names)
        columns = zip(*(nothing if row is None else row for row in rows), strict=True)
        arrays = [
            _array(list(values), type_, is_map=wants.startswith("MAP("))
            for values, type_, (_, wants) in zip(columns, self._types, self.returns, strict=True)
        ]
        return pa.table(arrays, names=self.names)

    def checked(self, table: pa.Table) -> pa.Table:
        """The declared columns of a table.

        Raises:
            FunctionFailedError: they are not all there, or don't fit.
        """
        check_names(table.column_names, self.names, self.label)
        table = table.select(self.names)
        if self.is_checked and table.schema not in self._fitting:
            with aside() as connection:
                conformed(connection, [table], self.returns, self.label)
                types = [str(type_) for type_ in connection.from_arrow(table.slice(0, 0)).types]
            if types == [type_ for _, type_ in self.returns]:  # else it depends on the values
                self._fitting[table.schema] = None
        return table


def _array(values: list[Any], type_: pa.DataType, *, is_map: bool) -> pa.Array:
    """Python values as Arrow's, of a type only if that changes none of them."""
    if is_map:
        values = [[*value.items()] if isinstance(value, Mapping) else value for value in values]
    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    try:
        array = column_of(values)
    except (pa.ArrowException, OverflowError):
        if is_number:  # it would cut off fractions
            raise
        return pa.array(values, type_)
    if array.type == type_ or not (is_number and pa.types.is_integer(array.type)):
        return array
    try:
        return array.cast(type_)
    except pa.ArrowException:  # whoever checks what is declared says it better
        return array
