"""Names of outputs: two that differ in one ingredient differ, and without it they would not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import cloudpickle
import duckdb
import msgspec
import pytest
from msgspec import structs

from minishark.cluster.jobs.records import RESULT_VARIABLE
from minishark.compiler.hints import EarlyCte, FragmentHints
from minishark.compiler.stages.varying import UNREPEATABLE
from minishark.model.catalog import Delta, Partition, Table, TableStatistics
from minishark.model.expressions import Column
from minishark.model.predicates import Comparison, Predicate, Pushed
from minishark.query import names
from minishark.query.digests import Digest
from minishark.query.names import Leaves, NoNameError, fragment_name, named, takes_task
from minishark.query.reach import Reach
from minishark.sources.filesystems import StoredFile, stat_file
from minishark.sources.formats import WholeFiles
from minishark.sources.hive import FolderKeys
from minishark.sources.parquet import ParquetPart
from minishark.worker.protocol import (
    CopyTarget,
    FileSlice,
    OutputKind,
    ScalarFunction,
    StageTask,
    StoreLocation,
    TaskFunction,
)
from minishark.worker.scans import SplitRead

NOTHING = Digest("", Reach())
"""What is known of a function if nothing is."""

SCALAR = ScalarFunction(
    name="twice",
    pickled=cloudpickle.dumps(lambda x: 2 * x),
    returns="BIGINT",
    parameters=("BIGINT",),
)
TASK = StageTask(
    sql="SELECT twice(c0) AS c0 FROM in0",
    types=("BIGINT",),
    output=OutputKind.PIECE,
    folder="queries/1",
    kept="outputs",
    prelude=(
        "SET TimeZone = 'UTC'",
        "SET default_collation = 'binary'",
        "SET integer_division = false",
    ),
    scalars=(SCALAR,),
)

OTHERS: dict[str, Any] = {
    "sql": "SELECT twice(c1) AS c0 FROM in0",
    "types": ("INTEGER",),
    "output": OutputKind.RESULT,
    "buckets": 2,
    "columns": (("a", "BIGINT"),),
    "lossless": True,
    "cuts": 3,
    "hints": FragmentHints(ctes=(EarlyCte("cte0", "SELECT 1 AS c0", ("INTEGER",), 1.0),)),
    "prelude": TASK.prelude[1:],
    "scalars": (structs.replace(SCALAR, pickled=cloudpickle.dumps(lambda x: 3 * x)),),
    "function": TaskFunction(
        "map", cloudpickle.dumps(lambda rows: rows), (("a", "BIGINT"),), only_returns=True
    ),
    "target": CopyTarget("/x", "", ".csv"),
    "changed": (0,),
}
"""Other values of the fields that count."""

BLANK = {
    "folder": "queries/2",
    "kept": "others",
    "prefix": "1-",
    "shared_inputs": {"in0": (FileSlice("x", ("n",)),)},
    "stores": (StoreLocation("n", "h", "m", "d", "s"),),
    "rows": 7.0,
    "threads": 2,
    "profiled": True,
    "access": structs.replace(TASK.access, settings={"": {"a": "b"}}),
}
"""Other values of the fields that don't."""


def test_fields_of_stages_count_or_say_nothing_of_rows() -> None:
    """A new field has to be put on one side or the other; until then it counts."""
    fields = frozenset(StageTask.__struct_fields__)
    assert frozenset((*OTHERS, *BLANK, "working_folder")) == fields


@pytest.mark.parametrize("field", OTHERS)
def test_a_field_that_counts(field: str) -> None:
    """Each alone makes another name."""
    other = structs.replace(TASK, **{field: OTHERS[field]})
    assert fragment_name(TASK) != fragment_name(other)


@pytest.mark.parametrize("field", BLANK)
def test_a_field_that_says_nothing_of_rows(field: str) -> None:
    """Where rows go, and how fast."""
    assert fragment_name(TASK) == fragment_name(structs.replace(TASK, **{field: BLANK[field]}))


def _opening(x: int) -> int:
    return x + len(open("limits").readlines())  # noqa: PTH123 - where it is, the folder says


def test_the_working_folder_counts_for_functions_that_may_open_files() -> None:
    """They may read them by relative paths."""
    opening = structs.replace(SCALAR, pickled=cloudpickle.dumps(_opening))
    reading = structs.replace(TASK, scalars=(opening,))
    assert fragment_name(reading) != fragment_name(structs.replace(reading, working_folder="/x"))
    assert fragment_name(TASK) == fragment_name(structs.replace(TASK, working_folder="/x"))


def test_a_job_has_the_same_folder_on_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gives it one of its own, with the files that the job has brought; others are theirs."""

    def name(folder: str, result: str) -> str:
        monkeypatch.setenv(RESULT_VARIABLE, result)
        opening = structs.replace(SCALAR, pickled=cloudpickle.dumps(_opening))
        return fragment_name(structs.replace(TASK, scalars=(opening,), working_folder=folder))

    here = name("/a/node-0/jobs/u1/work", "/a/node-0/jobs/u1/result.draft")
    assert here == name("/b/node-1/jobs/u1/work", "/b/node-1/jobs/u1/result.draft")
    others = [
        name("/b/node-1/jobs/u2/work", "/b/node-1/jobs/u2/result.draft"),
        name("/b/node-1/jobs/u1/work/below", "/b/node-1/jobs/u1/result.draft"),
        name("/b/node-1/jobs/u1/work", "/b/node-1/jobs/u2/result.draft"),
        name("/a", "/b/node-1/jobs/u1/result.draft"),
        name("/b", "/b/node-1/jobs/u1/result.draft"),
    ]
    assert len({here, *others}) == 1 + len(others)


def test_functions_count_where_they_are_called() -> None:
    """Not if their names are parts of others."""
    other = structs.replace(TASK, sql="SELECT twice_as_much(c0) AS c0 FROM in0")
    assert fragment_name(other) == fragment_name(structs.replace(other, scalars=()))


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (structs.replace(TASK, output=OutputKind.FILES), "writes files"),
        (structs.replace(TASK, types=()), "whole statement"),
        (
            structs.replace(TASK, function=TaskFunction("foreach", b"", ())),
            "foreach is called for what else it does",
        ),
        (structs.replace(TASK, scalars=(structs.replace(SCALAR, volatile=True),)), "deterministic"),
        (
            structs.replace(
                TASK,
                scalars=(structs.replace(SCALAR, pickled=cloudpickle.dumps(lambda x: eval("x"))),),
            ),
            "twice can't be named: .*calls eval",
        ),
    ],
)
def test_what_has_no_name_says_why(task: StageTask, why: str) -> None:
    """For EXPLAIN."""
    with pytest.raises(NoNameError, match=why):
        fragment_name(task)


def test_functions_that_take_the_task_are_told() -> None:
    """Their rows depend on its number."""
    assert not takes_task(TASK)
    assert takes_task(structs.replace(TASK, scalars=(structs.replace(SCALAR, takes_task=True),)))


def test_all_functions_of_duckdb_are_known_whose_values_vary() -> None:
    """As its catalog tells; a newer version may have more."""
    query = """SELECT DISTINCT function_name FROM duckdb_functions()
        WHERE function_type = 'scalar' AND stability <> 'CONSISTENT'"""
    found = {name for (name,) in duckdb.sql(query).fetchall()}
    assert UNREPEATABLE >= found


# Leaves

OWN = Partition(index=0, file="tables/1/0.arrow", locations=("n",), rows=3, bytes=9)
ADDED = Delta(file="tables/1/delta-0.arrow", rows=1, bytes=1)


def table_of(*partitions: Partition) -> Table:
    """A table."""
    return Table(
        name="t",
        schema=(Column("a", "BIGINT"),),
        partitions=partitions,
        partition_by=(),
        statistics=TableStatistics(0, 0, ()),
    )


def leaf(partition: Partition, token: str = "s") -> str:
    """The name of a partition in a session."""
    return Leaves(token).partition(table_of(partition), partition)


PARTITIONS = {
    "the session": partial(leaf, OWN, "other"),
    "the file": lambda: leaf(replace(OWN, file="tables/2/0.arrow")),
    "deleted rows": lambda: leaf(replace(OWN, deleted=b"x")),
    "a delta": lambda: leaf(replace(OWN, deltas=(ADDED,))),
    "deleted rows of a delta": lambda: leaf(replace(OWN, deltas=(replace(ADDED, deleted=b"y"),))),
    "row numbers": lambda: leaf(replace(OWN, is_numbered=True)),
}


def test_each_version_of_a_partition_has_a_name_of_its_own() -> None:
    """And so has each place of a numbered one; where it is stored does not count."""
    found = [leaf(OWN), *(make() for make in PARTITIONS.values())]
    found.append(leaf(replace(OWN, is_numbered=True, index=1)))
    assert len(found) == len(set(found))
    assert leaf(OWN) == leaf(replace(OWN, locations=("other",), rows=0, bytes=0, index=1))


KEYS = FolderKeys()
SCHEMA = (Column("a", "BIGINT"),)


def part_of(file: StoredFile, **changes: Any) -> ParquetPart:
    """A Parquet file as a split."""
    found = ParquetPart(
        file=file, options=(), own=SCHEMA, fills=False, keys=KEYS, rows=1, bytes=file.bytes
    )
    return replace(found, **changes)


def source_leaf(*splits: Any, pushed: Pushed | None = None, now_s: float | None = None) -> str:
    """The name of splits."""
    read = SplitRead(SCHEMA, splits, pushed or Pushed()).pickled()
    partition = Partition(index=0, file="", locations=(), rows=0, bytes=0, read=read)
    later = time.time() + 60 if now_s is None else now_s
    return Leaves("s", now_s=lambda: later).partition(table_of(partition), partition)


def test_files_count_by_version_and_what_is_read_of_them(tmp_path: Path) -> None:
    """Each alone."""
    paths = [tmp_path / name for name in ("a.parquet", "b.parquet")]
    for path in paths:
        path.write_bytes(b"123")
    one, two = (stat_file(str(path)) for path in paths)
    first = part_of(one)
    filtered = Pushed(predicates=(Predicate("a", Comparison.LESS, (1,)),))
    found = [
        source_leaf(first),
        source_leaf(part_of(two)),
        source_leaf(first, part_of(two)),
        source_leaf(part_of(two), first),
        source_leaf(part_of(one, range=(0, 1))),
        source_leaf(part_of(one, options=(("binary_as_string", "true"),))),
        source_leaf(part_of(one, fills=True)),
        source_leaf(part_of(one, own=(Column("b", "BIGINT"),))),
        source_leaf(part_of(one, keys=replace(KEYS, values={"k": [1]}))),
        source_leaf(first, pushed=Pushed(columns=("a",))),
        source_leaf(first, pushed=Pushed(limit=1)),
        source_leaf(first, pushed=filtered),
        source_leaf(
            WholeFiles(stored=(one,), reader="read_csv", options=(), own=SCHEMA, keys=KEYS, bytes=3)
        ),
    ]
    assert len(found) == len(set(found))
    assert found[0] == source_leaf(first)


@pytest.mark.parametrize("keeps_times", [False, True])
def test_a_file_that_was_replaced_has_another_name(tmp_path: Path, keeps_times: bool) -> None:
    """Also by one of the same size and time of change, as rsync and cp -p do."""
    path = tmp_path / "a.parquet"
    path.write_bytes(b"123")
    before = stat_file(str(path))
    old = source_leaf(part_of(before))
    other = tmp_path / "other"
    other.write_bytes(b"456")
    if keeps_times:
        state = path.stat()
        os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    other.replace(path)
    after = stat_file(str(path))
    assert keeps_times is (before == after)
    assert old != source_leaf(part_of(after))
    if not keeps_times:
        with pytest.raises(NoNameError, match="has changed since"):
            source_leaf(part_of(before))


def test_a_young_file_has_no_name(tmp_path: Path) -> None:
    """It may change once more without another time; also one of the future may."""
    path = tmp_path / "a.parquet"
    path.write_bytes(b"123")
    part = part_of(stat_file(str(path)))
    changed_s = path.stat().st_ctime
    for age_s in (0.0, 1.9, -100.0):
        with pytest.raises(NoNameError, match="within the last 2 seconds"):
            source_leaf(part, now_s=changed_s + age_s)
    assert source_leaf(part, now_s=changed_s + 2.1)


def test_files_of_object_stores_count_by_etag() -> None:
    """Those without one may have changed within the second; table formats replace no file."""
    uri = "s3://bucket/a.parquet"
    found = [source_leaf(part_of(StoredFile(uri, 3, version))) for version in ('"x"', '"y"', "")]
    assert 3 == len(set(found))
    with pytest.raises(NoNameError, match="has no version"):
        source_leaf(part_of(StoredFile(uri, 3, "2026-01-01T00:00:00-3")))


class Untold:
    """A split that does not say what it is made of."""

    rows, bytes = None, 0

    @staticmethod
    def made_of() -> None:
        """As a database's."""


def test_a_source_that_does_not_tell_has_no_name() -> None:
    """Its version is not unique among sources."""
    with pytest.raises(NoNameError, match="t does not tell what its rows are made of"):
        source_leaf(Untold())


def test_parts_of_names_do_not_run_into_each_other() -> None:
    """Also empty ones count."""
    found = [named("a", "bc"), named("ab", "c"), named("abc"), named("abc", ""), named("", "abc")]
    assert len(found) == len(set(found))


# Planted mistakes


@dataclass(frozen=True)
class Planted:
    """An ingredient: two things that differ in it alone, and a mistake that leaves it out."""

    one: Callable[[], str]
    two: Callable[[], str]
    forget: Callable[[pytest.MonkeyPatch], None]


def without_fields(*fields: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Encodes structs without fields."""

    def encode(item: Any) -> bytes:
        known = {f: None for f in fields if f in getattr(item, "__struct_fields__", ())}
        return msgspec.msgpack.encode(structs.replace(item, **known) if known else item)

    return lambda patch: patch.setattr(names, "encode", encode)


def without_setting(text: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Leaves settings out that have a text."""

    def encode(item: Any) -> bytes:
        if isinstance(item, StageTask):
            kept = tuple(each for each in item.prelude if text not in each)
            item = structs.replace(item, prelude=kept)
        return msgspec.msgpack.encode(item)

    return lambda patch: patch.setattr(names, "encode", encode)


def with_setting(old: str, new: str) -> str:
    """The name with another value of a setting."""
    changed = tuple(each.replace(old, new) for each in TASK.prelude)
    return fragment_name(structs.replace(TASK, prelude=changed))


def without_partition(*fields: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Leaves what a partition has out of its name."""
    own = Leaves.partition

    def partition(self: Leaves, table: Table, partition: Partition) -> str:
        blank = {"deleted": b"", "deltas": (), "file": "", "is_numbered": False}
        return own(self, table, replace(partition, **{f: blank[f] for f in fields}))

    return lambda patch: patch.setattr(Leaves, "partition", partition)


def version_of(package: str) -> Callable[[], str]:
    """The name with another version of a package."""

    def name() -> str:
        own, names.own_versions = names.own_versions, lambda: {**own(), package: "0"}
        names._versions.cache_clear()
        try:
            return fragment_name(TASK)
        finally:
            names.own_versions = own
            names._versions.cache_clear()

    return name


def without_version(package: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Leaves a package's version out."""

    def encode(item: Any) -> bytes:
        if isinstance(item, dict):
            item = {name: version for name, version in item.items() if name != package}
        return msgspec.msgpack.encode(item)

    def forget(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(names, "encode", encode)
        names._versions.cache_clear()

    return forget


def plain() -> str:
    """The name of the task as it is."""
    return fragment_name(TASK)


def with_field(field: str) -> Callable[[], str]:
    """The name with another value of a field."""
    return lambda: fragment_name(structs.replace(TASK, **{field: OTHERS[field]}))


def no_function(patch: pytest.MonkeyPatch) -> None:
    """Leaves out what functions do."""
    patch.setattr(names, "function_digest", lambda *_: NOTHING)


def no_token(patch: pytest.MonkeyPatch) -> None:
    """Leaves out the session."""
    patch.setattr(Leaves, "_stored", lambda _, file: named("file", file))


PLANTED = MappingProxyType(
    {
        **{
            field: Planted(plain, with_field(field), without_fields(field))
            for field in ("sql", "types", "buckets", "columns", "lossless", "cuts", "hints")
        },
        "output kind": Planted(plain, with_field("output"), without_fields("output")),
        "time zone": Planted(
            plain, partial(with_setting, "UTC", "Asia/Tokyo"), without_setting("TimeZone")
        ),
        "collation": Planted(
            plain, partial(with_setting, "binary", "nocase"), without_setting("collation")
        ),
        "integer division": Planted(
            plain, partial(with_setting, "false", "true"), without_setting("integer_division")
        ),
        "function": Planted(plain, with_field("scalars"), no_function),
        "DuckDB's version": Planted(plain, version_of("DuckDB"), without_version("DuckDB")),
        "pyarrow's version": Planted(plain, version_of("pyarrow"), without_version("pyarrow")),
        "minishark's version": Planted(
            plain, version_of("minishark"), without_version("minishark")
        ),
        "session": Planted(partial(leaf, OWN), PARTITIONS["the session"], no_token),
        "file of a table": Planted(
            partial(leaf, OWN), PARTITIONS["the file"], without_partition("file")
        ),
        "deleted rows": Planted(
            partial(leaf, OWN), PARTITIONS["deleted rows"], without_partition("deleted")
        ),
        "delta": Planted(partial(leaf, OWN), PARTITIONS["a delta"], without_partition("deltas")),
        "row numbers": Planted(
            partial(leaf, OWN), PARTITIONS["row numbers"], without_partition("is_numbered")
        ),
    }
)


@pytest.mark.parametrize("ingredient", PLANTED)
def test_a_forgotten_ingredient_is_found(ingredient: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair has two names, and one if the ingredient is left out."""
    planted = PLANTED[ingredient]
    assert planted.one() != planted.two()
    planted.forget(monkeypatch)
    try:
        assert planted.one() == planted.two()
    finally:
        names._versions.cache_clear()
