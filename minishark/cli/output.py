"""The destination and format of results."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import pyarrow as pa
from rich.console import Console

from minishark.cli.formats import write_file, write_text
from minishark.cli.options import FILE_FORMATS
from minishark.dataframe.show import print_table
from minishark.errors import OptionError

_ROWS_MIN = 10  # of a table on the screen
_LINES_BESIDE = 8  # of the screen, for the table's frame and the next prompt


class Output:
    """Writes results to the screen or to a file.

    Results in text formats are appended; a file in another format has the last result only.

    Attributes:
        form: one of FORMATS.
        rows_max: rows of a table to show on the screen; None for all.
        fits_screen: whether to limit them to the screen's height, too.
    """

    def __init__(self, console: Console, *, rows_max: int | None = None) -> None:
        self.form = "table"
        self.rows_max = rows_max
        self.fits_screen = False
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

    def write(self, table: pa.Table, note: str = "") -> None:
        """Write a result; `note` is appended to the last line of a table on the screen."""
        if self.form in FILE_FORMATS:
            assert self._path is not None
            write_file(table, self.form, self._path)
            return
        stream = self._text_stream()
        if self.form != "table":
            write_text(table, self.form, stream)
        elif self._path is None:
            rows_max = self.rows_max
            if self.fits_screen and self._console.is_terminal:
                rows_max = max(_ROWS_MIN, self._console.height - _LINES_BESIDE)
            print_table(table, self._console, rows_max=rows_max, note=note)
        else:
            print_table(table, Console(file=stream, force_terminal=False), rows_max=None)
        stream.flush()

    def say(self, sentence: str) -> None:
        """Print a message on the screen, if the format is for people."""
        if self.form == "table":
            self._console.print(sentence, style="dim", highlight=False, markup=False)

    def print(self, text: str) -> None:
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
