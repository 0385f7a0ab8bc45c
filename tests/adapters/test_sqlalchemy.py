"""SQLAlchemy's dialects: tables, the ORM, reflection and pandas, in the process and on a server."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest

import minishark
from minishark.session.session import Session

sa = pytest.importorskip("sqlalchemy")
orm = pytest.importorskip("sqlalchemy.orm")

from minishark.adapters.sqlalchemy import (  # noqa: E402 - not without SQLAlchemy
    DuckDBType,
    FlightDialect,
    MinisharkDialect,
    type_of,
)


@pytest.fixture(scope="module", autouse=True)
def _dialects() -> None:
    """Registered, as the entry points of an installed package are."""
    module = MinisharkDialect.__module__
    sa.dialects.registry.register("minishark", module, MinisharkDialect.__name__)
    sa.dialects.registry.register("minishark.flight", module, FlightDialect.__name__)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with minishark.connect(in_process=True, nodes=1) as opened:
        yield opened


@pytest.fixture(scope="module", params=["session", "flight"])
def engine(request: pytest.FixtureRequest, session: Session) -> Iterator[sa.Engine]:
    """An engine on a session of the process, and one on a server."""
    if request.param == "session":
        engine = sa.create_engine("minishark://", connect_args={"session": session})
        yield engine
        engine.dispose()
        return
    pytest.importorskip("adbc_driver_flightsql")
    with session.serve(port=0) as served:
        engine = sa.create_engine(served.address.replace("grpc://", "minishark+flight://"))
        yield engine
        engine.dispose()


def _people() -> type:
    class Base(orm.DeclarativeBase):
        pass

    class Person(Base):
        __tablename__ = "people"
        id = sa.Column(sa.Integer, primary_key=True)
        name = sa.Column(sa.String, nullable=False)
        born = sa.Column(sa.Date)
        seen = sa.Column(sa.DateTime)
        pay = sa.Column(sa.Numeric(10, 2))
        key = sa.Column(sa.Uuid)
        photo = sa.Column(sa.LargeBinary)
        likes = sa.Column(sa.JSON)

    return Person


@pytest.fixture
def person(engine: sa.Engine) -> Iterator[type]:
    """A mapped class with its table."""
    mapped = _people()
    metadata = mapped.metadata  # type: ignore[attr-defined]
    metadata.create_all(engine)
    yield mapped
    metadata.drop_all(engine)


@pytest.mark.sample(2)
def test_objects_round_trip(engine: sa.Engine, person: type) -> None:
    """Objects are inserted, found, changed and deleted; keys come from the sequence."""
    values = {
        "name": "Ann",
        "born": dt.date(1990, 1, 31),
        "seen": dt.datetime(2020, 1, 2, 3, 4, 5, 678),  # noqa: DTZ001 - as TIMESTAMP is
        "pay": Decimal("1234.50"),
        "key": uuid.uuid4(),
        "photo": b"\0'\xff",
        "likes": {"tea": [1, None]},
    }
    with orm.Session(engine) as objects:
        objects.add_all([person(**values), person(name="it's Bob")])
        objects.commit()
        ann, bob = objects.scalars(sa.select(person).order_by(person.id)).all()
        assert values == {name: getattr(ann, name) for name in values}
        assert [ann.id + 1, "it's Bob", None] == [bob.id, bob.name, bob.pay]
        bob.name = "Rob"
        objects.commit()
        found = sa.select(person.id).where(person.name.ilike("R_B"))
        assert bob.id == objects.scalar(found)
        assert [] == objects.scalars(sa.select(person).where(person.id.in_([]))).all()
        objects.delete(ann)
        objects.commit()
        assert ["Rob"] == objects.scalars(sa.select(person.name)).all()


@pytest.mark.slow
def test_reflection(engine: sa.Engine, person: type) -> None:
    """Schemas, tables, views and columns are found as they were made, and made again from that."""
    with engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema("sales"))
        connection.execute(sa.text("CREATE VIEW sales.v AS SELECT 1 AS a, [1] AS b, {'x': 1} AS c"))
    inspector = sa.inspect(engine)
    assert {"main", "sales"} <= set(inspector.get_schema_names())
    assert ["people"] == inspector.get_table_names()
    assert ["v"] == inspector.get_view_names("sales")
    assert [] == inspector.get_table_names("sales")
    assert "AS a" in inspector.get_view_definition("v", "sales")
    assert ["id"] == inspector.get_pk_constraint("people")["constrained_columns"]
    assert [] == inspector.get_pk_constraint("v", "sales")["constrained_columns"]
    assert ["people_id_seq"] == inspector.get_sequence_names()
    with pytest.raises(sa.exc.NoSuchTableError):
        inspector.get_columns("nothing")
    view = sa.Table("v", sa.MetaData(), schema="sales", autoload_with=engine)
    assert ["INTEGER", "INTEGER[]", "STRUCT(x INTEGER)"] == [
        str(column.type.compile(engine.dialect)) for column in view.columns
    ]
    again = sa.MetaData()
    again.reflect(engine)
    copy = again.tables["people"].to_metadata(sa.MetaData(), name="copy")
    with engine.begin() as connection:
        copy.create(connection)
        reflected = {c["name"]: str(c["type"]) for c in sa.inspect(connection).get_columns("copy")}
        assert reflected == {c["name"]: str(c["type"]) for c in inspector.get_columns("people")}
        copy.drop(connection)
        connection.execute(sa.schema.DropSchema("sales", cascade=True))


@pytest.mark.slow
def test_pandas(engine: sa.Engine) -> None:
    """A frame that is written in many statements is read as it was."""
    frame = pd.DataFrame({"a": range(2500), "b": [f"r'{i}" for i in range(2500)]})
    frame.to_sql("frame", engine, index=False, if_exists="replace")
    frame.to_sql("frame", engine, index=False, if_exists="append")
    read = pd.read_sql("SELECT DISTINCT a, b FROM frame ORDER BY a", engine)
    pd.testing.assert_frame_equal(frame, read, check_dtype=False)
    assert 5000 == pd.read_sql("SELECT count(*) AS n FROM frame", engine)["n"][0]
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE frame"))


@pytest.mark.sample(2)
def test_statements_of_the_expression_language(engine: sa.Engine, person: type) -> None:
    """RETURNING, UPDATE ... FROM, DELETE ... USING, LIMIT and regular expressions."""
    table = person.__table__  # type: ignore[attr-defined]
    other = sa.values(sa.column("n", sa.String), name="o").data([("b",)])
    with engine.begin() as connection:
        added = sa.insert(table).values([{"name": name} for name in "abcd"]).returning(table.c.name)
        assert [*"abcd"] == sorted(connection.scalars(added))
        connection.execute(sa.update(table).values(name="z").where(table.c.name == other.c.n))
        connection.execute(sa.delete(table).where(table.c.name == "c"))
        some = sa.select(table.c.name).order_by(table.c.name)
        assert ["d", "z"] == connection.scalars(some.offset(1)).all()
        assert ["a"] == connection.scalars(some.where(table.c.name.regexp_match("^a"))).all()
        assert ["a"] == connection.scalars(some.limit(1)).all()
        with pytest.raises(sa.exc.CompileError, match="locks no rows"):
            connection.execute(some.with_for_update())


def test_errors_are_those_of_the_driver(engine: sa.Engine) -> None:
    """A wrong statement raises with DuckDB's message, and the connection is used again."""
    with engine.connect() as connection:
        with pytest.raises(sa.exc.DBAPIError, match="nothing"):
            connection.execute(sa.text("SELECT * FROM nothing"))
        assert 1 == connection.scalar(sa.text("SELECT 1"))


@pytest.mark.sample(2)
def test_keys_that_count(engine: sa.Engine) -> None:
    """Integer keys and identities count by sequences, which go with their tables."""
    metadata = sa.MetaData()
    by_itself = sa.Table("by_itself", metadata, sa.Column("id", sa.Integer, primary_key=True))
    start = sa.Identity(start=40, increment=5)
    column = sa.Column("id", sa.Integer, start, primary_key=True)
    stepwise = sa.Table("step wise", metadata, column, sa.Column("a", sa.Integer))
    named = sa.Column("id", sa.Integer, sa.Sequence("own"), primary_key=True)
    sa.Table("named", metadata, named)
    metadata.create_all(engine)
    with engine.begin() as connection:
        assert (1,) == connection.execute(sa.insert(by_itself)).inserted_primary_key
        connection.execute(sa.insert(stepwise), [{"a": 1}, {"a": 2}])
        assert [40, 45] == connection.scalars(sa.select(stepwise.c.id).order_by("id")).all()
        names = {"by_itself_id_seq", "step wise_id_seq", "own"}
        assert names <= set(sa.inspect(connection).get_sequence_names())
    metadata.drop_all(engine)
    assert not names & set(sa.inspect(engine).get_sequence_names())
    always = sa.Table("t", sa.MetaData(), sa.Column("id", sa.Integer, sa.Identity(always=True)))
    with pytest.raises(sa.exc.CompileError, match="leave out always=True"):
        sa.schema.CreateTable(always).compile(dialect=MinisharkDialect())


@pytest.mark.sample(2)
def test_constraints(engine: sa.Engine) -> None:
    """Keys, checks and unique columns are found, without names, which DuckDB does not keep."""
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE parents (a INTEGER PRIMARY KEY)"))
        children = "(a INTEGER REFERENCES parents (a), b INTEGER UNIQUE, CHECK ((b > 1)))"
        connection.execute(sa.text(f"CREATE TABLE children {children}"))
    inspector = sa.inspect(engine)
    (key,) = inspector.get_foreign_keys("children")
    assert ["parents", ["a"], ["a"]] == [
        key[part] for part in ("referred_table", "constrained_columns", "referred_columns")
    ]
    assert [{"name": None, "column_names": ["b"]}] == inspector.get_unique_constraints("children")
    assert [{"name": None, "sqltext": "b > 1"}] == inspector.get_check_constraints("children")
    parent = sa.text("INSERT INTO parents VALUES (:a)")
    for sets in ({"a": 1}, [{"a": 1}, {"a": 2}]):
        with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:  # noqa: PT012
            connection.execute(parent, {"a": 1})
            connection.execute(parent, sets)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE children; DROP TABLE parents"))


def test_aborted_transactions(engine: sa.Engine) -> None:
    """After BEGIN, an error leaves nothing to commit; a pool gives the connection out as new."""
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE kept (a INTEGER PRIMARY KEY)"))
    with engine.connect() as connection:
        for sql in ("BEGIN", "INSERT INTO kept VALUES (1)"):
            connection.execute(sa.text(sql))
        with pytest.raises(sa.exc.IntegrityError):
            connection.execute(sa.text("INSERT INTO kept VALUES (1)"))
        with pytest.raises(sa.exc.OperationalError, match="aborted"):
            connection.execute(sa.text("INSERT INTO kept VALUES (2)"))
        connection.commit()
        assert [] == connection.execute(sa.text("FROM kept")).all()
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE kept"))


@pytest.mark.sample(2)
def test_json_and_division(engine: sa.Engine, person: type) -> None:
    """Parts of JSON values are found in their types; integers divide as in Python."""
    likes = person.likes  # type: ignore[attr-defined]
    one = {"tea": {"cups": [1, 2.5]}, "it's": True}
    with orm.Session(engine) as objects:
        objects.add_all([person(name="Ann", likes=one), person(name="Bob", likes={})])
        objects.commit()
        found = sa.select(
            likes["tea"],
            likes[("tea", "cups", 0)].as_integer(),
            likes[("tea", "cups", 1)].as_float(),
            likes["it's"].as_boolean(),
        ).where(likes["it's"].as_boolean())
        assert [(one["tea"], 1, 2.5, True)] == [tuple(row) for row in objects.execute(found)]
        seven = sa.literal(7)
        assert (3.5, 3) == tuple(objects.execute(sa.select(seven / 2, seven // 2)).one())


@pytest.mark.slow
def test_an_engine_owns_its_session(tmp_path: Path) -> None:
    """It starts with the first connection, is shared by all, and ends with dispose()."""
    engine = sa.create_engine(
        "minishark:///warehouse", connect_args={"warehouse": str(tmp_path), "in_process": True}
    )
    with engine.connect() as first, engine.connect() as second:
        first.execute(sa.text("CREATE TABLE t AS SELECT 1 AS a"))
        first.execute(sa.text("CREATE SCHEMA sales"))
        first.execute(sa.text("CREATE TABLE sales.u AS SELECT 2 AS b"))
        assert 1 == second.scalar(sa.text("SELECT a FROM warehouse.main.t"))
        inspector = sa.inspect(second)
        assert {"warehouse", "sales", "main"} <= set(inspector.get_schema_names())
        assert ["t"] == inspector.get_table_names("warehouse")
        assert ["u"] == inspector.get_table_names("sales")
        assert [] == inspector.get_table_names("main")
        assert ["b"] == [column["name"] for column in inspector.get_columns("u", "sales")]
        session = first.connection.dbapi_connection.session
    assert session.is_open
    engine.dispose()
    assert not session.is_open


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("minishark:///?nodes=two", "nodes must be a whole number"),
        ("minishark:///?in_process=maybe", "in_process must be True or False"),
        ("minishark:///?query_timeout_s=soon", "a number of seconds above 0"),
        ("minishark:///?storage_options=x", "storage_options must be an object"),
        ("minishark:///?node=2", "no option node"),
        ("minishark+flight://host/?tsl=true", "no option tsl"),
        ("minishark+flight://", "Name the server"),
    ],
)
def test_wrong_urls(url: str, message: str) -> None:
    """The message says what is wrong."""
    with pytest.raises(sa.exc.ArgumentError, match=message):
        sa.create_engine(url).connect()


def test_types() -> None:
    """DuckDB's names of types, and back."""
    names = ["DECIMAL(18, 3)", "VARCHAR[][]", "TIMESTAMP WITH TIME ZONE", "JSON", "UUID"]
    names += ["HUGEINT", "MAP(VARCHAR, INTEGER)", "BIGINT", "DOUBLE", "BLOB", "DATE", "TIME"]
    dialect = MinisharkDialect()
    assert names == [str(type_of(name).compile(dialect)) for name in names]
    assert ["a", "it's"] == type_of("ENUM('a', 'it''s')").enums  # type: ignore[attr-defined]
    assert isinstance(type_of("INTERVAL"), DuckDBType)
