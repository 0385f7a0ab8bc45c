"""Which tables a command works on: from files and folders, TPC-H at a scale, or the sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from minishark.errors import DataError, OptionError
from minishark.tpch.generate import scale_folder, scale_text
from minishark.tpch.locations import default_data_folder, sample_folder
from minishark.tpch.tables import find_tables, tpch_tables

_DEFAULT_SCALE = 0.1
_FILES = (".parquet", ".csv", ".tsv", ".json", ".jsonl", ".ndjson")


def chosen_tables(scale: float | None, data: Sequence[Path]) -> Mapping[str, str]:
    """A path, or a glob of paths, by table name: what the options --scale and --data mean.

    Raises:
        DataError: they are not there.
        OptionError: two have the same name.
    """
    if scale is not None:
        if len(data) > 1:
            raise OptionError("With --scale, --data names one folder: where the scales are kept.")
        return _scale_tables(scale, data[0] if data else default_data_folder())
    if data:
        tables: dict[str, str] = {}
        for path in data:
            found = tables_at(path)
            if doubled := [name for name in found if name in tables]:
                raise OptionError(f"There are two tables {doubled[0]}: rename one of the files.")
            tables |= found
        return tables
    folder = scale_folder(default_data_folder(), _DEFAULT_SCALE)
    return tpch_tables(folder) if folder.is_dir() else sample_tables()


def tables_at(path: Path) -> Mapping[str, str]:
    """The tables of a folder, or the one of a file, called as the file is.

    Raises:
        DataError: there are none.
    """
    if path.is_file():
        if path.name.lower().removesuffix(".gz").endswith(_FILES):
            return {path.name.partition(".")[0]: str(path)}
        raise DataError(f"{path} is none of the files that can be loaded: {', '.join(_FILES)}.")
    return find_tables(path)


def sample_tables() -> Mapping[str, str]:
    """The bundled sample."""
    return find_tables(sample_folder())


def _scale_tables(scale: float, root: Path) -> Mapping[str, str]:
    folder = scale_folder(root, scale)
    if not folder.is_dir():
        text = scale_text(scale)
        raise DataError(
            f"There is no TPC-H data at scale {text} in {root}: "
            f"make it with minishark tpch --scale {text}"
        )
    return tpch_tables(folder)
