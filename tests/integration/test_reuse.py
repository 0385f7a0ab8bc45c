"""Outputs that are taken instead of computed again: answers stay those of DuckDB."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import minishark
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.errors import VerificationError
from minishark.model.events.kinds import AnyEvent, StageReused
from minishark.query import names, questions, sources
from minishark.query.digests import Digest
from minishark.query.job_builder import Environment
from minishark.query.planner import QueryPlan, QueryPlanner
from minishark.query.questions import Question, question_of
from minishark.query.reach import Reach
from minishark.query.sinks import CollectRows
from minishark.session import engine
from minishark.session.session import Session

ROWS = 3_000
NOTHING = Digest("", Reach())
"""What is known of a function if nothing is."""


def connected(reuse: str = "session") -> Session:
    """A session that runs everything in stages."""
    return minishark.connect(
        nodes=2, executors_per_node=1, in_process=True, single_task_rows=0, reuse=reuse
    )


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """One that reuses."""
    with connected() as found:
        yield found


@pytest.fixture(scope="module")
def plain() -> Iterator[Session]:
    """One that does not."""
    with connected("off") as found:
        yield found


def data() -> pa.Table:
    """Some rows."""
    return pa.table(
        {
            "k": list(range(ROWS)),
            "g": [i % 7 for i in range(ROWS)],
            "s": ["aAbB"[i % 4] for i in range(ROWS)],
            "t": pa.array([i * 3_600_000_000 for i in range(ROWS)], pa.timestamp("us", "UTC")),
        }
    )


def tasks(session: Session, sql: str) -> int:
    """How many tasks a query runs."""
    return session.sql(sql).profile().metrics.tasks


def rows(session: Session, sql: str) -> list[Any]:
    """The answer of a query."""
    return [tuple(row) for row in session.sql(sql).collect()]


# Pairs of statements that differ in one thing only

GROUPS = "SELECT g, count(*) n, sum(k) s FROM t GROUP BY g ORDER BY g"


def time_zone(session: Session, _: Path) -> Iterator[Any]:
    for zone in ("UTC", "Asia/Tokyo"):
        session.sql(f"SET TimeZone = '{zone}'").collect()
        yield rows(session, "SELECT hour(t) h, count(*) FROM t WHERE k < 20 GROUP BY h ORDER BY h")
    session.sql("SET TimeZone = 'UTC'").collect()


def collation(session: Session, _: Path) -> Iterator[Any]:
    for name in ("binary", "nocase"):
        session.sql(f"SET default_collation = '{name}'").collect()
        yield rows(session, "SELECT count(*) FROM t WHERE s = 'a'")
    session.sql("SET default_collation = 'binary'").collect()


def integer_division(session: Session, _: Path) -> Iterator[Any]:
    for on in ("false", "true"):
        session.sql(f"SET integer_division = {on}").collect()
        yield rows(session, "SELECT sum(k / 2) FROM t")
    session.sql("SET integer_division = false").collect()


def inserted(session: Session, _: Path) -> Iterator[Any]:
    yield rows(session, GROUPS)
    session.sql("INSERT INTO t VALUES (1000000, 3, 'x', NULL)").collect()
    yield rows(session, GROUPS)


def deleted(session: Session, _: Path) -> Iterator[Any]:
    yield rows(session, GROUPS)
    session.sql("DELETE FROM t WHERE k = 17").collect()
    yield rows(session, GROUPS)


def updated(session: Session, _: Path) -> Iterator[Any]:
    yield rows(session, GROUPS)
    session.sql("UPDATE t SET k = 0 WHERE k = 18").collect()
    yield rows(session, GROUPS)


def rolled_back(session: Session, _: Path) -> Iterator[Any]:
    yield rows(session, GROUPS)
    session.sql("BEGIN").collect()
    session.sql("INSERT INTO t VALUES (5, 5, 'y', NULL)").collect()
    yield rows(session, GROUPS)
    session.sql("ROLLBACK").collect()
    yield rows(session, GROUPS)


def replaced(session: Session, _: Path) -> Iterator[Any]:
    for shift in (0, 1):
        session.create_table("u", pa.table({"a": [shift, 2, 3]}), replace=True)
        yield rows(session, "SELECT sum(a) FROM u")


def view(session: Session, _: Path) -> Iterator[Any]:
    for low in (5, 6):
        session.sql(f"CREATE OR REPLACE VIEW v AS SELECT * FROM t WHERE k < {low}").collect()
        yield rows(session, "SELECT count(*) FROM v")


def macro(session: Session, _: Path) -> Iterator[Any]:
    for by in (2, 3):
        session.sql(f"CREATE OR REPLACE MACRO f(x) AS x * {by}").collect()
        yield rows(session, "SELECT sum(f(k)) FROM t")


def limit(session: Session, _: Path) -> Iterator[Any]:
    for count in (3, 4):
        yield rows(session, f"SELECT k FROM t ORDER BY k DESC LIMIT {count}")


def columns(session: Session, _: Path) -> Iterator[Any]:
    for name in ("n", "m"):
        yield session.sql(f"SELECT count(*) AS {name} FROM t").to_arrow().schema.names


def lossless(session: Session, _: Path) -> Iterator[Any]:
    frame = session.sql("SELECT max(k)::HUGEINT h FROM t")
    yield str(frame.to_arrow().schema)
    yield [tuple(row) for row in frame.collect()]


def file_of_other_size(session: Session, folder: Path) -> Iterator[Any]:
    path = folder / "size.parquet"
    for count in (10, 20):
        pq.write_table(data().slice(0, count), path)
        time.sleep(2.1)
        yield rows(session, f"SELECT sum(k) FROM '{path}'")


def file_of_other_time(session: Session, folder: Path) -> Iterator[Any]:
    path = folder / "time.csv"
    for number in (1, 2):
        path.write_text(f"a\n{number}\n")
        yield rows(session, f"SELECT sum(a) FROM '{path}'")


OFFSET = 1


def helper(x: int) -> int:
    return x + OFFSET


def function(session: Session, _: Path) -> Iterator[Any]:
    global OFFSET  # noqa: PLW0603 - that is what is tried

    def register(fn: Callable[[int], int]) -> None:
        session.udf.register("f_of_test", fn, "BIGINT", ["BIGINT"])

    def made(by: int) -> Callable[[int], int]:
        return lambda x: x * by

    asked = "SELECT sum(f_of_test(k)) FROM t WHERE k < 50"
    for fn in (lambda x: x + 1, lambda x: x + 2, made(2), made(3)):
        register(fn)
        yield rows(session, asked)
    for offset in (1, 2):
        OFFSET = offset
        register(lambda x: helper(x) * 2)
        yield rows(session, asked)
    session.udf.remove("f_of_test")


def opening(session: Session, folder: Path) -> Iterator[Any]:
    def shifted(x: int) -> int:
        with open("by") as by:  # noqa: PTH123 - where it is, the folder says
            return x + int(by.read())

    for by in ("1", "2"):
        (folder / by).mkdir(exist_ok=True)
        (folder / by / "by").write_text(by)
        with contextlib.chdir(folder / by):
            session.udf.register("shifted", shifted, "BIGINT", ["BIGINT"])
            yield rows(session, "SELECT sum(shifted(k)) FROM t")


def mapped(session: Session, folder: Path) -> Iterator[Any]:
    def told(by: int) -> Callable[[pa.Table], pa.Table]:
        return lambda table: pa.table({"n": [len(table) * by]})

    for by in (1, 2):
        frame = session.sql("SELECT k FROM t").map_partitions(told(by), "n BIGINT")
        yield sum(n for (n,) in frame.collect())

    def noted(rows: Any) -> None:
        with (folder / "calls").open("a") as file:
            file.write("x" * sum(1 for _ in rows))

    for _ in range(2):
        session.sql("SELECT k FROM t").foreach_partition(noted)
        yield len((folder / "calls").read_text())


def called(session: Session, _: Path) -> Iterator[Any]:
    """Only the options of the calls differ; what reads their rows is reused."""

    def fails(rows: pa.Table) -> pa.Table:
        if rows["k"][0].as_py() % 20 == 0:
            raise ValueError
        return rows

    kept = session.sql("SELECT k FROM t ORDER BY k LIMIT 100")
    for options in ({"on_error": "null"}, {"on_error": "quarantine"}, {"batch_rows": 20}):
        frame = kept.map_batches(
            fails, "k BIGINT", **{"on_error": "null", "batch_rows": 10} | options
        )
        yield frame.agg({"k": "count", "*": "count"}).collect()
    for divisor in (2, 3):
        frame = kept.map_rows(lambda row: row.k // divisor, "k BIGINT")  # noqa: B023 - at once
        yield frame.agg({"k": "sum"}).collect()


def random(session: Session, _: Path) -> Iterator[Any]:
    asked = "SELECT count(*) FROM (SELECT random() AS r FROM t) WHERE r < 2"
    yield rows(session, asked)
    yield rows(session, asked)


def variable(session: Session, _: Path) -> Iterator[Any]:
    for value in (10, 20):
        session.sql(f"SET VARIABLE bound = {value}").collect()
        yield rows(session, "SELECT count(*) FROM t WHERE k < getvariable('bound')")


def cached(session: Session, _: Path) -> Iterator[Any]:
    for low in (5, 6):
        kept = session.sql(f"SELECT k % {low} AS m FROM t").persist()
        yield sorted(tuple(row) for row in kept.group_by("m").count().collect())
        kept.unpersist()


def moment(session: Session, _: Path) -> Iterator[Any]:
    """Also of a macro of DuckDB's own."""
    for told in ("now()", "ago(INTERVAL 1 DAY)"):
        asked = f"SELECT max(epoch_us({told})) m FROM t"
        yield rows(session, asked) < rows(session, asked)


def new_file(session: Session, folder: Path) -> Iterator[Any]:
    for name in ("one", "two"):
        pq.write_table(data().slice(0, 10), folder / f"{name}.parquet")
        time.sleep(2.1)
        yield rows(session, f"SELECT count(*) FROM '{folder}/*.parquet'")


def added_column(session: Session, _: Path) -> Iterator[Any]:
    for number in (1, 2):
        yield rows(session, "SELECT * FROM t ORDER BY k LIMIT 2")
        session.sql(f"ALTER TABLE t ADD COLUMN c{number} INTEGER DEFAULT {number}").collect()
    yield rows(session, "SELECT * FROM t ORDER BY k LIMIT 2")


def renamed(session: Session, _: Path) -> Iterator[Any]:
    """Columns, and tables, that change places."""
    session.create_table("u", pa.table({"a": [1, 2], "b": [3, 4]}), replace=True)
    session.create_table("w", pa.table({"a": [5], "b": [6]}), replace=True)
    for _ in range(2):
        yield rows(session, "SELECT sum(a) FROM u")
        for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
            session.sql(f"ALTER TABLE u RENAME COLUMN {old} TO {new}").collect()
        yield rows(session, "SELECT sum(a) FROM u")
        for old, new in (("u", "x"), ("w", "u"), ("x", "w")):
            session.sql(f"ALTER TABLE {old} RENAME TO {new}").collect()


def hidden(session: Session, _: Path) -> Iterator[Any]:
    """A table that a temporary view hides, and one that is there instead of a file."""
    asked = "SELECT count(*) FROM t"
    yield rows(session, asked)
    session.sql("CREATE TEMP VIEW t AS SELECT 1 AS k").collect()
    yield rows(session, asked)
    session.sql("DROP VIEW temp.t").collect()
    yield rows(session, asked)


def instead_of_a_file(session: Session, folder: Path) -> Iterator[Any]:
    path = folder / "u.parquet"
    pq.write_table(data().slice(0, 10), path)
    time.sleep(2.1)
    asked = f"SELECT count(*) FROM '{path}'"
    yield rows(session, asked)
    session.create_table(str(path), pa.table({"k": [1]}))
    yield rows(session, asked)
    session.drop_table(str(path))
    yield rows(session, asked)


def enumeration(session: Session, _: Path) -> Iterator[Any]:
    for values in ("'a', 'A', 'b', 'B'", "'B', 'b', 'A', 'a'"):
        session.sql("DROP TYPE IF EXISTS mood").collect()
        session.sql(f"CREATE TYPE mood AS ENUM ({values})").collect()
        yield rows(session, "SELECT max(s::mood)::VARCHAR FROM t")


PAIRS = [
    moment, new_file, added_column, renamed, hidden, instead_of_a_file, enumeration,
    time_zone, collation, integer_division, inserted, deleted, updated, rolled_back, replaced,
    view, macro, limit, columns, lossless, file_of_other_size, file_of_other_time, function,
    opening, mapped, called, random, variable, cached,
]  # fmt: skip


@pytest.mark.sample(11)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.__name__)
def test_statements_that_differ_in_one_thing(
    pair: Callable[[Session, Path], Iterator[Any]], session: Session, plain: Session, tmp_path: Path
) -> None:
    """Each has the answer that it has without reuse, in this order and asked again."""
    found = []
    for name, each in (("a", session), ("b", session), ("c", plain)):
        each.create_table("t", data(), replace=True)
        folder = tmp_path / name
        folder.mkdir()
        found.append(list(pair(each, folder)))
    assert found[2] == found[0]
    assert found[2] == found[1]


PLANTED: dict[str, tuple[Callable[..., Any], Callable[[pytest.MonkeyPatch], None]]] = {
    "settings": (
        time_zone,
        lambda patch: patch.setattr(names, "fragment_name", _without_prelude(names.fragment_name)),
    ),
    "functions": (
        function,
        lambda patch: patch.setattr(names, "function_digest", lambda *_: NOTHING),
    ),
    "the working folder": (
        opening,
        lambda patch: patch.setattr(Reach, "opens_files", property(lambda _: False)),
    ),
    "tables": (
        updated,
        lambda patch: patch.setattr(names.Leaves, "partition", lambda *_: "any"),
    ),
    "deleted rows": (deleted, lambda patch: _unchanged(patch, deleted=b"")),
    "added rows": (inserted, lambda patch: _unchanged(patch, deltas=())),
    "files": (
        file_of_other_size,
        lambda patch: patch.setattr(names.Leaves, "file", lambda *_: "any"),
    ),
    "the text of a question": (limit, lambda patch: _asked_without(patch, "SELECT ")),
    "settings of a question": (
        integer_division,
        lambda patch: _asked_in(patch, lambda own: replace(own, settings=())),
    ),
    **{
        f"that a question means more: {pair.__name__}": (
            pair,
            lambda patch: patch.setattr(PlanningDatabase, "means_more", lambda *_: False),
        )
        for pair in (moment, function)
    },
}


def _unchanged(patch: pytest.MonkeyPatch, **fields: Any) -> None:
    """Forget what has changed in a partition."""
    own = names.Leaves.partition
    patch.setattr(
        names.Leaves, "partition", lambda self, table, it: own(self, table, replace(it, **fields))
    )


def _asked_without(patch: pytest.MonkeyPatch, begins: str) -> None:
    """Forget parts of a question's name."""
    own = questions.versioned

    def versioned(*parts: bytes | str) -> str:
        return own(*(part for part in parts if not str(part).startswith(begins)))

    patch.setattr(questions, "versioned", versioned)


def _asked_in(patch: pytest.MonkeyPatch, change: Callable[[Environment], Environment]) -> None:
    """Forget a part of what a question's name has of its session."""
    own = engine.question_of

    def question_of(
        sql: str, planner: Any, environment: Environment, *rest: Any, **how: Any
    ) -> Any:
        return own(sql, planner, change(environment), *rest, **how)

    patch.setattr(engine, "question_of", question_of)


def _without_prelude(own: Callable[[Any], str]) -> Callable[[Any], str]:
    from msgspec import structs

    return lambda task: own(structs.replace(task, prelude=()))


@pytest.mark.sample(3)
@pytest.mark.parametrize("planted", PLANTED)
def test_a_forgotten_ingredient_is_a_wrong_answer(
    planted: str, plain: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So that the pairs would tell."""
    pair, forget = PLANTED[planted]
    forget(monkeypatch)
    with connected() as session:
        found = []
        for each in (session, plain):
            each.create_table("t", data(), replace=True)
            found.append(list(pair(each, tmp_path)))
    assert found[0] != found[1]


def test_a_query_that_was_asked_runs_no_task(session: Session) -> None:
    """Nor do the stages of another that are the same."""
    session.create_table("t", data(), partitions=2, replace=True)
    session.create_table("d", pa.table({"g": [1, 2, 3], "name": ["x", "y", "z"]}), replace=True)
    asked = "SELECT name, sum(k) s FROM t JOIN d USING (g) GROUP BY name ORDER BY {} LIMIT 2"
    first = tasks(session, asked.format("s"))
    assert 0 == tasks(session, asked.format("s"))
    assert 0 < tasks(session, asked.format("name")) < first


def test_an_answer_is_found_before_it_is_planned(
    session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By its text, over tables and over files; `metrics` tells of the stage that has left it."""
    session.create_table("t", data(), replace=True)
    pq.write_table(data(), tmp_path / "t.parquet")
    time.sleep(2.1)
    over_files = f"WITH t AS (FROM '{tmp_path}/t.parquet') {GROUPS}"
    expected = [rows(session, asked) for asked in (GROUPS, over_files)]
    stages = [
        session.sql(asked).profile().metrics.reused[0].stage for asked in (GROUPS, over_files)
    ]
    monkeypatch.delattr(QueryPlanner, "plan")
    frames = [session.sql(asked) for asked in (GROUPS, over_files)]
    assert expected == [[tuple(row) for row in frame.collect()] for frame in frames]
    assert stages == [frame.metrics().reused[0].stage for frame in frames]
    assert [0, 0] == [frame.metrics().tasks for frame in frames]


def test_a_question_is_that_of_a_plan_over_the_same_versions(session: Session) -> None:
    """Not of one that has seen a change that came between them."""
    session.create_table("t", data(), replace=True)
    runtime = session._runtime
    reuse = runtime.engine.reuse
    assert reuse is not None

    def asked() -> tuple[Question, QueryPlan]:
        environment = runtime.engine.limited_environment(runtime.scope)
        question = question_of(GROUPS, runtime.planner, environment, reuse.leaves, lossless=False)
        assert question is not None
        return question, runtime.planner.plan(GROUPS, CollectRows(), on_hosts=False)

    before, old = asked()
    session.sql("DELETE FROM t WHERE k = 3").collect()
    after, new = asked()
    assert [True, False, False, True] == [
        question.is_of(plan) for question in (before, after) for plan in (old, new)
    ]
    assert before.name != after.name


def test_an_answer_that_is_reused_can_be_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compared with DuckDB's over the tables as they are: a wrong name is found."""
    with connected() as session:
        session.create_table("t", data(), replace=True)
        assert 7 == session.sql(GROUPS).to_arrow(verify=True).num_rows
        assert 0 == tasks(session, GROUPS)
        assert 7 == session.sql(GROUPS).to_arrow(verify=True).num_rows
        monkeypatch.setattr(names.Leaves, "partition", lambda *_: "any")
        tasks(session, GROUPS)
        session.sql("UPDATE t SET k = k + 1 WHERE k < 10").collect()
        with pytest.raises(VerificationError):
            session.sql(GROUPS).to_arrow(verify=True)


def test_explain_says_what_exists_or_why_not(session: Session) -> None:
    """And EXPLAIN ANALYZE and events what was taken."""
    session.create_table("t", data(), replace=True)
    asked = "SELECT g, max(k) FROM t GROUP BY g"
    heard: list[AnyEvent] = []
    frame = session.sql(asked)
    assert "no output exists" in explained(session, asked)
    frame.collect()
    assert "The answer exists: " in explained(session, asked)
    profile = session.sql(asked).profile()
    (reused,) = profile.metrics.reused
    assert reused.tasks
    assert "Reused: " in explained(session, asked, "analyze")
    heard += [event for event in profile.page.events if isinstance(event, StageReused)]
    assert [reused.stage] == [event.stage for event in heard]
    assert "random() may have another value each time" in explained(
        session, "SELECT random() FROM t"
    )
    assert "whole statement" in explained(session, "SELECT k FROM t USING SAMPLE 3")


def test_explain_says_whether_calls_are_made_again(session: Session) -> None:
    """Before they are made; also of functions over what others return."""
    session.create_table("t", data(), replace=True)

    def added(row: Any) -> dict[str, int]:
        return {"k": row.k + 1}

    def dynamic(row: Any) -> dict[str, int]:
        return {"k": eval("row.k")}

    frame = session.table("t").map_rows(added, "k BIGINT")
    outer = frame.map_rows(dynamic, "k BIGINT")
    text = explained(session, outer.sql())
    assert "map_rows makes all calls: none outlive this session" in text
    assert "map_rows makes all calls again, as the function map_rows can't be named: " in text
    frame.count()
    assert "calls" not in explained(session, frame.sql())


def test_a_cluster_of_a_sessions_own_keeps_nothing_for_others() -> None:
    """A warning says so, unless a folder does."""
    with minishark.connect(in_process=True, reuse="cluster") as session:
        (warning,) = session.warnings
        assert "a cluster that was started, or pass reuse_folder" in warning


def explained(session: Session, sql: str, mode: str = "stages") -> str:
    """EXPLAIN of a query."""
    return session._runtime.explain(sql, mode=mode)


@pytest.mark.slow
def test_equal_queries_at_the_same_time_run_their_tasks_once(session: Session) -> None:
    """All but one wait."""
    session.create_table("t", data(), replace=True)
    begin = threading.Barrier(4)

    def slow(x: int) -> int:
        time.sleep(0.0005)
        return x

    session.udf.register("slow_of_test", slow, "BIGINT", ["BIGINT"])

    def ask(_: int) -> tuple[Any, int]:
        begin.wait()
        profile = session.sql("SELECT g, sum(slow_of_test(k)) s FROM t GROUP BY g").profile()
        return profile.metrics.tasks, sum(each.tasks for each in profile.metrics.reused)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, range(4)))
    ran = [count for count, _ in found]
    assert max(ran) == sum(ran)


def test_one_changed_file_of_many_is_read_alone(
    plain: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaced by one of another size, or new: the tasks of the others keep their outputs."""
    monkeypatch.setattr(sources, "_STEADY_BYTES_MIN", 1)
    monkeypatch.setattr(names, "_SETTLED_S", 0.0)
    files = 40  # of more rows than every task would read
    for number in range(files):
        pq.write_table(data().slice(number * 9, 1000), tmp_path / f"{number:03}.parquet")
    labels = pa.table({"g": [1, 2, 3], "name": ["x", "y", "z"]})
    asked = (
        f"SELECT name, count(*), sum(k) FROM '{tmp_path}/*.parquet' JOIN d USING (g) "
        "WHERE k % 3 < 2 GROUP BY name ORDER BY name"
    )
    plain.create_table("d", labels, replace=True)
    with connected() as session:
        session.create_table("d", labels)
        assert rows(plain, asked) == rows(session, asked)
        for name, count in (("017", 90), ("0171", 30), ("000", 0)):
            pq.write_table(data().slice(7, count), tmp_path / f"{name}.parquet")
            profile = session.sql(asked).profile()
            reused = {each.stage: each.tasks for each in profile.metrics.reused}
            assert max(reused.values()) >= files - 2
            assert rows(plain, asked) == rows(session, asked)


def test_an_answer_is_taken_though_its_stages_vary(session: Session) -> None:
    """Sums of floats may differ in the last digit; asked again, they do not."""
    session.create_table("t", data(), replace=True)
    asked = "SELECT g, sum(k / 7.0::DOUBLE) s FROM t GROUP BY g ORDER BY g"
    first = rows(session, asked)
    assert 0 == tasks(session, asked)
    assert first == rows(session, asked)
    rows(session, f"SELECT s FROM ({asked}) ORDER BY s")


def large() -> pa.Table:
    """Rows that do not fit into a message."""
    numbers = list(range(60_000))
    return pa.table({"k": numbers, "s": [f"{i:040}" for i in numbers], "g": numbers})


def kept_files(session: Session) -> list[Path]:
    """The files of outputs with names."""
    paths = session._group.engine.cluster.paths
    found = [*paths.memory.glob("*/outputs/*.arrow"), *paths.disk.glob("*/outputs/*.arrow")]
    return sorted(set(found))


BIG = "SELECT a.k, a.s, a.g FROM big a JOIN big b ON a.k = b.k + 1"


@pytest.mark.sample(3)
@pytest.mark.parametrize("damage", ["removed", "flipped", "cut"])
def test_a_lost_or_damaged_output_is_a_miss(session: Session, damage: str) -> None:
    """It is computed again; nobody takes it any more."""
    session.create_table("big", large(), replace=True)
    session._group.engine.reuse.make_room()
    expected = sorted(rows(session, BIG))
    files = kept_files(session)
    assert files
    for file in files:
        if damage == "removed":
            file.unlink()
            continue
        damaged = bytearray(file.read_bytes())
        if damage == "flipped":
            damaged[len(damaged) // 2] ^= 4
        else:
            damaged = damaged[: len(damaged) // 2]
        file.unlink()  # who has mapped it goes on to read it
        file.write_bytes(damaged)
    wanted = f"SELECT count(*), sum(k) FROM ({BIG})"
    total = [(len(expected), sum(row[0] for row in expected))]
    session._group.engine.cluster.store().forget_all()
    assert total == rows(session, wanted)
    assert expected == sorted(rows(session, BIG))


@pytest.mark.slow
def test_outputs_go_over_the_quota_and_with_the_session(tmp_path: Path) -> None:
    """Least recently used ones first, and none that is read."""
    with connected() as session:
        session.create_table("big", large(), replace=True)
        reuse = session._group.engine.reuse
        assert reuse is not None
        reuse.quota_bytes = 8_000_000
        for number in range(4):
            rows(session, f"SELECT x.k + {number} AS k, x.s FROM ({BIG}) x")
            assert reuse.bytes <= 8_000_000
        assert 0 < sum(file.stat().st_size for file in kept_files(session)) < 9_000_000
        reuse.make_room()
        assert [] == kept_files(session)
    del tmp_path


# Random statements over tables that change

_CHANGES = st.sampled_from(
    [
        "INSERT INTO r SELECT i, i % 3, 'new' FROM range(40, 45) n(i)",
        "INSERT INTO r VALUES (7, NULL, 'x')",
        "DELETE FROM r WHERE a % 5 = 1",
        "UPDATE r SET b = b + 1 WHERE a < 9",
        "DELETE FROM r WHERE c = 'new'",
        "",
    ]
)
_ITEMS = st.sampled_from(["count(*)", "sum(a)", "min(c)", "max(a) - min(a)", "count(DISTINCT c)"])
_KEYS = st.sampled_from(["b", "c", "a % 3", "b, c"])
_WHERES = st.sampled_from(["", "WHERE a > 4", "WHERE b IS NOT NULL", "WHERE c <> 'x'"])
_FROMS = st.sampled_from(["r", "r JOIN d USING (b)", "(SELECT DISTINCT a, b, c FROM r)"])


@st.composite
def _queries(draw: st.DrawFn) -> str:
    keys, item = draw(_KEYS), draw(_ITEMS)
    having = draw(st.sampled_from(["", "HAVING count(*) > 1"]))
    return (
        f"SELECT {keys}, {item} AS x FROM {draw(_FROMS)} {draw(_WHERES)} GROUP BY {keys} {having}"
    )


@settings(
    max_examples=max(2, settings.default.max_examples // 16),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.tuples(_queries(), _CHANGES), min_size=2, max_size=4))
def test_answers_over_changing_tables_are_those_of_duckdb(
    session: Session, script: list[tuple[str, str]]
) -> None:
    """Each query is asked twice, and again after each change."""
    first = "SELECT i AS a, i % 4 AS b, 'c' || (i % 3) AS c FROM range(30) n(i)"
    other = "SELECT i AS b, i * 10 AS w FROM range(3) n(i)"
    with duckdb.connect() as oracle:
        for name, sql in (("r", first), ("d", other)):
            oracle.execute(f"CREATE TABLE {name} AS {sql}")
            session.create_table(name, oracle.sql(f"FROM {name}").to_arrow_table(), replace=True)
        asked: list[str] = []
        for query, change in script:
            asked.append(query)
            for each in (*asked, query):
                expected = sorted(map(repr, oracle.execute(each).fetchall()))
                assert expected == sorted(map(repr, rows(session, each)))
            if change:
                oracle.execute(change)
                session.sql(change).collect()
