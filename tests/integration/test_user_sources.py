"""Sources that users write: queried where they are, pruned, loaded, and read in one version."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from processes import until

import minishark
import minishark.query.sources as query_sources
from minishark.errors import (
    CatalogError,
    DataError,
    OptionError,
    QueryCancelledError,
    QueryError,
    UnsupportedError,
)
from minishark.model.catalog import ColumnStatistics, TableStatistics
from minishark.model.events.kinds import AnyEvent, QueryPlanned, QueryStarted
from minishark.model.expressions import Column, Schema
from minishark.model.predicates import Comparison, Pushed
from minishark.query.sinks import CollectRows
from minishark.session.session import Session
from minishark.sources.contract import Snapshot, Source, Split
from minishark.sources.files import named_files
from minishark.sources.formats import OwnReach
from minishark.tables.interruption import Interruption, running

SCHEMA = (Column("month", "INTEGER"), Column("day", "INTEGER"), Column("rain", "DECIMAL(6,2)"))


@dataclass
class Month(Split):
    """The days of a month."""

    number: int
    factor: int
    log: str
    rows: int | None = 30
    bytes: int = 1_000

    def read(self, pushed: Pushed) -> pa.RecordBatchReader:
        if self.number == 13:
            raise DataError("There is no 13th month in the weather.")
        with Path(self.log).open("a") as log:
            log.write(f"{self.number}:{','.join(pushed.columns or ())}\n")
        table = pa.table(
            {
                "month": pa.array([self.number] * 30, pa.int32()),
                "day": pa.array(range(1, 31), pa.int32()),
                "rain": pa.array([self.factor * day for day in range(1, 31)], pa.int64()),
            }
        )
        return table.select([*(pushed.columns or table.column_names)]).to_reader(7)


@dataclass
class Year(Snapshot):
    """The months of one version of the weather."""

    factor: int
    months: Sequence[int]
    log: str
    schema: Schema = SCHEMA

    def __post_init__(self) -> None:
        self.version = f"{self.factor} {list(self.months)}"
        self.statistics = TableStatistics(
            30 * len(self.months), 1_000 * len(self.months), (ColumnStatistics(),) * 3
        )

    def splits(self, pushed: Pushed, tasks: int) -> Sequence[Split]:
        equal = [
            each.values[0]
            for each in pushed.predicates
            if each.column == "month" and each.comparison is Comparison.EQUAL
        ]
        return [
            Month(number, self.factor, self.log)
            for number in self.months
            if all(number == value for value in equal)
        ]


@dataclass
class Weather(Source):
    """Rain by month and day."""

    log: str
    name: str = "the weather"
    factor: int = 1
    months: list[int] = field(default_factory=lambda: [*range(1, 13)])

    def resolve(self) -> Snapshot:
        return Year(self.factor, tuple(self.months), self.log)

    def reads(self) -> list[str]:
        """The months that were read since the last call, with the columns."""
        found = sorted(Path(self.log).read_text().split())
        Path(self.log).write_text("")
        return found


@dataclass
class Stuck(Month):
    """Rows that do not come until the query is cancelled."""

    def read(self, pushed: Pushed) -> pa.RecordBatchReader:
        Path(self.log).write_text("reads")
        until(lambda: Path(self.log).read_text() == "cancelled", "the end of the query", 60)
        return super().read(pushed)

    def cancel(self) -> None:
        Path(self.log).write_text("cancelled")


@dataclass
class Restless(Weather):
    """Another version whenever somebody looks."""

    def resolve(self) -> Snapshot:
        self.factor += 1
        return super().resolve()


@pytest.fixture(scope="module", params=[0, 1_000_000], ids=["stages", "one task"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with minishark.connect(
        in_process=True, nodes=1, executors_per_node=2, partitions=3, single_task_rows=request.param
    ) as session:
        yield session


@pytest.fixture
def weather(session: Session, tmp_path: Path) -> Iterator[Weather]:
    """A source that queries know as `weather`."""
    (tmp_path / "log").touch()
    source = Weather(str(tmp_path / "log"))
    session.register_source("weather", source)
    yield source
    session.drop_table("weather")


def rows(session: Session, sql: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in session.sql(sql).to_arrow().to_pylist()]


@pytest.mark.sample(2)
def test_only_what_is_needed_is_read(session: Session, weather: Weather) -> None:
    """Columns and predicates reach the source; the answer is that over all rows."""
    sql = "SELECT day, rain FROM weather WHERE month = 3 AND day < 3 ORDER BY day"
    assert [(1, 1), (2, 2)] == rows(session, sql)
    assert {"3:month,day,rain"} == set(weather.reads())
    plan = session.sql(sql).plan_text("physical")
    assert "from the weather, 1 of 12 splits, 8% of the bytes, where month = 3 AND day < 3" in plan
    assert [(360, 12 * 465)] == rows(session, "SELECT count(*), sum(rain) FROM weather")
    assert {each.partition(":")[2] for each in weather.reads()} == {"rain"}
    assert [(360,)] == rows(session, "SELECT count(*) FROM weather")
    assert {each.partition(":")[2] for each in weather.reads()} == {"month"}
    assert [] == rows(session, "SELECT day FROM weather WHERE month = 14")
    assert [] == weather.reads()


def test_scans_of_one_source_read_their_own_parts(session: Session, weather: Weather) -> None:
    """A join of a source with itself prunes each side."""
    sql = """SELECT a.day, b.rain FROM weather a JOIN weather b USING (day)
             WHERE a.month = 1 AND b.month = 2 AND day = 7"""
    assert [(7, 7)] == rows(session, sql)
    assert {"1", "2"} == {each.partition(":")[0] for each in weather.reads()}


@pytest.mark.sample(2)
def test_statements_of_every_kind_read_sources(session: Session, weather: Weather) -> None:
    """Views, tables, whole statements, and what runs in the front end."""
    session.sql("CREATE VIEW spring AS SELECT * FROM weather WHERE month IN (3, 4, 5)")
    assert [(90,)] == rows(session, "SELECT count(*) FROM spring")
    weather.reads()
    session.sql("CREATE TABLE may AS FROM weather WHERE month = 5")
    assert {"5"} == {each.partition(":")[0] for each in weather.reads()}
    session.sql("INSERT INTO may FROM weather WHERE month = 6")
    assert [(60,)] == rows(session, "SELECT count(*) FROM may")
    assert [(1, 12)] == rows(
        session, "SELECT min(month), max(month) FROM (FROM weather ORDER BY 1)"
    )
    sample = "SELECT count(*) FROM (FROM weather USING SAMPLE 5 ROWS)"
    assert [(5,)] == rows(session, sample)
    assert {"weather", "may"} == set(session.tables)
    assert 360 == session.table("weather").count()
    with pytest.raises(UnsupportedError, match="weather is a source"):
        session.sql("DELETE FROM weather")
    with pytest.raises(CatalogError, match="source called 'weather'"):
        session.create_table("weather", pa.table({"a": [1]}))
    session.sql("DROP VIEW spring")
    session.sql("DROP TABLE may")


def test_the_next_query_reads_the_next_version(session: Session, weather: Weather) -> None:
    """Repeated statements notice new rows and new columns."""
    sql = "SELECT count(*), sum(rain) FROM weather WHERE month <= 2"
    assert [(60, 930)] == rows(session, sql)
    weather.factor = 2
    assert [(60, 1860)] == rows(session, sql)
    weather.months = [1]
    assert [(30, 930)] == rows(session, sql)


def test_sources_are_loaded(session: Session, weather: Weather) -> None:
    """As tables in memory, partitioned as users want."""
    session.create_table("loaded", weather, partition_by="day", partitions=4)
    try:
        assert [(360, 5580)] == rows(session, "SELECT count(*), sum(rain) FROM loaded")
        assert "DECIMAL(6,2)" == session.table("loaded").dtypes[2][1]
    finally:
        session.drop_table("loaded")
    frame = session.read.source(weather)
    assert 30 == frame.filter("month = 1").count()


@pytest.mark.sample(2)
def test_functions_that_duckdb_lacks(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of registered functions are tables in statements of every kind."""
    made: list[Weather] = []

    def weather_scan(reach: object, log: str, *, factor: int = 1) -> Source:
        made.append(Weather(log, factor=factor))
        return made[-1]

    monkeypatch.setattr(
        session._runtime.engine.sources, "functions", {"weather_scan": weather_scan}
    )
    log = tmp_path / "it's (a) log"
    call = f"weather_scan('{str(log).replace(chr(39), chr(39) * 2)}', factor := 1 + 1)"
    count = (
        f"SELECT count(*), 'ä weather_scan(1)' FROM {call} w -- weather_scan(2)\n WHERE w.day = 3"
    )
    assert [(12, "ä weather_scan(1)")] == rows(session, count)
    session.sql(f"CREATE VIEW v AS FROM WEATHER_SCAN {call.removeprefix('weather_scan')}")
    session.sql(f"CREATE TABLE w AS SELECT rain FROM {call} WHERE day = 30")
    session.sql(f"INSERT INTO w SELECT rain FROM {call} WHERE day = 29 AND month = 1")
    assert [(360,)] == rows(session, "SELECT count(*) FROM v")
    assert [(12 * 60 + 58,)] == rows(session, "SELECT sum(rain) FROM w")
    assert 12 == session.relation(call).filter("day = 1").count()
    assert [2] == [each.factor for each in made]
    assert {"w"} == set(session.tables)
    with pytest.raises(QueryError) as caught:
        session.sql(f"SELECT 1 FROM {call} WHERE snow > 1")
    _, line, marks = str(caught.value).rsplit("\n", 2)
    assert line.endswith(f"SELECT 1 FROM {call} WHERE snow > 1")
    assert line.index("snow") == marks.index("^")
    with pytest.raises(OptionError, match=r"weather_scan: .*'size'"):
        session.sql("FROM weather_scan('x', size = 3)")
    with pytest.raises(QueryError, match="day"):
        session.sql("SELECT day FROM t, weather_scan(day)")
    session.sql("DROP VIEW v")
    session.sql("DROP TABLE w")


@pytest.mark.slow
def test_calls_are_forgotten_when_nobody_needs_their_tables(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long session does not fill up; frames, views, macros and prepared statements still run."""
    sources = session._runtime.engine.sources
    monkeypatch.setattr(query_sources, "_CALLS_MAX", 2)
    monkeypatch.setattr(
        sources, "functions", {"scan": lambda _, log, factor: Weather(log, factor=factor)}
    )
    (tmp_path / "log").touch()
    before = set(sources.names)

    def call(factor: int) -> str:
        return f"scan('{tmp_path / 'log'}', {factor})"

    frame = session.sql(f"FROM {call(1)}").filter("day = 1")
    relation = session.relation(call(2))
    session.sql(f"CREATE VIEW seen AS FROM {call(3)}")
    session.sql(f"CREATE MACRO made() AS TABLE FROM {call(4)}")
    session.sql(f"PREPARE asked AS FROM {call(5)}")
    for factor in range(6, 16):
        assert [(factor,)] == rows(session, f"SELECT min(rain) FROM {call(factor)}")
    gc.collect()
    assert 10 > len(set(sources.names) - before)
    factors = [1, 2, 3, 4, 5]
    frames = [frame, relation, *map(session.sql, ("FROM seen", "FROM made()", "EXECUTE asked"))]
    assert factors == [min(row.rain for row in each.collect()) for each in frames]
    session.sql("DROP VIEW seen; DROP MACRO TABLE made; DEALLOCATE asked")
    del frame, relation, frames
    gc.collect()
    rows(session, f"SELECT 1 FROM {call(16)}")
    assert 5 > len(set(sources.names) - before)


@pytest.mark.sample(2)
def test_users_see_what_they_wrote(session: Session, tmp_path: Path) -> None:
    """Plans, stages and events have the source's name, or the call, for a table without one."""
    (tmp_path / "log").touch()
    frame = session.read.source(Weather(str(tmp_path / "log")))
    sample = session.sql(f"FROM ({frame.sql()}) USING SAMPLE 5 ROWS")
    assert "table the weather as " in frame.plan_text("stages")
    assert "Statement over the weather: " in sample.plan_text("physical")
    events: list[AnyEvent] = []
    runtime = session._runtime
    for query in (frame, sample):
        runtime.engine.run(query.sql(), CollectRows(), runtime.scope, keep=events.append)
    started = [each.sql for each in events if isinstance(each, QueryStarted)]
    assert all('FROM "the weather"' in sql for sql in started)
    planned = [each for each in events if isinstance(each, QueryPlanned)]
    assert [("the weather",)] * 2 == [stage.tables for each in planned for stage in each.stages]


def test_errors_are_told_as_the_source_tells_them(session: Session, weather: Weather) -> None:
    weather.months.append(13)
    with pytest.raises(DataError, match=r"^There is no 13th month in the weather\.$"):
        session.sql("SELECT sum(rain) FROM weather").to_arrow()
    with pytest.raises(DataError, match="13th"):
        session.create_table("loaded", weather)
    with pytest.raises(QueryError, match="snow"):
        session.sql("SELECT snow FROM weather")
    with pytest.raises(CatalogError, match="'weather'"):
        session.register_source("weather", weather)
    assert [(30,)] == rows(session, "SELECT count(*) FROM weather WHERE month = 1")


@pytest.mark.sample(2)
def test_a_statement_sees_one_version_wherever_it_runs(session: Session, tmp_path: Path) -> None:
    """However often it names the source; and what fails in the front end is told as in tasks."""
    (tmp_path / "log").touch()
    source = Restless(str(tmp_path / "log"))
    session.register_source("restless", source)
    differs = "SELECT sum(a.rain) - (SELECT sum(b.rain) FROM restless b) AS d FROM restless a"
    try:
        session.sql("CREATE TABLE found (d DECIMAL(38,2))")
        session.sql(f"INSERT INTO found {differs}")
        assert [(0,)] == rows(session, "FROM found") == rows(session, differs)
        assert 0 == session._runtime.query_in_front_end(differs)["d"][0].as_py()
        source.months.append(13)
        with pytest.raises(DataError, match=r"^There is no 13th month in the weather\.$"):
            session.sql(f"INSERT INTO found {differs}")
    finally:
        session.drop_table("restless")
        session.drop_table("found")


@pytest.mark.sample(2)
def test_a_cancelled_query_does_not_wait_for_rows(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(Year, "splits", lambda *_: [Stuck(1, 1, str(log))])
    frame = session.read.source(Weather(str(log)))

    async def cancelled() -> None:
        task = asyncio.create_task(frame.collect_async())
        await asyncio.to_thread(until, log.exists, "the task reads")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    until(lambda: log.read_text().startswith("cancelled"), "the task is told", 10)
    log.unlink()
    interruption = Interruption()
    with ThreadPoolExecutor(1) as pool, running(interruption):
        pool.submit(lambda: (until(log.exists, "it reads"), interruption.cancel()))
        with pytest.raises(QueryCancelledError):
            session._runtime.query_in_front_end(frame.sql())


@pytest.mark.slow
def test_a_new_column_can_be_named_at_once(session: Session, tmp_path: Path) -> None:
    """A query that fails to bind over the known version is bound over the current one."""
    folder = tmp_path / "grows"
    folder.mkdir()
    duckdb.execute(f"COPY (SELECT 1 AS i) TO '{folder}/a.parquet'")
    session.register_source("grows", named_files(folder, OwnReach()))
    try:
        assert [(1,)] == rows(session, "SELECT i FROM grows")
        duckdb.execute(f"COPY (SELECT 2 AS i, 'x' AS more) TO '{folder}/b.parquet'")
        assert [(2, "x")] == rows(session, "SELECT i, more FROM grows WHERE more IS NOT NULL")
        with pytest.raises(QueryError, match="missing"):
            session.sql("SELECT missing FROM grows")
        session.sql("CREATE TABLE grown (i INTEGER, more VARCHAR, most INTEGER)")
        duckdb.execute(f"COPY (SELECT 3 AS i, 'y' AS more, 4 AS most) TO '{folder}/c.parquet'")
        session.sql("INSERT INTO grown FROM grows")
        assert [(3, "y", 4)] == rows(session, "FROM grown WHERE most IS NOT NULL")
        session.drop_table("grown")
    finally:
        session.drop_table("grows")


@pytest.mark.sample(2)
def test_a_source_without_a_name_goes_with_its_frames(session: Session, tmp_path: Path) -> None:
    """The planning database has its table while a frame or view reads it."""
    (tmp_path / "log").touch()
    before = set(session._runtime.engine.sources.names)
    frame = session.read.source(Weather(str(tmp_path / "log"))).filter("month = 3")
    assert 30 == frame.count()
    frame.create_or_replace_temp_view("march")
    (added,) = set(session._runtime.engine.sources.names) - before
    del frame
    gc.collect()
    session.read.source(Weather(str(tmp_path / "log")))
    assert [(30,)] == rows(session, "SELECT count(*) FROM march")
    session.sql("SELECT 1 AS i").create_or_replace_temp_view("march")
    gc.collect()
    session.read.source(Weather(str(tmp_path / "log")))
    assert added not in session._runtime.engine.sources.names
