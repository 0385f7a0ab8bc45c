"""The destination and format of results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import pyarrow as pa
from rich.console import Console

from minishark.cli.formats import write_file, write_text
from minishark.cli.options import FILE_FORMATS
from minishark.cli.pager import paged
from minishark.dataframe.show import print_table
from minishark.errors import OptionError

_ROWS_MIN = 10  # of a table on the screen
_LINES_BESIDE = 9  # of the screen, for the table's frame and the next prompt
_MORE, _MORE_SHELL = "there are more", "there are more: .last shows them"
_TABLE_LINES = 4  # of a table beside its rows


class Output:
    """Writes results to the screen or to a file.

    Results in text formats are appended; a file in another format has the last result only.

    Attributes:
        form: one of FORMATS.
        rows_max: rows of a table to show on the screen; None for all.
        fits_screen: whether to limit them to the screen's height, too.
        pages: whether what is longer than the screen goes to a pager.
    """

    def __init__(self, console: Console, *, rows_max: int | None = None) -> None:
        self.form = "table"
        self.rows_max = rows_max
        self.fits_screen = False
        self.pages = False
        self._console = console
        self._path: Path | None = None
        self._stream: TextIO | None = None
        self._open = ExitStack()

    @property
    def width(self) -> int:
        return self._console.width

    def redirect(self, path: Path | None) -> None:
        if path is None:
            self._check_file(self.form, path)
        self.close()
        self._path = path

    def _check_file(self, form: str, path: Path | None) -> None:
        if form in FILE_FORMATS and path is None:
            raise OptionError(f"The format {form} needs a file: pass its path.")

    def set_form(self, form: str, path: Path | None = None) -> None:
        self._check_file(form, path or self._path)
        if path is not None or (self.form in FILE_FORMATS and form not in FILE_FORMATS):
            self.close()
            self._path = path
        self.form = form

    @property
    def rows_shown(self) -> int | None:
        """How many rows of an answer anybody will see; None for all."""
        if self.form != "table" or self._path is not None:
            return None
        if self.fits_screen and self._console.is_terminal:
            return max(_ROWS_MIN, self._console.height - _LINES_BESIDE)
        return self.rows_max

    def write(
        self, table: pa.Table, *, types: Sequence[str] = (), more: bool = False, note: str = ""
    ) -> None:
        """Write a result.

        Args:
            table: its rows; at most `rows_shown` of them are shown.
            types: DuckDB's types of its columns, for the header on a terminal.
            more: whether the result has more rows.
            note: for the last line of a table on the screen.
        """
        if self.form in FILE_FORMATS:
            assert self._path is not None
            write_file(table, self.form, self._path)
            return
        stream = self._text_stream()
        if self.form != "table":
            write_text(table, self.form, stream)
        elif self._path is None:
            rows_max = self.rows_shown
            rows = table.num_rows if rows_max is None else min(rows_max, table.num_rows)
            lines = 0 if self.fits_screen else rows + _TABLE_LINES
            with self._screen(lines) as screen:
                print_table(
                    table,
                    screen,
                    rows_max=rows_max,
                    types=types,
                    more=(_MORE_SHELL if self.pages else _MORE) if more else "",
                    note=note,
                )
        else:
            print_table(table, Console(file=stream, force_terminal=False), rows_max=None)
        stream.flush()

    def write_all(self, table: pa.Table, *, types: Sequence[str] = ()) -> None:
        """Write all rows and columns of a result, on a terminal in a pager."""
        if self.form != "table" or self._path is not None or not self._console.is_terminal:
            self.write(table, types=types)
            return
        with paged(self._console) as screen:
            fits = screen is self._console
            print_table(table, screen, rows_max=None, types=types, fits=fits)

    @contextlib.contextmanager
    def _screen(self, lines: int) -> Iterator[Console]:
        """Where to print so many lines: in a pager if there is no room for them."""
        if self.pages and self._console.is_terminal and lines > self._console.height:
            with paged(self._console) as screen:
                yield screen
        else:
            yield self._console

    def say(self, sentence: str) -> None:
        """Print a message on the screen, if the format is for people."""
        if self.form == "table":
            self._console.print(sentence, style="dim", highlight=False, markup=False)

    def print(self, text: str) -> None:
        if self._path is None:
            with self._screen(text.count("\n") + 1) as screen:
                screen.file.write(f"{text}\n")
                screen.file.flush()
            return
        stream = self._text_stream()
        stream.write(f"{text}\n")
        stream.flush()

    def close(self) -> None:
        self._open.close()
        self._stream = None
        self._path = None

    def _text_stream(self) -> TextIO:
        if self._path is None:
            return self._console.file  # type: ignore[return-value]
        if self._stream is None:
            try:
                opened = self._path.open("w", encoding="utf-8", newline="")
            except OSError as error:
                raise OptionError(f"Can't write to {self._path}: {error.strerror}.") from error
            self._stream = self._open.enter_context(opened)
        return self._stream
