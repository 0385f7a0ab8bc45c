"""Where answers go, and in which form."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

import pyarrow as pa
from rich.console import Console

from minishark.cli.formats import write_file, write_text
from minishark.cli.options import FILE_FORMATS
from minishark.display import print_table
from minishark.errors import OptionError

# A table on the screen shows these at least, and leaves room for its frame and the next prompt.
_ROWS_MIN = 10
_LINES_BESIDE = 8


class Output:
    """Writes answers in a form, to the screen or to a file.

    Answers in forms of text follow each other; a file of another form holds the last one.

    Attributes:
        form: one of FORMATS.
        rows_max: how many rows a table on the screen shows; None for all.
        fits_screen: whether it also shows no more than the screen can.
    """

    def __init__(
        self, console: Console, *, form: str = "table", rows_max: int | None = None
    ) -> None:
        self.form = form
        self.rows_max = rows_max
        self.fits_screen = False
        self._console = console
        self._path: Path | None = None
        self._stream: TextIO | None = None
        self._open = ExitStack()

    @property
    def is_readable(self) -> bool:
        """Whether the form is for people, who also want to know what has no rows."""
        return self.form == "table"

    @property
    def width(self) -> int:
        """Of the screen, in characters; large where there is none."""
        return self._console.width

    def redirect(self, path: Path | None) -> None:
        """Write what follows to a file; None for the screen again.

        Raises:
            OptionError: the form needs a file.
        """
        if path is None and self.form in FILE_FORMATS:
            raise OptionError(f"Answers as {self.form} need a file; name one.")
        self.close()
        self._path = path

    def set_form(self, form: str, path: Path | None = None) -> None:
        """Choose the form of what follows, and a file for it.

        Raises:
            OptionError: the form needs a file, and there is none.
        """
        if form in FILE_FORMATS and path is None and self._path is None:
            raise OptionError(f"Answers as {form} need a file; name one.")
        if path is not None or (self.form in FILE_FORMATS and form not in FILE_FORMATS):
            self.close()
            self._path = path
        self.form = form

    def write(self, table: pa.Table, note: str = "") -> None:
        """Write an answer.

        Args:
            table: the answer.
            note: for the last line of a table on the screen.

        Raises:
            OptionError: the file can't be written.
        """
        if self.form in FILE_FORMATS:
            assert self._path is not None
            write_file(table, self.form, self._path)
            return
        stream = self._text_stream()
        if self.form != "table":
            write_text(table, self.form, stream)
        elif self._path is None:
            print_table(table, self._console, rows_max=self._shown_rows(), note=note)
        else:
            print_table(table, Console(file=stream, force_terminal=False), rows_max=None)
        stream.flush()

    def _shown_rows(self) -> int | None:
        if self.fits_screen and self._console.is_terminal:
            return max(_ROWS_MIN, self._console.height - _LINES_BESIDE)
        return self.rows_max

    def say(self, sentence: str) -> None:
        """Tell people what has no rows: to the screen, and only if they read it."""
        if self.is_readable:
            self._console.print(sentence, style="dim", highlight=False, markup=False)

    def print(self, text: str) -> None:
        """Write text as it is, such as a plan."""
        stream = self._text_stream()
        stream.write(f"{text}\n")
        stream.flush()

    def close(self) -> None:
        """Close the file, if there is one."""
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
