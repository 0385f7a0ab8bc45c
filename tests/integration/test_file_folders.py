"""Folders of files, generated: rows and types are those of DuckDB's own readers."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import minishark
from minishark.errors import DataError
from minishark.query.answers import differences
from minishark.session.session import Session

_KEYS: dict[str, list[str]] = {
    "day": ["2026-01-01", "2026-01-02", "2026-02-03", "__HIVE_DEFAULT_PARTITION__"],
    "n": ["1", "2", "30", "__HIVE_DEFAULT_PARTITION__"],
    "zip": ["01234", "99", "NULL"],
    "name": ["a%20b", "x", "%C3%A9", "it's", "NULL"],
    "at": ["2026-01-01 10%3A00%3A00", "2026-01-01"],
}
_READERS = {"parquet": "read_parquet", "csv": "read_csv", "json": "read_json"}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with minishark.connect(
        in_process=True, nodes=1, executors_per_node=2, partitions=3, single_task_rows=0
    ) as session:
        yield session


def _text(rng: random.Random) -> str:
    parts = ["a", "b c", "é", '"', "'", ",", ";", "\n", "0", "", "NULL", "2026-01-01", " x "]
    return "".join(rng.choices(parts, k=rng.randrange(4)))


def _value(rng: random.Random, kind: str) -> object:
    if rng.random() < 0.1:
        return None
    match kind:
        case "int":
            return rng.randrange(-100, 100)
        case "float":
            return round(rng.uniform(-5, 5), rng.randrange(1, 6))
        case "date":
            return dt.date(2026, 1, 1) + dt.timedelta(days=rng.randrange(400))
        case "timestamp":
            return dt.datetime(2026, 1, 1) + dt.timedelta(seconds=rng.randrange(10**7))  # noqa: DTZ001
        case "bool":
            return rng.random() < 0.5
        case "word":
            return rng.choice(["apple", "pear", "quince"])
        case _:
            return _text(rng)


_TYPES = {
    "int": "BIGINT",
    "float": "DOUBLE",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "bool": "BOOLEAN",
    "word": "VARCHAR",
    "text": "VARCHAR",
}


class Folder:
    """Files of one format, with the options with which they are read."""

    def __init__(self, root: Path, seed: int) -> None:
        rng = random.Random(seed)
        self.kind = rng.choice(["parquet", "csv", "csv", "json"])
        self.unites = rng.random() < 0.4
        self.keys = rng.sample(sorted(_KEYS), rng.choice([0, 0, 1, 2]))
        kinds = {f"c{i}": rng.choice(sorted(_TYPES)) for i in range(rng.randrange(1, 5))}
        zipped = ".gz" if self.kind == "csv" and rng.random() < 0.15 else ""
        self.glob = str(root / ("**/" if self.keys else "") / f"*.{self.kind}{zipped}")
        header = rng.random() < 0.85 or self.unites
        delimiter = rng.choice([",", ";", "|", "\t"])
        quoting = rng.choice(["", ", FORCE_QUOTE *"])
        with duckdb.connect(config={"threads": 1}) as connection:
            count = rng.randrange(1, 6)
            for number in range(count):
                place = root.joinpath(*(f"{key}={rng.choice(_KEYS[key])}" for key in self.keys))
                place.mkdir(parents=True, exist_ok=True)
                names = list(kinds)
                if self.unites and len(names) > 1 and rng.random() < 0.5:
                    names.remove(rng.choice(names))
                columns = ", ".join(f"{name} {_TYPES[kinds[name]]}" for name in names)
                connection.execute(f"CREATE OR REPLACE TABLE t ({columns})")
                for _ in range(rng.choice([0, 1, 3, 40])):
                    marks = ", ".join("?" * len(names))
                    row = [_value(rng, kinds[name]) for name in names]
                    connection.execute(f"INSERT INTO t VALUES ({marks})", row)
                target = str(place / f"f{number}.{self.kind}{zipped}").replace("'", "''")
                options = f"FORMAT {self.kind}"
                if self.kind == "csv":
                    options += f", HEADER {header}, DELIMITER '{delimiter}'{quoting}"
                elif self.kind == "json" and rng.random() < 0.3:
                    options += ", ARRAY true"
                connection.execute(f"COPY t TO '{target}' ({options})")
        options = ", union_by_name = true" if self.unites else ""
        self.relation = f"{_READERS[self.kind]}('{self.glob}'{options})"


def _check(session: Session, folder: Path, seed: int) -> str:
    """Compare with DuckDB; how the query ran."""
    files = Folder(folder, seed)
    with duckdb.connect() as connection:
        try:
            columns = connection.sql(f"FROM {files.relation} LIMIT 0")
        except duckdb.Error:
            return "unreadable"
        types = ", ".join(f"any_value(typeof({c})) AS {c}" for c in columns.columns)
        queries = [f"SELECT * FROM {files.relation}", f"SELECT {types} FROM {files.relation}"]
        key = files.keys[0] if files.keys else "c0"
        if key in columns.columns:
            queries.append(f"SELECT count(*) AS n FROM {files.relation} WHERE {key} IS NULL")
            queries.append(f"SELECT count(*) AS n FROM {files.relation} WHERE {key} >= '1'")
            queries.append(f"SELECT {key} AS k FROM {files.relation} WHERE {key} = '2026-01-01'")
        for sql in queries:
            try:
                expected = connection.sql(sql).to_arrow_table()
            except duckdb.Error:
                continue  # rows that its sample did not foresee
            found = session.sql(sql).to_arrow()
            assert expected.schema == found.schema, (seed, sql)
            assert [] == differences(expected, found), (seed, sql)
    plan = session.sql(queries[0]).plan_text("physical")
    return f"{files.kind} whole" if "Statement" in plan else f"{files.kind} distributed"


@pytest.mark.sample(5)
@pytest.mark.parametrize("seed", [0, 2, 4, 8, 11])
def test_some_folders(session: Session, tmp_path: Path, seed: int) -> None:
    """Formats, headers, delimiters, quotes, folder keys, missing columns."""
    _check(session, tmp_path, seed)


def test_arrow_files(session: Session, tmp_path: Path) -> None:
    """In SQL, as DataFrames and loaded; columns are united, and folders are columns."""
    for number in range(3):
        folder = tmp_path / f"day={number}"
        folder.mkdir()
        table = pa.table({"i": range(number * 1000, (number + 1) * 1000), "s": ["é"] * 1000})
        if number == 2:
            table = table.append_column("more", pa.array([Decimal("1.50")] * 1000))
        with pa.ipc.new_file(folder / "x.arrow", table.schema) as writer:
            writer.write_table(table, 100)
    sql = f"SELECT count(*), sum(i), max(day), sum(more) FROM read_arrow('{tmp_path}/**/*.arrow')"
    expected = [(3000, 4498500, 2, Decimal(1500))]
    assert expected == [tuple(row) for row in session.sql(sql).collect()]
    frame = session.read.arrow(str(tmp_path)).filter("day = 1")
    assert 1000 == frame.count()
    assert "3 of 3 splits, 25% of the bytes, where day = 1" in frame.plan_text("physical")
    session.create_table("arrows", tmp_path)
    try:
        assert ["i", "s", "more", "day"] == session.table("arrows").columns
        assert 3000 == session.table("arrows").count()
    finally:
        session.drop_table("arrows")
    (tmp_path / "bad.arrow").write_text("no Arrow")
    with pytest.raises(DataError, match=r"bad\.arrow is no Arrow file"):
        session.read.arrow(str(tmp_path / "bad.arrow"))


def _write_arrow(table: pa.Table, file: Path) -> None:
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("offset", [1 << 28, -(1 << 30)])
def test_an_arrow_file_whose_offsets_point_elsewhere_is_refused(
    session: Session, tmp_path: Path, offset: int
) -> None:
    """They would be followed into other memory of the executor, or kill it."""
    file = tmp_path / "bad.arrow"
    text = pa.array([f"x{i}" for i in range(5000)])
    _write_arrow(pa.table({"a": range(5000), "b": text}), file)
    data = bytearray(file.read_bytes())
    at = data.index(text.buffers()[1].to_pybytes()[:400]) + 4 * 50
    data[at : at + 4] = offset.to_bytes(4, "little", signed=True)
    file.write_bytes(data)
    with pytest.raises(DataError, match=r"bad\.arrow is a damaged Arrow file: .*[Oo]ffset"):
        session.sql(f"SELECT max(b) FROM read_arrow('{file}')").collect()
    assert [{"n": 12_497_500}] == session.sql(
        f"SELECT sum(a)::BIGINT AS n FROM read_arrow('{file}')"
    ).collect()


def test_an_arrow_file_with_damaged_batches_is_refused(session: Session, tmp_path: Path) -> None:
    """Whether the footer is whole or not: the description of each batch counts, too."""
    file = tmp_path / "bad.arrow"
    _write_arrow(pa.table({"a": range(5000)}), file)
    with pa.memory_map(str(file)) as mapped, pa.ipc.open_file(mapped) as reader:
        schema = len(reader.schema.serialize())
    data = bytearray(file.read_bytes())
    data[8 + schema + 8 : 8 + schema + 40] = b"\xff" * 32
    file.write_bytes(data)
    with pytest.raises(DataError, match=r"bad\.arrow is no Arrow file, or is damaged: "):
        session.sql(f"SELECT sum(a) FROM read_arrow('{file}')").collect()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_folders(session: Session, tmp_path: Path) -> None:
    """As above, 200 times; most of them distributed."""
    ran = [_check(session, tmp_path / str(seed), seed) for seed in range(100, 300)]
    distributed = [each for each in ran if each.endswith("distributed")]
    assert len(distributed) > 150
    assert {"parquet", "csv", "json"} == {each.partition(" ")[0] for each in distributed}


def test_the_quotes_of_the_first_file(session: Session, tmp_path: Path) -> None:
    """Where files have other quotes than the first one, all are read as DuckDB reads them."""
    texts = {
        "a": "1,x\n",
        "b": '3,"q,r"\n',
        "c": '5,"it ""is"""\n',
        "d": "7,it's\n",
        "e": "9,'y'\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.csv").write_text(f"i,s\n{text}")
    for names, is_divided in (("ad", True), ("bcd", True), ("ac", False), ("be", False)):
        files = ", ".join(f"'{tmp_path}/{name}.csv'" for name in names)
        query = session.sql(f"FROM read_csv([{files}])")
        expected = duckdb.sql(f"FROM read_csv([{files}]) ORDER BY i").fetchall()
        assert expected == sorted(tuple(row) for row in query.collect()), names
        assert is_divided is ("Scan" in query.plan_text("physical")), names


@pytest.mark.sample(5)
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize(
    ("texts", "options", "expected"),
    [
        (("a,b\r\n1,2\r\n", "a,b\n3,4\n"), ", columns={'a': 'INT', 'b': 'INT'}", {(1, 2), (3, 4)}),
        (("a note\n\na,b\n1,2\n5,6\n", "a,b\n3,4\n"), "", {(1, 2), (3, 4), (5, 6)}),
        (("a,b\n1,2\n", "a,B\n3,4\n"), "", {(1, 2), (3, 4)}),
        (("a,b\n1,x\n", 'a,b\n3,"q,r"\n', "a,b\n5,'y'\n"), ", union_by_name=true", None),
        (("a,b\n1,2\n", "a,b\n3,4\n", "a,b\n"), "", {(1, 2), (3, 4)}),
        (("a,b\n02/13/2021,1\n", "b,a\n2,03/04/2021\n", "a,b\n01/02/2021,3\n"), "", None),
        (("a\n2021-02-13 09:00:00\n", "a\n2021-02-14\n"), "", None),
    ],
)
def test_small_files_that_are_written_differently(
    tmp_path: Path,
    slots: int,
    texts: Sequence[str],
    options: str,
    expected: set[tuple[object, ...]] | None,
) -> None:
    """Each file's rows are there, whichever files one task reads; None for what DuckDB reads."""
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.csv").write_bytes(text.encode())
    query = f"FROM read_csv('{tmp_path}/*.csv'{options})"
    if expected is None:
        expected = {*duckdb.sql(query).fetchall()}
    with minishark.connect(
        in_process=True, nodes=1, executors_per_node=slots, partitions=slots, single_task_rows=0
    ) as session:
        assert expected == {tuple(row) for row in session.sql(query).collect()}
