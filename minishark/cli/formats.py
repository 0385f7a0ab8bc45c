"""Writers of the output formats, except `table`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import duckdb
import pyarrow as pa

from minishark.cli.options import FILE_FORMATS, TEXT_FORMATS
from minishark.compiler.sql.connection import aside
from minishark.dataframe.show import json_rows, text_rows
from minishark.errors import OptionError

# Numbers that DuckDB writes but JSON does not have; strings are matched to skip them.
_NO_JSON = re.compile(r'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|Infinity)\b')

_ENDINGS = {
    **{f".{form}": form for form in (*TEXT_FORMATS, *FILE_FORMATS)},
    ".jsonl": "jsonlines",
    ".ndjson": "jsonlines",
    ".md": "markdown",
    ".feather": "arrow",
}


def write_text(table: pa.Table, form: str, stream: TextIO) -> None:
    # Values are cast to text by DuckDB. NULL is an empty field in CSV and TSV (an empty string is
    # quoted), and null in JSON, as are NaN and infinities.
    match form:
        case "csv" | "tsv":
            _write_delimited(table, "," if form == "csv" else "\t", stream)
        case "json":
            stream.write("[")
            for number, row in enumerate(_json(table)):
                stream.write(",\n" if number else "\n")
                stream.write(row)
            stream.write("\n]\n")
        case "jsonlines":
            stream.writelines(f"{row}\n" for row in _json(table))
        case "markdown":
            _write_markdown(table, stream)
        case "line":
            _write_vertical(table, stream)
        case _:
            raise AssertionError(form)


def write_file(table: pa.Table, form: str, path: Path) -> None:
    with _replacing(path) as part:
        if form == "parquet":
            with aside(large=True) as connection:
                connection.register("answer", table)
                target = str(part).replace("'", "''")
                connection.execute(f"COPY answer TO '{target}' (FORMAT parquet)").fetchall()
            return
        with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
            out.write_table(table)


def format_of(path: Path) -> str:
    """The format that a file's ending names; CSV if it has none.

    Raises:
        OptionError: its ending names no format.
    """
    ending = path.suffix.lower()
    if not ending:
        return "csv"
    if ending not in _ENDINGS:
        endings = ", ".join(_ENDINGS)
        raise OptionError(
            f"The ending of {path.name} names no format: pass --format, or use one of {endings}."
        )
    return _ENDINGS[ending]


def _json(table: pa.Table) -> Iterator[str]:
    def null(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') else "null"

    for row in json_rows(table):
        odd = "NaN" in row or "Infinity" in row
        yield _NO_JSON.sub(null, row) if odd else row


def _write_delimited(table: pa.Table, delimiter: str, stream: TextIO) -> None:
    # Python's csv writer can't distinguish NULL from an empty string.
    names = delimiter.join(_field(name, delimiter) for name in table.column_names)
    stream.write(f"{names}\n")
    stream.writelines(
        delimiter.join(_field(value, delimiter) for value in row) + "\n" for row in text_rows(table)
    )


def _field(value: str | None, delimiter: str) -> str:
    if value is None:
        return ""
    if not value or any(char in value for char in (delimiter, '"', "\n", "\r")):
        return '"' + value.replace('"', '""') + '"'
    return value


def _write_markdown(table: pa.Table, stream: TextIO) -> None:
    def line(cells: Iterator[str]) -> str:
        return f"| {' | '.join(cells)} |\n"

    stream.write(line(map(_markdown_cell, table.column_names)))
    stream.write("|" + "---|" * table.num_columns + "\n")
    stream.writelines(
        line(_markdown_cell("NULL" if value is None else value) for value in row)
        for row in text_rows(table)
    )


def _markdown_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", "<br>")


def _write_vertical(table: pa.Table, stream: TextIO) -> None:
    width = max(map(len, table.column_names), default=0)
    for number, row in enumerate(text_rows(table)):
        stream.write("\n" if number else "")
        stream.writelines(
            f"{name.rjust(width)} = {'NULL' if value is None else value}\n"
            for name, value in zip(table.column_names, row, strict=True)
        )


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path` that replaces it if the block succeeds."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield part
        part.replace(path)
    except (OSError, duckdb.IOException) as error:
        raise OptionError(f"Can't write to {path}: {error}.") from error
    finally:
        part.unlink(missing_ok=True)
