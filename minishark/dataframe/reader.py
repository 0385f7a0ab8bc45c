"""DataFrameReader: files as DataFrames."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minishark.dataframe.dates import date_pattern
from minishark.dataframe.literals import literal
from minishark.dataframe.local import SchemaLike, names_and_types
from minishark.dataframe.names import CamelCase, ident, nearest
from minishark.errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    from minishark.dataframe.actions import Runner
    from minishark.dataframe.frame import DataFrame

_READERS = {"parquet": "read_parquet", "csv": "read_csv", "json": "read_json"}
# PySpark's options under the names that DuckDB has.
_RENAMED = {
    "delimiter": "sep",
    "nullvalue": "nullstr",
    "mergeschema": "union_by_name",
    "dateformat": "dateformat",
    "timestampformat": "timestampformat",
    "ignoreleadingwhitespace": "strip_whitespace",
}


class DataFrameReader(CamelCase):
    """`session.read`: files as DataFrames, read each time that these run.

    Options are those of DuckDB's `read_parquet`, `read_csv` and `read_json`; the most common of
    PySpark's are understood too. `session.create_table` loads files into memory instead.

    Examples:
        >>> session.range(3).write.csv("numbers.csv", header=True)
        >>> session.read.option("header", True).csv("numbers.csv").count()
        3
    """

    def __init__(
        self,
        runner: Runner,
        kind: str | None = None,
        options: Mapping[str, Any] | None = None,
        schema: SchemaLike = None,
    ) -> None:
        self._runner = runner
        self._kind = kind
        self._options = dict(options or {})
        self._schema = schema

    def format(self, kind: str) -> DataFrameReader:
        """The kind of the files: "parquet", "csv" or "json"."""
        return DataFrameReader(self._runner, _known(kind), self._options, self._schema)

    def option(self, name: str, value: Any) -> DataFrameReader:
        """One option."""
        return self.options(**{name: value})

    def options(self, **options: Any) -> DataFrameReader:
        """Several options."""
        merged = {**self._options, **options}
        return DataFrameReader(self._runner, self._kind, merged, self._schema)

    def schema(self, schema: SchemaLike) -> DataFrameReader:
        """Names and types of the columns, instead of what the files tell."""
        return DataFrameReader(self._runner, self._kind, self._options, schema)

    def load(self, path: str | Path | list[str], **options: Any) -> DataFrame:
        """The files at a path, a glob or a folder, or at several.

        Raises:
            QueryError: there are none, or DuckDB can't read them, or knows no such option.
            OptionError: `format` was not called.
        """
        if self._kind is None:
            raise OptionError("Call format() before load(), or csv(), json() or parquet().")
        kind, merged = self._kind, {**self._options, **options}
        paths = [path] if isinstance(path, str | Path) else list(path)
        texts = [literal(_absolute(str(item), kind)) for item in paths]
        listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        names, types = names_and_types(self._schema)
        if names is not None and types is not None and kind != "parquet":
            pairs = zip(names, types, strict=True)
            merged["columns"] = dict(pairs)
        settings = _settings(merged)
        relation = f"{_READERS[kind]}({', '.join([listed, *settings])})"
        frame = self._runner.relation(relation)
        if names is None or kind != "parquet":
            return frame
        casts = [
            frame[n] if types is None else frame[n].cast(types[i]) for i, n in enumerate(names)
        ]
        return frame.select(*casts)

    def parquet(self, *paths: str | Path, **options: Any) -> DataFrame:
        """Parquet files."""
        return self.format("parquet").load([str(path) for path in paths], **options)

    def csv(self, path: str | Path | list[str], **options: Any) -> DataFrame:
        """CSV files; DuckDB finds out their dialect and types."""
        return self.format("csv").load(path, **options)

    def json(self, path: str | Path | list[str], **options: Any) -> DataFrame:
        """JSON files: lines, or arrays."""
        return self.format("json").load(path, **options)

    def table(self, name: str) -> DataFrame:
        """A table of the session."""
        return self._runner.table(name)


def _known(kind: str) -> str:
    if kind.lower() not in _READERS:
        near = nearest(kind, _READERS)
        raise UnsupportedError(
            f"minishark does not read {kind!r} by name.{near} It reads {', '.join(_READERS)}, and "
            "whatever DuckDB reads without an extension in session.sql('FROM ...')."
        )
    return kind.lower()


def _absolute(path: str, kind: str) -> str:
    """A path that means the same in every process; a folder as all its files."""
    if "://" in path:
        return path
    absolute = Path(path).absolute()
    return str(absolute / "**" / f"*.{kind}") if absolute.is_dir() else str(absolute)


def _settings(options: Mapping[str, Any]) -> list[str]:
    out = []
    for name, item in options.items():
        folded = name.lower()
        value = {"true": True, "false": False}.get(item, item) if isinstance(item, str) else item
        if folded == "inferschema":
            folded, value = "all_varchar", not value
        renamed = _RENAMED.get(folded, folded)
        if renamed in ("dateformat", "timestampformat"):
            value = date_pattern(str(value))
        out.append(f"{ident(renamed)} = {literal(value)}")
    return out
