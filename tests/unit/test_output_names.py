"""Names of outputs have all that decides rows: each ingredient alone makes another name.

An ingredient is a pair of values that differ in it only, and a way to forget it: the mutation that
`test_a_forgotten_ingredient_is_found` plants.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import cloudpickle
import pytest
from msgspec import structs

from minishark.compiler.hints import EarlyCte, InputKeyFilter
from minishark.compiler.physical.plan import Share
from minishark.compiler.stages.stage import ReadMode, Stage, StageInput, TableInput
from minishark.model.catalog import Delta, Partition, Table, TableStatistics
from minishark.model.expressions import Column
from minishark.model.predicates import Comparison, Predicate, Pushed
from minishark.query import digests, names
from minishark.query.digests import Digest
from minishark.query.names import Leaves, NoNameError, OutputNames
from minishark.query.reach import Reach
from minishark.sources.filesystems import StoredFile, local_version
from minishark.sources.hive import FolderKeys
from minishark.sources.parquet import ParquetPart
from minishark.worker.protocol import OutputKind, ScalarFunction, StageTask, TaskFunction
from minishark.worker.scans import SplitRead

Patch = pytest.MonkeyPatch
NOTHING = Digest("", Reach())
"""What is known of a function if nothing is."""


def _pickled(function: Callable[..., Any]) -> bytes:
    pickled: bytes = cloudpickle.dumps(function)
    return pickled


def _scalar(function: Callable[[int], int] = abs, **fields: Any) -> ScalarFunction:
    return ScalarFunction(name="f", pickled=_pickled(function), returns="BIGINT", **fields)


def _opening(rows: Any) -> Any:
    with open("limits") as limits:  # noqa: PTH123 - where it is, the folder says
        return rows[: int(limits.read())]


TASK = StageTask(
    sql="SELECT f(c0) AS c0 FROM in0",
    types=("BIGINT",),
    output=OutputKind.BUCKETS,
    folder="queries/1",
    buckets=2,
    prelude=("SET TimeZone = 'UTC'",),
    columns=(("a", "BIGINT"),),
    scalars=(_scalar(),),
    function=TaskFunction("map", _pickled(_opening), (("n", "BIGINT"),), only_returns=True),
    working_folder="/a",
)
PARTITION = Partition(
    index=0,
    file="tables/1/0.arrow",
    locations=("a",),
    rows=10,
    bytes=100,
    deltas=(Delta(file="tables/1/1.arrow", rows=1, bytes=10),),
)


ALL_ROWS = Pushed()


def _table(*partitions: Partition) -> Table:
    return Table(
        name="t",
        schema=(Column("c0", "BIGINT"),),
        partitions=partitions,
        partition_by=(),
        statistics=TableStatistics(10, 100, ()),
    )


def _stage(
    index: int = 1, *inputs: TableInput | StageInput, tasks: int = 2, varies: bool = False
) -> Stage:
    plan: Any = SimpleNamespace(distribution=SimpleNamespace(partitions=2))
    read = inputs or (TableInput("in0", "t", ReadMode.OWN),)
    stage = Stage(index=index, sql="", inputs=read, schema=(), tasks=tasks, buckets=0, plan=plan)
    stage.__dict__.update(varies=varies, volatile_call=None)
    return stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What one name is made of; by default, that of a task that reads its partition of a table."""

    task: StageTask = TASK
    partitions: tuple[Partition, ...] = (PARTITION, replace(PARTITION, index=1, file="other"))
    stage: Stage | None = None
    earlier: Stage | None = None  # one that `stage` reads
    token: str = "session"
    identities: Mapping[tuple[int, int], str] | None = None
    number: int = 0  # of the task

    def name(self) -> str:
        stage = self.stage or _stage()
        stages = {each.index: each for each in (stage, self.earlier) if each is not None}
        found = OutputNames(
            stages=stages,
            tables={"t": _table(*self.partitions)},
            described=lambda _: self.task,
            leaves=Leaves(self.token, now_s=lambda: 4e9),
            identity=lambda *place: (self.identities or {}).get(place),
        )
        return found.of(stage.index, self.number)


@dataclass(frozen=True, slots=True)
class Ingredient:
    """Two values of it, and how it is forgotten."""

    one: Callable[[Path], Query]
    other: Callable[[Path], Query]
    forget: Callable[[Patch], None]


# Of what is done


def _field(forgotten: str, **fields: Any) -> Ingredient:
    """A field of a stage."""

    def forget(patch: Patch) -> None:
        encode = names.encode

        def without(value: object) -> bytes:
            if isinstance(value, StageTask):
                value = structs.replace(value, **{forgotten: getattr(TASK, forgotten)})
            return encode(value)

        patch.setattr(names, "encode", without)

    return Ingredient(
        lambda _: Query(), lambda _: Query(task=structs.replace(TASK, **fields)), forget
    )


def _hint(name: str, value: object) -> Ingredient:
    return _field("hints", hints=structs.replace(TASK.hints, **{name: value}))


def _versions() -> Ingredient:
    """Another release of DuckDB executes it."""

    @dataclass(frozen=True, slots=True)
    class Newer(Query):
        def name(self) -> str:
            with pytest.MonkeyPatch.context() as patch:
                versions = {**names.own_versions(), "DuckDB": "99.0"}
                patch.setattr(names, "own_versions", lambda: versions)
                getattr(names._versions, "cache_clear", lambda: None)()
                try:
                    return super(Newer, self).name()
                finally:
                    getattr(names._versions, "cache_clear", lambda: None)()

    return Ingredient(
        lambda _: Query(),
        lambda _: Newer(),
        lambda patch: patch.setattr(names, "_versions", lambda: b""),
    )


# Of Python functions


def _function(
    one: Callable[..., Any], other: Callable[..., Any], forget: Callable[[Patch], None]
) -> Ingredient:
    def query(function: Callable[..., Any]) -> Query:
        return Query(task=structs.replace(TASK, scalars=(_scalar(function),)))

    return Ingredient(lambda _: query(one), lambda _: query(other), forget)


def _without(part: str) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(digests._Digester, part, lambda *_: None)


def _twin(function: FunctionType, **variables: Any) -> FunctionType:
    """The same code over other globals."""
    return FunctionType(function.__code__, {**function.__globals__, **variables}, "twin")


def _closing(by: int) -> Callable[[int], int]:
    return lambda x: x * by


def _uses_global(x: int) -> int:
    return x + OFFSET  # type: ignore[name-defined,no-any-return] # noqa: F821


def _defaulted(x: int, by: int = 1) -> int:
    return x + by


def _unsourced_constants(patch: Patch) -> None:
    add = digests._Digester._code

    def without(self: Any, code: Any) -> None:
        add(self, code.replace(co_consts=()))

    patch.setattr(digests._Digester, "_code", without)


# Of what it is done with


def _partition(**fields: Any) -> Ingredient:
    """Something of a stored partition."""

    def forget(patch: Patch) -> None:
        own = Leaves.partition
        base = {name: getattr(PARTITION, name) for name in fields}

        def without(self: Leaves, table: Table, partition: Partition) -> str:
            return own(self, table, replace(partition, **base))

        patch.setattr(Leaves, "partition", without)

    return Ingredient(
        lambda _: Query(), lambda _: Query(partitions=(replace(PARTITION, **fields),)), forget
    )


def _session() -> Ingredient:
    own = Leaves._stored
    return Ingredient(
        lambda _: Query(),
        lambda _: Query(token="another"),
        lambda patch: patch.setattr(
            Leaves, "_stored", lambda self, file: own(replace(self, token=""), file)
        ),
    )


def _part(path: Path, **fields: Any) -> ParquetPart:
    state = path.stat()
    values: dict[str, Any] = {
        "file": StoredFile(str(path), state.st_size, local_version(state)),
        "options": (),
        "own": (Column("c0", "BIGINT"),),
        "fills": False,
        "keys": FolderKeys(),
        "rows": 10,
        "bytes": 10,
    }
    return ParquetPart(**{**values, **fields})


def _reading(part: ParquetPart, pushed: Pushed = ALL_ROWS, type_: str = "BIGINT") -> Query:
    read = SplitRead((Column("c0", type_),), (part,), pushed).pickled()
    return Query(partitions=(replace(PARTITION, file="", deltas=(), read=read),))


def _file(folder: Path, name: str = "t.parquet", data: str = "rows") -> Path:
    path = folder / name
    if not path.exists() or path.read_text() != data:
        path.write_text(data)
        os.utime(path, (1_000, 1_000))
    return path


def _split(forgotten: str, **fields: Any) -> Ingredient:
    """Something of a part of a file."""

    def forget(patch: Patch) -> None:
        own = ParquetPart.made_of

        def without(self: ParquetPart) -> Any:
            blank = replace(self, **{forgotten: getattr(_part(Path("/")), forgotten)})
            return own(blank)

        patch.setattr(ParquetPart, "made_of", without)

    return Ingredient(
        lambda folder: _reading(_part(_file(folder))),
        lambda folder: _reading(_part(_file(folder), **fields)),
        forget,
    )


def _settled_as(tell: Callable[[StoredFile], str]) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(names, "_settled", lambda file, _: tell(file))


def _read(place: int, pushed: Pushed = ALL_ROWS, type_: str = "BIGINT") -> Ingredient:
    """What is asked of a source; its `place` in what is digested."""
    own = names.digest

    def forget(patch: Patch) -> None:
        patch.setattr(names, "digest", lambda value: own((*value[:place], *value[place + 1 :])))

    return Ingredient(
        lambda folder: _reading(_part(_file(folder))),
        lambda folder: _reading(_part(_file(folder)), pushed, type_),
        forget,
    )


_FEW = Pushed(predicates=(Predicate(column="c0", comparison=Comparison.LESS, values=(3,)),))


# Of where a task is in its query


def _after(mode: ReadMode, **fields: Any) -> Query:
    """A task that reads an earlier stage."""
    shares = fields.pop("shares", ())
    stage = _stage(1, StageInput(fields.pop("input", "in0"), 0, mode, shares))
    return Query(stage=stage, earlier=_stage(0, varies=True), **fields)


_IDS = {(0, 0): "a", (0, 1): "b"}


def _read_without(change: Callable[[list[str]], list[str]]) -> Callable[[Patch], None]:
    def forget(patch: Patch) -> None:
        own = OutputNames._read
        patch.setattr(OutputNames, "_read", lambda self, *arguments: change(own(self, *arguments)))

    return forget


def _numbered(**fields: Any) -> Query:
    """A task whose rows depend on which of how many it is."""
    task = structs.replace(TASK, scalars=(_scalar(takes_task=True),))
    same = (PARTITION, PARTITION)
    return Query(task=task, partitions=same, **fields)


def _unnumbered(patch: Patch) -> None:
    patch.setattr(names, "takes_task", lambda _: False)


_HALF, _REST = Share(first=0, last=1), Share(first=1, last=2)
_KEYS = InputKeyFilter(
    input="in0", column="a", keys="k", key="c0", columns=("a",), low=0, high=9, copied_max=1.0
)

INGREDIENTS: dict[str, Ingredient] = {
    "text": _field("sql", sql="SELECT f(c0) + 1 AS c0 FROM in0"),
    "types": _field("types", types=("HUGEINT",)),
    "kind of output": _field("output", output=OutputKind.RESULT),
    "number of buckets": _field("buckets", buckets=3),
    "cuts": _field("cuts", cuts=4),
    "names of columns": _field("columns", columns=(("b", "BIGINT"),)),
    "lossless types": _field("lossless", lossless=True),
    "time zone": _field("prelude", prelude=("SET TimeZone = 'Asia/Tokyo'",)),
    "collation": _field("prelude", prelude=(*TASK.prelude, "SET default_collation = 'nocase'")),
    "working folder": _field("working_folder", working_folder="/b"),
    "changed columns": _field("changed", changed=(0,)),
    "text of an early CTE": _hint("ctes", (EarlyCte("k", "SELECT 1 AS c0", ("INTEGER",), 1.0),)),
    "key filters": _hint("key_filters", (_KEYS,)),
    "sides of joins": _hint("build_sides", True),
    "versions": _versions(),
    "result of a function": _field("scalars", scalars=(_scalar(sees_nulls=True),)),
    "function over rows": _field(
        "function",
        function=TaskFunction("map", _pickled(_opening), (("m", "BIGINT"),), only_returns=True),
    ),
    "code": _function(
        lambda x: x + 1,
        lambda x: x - 1,
        lambda patch: patch.setattr(names, "function_digest", lambda *_: NOTHING),
    ),
    "constant": _function(lambda x: x + 1000, lambda x: x + 1001, _unsourced_constants),
    "closure": _function(_closing(2), _closing(3), _without("_cells")),
    "default": _function(
        FunctionType(_defaulted.__code__, {}, "twin", (1,)),
        FunctionType(_defaulted.__code__, {}, "twin", (2,)),
        _without("_defaults"),
    ),
    "global": _function(
        _twin(_uses_global, OFFSET=1),  # type: ignore[arg-type]
        _twin(_uses_global, OFFSET=2),  # type: ignore[arg-type]
        _without("_globals"),
    ),
    "bound argument": _function(
        functools.partial(_defaulted, by=3),
        functools.partial(_defaulted, by=4),
        lambda patch: patch.setattr(names, "function_digest", lambda *_: NOTHING),
    ),
    "load of a table": _partition(file="tables/2/0.arrow"),
    "deleted rows": _partition(deleted=b"1"),
    "added rows": _partition(deltas=()),
    "numbers of rows": _partition(is_numbered=True),
    "session": _session(),
    "path": Ingredient(
        lambda folder: _reading(_part(_file(folder))),
        lambda folder: _reading(_part(_file(folder, "u.parquet"))),
        _settled_as(lambda file: str(file.bytes)),
    ),
    "state of a file": Ingredient(
        lambda folder: _reading(_part(_file(folder))),
        lambda folder: _reading(_part(_file(folder, data="other rows"))),
        _settled_as(lambda file: file.path),
    ),
    "time of an inode": Ingredient(
        lambda folder: _reading(_part(_file(folder))),
        lambda folder: _reading(_part(_renewed(folder))),
        _settled_as(lambda file: f"{file.path} {file.version}"),
    ),
    "ETag": Ingredient(
        lambda _: _reading(_remote('"1"')),
        lambda _: _reading(_remote('"2"')),
        _settled_as(lambda file: file.path),
    ),
    "options of a reader": _split("options", options=(("binary_as_string", "true"),)),
    "columns of a file": _split("own", own=(Column("c0", "INTEGER"),)),
    "columns that are filled": _split("fills", fills=True),
    "rows of a part": _split("range", range=(0, 5)),
    "columns that are read": _read(0, type_="INTEGER"),
    "pushed predicates": _read(1, pushed=_FEW),
    "earlier output": Ingredient(
        lambda _: _after(ReadMode.OWN, identities=_IDS),
        lambda _: _after(ReadMode.OWN, identities=_IDS | {(0, 0): "c"}),
        _read_without(lambda parts: parts[:2]),
    ),
    "outputs of all tasks": Ingredient(
        lambda _: _after(ReadMode.ALL, identities=_IDS),
        lambda _: _after(ReadMode.ALL, identities=_IDS | {(0, 1): "c"}),
        _read_without(lambda parts: parts[:2]),
    ),
    "buckets that are read": Ingredient(
        lambda _: _after(ReadMode.BUCKET, identities=_IDS, shares=(_HALF, _REST)),
        lambda _: _after(ReadMode.BUCKET, identities=_IDS, shares=(_HALF, _REST), number=1),
        _read_without(lambda parts: [*parts[:2], *parts[3:]]),
    ),
    "input that has them": Ingredient(
        lambda _: _after(ReadMode.OWN, identities=_IDS),
        lambda _: _after(ReadMode.OWN, identities=_IDS, input="in1"),
        _read_without(lambda parts: parts[1:]),
    ),
    "number of tasks": Ingredient(
        lambda _: _numbered(stage=_stage(tasks=2)),
        lambda _: _numbered(stage=_stage(tasks=3)),
        _unnumbered,
    ),
    "number of the task": Ingredient(
        lambda _: _numbered(), lambda _: _numbered(number=1), _unnumbered
    ),
}


def _renewed(folder: Path) -> Path:
    """The same file again, with its size and times set back."""
    path = _file(folder)
    other = _file(folder, "other")
    time.sleep(0.01)  # the clock of a file system is coarse
    other.replace(path)
    return path


def _remote(tag: str) -> ParquetPart:
    return _part(Path("/"), file=StoredFile("s3://bucket/t.parquet", 10, tag))


@pytest.mark.parametrize("ingredient", INGREDIENTS)
def test_an_ingredient_makes_another_name(ingredient: str, tmp_path: Path) -> None:
    """Where nothing else differs; the same again has the same name."""
    parts = INGREDIENTS[ingredient]
    one = parts.one(tmp_path).name()
    assert one == parts.one(tmp_path).name()
    assert one != parts.other(tmp_path).name()


@pytest.mark.slow
@pytest.mark.parametrize("ingredient", INGREDIENTS)
def test_a_forgotten_ingredient_is_found(
    ingredient: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above fails where a name does not have it."""
    parts = INGREDIENTS[ingredient]
    parts.forget(monkeypatch)
    names._read_of.cache_clear()
    try:
        one = parts.one(tmp_path).name()
        assert one == parts.other(tmp_path).name()
    finally:
        names._read_of.cache_clear()


def test_what_decides_no_rows_is_left_out(tmp_path: Path) -> None:
    """Where rows go, how fast, and what was estimated."""
    cte = EarlyCte("k", "SELECT 1 AS c0", ("INTEGER",), 1.0)
    base = structs.replace(TASK, hints=structs.replace(TASK.hints, ctes=(cte,)))
    more = structs.replace(TASK.hints, ctes=(structs.replace(cte, rows=9.0),), inline_bytes=7)
    other = structs.replace(
        base, folder="queries/2", kept="outputs", prefix="1-", rows=5.0, threads=4, profiled=True,
        hints=more,
    )  # fmt: skip
    assert Query(task=base).name() == Query(task=other).name()
    moved = replace(PARTITION, locations=("b", "c"), rows=9, bytes=9)
    assert Query().name() == Query(partitions=(moved,)).name()
    path = _file(tmp_path)
    assert _reading(_part(path)).name() == _reading(_part(path, rows=None, bytes=1)).name()


def test_a_young_file_and_one_that_has_changed_have_no_name(tmp_path: Path) -> None:
    """Their times do not tell yet; or they are not what was planned with."""
    part = _part(_file(tmp_path))
    assert _reading(part).name()
    _file(tmp_path, data="much more")
    with pytest.raises(NoNameError, match="has changed since"):
        _reading(part).name()


def test_a_load_of_rows_is_named_by_rows_and_layout() -> None:
    """Each of them counts, and rows never take the place of parts of a source."""
    base = names.load_name((), "4", "columns", "a", "BIGINT", rows="digest")
    others = [
        names.load_name((), "4", "columns", "a", "BIGINT", rows="another"),
        names.load_name((), "5", "columns", "a", "BIGINT", rows="digest"),
        names.load_name((), "4", "a", "columns", "a", "BIGINT", rows="digest"),
        names.load_name((), "4", "columns", "a", "INTEGER", rows="digest"),
        names.load_name((), "4", "columns", "a", "BIGINT", "of", "digest"),
    ]
    assert base == names.load_name((), "4", "columns", "a", "BIGINT", rows="digest")
    assert len({base, *others}) == 1 + len(others)


def test_a_call_is_named_by_its_function_and_arguments(tmp_path: Path) -> None:
    """Each ingredient makes another name; what can't be told has none."""
    one, same, other = (
        names.function_digest("f", cloudpickle.dumps(_twin(_uses_global, OFFSET=offset)))
        for offset in (1, 1, 2)
    )
    folder = str(tmp_path)
    assert names.call_name(one, folder) == names.call_name(same, folder)
    assert names.call_name(one, folder) != names.call_name(other, folder)
    assert names.call_name(one, folder) != names.call_name(one, "/elsewhere")
    given = [((1,), {}), ((2,), {}), ((1, 2), {}), ((1,), {"by": 2}), (([1],), {}), ((1.0,), {}),
             (("1",), {}), ((True,), {})]  # fmt: skip
    digests = [names.arguments_name("f", arguments) for arguments in given]
    assert len(given) == len(set(digests))
    assert digests == [names.arguments_name("f", arguments) for arguments in given]
    with pytest.raises(NoNameError, match="an argument of f can't be named"):
        names.arguments_name("f", ((threading.Lock(),), {}))
