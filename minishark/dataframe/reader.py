"""DataFrameReader: files as DataFrames."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from minishark.dataframe.column import Column, call
from minishark.dataframe.dates import date_pattern
from minishark.dataframe.doors import doors
from minishark.dataframe.frame import DataFrame, relation_frame, source_frame
from minishark.dataframe.literals import literal
from minishark.dataframe.local import SchemaLike, names_and_types
from minishark.dataframe.names import CamelCase, changed, ident, nearest
from minishark.dataframe.runtime import Runtime
from minishark.errors import OptionError, UnsupportedError
from minishark.sources.contract import Source
from minishark.sources.filesystems import is_remote, without_file_scheme

_READERS = {
    "parquet": "read_parquet",
    "csv": "read_csv",
    "json": "read_json",
    "arrow": "read_arrow",
}
# DuckDB's names of PySpark's options.
_RENAMED = {
    "delimiter": "sep",
    "nullvalue": "nullstr",
    "mergeschema": "union_by_name",
    "dateformat": "dateformat",
    "timestampformat": "timestampformat",
    "ignoreleadingwhitespace": "strip_whitespace",
}


_NAMING = ("header", "names", "column_names", "columns")  # options that say what columns are called
_NUMBERED = re.compile(r"^column(\d+)$")  # DuckDB's name of a column without a name


@doors
class DataFrameReader(CamelCase):
    """`session.read`: files as DataFrames, which read them again for each action.

    Options are those of DuckDB's `read_parquet`, `read_csv` and `read_json`, or the most common of
    PySpark's. To load files into memory, use `session.create_table`.

    Examples:
        >>> session.range(3).write.csv("numbers.csv", header=True)
        >>> session.read.option("header", True).csv("numbers.csv").count()
        3
    """

    def __init__(self, runtime: Runtime, *, table: Callable[[str], DataFrame]) -> None:
        self._runtime = runtime
        self._table = table
        self._kind: str | None = None
        self._options: dict[str, Any] = {}
        self._schema: SchemaLike = None

    def format(self, kind: str) -> DataFrameReader:
        """The format of the files: "parquet", "csv", "json" or "arrow"."""
        return changed(self, _kind=_known(kind))

    def option(self, name: str, value: Any) -> DataFrameReader:
        """Set an option."""
        return self.options(**{name: value})

    def options(self, **options: Any) -> DataFrameReader:
        """Set several options."""
        return changed(self, _options={**self._options, **options})

    def schema(self, schema: SchemaLike) -> DataFrameReader:
        """Names and types of the columns, instead of those in the files."""
        return changed(self, _schema=schema)

    def load(self, path: str | Path | list[str], **options: Any) -> DataFrame:
        """The files at a path, a glob or a folder, or at several.

        Raises:
            QueryError: there are no files, DuckDB can't read them, or has no such option.
            OptionError: `format` was not called, or there is no such `mode`.
            UnsupportedError: DuckDB has no such `mode` for the format.
        """
        if self._kind is None:
            raise OptionError("Call format() before load(), or csv(), json() or parquet().")
        kind = self._kind
        if kind != "parquet" and "schema" in options:  # as in PySpark; DuckDB has none but there
            return self.schema(options.pop("schema")).load(path, **options)
        merged, is_permissive = _without_mode(kind, {**self._options, **options})
        listed = _listed(path, kind)
        names, types = names_and_types(self._schema)
        is_cast = kind == "parquet" or (kind == "csv" and is_permissive)
        if names is not None and types is not None and kind != "parquet":
            read = ["VARCHAR"] * len(types) if is_cast else types
            merged["columns"] = dict(zip(names, read, strict=True))
            if is_cast:  # DuckDB finds no dialect where rows are of different lengths
                merged.setdefault("auto_detect", False)
        bare = kind == "csv" and not any(name.lower() in _NAMING for name in merged)
        if bare:  # as in PySpark; DuckDB would guess
            merged["header"] = False
        relation = f"{_READERS[kind]}({', '.join([listed, *_settings(merged)])})"
        relation = self._runtime.with_calls(relation)
        frame = relation_frame(self._runtime, relation, self._runtime.bind(f"FROM {relation}"))
        if bare and names is None:
            return frame.to_df(*(_NUMBERED.sub(_pyspark_name, name) for name in frame.columns))
        if names is None or not is_cast:
            return frame
        cast = Column.try_cast if is_permissive else Column.cast
        casts = [
            frame[n] if types is None else cast(frame[n], types[i]) for i, n in enumerate(names)
        ]
        return frame.select(*casts)

    def parquet(self, *paths: str | Path, **options: Any) -> DataFrame:
        """Parquet files."""
        return self.format("parquet").load([str(path) for path in paths], **options)

    def csv(self, path: str | Path | list[str], **options: Any) -> DataFrame:
        """CSV files; DuckDB detects their dialect and types, unless `schema` names the columns.

        Without `header=True`, the first line is a row, and columns are called `_c0`, `_c1` ...;
        `header="auto"` has DuckDB guess.
        """
        return self.format("csv").load(path, **options)

    def text(self, path: str | Path | list[str], wholetext: bool = False) -> DataFrame:
        """Text files: a row for each line, or for each file, in a column `value`."""
        return self._text(path, wholetext)

    def json(self, path: str | Path | list[str], **options: Any) -> DataFrame:
        """JSON files: newline-delimited, or arrays."""
        return self.format("json").load(path, **options)

    def _text(self, path: str | Path | list[str], wholetext: bool) -> DataFrame:
        if wholetext:
            relation = f"read_text({_listed(path, 'txt')})"
            schema = self._runtime.bind(f"FROM {relation}")
            frame = relation_frame(self._runtime, relation, schema)
            return frame.select(frame["content"].alias("value"))
        # A delimiter that text does not contain makes a line one value.
        options = {"header": False, "delimiter": "\x1f", "quote": "", "escape": ""}
        reader = changed(self, _options={"auto_detect": False, "strict_mode": False})
        typed = reader.format("csv").options(**options, columns={"value": "VARCHAR"})
        lines = typed.load(path)
        return lines.select(call("coalesce", lines["value"], "").alias("value"))

    def source(self, source: Source) -> DataFrame:
        """The rows of a source; see `Session.register_source`.

        Raises:
            DataError: it can't be read.
        """
        return source_frame(self._runtime, self._runtime.hold_source(source))

    def iceberg(self, table: Any, **options: Any) -> DataFrame:
        """An Iceberg table: a pyiceberg `Table`, a metadata file, or a table's folder.

        Args:
            table: the table, or its path or URI.
            options: `snapshot_id`, `timestamp` (a datetime) or `ref` (a branch or tag) for an
                earlier version; `properties` of pyiceberg's file system.

        Raises:
            DataError: it can't be read.
            OptionError: pyiceberg is not installed: pip install 'minishark[iceberg]'.
            UnsupportedError: it has something that minishark does not read, named in the message.
        """
        from minishark.sources.iceberg import IcebergSource  # noqa: PLC0415 - an extra

        return self.source(IcebergSource(table, **options))

    def delta(self, table: str | Path, **options: Any) -> DataFrame:
        """A Delta table.

        Args:
            table: its folder, as path or URI.
            options: `version` or `timestamp` (a datetime) for an earlier version;
                `storage_options` of deltalake.

        Raises:
            DataError: it can't be read.
            OptionError: deltalake is not installed: pip install 'minishark[delta]'.
            UnsupportedError: it has something that minishark does not read, named in the message.
        """
        from minishark.sources.delta import DeltaSource  # noqa: PLC0415 - an extra

        return self.source(DeltaSource(table, **options))

    def postgres(
        self, dsn: str | Callable[[], str], schema: str, table: str, **options: Any
    ) -> DataFrame:
        """A table or view of PostgreSQL.

        Args:
            dsn: a connection string, `env:NAME` for the string in a variable of the environment, or
                a function that returns one in each task, so that no password travels.
            schema: the schema.
            table: the table or view.
            options: `numeric`, `statement_timeout`, `hold`; docs/sources.md explains them.

        Raises:
            DataError: it can't be read.
            OptionError: the driver is not installed: pip install 'minishark[postgres]'.
        """
        from minishark.sources.postgres import PostgresSource  # noqa: PLC0415 - an extra

        return self.source(PostgresSource(dsn, schema, table, **options))

    def arrow(self, path: str | Path | list[str]) -> DataFrame:
        """Arrow IPC files (Feather)."""
        return self.format("arrow").load(path)

    def table(self, name: str) -> DataFrame:
        """A table of the session."""
        return self._table(name)


def _pyspark_name(column: re.Match[str]) -> str:
    return f"_c{int(column[1])}"


def _known(kind: str) -> str:
    if kind.lower() not in _READERS:
        near = nearest(kind, _READERS)
        raise UnsupportedError(
            f"minishark does not read {kind!r} by name.{near} It reads {', '.join(_READERS)}, and "
            "whatever DuckDB reads without an extension in session.sql('FROM ...')."
        )
    return kind.lower()


def _without_mode(kind: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Options with DuckDB's in place of PySpark's `mode` and `multiLine`; whether to be permissive.

    Values may have line breaks anyway: for CSV in quotes, for JSON between values.
    """
    others = {name: item for name, item in options.items() if name.lower() != "multiline"}
    written = next((name for name in others if name.lower() == "mode"), None)
    if written is None or kind not in ("csv", "json"):
        return others, False
    mode = str(others.pop(written)).upper()
    match kind, mode:
        case _, "FAILFAST":
            pass
        case ("csv", "DROPMALFORMED") | ("json", "PERMISSIVE"):
            others["ignore_errors"] = True
        case "csv", "PERMISSIVE":
            others["null_padding"] = True
        case "json", "DROPMALFORMED":
            raise UnsupportedError(
                "DuckDB does not drop malformed lines of JSON: mode PERMISSIVE makes rows of NULLs "
                "of them, which dropna('all') drops."
            )
        case _:
            raise OptionError(f"There is no mode {mode}: PERMISSIVE, DROPMALFORMED or FAILFAST.")
    return others, mode == "PERMISSIVE"


def _absolute(path: str, kind: str) -> str:
    """A path that does not depend on the working folder; a folder as a glob of its files."""
    path = without_file_scheme(path)
    if is_remote(path):
        return path
    absolute = Path(path).absolute()
    return str(absolute / "**" / f"*.{kind}") if absolute.is_dir() else str(absolute)


def _listed(path: str | Path | Sequence[str], kind: str) -> str:
    """Paths as an argument of a table function."""
    paths = [path] if isinstance(path, str | Path) else list(path)
    texts = [literal(_absolute(str(item), kind)) for item in paths]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _settings(options: Mapping[str, Any]) -> list[str]:
    out = []
    for name, item in options.items():
        folded = name.lower()
        if folded == "header" and item == "auto":
            continue
        value = {"true": True, "false": False}.get(item, item) if isinstance(item, str) else item
        if folded == "inferschema":
            folded, value = "all_varchar", not value
        renamed = _RENAMED.get(folded, folded)
        if renamed in ("dateformat", "timestampformat"):
            value = date_pattern(str(value))
        if folded == "nullvalue":  # besides empty values, as in PySpark
            value = list(dict.fromkeys((value, "")))
        out.append(f"{ident(renamed)} = {literal(value)}")
    return out
