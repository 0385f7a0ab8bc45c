"""DataFrameWriter: the rows of a DataFrame as files, or as a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minishark.dataframe.column import column_or_name, flat, only_reference
from minishark.dataframe.doors import doors
from minishark.dataframe.lazy_query import Frame, framed, query_of
from minishark.dataframe.literals import literal
from minishark.dataframe.names import CamelCase, changed, ident, nearest
from minishark.dataframe.partitioned import sorted_within
from minishark.dataframe.select import parenthesized
from minishark.errors import CatalogError, DataError, OptionError, UnsupportedError
from minishark.query.sinks import Layout
from minishark.sources.filesystems import destination, is_remote

_FORMATS = ("parquet", "csv", "json")
_WRITTEN_ELSEWHERE = {
    "delta": " Use deltalake.write_deltalake(path, df.to_arrow()).",
    "iceberg": " Use connect(warehouse=...), and save_as_table().",
}
_MODES = ("error", "errorifexists", "overwrite", "append", "ignore")


@doors
class DataFrameWriter(CamelCase):
    """`df.write`: runs the DataFrame, and writes its rows to files or a table.

    A path with the format's suffix (`out.parquet`) becomes one file; any other a folder of files,
    with a folder for each value of the columns of `partition_by`. Options are those of DuckDB's
    COPY.

    Examples:
        >>> df = session.create_dataframe([("mon", 1), ("tue", 2)], ["day", "n"])
        >>> df.write.mode("overwrite").partition_by("day").parquet("days")
        >>> session.read.parquet("days").filter("day = 'tue'").collect()
        [Row(n=2, day='tue')]
    """

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._kind = "parquet"
        self._mode = "error"
        self._keys: tuple[str, ...] = ()
        self._options: dict[str, Any] = {}
        self._partitions: int | None = None

    def mode(self, mode: str) -> DataFrameWriter:
        """What happens if the target exists.

        Args:
            mode: "error" (also "errorifexists"), "overwrite", "append" or "ignore".
        """
        if mode not in _MODES:
            near = nearest(mode, _MODES)
            raise OptionError(f"Unknown mode {mode!r}.{near} There are {', '.join(_MODES)}.")
        return changed(self, _mode=mode)

    def format(self, kind: str) -> DataFrameWriter:
        """The format of the files: "parquet", "csv" or "json"."""
        if kind.lower() not in _FORMATS:
            others = _WRITTEN_ELSEWHERE.get(kind.lower(), "")
            raise UnsupportedError(f"minishark writes {', '.join(_FORMATS)}, not {kind!r}.{others}")
        return changed(self, _kind=kind.lower())

    def option(self, name: str, value: Any) -> DataFrameWriter:
        """Set an option of COPY."""
        return self.options(**{name: value})

    def options(self, **options: Any) -> DataFrameWriter:
        """Set several options of COPY."""
        return changed(self, _options={**self._options, **options})

    def partition_by(self, *columns: Any) -> DataFrameWriter:
        """A folder for each combination of values of these columns; hash partitions of a table."""
        return changed(self, _keys=_columns(self._frame, columns))

    def parquet(self, path: str | Path, **options: Any) -> None:
        """Write Parquet files."""
        self._write("parquet", path, **options)

    def csv(self, path: str | Path, **options: Any) -> None:
        """Write CSV files, with the names of columns in the first line if `header=True`."""
        self._write("csv", path, **options)

    def json(self, path: str | Path, **options: Any) -> None:
        """Write newline-delimited JSON files."""
        self._write("json", path, **options)

    def _write(self, kind: str, path: str | Path, **options: Any) -> None:
        """Write files, also by what PySpark's methods take beside options."""
        mode, keys = options.pop("mode", None), options.pop("partitionBy", None)
        chosen = self.format(kind).options(**options)
        chosen = chosen if mode is None else chosen.mode(mode)
        chosen = chosen if keys is None else chosen.partition_by(keys)
        chosen.save(path)

    def text(self, path: str | Path) -> None:
        """Write the one column, which must be text, as lines.

        Raises:
            OptionError: there are several columns, or the column is no text.
        """
        if [type_ for _, type_ in query_of(self._frame).dtypes()] != ["VARCHAR"]:
            raise OptionError("write.text() takes a DataFrame of one text column.")
        plain = {"delimiter": "\x1f", "quote": "", "escape": "", "header": False}
        self.format("csv").options(**plain).save(path)

    def sort_by(self, *columns: Any) -> DataFrameWriter:
        """Each file, or the whole where it is one task's, is sorted by these columns."""
        query = sorted_within(query_of(self._frame), columns, ascending=True)
        return changed(self, _frame=framed(query, self._frame))

    def bucket_by(self, buckets: int, *columns: Any) -> DataFrameWriter:
        """Hash partitions of a table: `buckets` of them, by these columns; see `save_as_table`."""
        return changed(self, _keys=_columns(self._frame, columns), _partitions=buckets)

    cluster_by = partition_by

    def save(self, path: str | Path) -> None:
        """Write files of the chosen format.

        Args:
            path: a local path, or the URI of an object store: `s3://bucket/folder`.

        Raises:
            DataError: the path exists, and the mode is "error", or it can't be written.
            OptionError: DuckDB's COPY has no such option, or the mode needs a folder.
        """
        target = destination(path)
        name = Path(target).name
        one_file = name.lower().endswith(f".{self._kind}")
        if one_file and (self._keys or self._mode == "append"):
            raise OptionError(f"{name} is one file: partitions and appending need a folder.")
        changes_nothing = self._mode == "ignore" or self._mode.startswith("error")
        if changes_nothing and query_of(self._frame).runtime.has_files(target):
            if self._mode == "ignore":
                return
            raise DataError(f"{target} exists already; mode('overwrite') replaces it.")
        if not is_remote(target):
            _make_parents(Path(target))
        self._copy(target, one_file)

    def _copy(self, target: str, one_file: bool) -> None:
        settings = [f"FORMAT {self._kind}"]
        if self._keys:
            settings.append(f"PARTITION_BY ({', '.join(map(ident, self._keys))})")
        elif not one_file:
            settings.append("PER_THREAD_OUTPUT")
        if not one_file and self._mode in ("overwrite", "append"):
            settings.append(self._mode.upper())
        if self._kind == "csv" and "header" not in map(str.lower, self._options):
            settings.append("HEADER false")  # as in PySpark
        for name, value in self._options.items():
            settings.append(f"{ident(name)} {literal(value)}")
        query = query_of(self._frame)
        into = f"{literal(target)} ({', '.join(settings)})"
        kept = query.repartitioned and not self._keys
        query.runtime.copy(parenthesized(query.sql()), into, kept=kept)

    def save_as_table(self, name: str, *, replicas: int = 2) -> None:
        """Store the rows as a table in the cluster's memory.

        Raises:
            CatalogError: there is a table of that name, and the mode is "error".
        """
        runtime = query_of(self._frame).runtime
        exists = name.lower() in (table.lower() for table in runtime.table_names)
        if exists and self._mode == "ignore":
            return
        if exists and self._mode == "append":
            self.insert_into(name)
            return
        layout = Layout(partition_by=self._keys, partitions=self._partitions, replicas=replicas)
        runtime.create_table(name, self._frame, layout=layout, replace=self._mode == "overwrite")

    def insert_into(self, name: str) -> None:
        """Add the rows to a table; columns are matched by position."""
        query = query_of(self._frame)
        query.runtime.insert(name, query.sql())


def _columns(frame: Frame, columns: Sequence[Any]) -> tuple[str, ...]:
    """The names of columns, each of which there is."""
    names = []
    for reference in (only_reference(column_or_name(item)) for item in flat(columns)):
        if reference is None:
            raise OptionError("Files and tables are partitioned by columns, not by expressions.")
        query_of(frame).to_select().find(reference)
        names.append(reference.name)
    return tuple(names)


def _make_parents(target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"Can't write to {target}: {error.strerror}.") from error


class TableWriter(CamelCase):
    """`df.write_to(name)`: runs the DataFrame, and stores its rows as a table."""

    def __init__(self, frame: Frame, name: str, keys: tuple[str, ...] = ()) -> None:
        self._frame = frame
        self._name = name
        self._keys = keys

    def partitioned_by(self, *columns: Any) -> TableWriter:
        """Hash partitions by these columns."""
        return changed(self, _keys=_columns(self._frame, columns))

    def create(self) -> None:
        """Make the table.

        Raises:
            CatalogError: there is one of that name.
        """
        self._writer("error").save_as_table(self._name)

    def create_or_replace(self) -> None:
        """Make the table, or replace one of that name."""
        self._writer("overwrite").save_as_table(self._name)

    def replace(self) -> None:
        """Replace the table.

        Raises:
            CatalogError: there is none of that name.
        """
        runtime = query_of(self._frame).runtime
        if self._name.lower() not in map(str.lower, runtime.table_names):
            near = nearest(self._name, runtime.table_names)
            raise CatalogError(f"There is no table {self._name!r}.{near}")
        self.create_or_replace()

    def append(self) -> None:
        """Add the rows to the table; columns are matched by position."""
        self._writer("append").insert_into(self._name)

    def _writer(self, mode: str) -> DataFrameWriter:
        return DataFrameWriter(self._frame).mode(mode).partition_by(*self._keys)


def new_folder(path: str) -> str:
    """Make a local folder for items of `parallelize`; its absolute path.

    Raises:
        OSError: it exists.
        UnsupportedError: the path is a URI.
        DataError: it is one of an unknown scheme.
    """
    place = destination(path)
    if is_remote(place):
        raise UnsupportedError(
            f"Items are written to local folders, not to {place}: make them a DataFrame with "
            "to_df(), and use its write."
        )
    Path(place).mkdir(parents=True, exist_ok=False)
    return place
