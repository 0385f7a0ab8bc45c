"""Arrow tables as text on a terminal."""

from __future__ import annotations

import duckdb
import pyarrow as pa
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_table(table: pa.Table, console: Console, *, rows_max: int | None) -> None:
    """Prints an answer, with its values as DuckDB writes them.

    Args:
        table: The answer.
        console: Where to.
        rows_max: How many rows to show at most; None shows all.
    """
    shown = table if rows_max is None else table.slice(0, rows_max)
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for field in table.schema:
        numeric = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        right = numeric or pa.types.is_decimal(field.type)
        grid.add_column(_printable(field.name), justify="right" if right else "left")
    for row in _as_text(shown):
        grid.add_row(*(_cell(value) for value in row))
    console.print(grid)
    cut = "" if shown.num_rows == table.num_rows else f", the first {shown.num_rows:,} shown"
    unit = "row" if table.num_rows == 1 else "rows"
    console.print(f"{table.num_rows:,} {unit}{cut}")


def _as_text(table: pa.Table) -> list[tuple[str | None, ...]]:
    with duckdb.connect() as connection:
        # Python has no dates beyond the year 9999 and no nanoseconds; DuckDB's text has.
        connection.register("answer", table)
        return connection.execute("SELECT COLUMNS(*)::VARCHAR FROM answer").fetchall()


def _cell(value: str | None) -> Text:
    return Text("NULL", style="dim") if value is None else _printable(value)


def _printable(text: str) -> Text:
    """Text that can't move the cursor, nor be taken for markup."""
    return Text("".join(char if char.isprintable() else repr(char)[1:-1] for char in text))
