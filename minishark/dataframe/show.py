"""Arrow tables as text and HTML: on terminals, in prompts, in notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from rich.cells import cell_len, set_cell_size

from minishark.compiler.sql.connection import aside
from minishark.sources.arrow_types import readable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


_CELL_MIN = 8
_GAP = "  "
_CUT = "…"
_FETCHED_ROWS = 10_000
_TYPE_MAX = 13  # characters of a type, unless the column is wider


def print_table(
    table: pa.Table,
    console: Console,
    *,
    rows_max: int | None,
    types: Sequence[str] = (),
    more: str = "",
    fits: bool = True,
    note: str = "",
) -> None:
    """Print an answer as a table.

    Values are formatted by DuckDB. Wide columns are truncated first, then columns in the middle are
    left out. The last line has the number of rows and the `note`, such as the elapsed time.

    Args:
        table: the rows.
        console: where to.
        rows_max: how many rows at most; None for all.
        types: of the columns, in DuckDB's terms, for the header on a terminal; none are fine.
        more: if there are more rows than those in `table`, what to say of them.
        fits: whether it has to fit the width of the terminal, if it is one.
        note: what follows the number of rows.
    """
    shown = table if rows_max is None else table.slice(0, rows_max)
    names = [printable(name) for name in table.column_names]
    heads = [names, types] if types and console.is_terminal else [names]
    width = console.width if console.is_terminal and fits else None
    columns = _Columns({}, [is_number(type_) for type_ in table.schema.types], width is not None)
    for start in range(0, max(shown.num_rows, 1), _FETCHED_ROWS):
        rows = shown.slice(start, _FETCHED_ROWS)
        cells = [["NULL" if v is None else printable(v) for v in row] for row in text_rows(rows)]
        if not start:  # all rows of a pager would be too many to measure
            columns.widths |= fitting_widths(_natural_widths(heads, cells), columns.right, width)
            for line in columns.head(heads) if names else ():
                console.print(line, soft_wrap=True)
        for line in columns.body(rows, cells):
            console.print(line, soft_wrap=True)
    counts = _counts(table, shown.num_rows, len(columns.widths), are_all=not more)
    rest = f"; {more}" if more else ""
    console.print(f"{counts}{note}{rest}", style="dim", highlight=False, soft_wrap=True)


def _natural_widths(heads: Sequence[Sequence[str]], cells: Sequence[Sequence[str]]) -> list[int]:
    """The widths of columns that show their names and values, and the beginning of long types."""
    names, *types = heads
    widths = [
        max(cell_len(name), *(min(cell_len(head[i]), _TYPE_MAX) for head in types), 0)
        for i, name in enumerate(names)
    ]
    for row in cells:
        widths = [max(width, cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
    return widths


def fitting_widths(
    natural: Sequence[int], rigid: Sequence[bool], width: int | None
) -> dict[int, int]:
    """The width of each column that is shown, by position; `width` None is no limit."""
    # What is `rigid` must not be truncated: a truncated number would mislead.
    if width is None:
        return dict(enumerate(natural))
    narrowest = [
        size if is_rigid else min(size, _CELL_MIN)
        for size, is_rigid in zip(natural, rigid, strict=True)
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


@dataclass(slots=True)
class _Columns:
    """How the columns of a table are shown.

    Attributes:
        widths: of those that are shown, by position.
        right: of all columns, whether they are right-aligned, as numbers are.
        cuts: whether text that is wider is cut, which never happens to numbers.
    """

    widths: dict[int, int]
    right: Sequence[bool]
    cuts: bool

    def head(self, heads: Sequence[Sequence[str]]) -> Iterator[Text]:
        """The names, perhaps the types, and a rule."""
        for head, style in zip(heads, ("bold", "dim"), strict=False):
            yield self._line(head, {}, style, cuts=True)
        yield self._line(["─" * self.widths.get(i, 0) for i in range(len(self.right))], {}, "dim")

    def body(self, rows: pa.Table, cells: Sequence[Sequence[str]]) -> Iterator[Text]:
        """A line for each row."""
        nulls = {i: rows.column(i).is_null().to_pylist() for i in self.widths}
        for number, row in enumerate(cells):
            yield self._line(row, {i: "dim" for i in self.widths if nulls[i][number]})

    def _line(
        self, cells: Sequence[str], styles: dict[int, str], style: str = "", *, cuts: bool = False
    ) -> Text:
        """A line, with a mark where columns are left out."""
        from rich.text import Text  # noqa: PLC0415 - slow to import, and not every program prints

        line = Text()
        for number, (i, width) in enumerate(self.widths.items()):
            cell, right = cells[i], self.right[i]
            if cell_len(cell) > width and (cuts or (self.cuts and not right)):
                cell = set_cell_size(cell, width - 1) + _CUT
            line.append(_GAP if number else "")
            line.append(padded(cell, width, right), styles.get(i, style))
            if i + 1 < len(self.right) and i + 1 not in self.widths:
                line.append(f"{_GAP}{_CUT}", "dim")
        line.rstrip()
        return line


def padded(text: str, width: int, right: bool) -> str:
    """Text filled up with blanks to a width on the terminal."""
    blanks = " " * (width - cell_len(text))
    return blanks + text if right else text + blanks


def _counts(table: pa.Table, rows: int, columns: int, *, are_all: bool) -> str:
    """The number of rows, and what of them is shown; `are_all`: whether `table` has all."""
    counted = [row_note(table.num_rows, table.num_rows) if are_all else f"the first {rows:,} rows"]
    if are_all and rows < table.num_rows:
        counted.append(f"the first {rows:,} shown")
    if columns < table.num_columns:
        counted.append(f"{columns} of {table.num_columns} columns shown")
    return ", ".join(counted)


def is_number(type_: pa.DataType) -> bool:
    """Whether a type is numeric, so that its values are right-aligned."""
    return bool(
        pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    )


def _is_whole(type_: pa.DataType) -> bool:
    """Whether values of a type are never cut: a part of a number or a time would mislead."""
    return is_number(type_) or bool(pa.types.is_primitive(type_))


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
    with aside(large=table.num_rows > _FETCHED_ROWS) as connection:
        zones = [f.type.tz for f in table.schema if pa.types.is_timestamp(f.type) and f.type.tz]
        if zones:
            connection.execute(f"SET TimeZone = '{zones[0]}'")
        connection.register("answer", readable(table))
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
    """The first rows; `table` has one more than `count` if there are more.

    What is longer than `width` is cut, but for numbers and times; 0 cuts nothing.
    """
    names = [printable(name) for name in table.column_names]
    widths = [0 if _is_whole(type_) else width for type_ in table.schema.types]
    rows = [
        [
            _cut("NULL" if value is None else printable(value), most)
            for value, most in zip(row, widths, strict=True)
        ]
        for row in text_rows(table.slice(0, count))
    ]
    lines = _vertical(names, rows) if vertical else _aligned(table.schema, names, rows)
    return "\n".join([*lines, row_note(table.num_rows, count)])


def row_note(rows: int, count: int) -> str:
    """The number of rows, as far as known."""
    if rows > count:
        return f"the first {count:,} rows; there are more"
    return "1 row" if rows == 1 else f"{rows:,} rows"


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
