"""Rows of a DataFrame as text and HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import pyarrow as pa
from rich.cells import cell_len

from minishark.display import is_number, padded, printable, text_rows


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
        "<tr>" + "".join(_cell(v, r) for v, r in zip(row, rights, strict=True)) + "</tr>"
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


def html_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(header, 'th')}</thead><tbody>{body}</tbody></table>"


def _cell(value: str | None, right: bool) -> str:
    text = "<i>NULL</i>" if value is None else html.escape(value)
    return f'<td style="text-align: right">{text}</td>' if right else f"<td>{text}</td>"
