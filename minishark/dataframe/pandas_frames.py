"""Answers as pandas frames, with the dtypes that DuckDB's `df()` gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from minishark.compiler.sql.connection import aside
from minishark.dataframe.names import ident
from minishark.errors import DataError, OptionError
from minishark.sources.optional import library

if TYPE_CHECKING:
    import pandas as pd

BACKENDS = ("numpy", "pyarrow")
# DuckDB has no numpy type for these.
_CASTS = {"BIGNUM": "VARCHAR", "TIME WITH TIME ZONE": "VARCHAR", "UHUGEINT": "DOUBLE"}


def pandas_frame(
    rows: pa.Table, dtypes: Sequence[tuple[str, str]] = (), backend: str = "numpy"
) -> pd.DataFrame:
    """Rows as a pandas frame.

    Args:
        rows: the rows; for numpy's dtypes, in DuckDB's lossless types.
        dtypes: the names and DuckDB types of the columns, as far as known.
        backend: "numpy" for the dtypes of DuckDB's `df()`, "pyarrow" for Arrow's.

    Raises:
        OptionError: pandas is not installed, or there is no such backend.
        DataError: numpy has no type for a column.
    """
    check_backend(backend)
    import pandas as pd  # noqa: PLC0415 - an optional dependency

    if backend == "pyarrow":
        frame: pd.DataFrame = rows.to_pandas(types_mapper=pd.ArrowDtype)
        return frame
    # Text is faster from Arrow: DuckDB makes a Python object of each value.
    is_text = [pa.types.is_string(field.type) for field in rows.schema]
    plain = rows.rename_columns(list(map(str, range(rows.num_columns))))
    others = [name for name, text in zip(plain.column_names, is_text, strict=True) if not text]
    types = dict(zip(plain.column_names, (type_ for _, type_ in dtypes), strict=False))
    converted = _by_duckdb(plain.select(others), types) if others else pd.DataFrame()
    columns = {
        position: plain.column(position).to_pandas() if text else converted[str(position)]
        for position, text in enumerate(is_text)
    }
    table = pd.DataFrame(columns, index=range(rows.num_rows), copy=False)
    table.columns = pd.Index(list(_distinct(rows.column_names)))
    return table


def check_backend(backend: str) -> None:
    """Raise OptionError unless pandas is installed and there is such a backend."""
    if backend not in BACKENDS:
        raise OptionError(
            f"There is no dtype backend {backend!r}: they are {' and '.join(BACKENDS)}. For "
            "pandas' nullable dtypes, call convert_dtypes() of the frame."
        )
    library("pandas", "pandas")


def _by_duckdb(rows: pa.Table, types: dict[str, str]) -> pd.DataFrame:
    with aside(large=True) as connection:
        zones = [f.type.tz for f in rows.schema if pa.types.is_timestamp(f.type) and f.type.tz]
        if zones:
            connection.execute(f"SET TimeZone = '{zones[0]}'")
        items = [
            f"{ident(name)}::{cast} AS {ident(name)}"
            if (cast := _cast(rows.schema.field(name).type, types.get(name, "")))
            else ident(name)
            for name in rows.column_names
        ]
        try:
            return connection.from_arrow(rows).project(", ".join(items)).df()
        except duckdb.Error as error:
            raise DataError(
                f"pandas can't hold a column: {error} Cast it in the query, or use to_arrow()."
            ) from error


def _cast(has: pa.DataType, type_: str) -> str:
    """To what a column is cast before its conversion; "" for nothing."""
    # Arrow's dictionaries come back as text, whose values DuckDB would not take for categories.
    return type_ if pa.types.is_dictionary(has) else _CASTS.get(type_, "")


def _distinct(names: Sequence[str]) -> Iterator[str]:
    """Names that differ, also in lower case, as DuckDB makes them: `a`, `a_1`."""
    taken: set[str] = set()
    for name in names:
        distinct, number = name, 0
        while distinct.lower() in taken:
            number += 1
            distinct = f"{name}_{number}"
        taken.add(distinct.lower())
        yield distinct
