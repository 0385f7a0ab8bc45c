"""The choice of queries, and what their order means for their answers."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from minishark.cli.tpch.locations import sample_folder
from minishark.cli.tpch.queries import load_queries, parse_selection
from minishark.cli.tpch.tables import TABLES, find_tables, tables_of_query
from minishark.errors import DataError, OptionError
from minishark.query.answers import output_order
from minishark_lab.tpch.reference import create_views


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1", (1,)),
        ("1,3,5-7", (1, 3, 5, 6, 7)),
        (" 22 , 20 - 22 ", (22, 20, 21)),
        ("1-22", tuple(range(1, 23))),
    ],
)
def test_lists_and_ranges_are_understood(text: str, numbers: tuple[int, ...]) -> None:
    """Numbers come in the order given, each once."""
    assert numbers == parse_selection(text)


@pytest.mark.parametrize("text", ["0", "23", "-1", "7-5", "1-99999999", "", "1,,2", "x", "1.5"])
def test_what_is_no_selection_is_refused(text: str) -> None:
    """A number outside 1 to 22, and anything that is no list, is an error."""
    with pytest.raises(OptionError):
        parse_selection(text)


def test_all_queries_run_over_the_sample() -> None:
    """The sample has every table and column that the 22 queries name."""
    with duckdb.connect() as connection:
        create_views(connection, find_tables(sample_folder()))
        for text in load_queries(range(1, 23)).values():
            connection.sql(text).to_arrow_table()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SELECT 1 FROM 'x.parquet'", ()),
        ("SELECT 1 FROM 'folder/*.csv.gz' JOIN nation ON true", ("nation",)),
        ("FROM 'nation'", ("nation",)),
        ("SELECT 1 FROM 'x.parquet' JOIN natoin ON true", ("nation", "region")),
    ],
)
def test_files_are_no_unknown_tables(text: str, names: tuple[str, ...]) -> None:
    """A statement over files loads no tables but those that it names, unless one is unknown."""
    with duckdb.connect() as connection:
        needed = tables_of_query(connection, text, {"nation": "n.parquet", "region": "r.parquet"})
    assert names == tuple(needed)


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("SELECT a, b AS c FROM t ORDER BY C DESC, 1", (1, 0)),
        ("SELECT a, b AS c FROM t ORDER BY a, b, c", (0,)),
        ("SELECT a, b AS c FROM t ORDER BY a + 1", ()),
        ("SELECT a, b AS c FROM t", ()),
        ("SELECT a, c FROM (SELECT * FROM t ORDER BY a)", ()),
        ("SELECT a, c FROM t UNION ALL SELECT 1, 2 ORDER BY c", (1,)),
        ("no SQL", ()),
    ],
)
def test_order_is_read_from_the_outermost_query(text: str, order: tuple[int, ...]) -> None:
    """Keys count as long as they are columns of the answer."""
    with duckdb.connect() as connection:
        assert order == output_order(connection, text, ["a", "c"])


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("SELECT * FROM Nation, region", ["nation", "region"]),
        ("WITH x AS (FROM nation) SELECT (SELECT count(*) FROM part) FROM x", ["nation", "part"]),
        ("SELECT 1", []),
        ("SELECT * FROM natoin", sorted(TABLES)),
        ("FROM own.sales", []),
        ("FROM own.sales JOIN nation USING (x)", ["nation"]),
        ("FROM main.natoin", sorted(TABLES)),
        ("SHOW TABLES", sorted(TABLES)),
        ("SELEC 1", []),
    ],
)
def test_only_the_tables_of_a_statement_are_needed(text: str, needed: list[str]) -> None:
    """With an unknown table all are loaded, so that DuckDB can suggest one; with no SQL none."""
    with duckdb.connect() as connection:
        found = tables_of_query(connection, text, find_tables(sample_folder()))
    assert needed == sorted(found)


def test_of_a_cluster_with_tables_of_its_own_only_named_ones_are_loaded() -> None:
    """What is not known here may be there."""
    tables = find_tables(sample_folder())
    with duckdb.connect() as connection:
        for text, needed in (
            ("SELECT * FROM shared.t JOIN nation ON true", ["nation"]),
            ("SHOW TABLES FROM shared", []),
        ):
            assert needed == list(tables_of_query(connection, text, tables, has_others=True))


def test_a_folder_has_tables_of_all_kinds_of_files(tmp_path: Path) -> None:
    """Files, and folders of files; what is no table is left alone."""
    for name in ("a.csv", "b.json", "notes.txt", ".c.csv", "d.tsv.gz", "e/1.csv", "e/2.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = {name: Path(path).name for name, path in find_tables(tmp_path).items()}
    assert {"a": "a.csv", "b": "b.json", "d": "d.tsv.gz", "e": "*.csv"} == found


def test_files_of_one_name_are_called_after_their_endings(tmp_path: Path) -> None:
    """So all others are there, too, as case makes no other table.

    What would be the same even so is refused with both names.
    """
    for name in ("a.csv", "A.json", "b.csv", "c.csv", "c/1.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert ["A_json", "a_csv", "b", "c", "c_csv"] == list(find_tables(tmp_path))
    (tmp_path / "A_csv.csv").touch()
    with pytest.raises(DataError, match=r"A_csv\.csv and .*a\.csv would be the table a_csv"):
        find_tables(tmp_path)


def test_folders_in_folders_are_searched(tmp_path: Path) -> None:
    """Folders of partitions make one table; other folders have tables of their own."""
    files = ("all/own/1.csv", "more/own/1.csv", "t/1.csv", "parts/y=1/m=2/1.parquet")
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "all" / "loop").symlink_to(tmp_path)
    found = {
        name: str(Path(path).relative_to(tmp_path)) for name, path in find_tables(tmp_path).items()
    }
    assert found == {
        "all_own": "all/own/*.csv",
        "more_own": "more/own/*.csv",
        "parts": "parts/**/*.parquet",
        "t": "t/*.csv",
    }


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("FROM 'a.csv' JOIN 'b.csv' USING (x)", ()),
        ("FROM nation JOIN 'b.csv' USING (x)", ("nation",)),
        ("FROM nation JOIN regoin USING (x)", ("nation", "region")),
        ("SELECT 'JOIN regoin' FROM nation JOIN 'b.csv' USING (x)", ("nation",)),
    ],
)
def test_joins_by_using_load_what_they_name(text: str, names: tuple[str, ...]) -> None:
    """DuckDB does not tell their tables, as it looks for the columns at once."""
    with duckdb.connect() as connection:
        needed = tables_of_query(connection, text, {"nation": "n.parquet", "region": "r.parquet"})
    assert names == tuple(needed)
