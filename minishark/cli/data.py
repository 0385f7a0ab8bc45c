"""The tables that a command works on: files and folders, TPC-H data, or the sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from minishark.cli.console import open_reporter
from minishark.cli.tpch.locations import (
    default_data_folder,
    sample_folder,
    scale_folder,
    scale_text,
)
from minishark.cli.tpch.tables import (
    FILES,
    default_replicas,
    find_tables,
    is_table,
    load_tables,
    tpch_tables,
)
from minishark.errors import DataError, OptionError

if TYPE_CHECKING:
    from minishark.session.session import Session

_DEFAULT_SCALE = 0.1


def chosen_tables(scale: float | None, data: Sequence[Path]) -> Mapping[str, str]:
    """The tables that --scale and --data choose: a path, or a glob of paths, by table name."""
    if scale is not None:
        if len(data) > 1:
            raise OptionError("With --scale, pass --data once: the folder of all TPC-H data.")
        root = data[0] if data else default_data_folder()
        folder, text = scale_folder(root, scale), scale_text(scale)
        if not folder.is_dir():
            raise DataError(
                f"There is no TPC-H data at scale {text} in {root}: "
                f"generate it with minishark tpch --scale {text}"
            )
        return tpch_tables(folder)
    if data:
        tables: dict[str, str] = {}
        for path in data:
            at_path = tables_at(path)
            if doubled := [name for name in at_path if name in tables]:
                raise OptionError(f"There are two tables {doubled[0]}: rename one of the files.")
            tables |= at_path
        return tables
    folder = scale_folder(default_data_folder(), _DEFAULT_SCALE)
    return tpch_tables(folder) if folder.is_dir() else sample_tables()


def tables_at(path: Path) -> Mapping[str, str]:
    """The tables of a folder, or one of the file's name."""
    if path.is_file():
        if is_table(path):
            return {path.name.partition(".")[0]: str(path)}
        raise DataError(f"Can't load {path}: only {', '.join(FILES)} are supported.")
    return find_tables(path)


def sample_tables() -> Mapping[str, str]:
    return find_tables(sample_folder())


def load_all(
    session: Session, tables: Mapping[str, str], nodes: int, *, verbose: bool = False
) -> None:
    with open_reporter(verbose=verbose) as reporter:
        reporter.detail(f"Tables: {', '.join(tables.values()) or 'none'}")
        load_tables(session, tables, reporter, replicas=default_replicas(nodes))
        for warning in session.warnings:
            reporter.warning(warning)
