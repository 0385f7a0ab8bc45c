"""Random tables of PostgreSQL, with their values as the server writes them."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
from postgres_server import Server

from minishark.model.expressions import quote
from minishark.model.predicates import Comparison, Predicate

_UNBOUNDED = Context(prec=60, rounding=ROUND_HALF_UP)
_MONTHS = (
    "(extract(year FROM {0}) * 12 + extract(month FROM {0}))::int8 || '|' || "
    "extract(day FROM {0})::int8 || '|' || ((extract(hour FROM {0}) * 3600 + "
    "extract(minute FROM {0}) * 60 + extract(second FROM {0})) * 1000000)::int8"
)


def _same(text: str) -> Any:
    return text


def _single(text: str) -> float:
    """The nearest number of four bytes."""
    (number,) = struct.unpack("f", struct.pack("f", float(text)))
    return float(number)


def _months(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("|")))


@dataclass(frozen=True)
class Kind:
    """A type of PostgreSQL: DuckDB's, SQL of values, and how the server's text is read."""

    postgres: str
    duckdb: str
    values: tuple[str, ...]
    parsed: Callable[[str], Any] = _same
    text: str = "{}::text"
    is_pushed: bool = True


KINDS = (
    Kind("bool", "BOOLEAN", ("true", "false"), lambda text: text == "true"),
    Kind("int2", "SMALLINT", ("-32768", "i % 100", "7"), int),
    Kind("int4", "INTEGER", ("i", "-i", "2147483647"), int),
    Kind("int8", "BIGINT", ("i * 1000000007::int8", "-9223372036854775808"), int),
    Kind("float4", "FLOAT", ("i / 3.0", "'NaN'", "'-0'", "'Infinity'"), _single),
    Kind("float8", "DOUBLE", ("i / 7.0", "'NaN'", "'-0'", "1e300", "'-Infinity'"), float),
    Kind("numeric(12,3)", "DECIMAL(12,3)", ("i / 8.0", "-999999999.999", "0"), Decimal),
    Kind("numeric(38,0)", "DECIMAL(38,0)", ("i", "'-" + "9" * 38 + "'"), Decimal),
    Kind(
        "numeric",
        "DECIMAL(38,18)",
        ("i / 3.0", "-12345678901234567890.5", "0.0000000000000000005"),
        lambda text: Decimal(text).quantize(Decimal("1e-18"), context=_UNBOUNDED),
    ),
    Kind("text", "VARCHAR", ("'t' || i % 9", "''", "'ä''\"\\'", "repeat(md5(i::text), 400)")),
    Kind("varchar(8)", "VARCHAR", ("'v' || i % 5", "'Z'", "' '")),
    Kind("char(5)", "VARCHAR", ("'c' || i % 5", "''"), text="rpad({}::text, 5)"),
    Kind("bytea", "BLOB", ("decode(md5(i::text), 'hex')", "''"), lambda t: bytes.fromhex(t[2:])),
    Kind("date", "DATE", ("date '1969-12-25' + i", "'0001-01-01'"), date.fromisoformat),
    Kind("time", "TIME", ("time '00:00' + i * interval '7.5 s'",), time.fromisoformat),
    Kind(
        "timestamp",
        "TIMESTAMP",
        ("timestamp '1969-12-31' + i * interval '1.000001 h'", "'1901-02-03 04:05:06.7'"),
        datetime.fromisoformat,
    ),
    Kind(
        "timestamptz",
        "TIMESTAMP WITH TIME ZONE",
        ("timestamptz '1969-12-31 23:00+02' + i * interval '1 h'", "'2024-03-31 02:30+01'"),
        lambda text: datetime.fromisoformat(f"{text}+00:00"),
        text="({} AT TIME ZONE 'UTC')::text",
    ),
    Kind(
        "interval", "INTERVAL", ("i * interval '1 day 3 min'", "'-2 mons 5 s'"), _months, _MONTHS,
        is_pushed=False,
    ),
    Kind("uuid", "UUID", ("md5(i::text)::uuid",), UUID),
    Kind("jsonb", "JSON", ("""jsonb_build_object('a', i)""", "'[]'"), is_pushed=False),
    Kind(
        "int4[]", "INTEGER[]", ("ARRAY[i, NULL]", "'{}'"), json.loads, "to_json({})::text",
        is_pushed=False,
    ),
    Kind(
        "text[]", "VARCHAR[]", ("ARRAY['a' || i, NULL, '\"']",), json.loads, "to_json({})::text",
        is_pushed=False,
    ),
    Kind("inet", "VARCHAR", ("'10.0.0.0'::inet + i % 200",), text="{}::text", is_pushed=False),
    Kind("int4range", "VARCHAR", ("int4range(i, i + 3)", "'empty'"), is_pushed=False),
)  # fmt: skip


@dataclass
class RandomTable:
    """A table, partitioned table or view to which things have happened."""

    server: Server
    chance: random.Random
    schema: str
    name: str
    columns: dict[str, Kind] = field(default_factory=dict)

    @staticmethod
    def created(server: Server, seed: int) -> RandomTable:
        chance = random.Random(seed)
        schema = chance.choice(["public", 'S "q"', "ünder.score"])
        name = chance.choice(["plain", "Mixed Case", "it's", 'a"b', "ä.b"]) + str(seed)
        table = RandomTable(server, chance, schema, name)
        table._create()
        for _ in range(chance.randrange(6)):
            chance.choice([table._insert, table._delete, table._update, table._add, table._drop])()
        if chance.random() < 0.5:
            server.sql(f"{chance.choice(['ANALYZE', 'VACUUM', 'VACUUM FULL'])} {table.sql}")
        if chance.random() < 0.25:
            view = f"{name} seen"
            kind = chance.choice(["VIEW", "MATERIALIZED VIEW"])
            target = f"{quote(schema)}.{quote(view)}"
            server.sql(f"CREATE {kind} {target} AS SELECT * FROM {table.sql}")
            table.name = view
        return table

    @property
    def sql(self) -> str:
        return f"{quote(self.schema)}.{quote(self.name)}"

    @property
    def types(self) -> dict[str, str]:
        return {"id": "INTEGER", **{name: each.duckdb for name, each in self.columns.items()}}

    def rows(self) -> Counter[str]:
        """As the server writes them."""
        kinds = [Kind("int4", "INTEGER", (), int), *self.columns.values()]
        texts = ", ".join(
            kind.text.format(quote(name)) for name, kind in zip(self.types, kinds, strict=True)
        )
        found = self.server.sql(f"SELECT {texts} FROM {self.sql}")
        return Counter(
            repr([None if each is None else kind.parsed(each) if isinstance(each, str) else each
                  for kind, each in zip(kinds, row, strict=True)])
            for row in found
        )  # fmt: skip

    def comparable(self, found: pa.Table) -> Counter[str]:
        """Rows that were read, in the same form."""
        kinds = [Kind("int4", "INTEGER", (), int), *self.columns.values()]
        columns = [
            [_plain(value, kind) for value in column.to_pylist()]
            for column, kind in zip(found.columns, kinds, strict=True)
        ]
        return Counter(repr(list(row)) for row in zip(*columns, strict=True))

    def predicates(self, found: pa.Table) -> Iterator[Predicate]:
        """Some for which there are rows, and some for which there are none or NULLs."""
        for name, kind in self.columns.items():
            if not kind.is_pushed:
                continue
            known = [value for value in found[name].to_pylist() if value is not None]
            comparison = self.chance.choice(list(Comparison))
            if "NULL" in comparison:
                yield Predicate(name, comparison)
            elif known:
                count = 2 if comparison is Comparison.IN else 1
                yield Predicate(name, comparison, tuple(self.chance.choices(known, k=count)))

    def _create(self) -> None:
        self.columns = {
            f"c{number} {kind.postgres}": kind
            for number, kind in enumerate(self.chance.sample(KINDS, self.chance.randrange(1, 9)))
        }
        columns = ", ".join(
            ["id int4", *(f"{quote(name)} {kind.postgres}" for name, kind in self.columns.items())]
        )
        kept = self.chance.choice(["", "", "RANGE", "LIST"])
        options = f" PARTITION BY {kept} (id)" if kept else ""
        self.server.sql(
            f"CREATE SCHEMA IF NOT EXISTS {quote(self.schema)}",
            f"CREATE TABLE {self.sql} ({columns}){options}",
        )
        if kept:
            part = f"{quote(self.schema)}.{quote(self.name + ' part')}"
            rest = f"{quote(self.schema)}.{quote(self.name + ' rest')}"
            values = "FROM (1) TO (40)" if kept == "RANGE" else "IN (1, 2, 3, 50, NULL)"
            self.server.sql(
                f"CREATE TABLE {part} PARTITION OF {self.sql} FOR VALUES {values}",
                f"CREATE TABLE {rest} PARTITION OF {self.sql} DEFAULT",
            )
        if self.chance.random() < 0.9:
            self._insert()

    def _insert(self) -> None:
        values = ["i"]
        for kind in self.columns.values():
            several = " ".join(
                f"WHEN {number} THEN ({value})::{kind.postgres}"
                for number, value in enumerate(kind.values)
            )
            values.append(f"CASE (i * 7 + 3) % {len(kind.values) + 1} {several} END")
        count = self.chance.choice([1, 60, 400])
        self.server.sql(
            f"INSERT INTO {self.sql} SELECT {', '.join(values)} FROM generate_series(1, {count}) i"
        )

    def _delete(self) -> None:
        self.server.sql(f"DELETE FROM {self.sql} WHERE id % 7 = {self.chance.randrange(7)}")

    def _update(self) -> None:
        if self.columns:
            name = quote(self.chance.choice(list(self.columns)))
            self.server.sql(f"UPDATE {self.sql} SET {name} = NULL WHERE id % 5 = 1")

    def _add(self) -> None:
        kind = self.chance.choice([each for each in KINDS if "i" not in each.values[-1]])
        name = f"added {self.chance.randrange(10**6)}"
        value = (
            f" DEFAULT ({kind.values[-1]})::{kind.postgres}" if self.chance.random() < 0.5 else ""
        )
        self.server.sql(f"ALTER TABLE {self.sql} ADD COLUMN {quote(name)} {kind.postgres}{value}")
        self.columns[name] = kind

    def _drop(self) -> None:
        if len(self.columns) > 1:
            name = self.chance.choice(list(self.columns))
            self.server.sql(f"ALTER TABLE {self.sql} DROP COLUMN {quote(name)}")
            del self.columns[name]


def _plain(value: Any, kind: Kind) -> Any:
    if value is None:
        return None
    match kind.postgres:
        case "interval":
            months, days, nanoseconds = value
            return (months, days, nanoseconds // 1000)
        case "timestamptz":
            return value.astimezone(UTC)
        case _:
            return value
