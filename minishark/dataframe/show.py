"""Arrow tables as text and HTML: on terminals, in prompts, in notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
from rich.cells import cell_len, set_cell_size

from minishark.compiler.sql.connection import ConnectionUse

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


_CELL_MIN = 8
_GAP = "  "
_CUT = "…"
_FETCHED_ROWS = 10_000


def print_table(table: pa.Table, console: Console, *, rows_max: int | None, note: str = "") -> None:
    """Print an answer as a table that fits the width of the terminal, if there is one."""
    # Values are formatted by DuckDB. Wide columns are truncated first, then columns in the middle
    # are left out. The last line has the number of rows and the `note`, such as the elapsed time.
    shown = table if rows_max is None else table.slice(0, rows_max)
    columns = [
        ["NULL" if value is None else printable(value) for value in column]
        for column in zip(table.column_names, *text_rows(shown), strict=True)
    ]
    numbers = [is_number(type_) for type_ in table.schema.types]
    widths = fitting_widths(
        [max(map(cell_len, column)) for column in columns],
        numbers,
        console.width if console.is_terminal else None,
    )
    if columns:
        nulls = [column.is_null() for column in shown.columns]
        for line in _lines(columns, widths, numbers, nulls):
            console.print(line, soft_wrap=True)
    console.print(
        f"{_counts(table, shown, widths)}{note}", style="dim", highlight=False, soft_wrap=True
    )


def fitting_widths(
    natural: Sequence[int], rigid: Sequence[bool], width: int | None
) -> dict[int, int]:
    """The width of each column that is shown, by position; `width` None is no limit."""
    # What is `rigid` must not be truncated: a truncated number would mislead.
    if width is None:
        return dict(enumerate(natural))
    narrowest = [
        each if is_rigid else min(each, _CELL_MIN)
        for each, is_rigid in zip(natural, rigid, strict=True)
    ]
    kept = _kept(narrowest, width)
    left_out = len(kept) < len(natural)
    room = width - len(_GAP) * (len(kept) - 1) - left_out * (len(_GAP) + len(_CUT))
    widths = {i: min(narrowest[i], max(room, _CELL_MIN)) for i in kept}
    growing = [i for i in kept if widths[i] < natural[i]]
    while growing and sum(widths.values()) < room:
        smallest = min(growing, key=widths.__getitem__)
        widths[smallest] += 1
        if widths[smallest] == natural[smallest]:
            growing.remove(smallest)
    return widths


def _kept(widths: Sequence[int], width: int) -> list[int]:
    """The columns that fit, taken from both ends in turn; always the first one."""
    if sum(widths) + len(_GAP) * (len(widths) - 1) <= width:
        return list(range(len(widths)))
    room = width - len(_CUT)
    first, last, kept = 0, len(widths) - 1, list[int]()
    while first <= last:
        position = first if len(kept) % 2 == 0 else last
        room -= widths[position] + len(_GAP)
        if room < 0 and kept:
            break
        kept.append(position)
        first, last = (first + 1, last) if position == first else (first, last - 1)
    return sorted(kept)


def _lines(
    columns: Sequence[Sequence[str]],
    widths: dict[int, int],
    right: Sequence[bool],
    nulls: Sequence[pa.ChunkedArray],
) -> Iterator[Text]:
    """The header, a rule, then one line per row."""
    missing = [i for i in widths if i + 1 < len(columns) and i + 1 not in widths]
    null = {i: nulls[i].to_pylist() for i in widths}
    yield _line(
        [(_cell(columns[i][0], widths[i], right[i]), "bold") for i in widths], missing, widths
    )
    yield _line([("─" * widths[i], "dim") for i in widths], missing, widths)
    for row in range(1, len(columns[0])):
        cells = [
            (_cell(columns[i][row], widths[i], right[i]), "dim" if null[i][row - 1] else "")
            for i in widths
        ]
        yield _line(cells, missing, widths)


def _line(cells: Sequence[tuple[str, str]], missing: Sequence[int], widths: dict[int, int]) -> Text:
    from rich.text import Text  # noqa: PLC0415 - slow to import, and not every program prints

    line = Text()
    for number, (i, (text, style)) in enumerate(zip(widths, cells, strict=True)):
        line.append(_GAP if number else "")
        line.append(text, style)
        if i in missing:
            line.append(f"{_GAP}{_CUT}", "dim")
    line.rstrip()
    return line


def _cell(text: str, width: int, right: bool) -> str:
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + _CUT
    return padded(text, width, right)


def padded(text: str, width: int, right: bool) -> str:
    """Text filled up with blanks to a width on the terminal."""
    blanks = " " * (width - cell_len(text))
    return blanks + text if right else text + blanks


def _counts(table: pa.Table, shown: pa.Table, widths: dict[int, int]) -> str:
    rows = f"{table.num_rows:,} {'row' if table.num_rows == 1 else 'rows'}"
    cut = [] if shown.num_rows == table.num_rows else [f"the first {shown.num_rows:,} shown"]
    if len(widths) < table.num_columns:
        cut.append(f"{len(widths)} of {table.num_columns} columns shown")
    return ", ".join([rows, *cut])


def is_number(type_: pa.DataType) -> bool:
    """Whether a type is numeric, so that its values are right-aligned."""
    return bool(
        pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    )


def text_rows(table: pa.Table) -> Iterator[tuple[str | None, ...]]:
    """The rows of an answer, with values formatted by DuckDB."""
    if not table.num_columns:
        yield from ((),) * table.num_rows
        return
    # By DuckDB, as Python has no dates beyond the year 9999 and no nanoseconds. Columns are
    # renamed because names may repeat.
    plain = table.rename_columns(list(map(str, range(table.num_columns))))
    yield from _queried(plain, "SELECT COLUMNS(*)::VARCHAR FROM answer")


def json_rows(table: pa.Table) -> Iterator[str]:
    """The rows of an answer as JSON objects; NaN and infinities as DuckDB writes them."""
    for (text,) in _queried(table, "SELECT to_json(answer)::VARCHAR FROM answer"):
        yield text


def _queried(table: pa.Table, query: str) -> Iterator[tuple[str, ...]]:
    with duckdb.connect() as connection, ConnectionUse(connection):
        zones = [f.type.tz for f in table.schema if pa.types.is_timestamp(f.type) and f.type.tz]
        if zones:
            connection.execute(f"SET TimeZone = '{zones[0]}'")
        connection.register("answer", table)
        answer = connection.execute(query)
        while rows := answer.fetchmany(_FETCHED_ROWS):
            yield from rows


def printable(text: str) -> str:
    """Text with control characters escaped, so that it can't move the cursor."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def human_bytes(size: float) -> str:
    """A size in the largest unit that fits."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit in ("B", "KB") else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


class PlanText(str):
    """A string whose repr is its text, so that prompts show it without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def table_text(table: pa.Table, count: int, *, width: int, vertical: bool) -> str:
    """The first rows; `table` has one more than `count` if there are more; `width` 0 is none."""
    names = [_cut(printable(name), width) for name in table.column_names]
    rows = [
        [_cut("NULL" if value is None else printable(value), width) for value in row]
        for row in text_rows(table.slice(0, count))
    ]
    lines = _vertical(names, rows) if vertical else _aligned(table.schema, names, rows)
    return "\n".join([*lines, row_note(table.num_rows, count)])


def row_note(found: int, count: int) -> str:
    """The number of rows, as far as known."""
    if found > count:
        return f"the first {count:,} rows; there are more"
    return "1 row" if found == 1 else f"{found:,} rows"


def _aligned(schema: pa.Schema, names: list[str], rows: list[list[str]]) -> list[str]:
    rights = [is_number(type_) for type_ in schema.types]
    widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
    columns = list(zip(widths, rights, strict=True))

    def line(cells: Sequence[str]) -> str:
        pairs = zip(cells, columns, strict=True)
        return "  ".join(padded(cell, width, right) for cell, (width, right) in pairs).rstrip()

    return [line(names), "  ".join("─" * width for width in widths), *map(line, rows)]


def _vertical(names: list[str], rows: list[list[str]]) -> list[str]:
    width = max(map(cell_len, names), default=0)
    lines = []
    for number, row in enumerate(rows, 1):
        lines.append(f"── row {number}")
        pairs = zip(names, row, strict=True)
        lines += [f"{padded(name, width, right=False)}  {cell}" for name, cell in pairs]
    return lines


def _cut(text: str, width: int) -> str:
    return text if not width or len(text) <= width else f"{text[: max(width - 1, 1)]}…"


def table_html(table: pa.Table, dtypes: Sequence[tuple[str, str]], count: int) -> str:
    """The first rows as a table for notebooks; the columns have their types."""
    rights = [is_number(field.type) for field in table.schema]
    rows = "".join(
        "<tr>" + "".join(_html_cell(v, r) for v, r in zip(row, rights, strict=True)) + "</tr>"
        for row in text_rows(table.slice(0, count))
    )
    note = html.escape(row_note(table.num_rows, count))
    return f"<table><thead>{_head(dtypes)}</thead><tbody>{rows}</tbody></table><p>{note}</p>"


def columns_html(dtypes: Sequence[tuple[str, str]], note: str) -> str:
    """The columns only, and why there are no rows."""
    return f"<table><thead>{_head(dtypes)}</thead></table><p>{html.escape(note)}</p>"


def _head(dtypes: Sequence[tuple[str, str]]) -> str:
    cells = (
        f"<th>{html.escape(name)}<br><small>{html.escape(type_)}</small></th>"
        for name, type_ in dtypes
    )
    return f"<tr>{''.join(cells)}</tr>"


def _html_cell(value: str | None, right: bool) -> str:
    text = "<i>NULL</i>" if value is None else html.escape(value)
    return f'<td style="text-align: right">{text}</td>' if right else f"<td>{text}</td>"
