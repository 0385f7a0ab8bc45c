"""What text means to DataFrames, and how they show themselves: DuckDB's way, or an adapter's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from minishark.dataframe.column import Meanings
from minishark.dataframe.show import table_text

DTypes = list[tuple[str, str]]


class Dialect:
    """DuckDB's; adapters derive others. A session has one, and with it all its DataFrames."""

    is_sparks = False
    """Whether verbs do what Spark's do where others' programs expect something else: a pivot has
    NULL where there are no rows, drop() drops all columns of a name, quartiles are values of the
    column, and rows are sorted by columns that a projection has left out."""

    meanings: Meanings = {}  # noqa: RUF012 - it is not changed
    """What expressions of Columns are otherwise, of a Column and its type: `text` is a cast to a
    text, `item` an element by its position from 0, or by its key, `total` a sum
    or mean, `quotient` a quotient, of a struct of both sides."""

    blob: type = bytes
    """What blobs are in rows."""

    def statements(self, text: str) -> str:
        """DuckDB's SQL of statements."""
        return text

    def expression(self, text: str, *, named: bool = False) -> str:
        """DuckDB's SQL of an expression, such as `filter` takes; `named` ones may have AS."""
        del named
        return text

    def has_function(self, name: str) -> bool:
        """Whether texts have a function of that name, which DuckDB need not have."""
        del name
        return False

    def there(self, names: Sequence[Any], columns: Sequence[str]) -> Sequence[Any]:
        """Of the names that `drop` and `with_column_renamed` take, those that are looked up."""
        del columns
        return names

    def schema(self, schema: pa.Schema) -> Any:
        """What `DataFrame.schema` is."""
        return schema

    def dtypes(self, dtypes: DTypes, schema: Callable[[], pa.Schema]) -> DTypes:
        """What `DataFrame.dtypes` is; `dtypes` has DuckDB's names of types."""
        del schema
        return dtypes

    def tree(self, dtypes: DTypes, schema: Callable[[], pa.Schema], depth: int | None) -> str:
        """What `print_schema` prints."""
        del schema, depth
        return "\n".join(["root", *(f" |-- {name}: {type_}" for name, type_ in dtypes)])

    def table_text(self, table: pa.Table, count: int, *, width: int, vertical: bool) -> str:
        """What `show` prints; see `show.table_text`."""
        return table_text(table, count, width=width, vertical=vertical)


DUCKDB = Dialect()
