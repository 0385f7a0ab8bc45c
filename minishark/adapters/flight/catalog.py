"""What tools ask of a database before they ask for rows: names, types, and what it can do.

The columns of each answer are those of `FlightSql.proto`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

from minishark.errors import MinisharkError
from minishark.model.expressions import quote, quote_text
from minishark.session.session import Session

CATALOG = "memory"
"""The catalog of a session's tables."""

_TEXT, _INT = pa.utf8(), pa.int32()
_TABLE_TYPES = {"BASE TABLE": "TABLE", "VIEW": "VIEW", "LOCAL TEMPORARY": "LOCAL TEMPORARY"}
_TABLE_TYPE = "CASE table_type WHEN 'BASE TABLE' THEN 'TABLE' ELSE table_type END"


def _required(name: str, type_: pa.DataType) -> pa.Field:
    return pa.field(name, type_, nullable=False)


_NAMED = [pa.field("catalog_name", _TEXT), pa.field("db_schema_name", _TEXT)]
_TABLES = pa.schema([*_NAMED, _required("table_name", _TEXT), _required("table_type", _TEXT)])
_FOREIGN_KEYS = pa.schema(
    [
        *(
            field
            for side in ("pk", "fk")
            for field in (
                pa.field(f"{side}_catalog_name", _TEXT),
                pa.field(f"{side}_db_schema_name", _TEXT),
                _required(f"{side}_table_name", _TEXT),
                _required(f"{side}_column_name", _TEXT),
            )
        ),
        _required("key_sequence", _INT),
        pa.field("fk_key_name", _TEXT),
        pa.field("pk_key_name", _TEXT),
        _required("update_rule", pa.uint8()),
        _required("delete_rule", pa.uint8()),
    ]
)
_TYPE_INFO = pa.schema(
    [
        _required("type_name", _TEXT),
        _required("data_type", _INT),
        pa.field("column_size", _INT),
        pa.field("literal_prefix", _TEXT),
        pa.field("literal_suffix", _TEXT),
        pa.field("create_params", pa.list_(_required("item", _TEXT))),
        _required("nullable", _INT),
        _required("case_sensitive", pa.bool_()),
        _required("searchable", _INT),
        pa.field("unsigned_attribute", pa.bool_()),
        _required("fixed_prec_scale", pa.bool_()),
        pa.field("auto_increment", pa.bool_()),
        pa.field("local_type_name", _TEXT),
        pa.field("minimum_scale", _INT),
        pa.field("maximum_scale", _INT),
        _required("sql_data_type", _INT),
        pa.field("datetime_subcode", _INT),
        pa.field("num_prec_radix", _INT),
        pa.field("interval_precision", _INT),
    ]
)
_INFO_VALUE = pa.dense_union(
    [
        pa.field("string_value", _TEXT),
        pa.field("bool_value", pa.bool_()),
        pa.field("bigint_value", pa.int64()),
        pa.field("int32_bitmask", _INT),
        pa.field("string_list", pa.list_(_TEXT)),
        pa.field("int32_to_int32_list_map", pa.map_(_INT, pa.list_(_INT))),
    ]
)
SCHEMAS: Mapping[str, pa.Schema] = {
    "CommandGetCatalogs": pa.schema([_required("catalog_name", _TEXT)]),
    "CommandGetDbSchemas": pa.schema([_NAMED[0], _required("db_schema_name", _TEXT)]),
    "CommandGetTables": _TABLES,
    "CommandGetTableTypes": pa.schema([_required("table_type", _TEXT)]),
    "CommandGetPrimaryKeys": pa.schema(
        [
            *_NAMED,
            _required("table_name", _TEXT),
            _required("column_name", _TEXT),
            pa.field("key_name", _TEXT),
            _required("key_sequence", _INT),
        ]
    ),
    "CommandGetExportedKeys": _FOREIGN_KEYS,
    "CommandGetImportedKeys": _FOREIGN_KEYS,
    "CommandGetCrossReference": _FOREIGN_KEYS,
    "CommandGetXdbcTypeInfo": _TYPE_INFO,
    "CommandGetSqlInfo": pa.schema(
        [_required("info_name", pa.uint32()), _required("value", _INFO_VALUE)]
    ),
}


class _Long(int):
    """An integer of 64 bits, where others have 32."""


_ANY_CASE = 1  # identifiers are found in any case, and keep the one that they were created with
_NULLS_LAST = 3
_NO_TRANSACTIONS, _REPEATABLE_READ = 0, 3
_NO_LIMIT = _Long(0)
Info = str | bool | int | list[str] | Mapping[int, list[int]]

# Drivers of JDBC ask for all of these at once; older ones fail where one is missing.
_INFO: Mapping[int, Info] = {
    0: "minishark",
    2: pa.__version__,
    3: False,  # read-only
    4: True,  # SQL
    5: False,  # Substrait
    9: True,  # cancels
    10: True,  # bulk ingestion
    100: 0,  # no time limit of a statement
    101: 0,  # nor of a transaction
    500: False,  # creates catalogs
    501: True,  # creates schemas
    502: True,  # creates tables
    503: _ANY_CASE,
    504: '"',
    505: _ANY_CASE,
    506: True,  # all tables are selectable
    507: _NULLS_LAST,
    513: "\\",
    515: True,  # column aliases
    516: True,  # NULL plus what is not is NULL
    514: "",  # other characters in names without quotes
    517: {},  # types between which CONVERT converts, which is no function here
    518: True,  # names of tables in a query
    519: False,  # which need not differ from those of tables
    520: True,  # expressions in ORDER BY
    521: True,  # columns in ORDER BY that are not selected
    522: 0b11,  # columns in GROUP BY that are not selected, and fewer than are selected
    523: True,  # LIKE ... ESCAPE
    524: True,  # columns that are not nullable
    525: 0b111,  # ODBC's grammar: minimum, core and extended
    526: 0b1,  # SQL-92: the entry level
    527: False,  # its integrity enhancement facility
    528: 0b110,  # outer joins: limited, full
    529: "schema",
    530: "procedure",
    531: "catalog",
    532: True,  # catalogs stand at the start of a name
    533: 0b10,  # schemas in definitions of indexes
    534: 0,  # catalogs in calls of procedures, definitions of indexes, GRANT
    535: 0,  # UPDATE and DELETE at a cursor
    536: False,  # SELECT FOR UPDATE
    537: False,  # stored procedures
    538: 0b1111,  # subqueries in comparisons, EXISTS, IN, and after ANY and ALL
    539: True,  # correlated ones
    540: 0b11,  # UNION, UNION ALL
    **dict.fromkeys(range(541, 556), _NO_LIMIT),  # lengths of names and literals, columns, ...
    556: True,  # which count BLOBs
    **dict.fromkeys(range(557, 562), _NO_LIMIT),
    565: False,  # CREATE commits
    566: False,  # CREATE is ignored in transactions
    567: 0b10,  # results are read from the first row to the last,
    568: 0b10,  # and not written to, however they are asked for
    569: 0b10,
    570: 0,
    571: 0,
    572: True,  # updates with several sets of values
    573: False,  # savepoints
    574: False,  # parameters by name in calls of procedures
    575: False,  # changes to a LOB are made to a copy
    576: False,  # functions by the syntax of such calls
}


def schema_of(name: str, command: Any) -> pa.Schema:
    """The columns of the answer to a command."""
    if name == "CommandGetTables" and command.include_schema:
        return _TABLES.append(_required("table_schema", pa.binary()))
    return SCHEMAS[name]


def answer(name: str, command: Any, session: Session) -> pa.Table:
    """The answer to a command about the catalog.

    Args:
        name: the command's name, a key of `SCHEMAS`.
        command: the command.
        session: the session of who asks.
    """
    schema = schema_of(name, command)
    rows = _ANSWERS[name](command, session) if name in _ANSWERS else []
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [
        _info_values(column) if field.type == _INFO_VALUE else pa.array(column, field.type)
        for column, field in zip(map(list, columns), schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


Rows = Sequence[Sequence[Any]]


def _rows(session: Session, sql: str) -> list[tuple[Any, ...]]:
    columns = session.sql(sql).to_arrow().columns
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def _matches(command: Any, columns: Mapping[str, str]) -> str:
    """A condition by what a command has: names, or patterns, whose fields end in `_pattern`."""
    conditions = ["true"]
    for field, column in columns.items():
        if not command.HasField(field):
            continue
        value = quote_text(getattr(command, field))
        if field.endswith("_pattern"):
            conditions.append(f"{column} ILIKE {value} ESCAPE '\\'")
        else:
            conditions.append(f"{column} = {value}")
    return " AND ".join(conditions)


def _catalogs(_: Any, session: Session) -> Rows:
    return _rows(
        session,
        "SELECT database_name FROM duckdb_databases() WHERE NOT internal ORDER BY 1",
    )


def _schemas(command: Any, session: Session) -> Rows:
    filters = {"catalog": "database_name", "db_schema_filter_pattern": "schema_name"}
    return _rows(
        session,
        "SELECT database_name, schema_name FROM duckdb_schemas() WHERE NOT internal "
        f"AND {_matches(command, filters)} "
        f"UNION SELECT database_name, schema_name FROM duckdb_schemas() WHERE schema_name = 'main' "
        f"AND database_name NOT IN ('system', 'temp') AND {_matches(command, filters)} "
        "ORDER BY ALL",
    )


def _tables(command: Any, session: Session) -> Rows:
    filters = {
        "catalog": "table_catalog",
        "db_schema_filter_pattern": "table_schema",
        "table_name_filter_pattern": "table_name",
    }
    types = ", ".join(quote_text(kind) for kind in command.table_types)
    tables = _rows(
        session,
        f"SELECT table_catalog, table_schema, table_name, {_TABLE_TYPE} AS kind "
        f"FROM information_schema.tables WHERE {_matches(command, filters)} "
        f"{f'AND kind IN ({types})' if types else ''} ORDER BY ALL",
    )
    if not command.include_schema:
        return tables
    types_of = _column_types(session)
    return [(*row, _table_schema(session, row, types_of)) for row in tables]


def _column_types(session: Session) -> Mapping[tuple[str, ...], str]:
    """The type of each column, by catalog, schema, table and column."""
    rows = _rows(
        session,
        "SELECT table_catalog, table_schema, table_name, column_name, data_type "
        "FROM information_schema.columns",
    )
    return {row[:4]: row[4] for row in rows}


def _table_schema(
    session: Session, row: Sequence[str], types_of: Mapping[tuple[str, ...], str]
) -> bytes:
    """The columns of a table as a message of Arrow, with what Flight SQL says of columns."""
    catalog, schema, table, _ = row
    is_main = (catalog, schema) in ((CATALOG, "main"), ("temp", "main"))
    name = quote(table) if is_main else ".".join(map(quote, row[:3]))
    try:
        columns = session.sql(f"FROM {name} LIMIT 0").schema
    except MinisharkError:  # a view over what does not exist any more
        columns = pa.schema([])
    described = [
        field.with_metadata(
            {
                "ARROW:FLIGHT:SQL:CATALOG_NAME": catalog,
                "ARROW:FLIGHT:SQL:SCHEMA_NAME": schema,
                "ARROW:FLIGHT:SQL:TABLE_NAME": table,
                "ARROW:FLIGHT:SQL:TYPE_NAME": types_of.get(
                    (catalog, schema, table, field.name), ""
                ),
                "ARROW:FLIGHT:SQL:IS_AUTO_INCREMENT": "0",
                "ARROW:FLIGHT:SQL:IS_READ_ONLY": "0",
            }
        )
        for field in columns
    ]
    return bytes(pa.schema(described).serialize())


def _primary_keys(command: Any, session: Session) -> Rows:
    filters = {"catalog": "database_name", "db_schema": "schema_name", "table": "table_name"}
    return _rows(
        session,
        "SELECT database_name, schema_name, table_name, unnest(constraint_column_names), "
        "constraint_name, unnest(range(1, len(constraint_column_names) + 1))::INTEGER "
        "FROM duckdb_constraints() WHERE constraint_type = 'PRIMARY KEY' "
        f"AND {_matches(command, filters)} ORDER BY ALL",
    )


# Of each type: its name, its number in JDBC, its digits or bits, what stands around a literal of
# it, and the parameters of its declaration.
_XDBC_TYPES: Sequence[tuple[str, int, int | None, str | None, Sequence[str]]] = (
    ("BOOLEAN", 16, 1, None, ()),
    ("TINYINT", -6, 3, None, ()),
    ("SMALLINT", 5, 5, None, ()),
    ("INTEGER", 4, 10, None, ()),
    ("BIGINT", -5, 19, None, ()),
    ("HUGEINT", 3, 39, None, ()),
    ("FLOAT", 7, 24, None, ()),
    ("DOUBLE", 8, 53, None, ()),
    ("DECIMAL", 3, 38, None, ("precision", "scale")),
    ("VARCHAR", 12, None, "'", ()),
    ("BLOB", -3, None, "'", ()),
    ("DATE", 91, 10, "'", ()),
    ("TIME", 92, 15, "'", ()),
    ("TIMESTAMP", 93, 26, "'", ()),
    ("TIMESTAMP WITH TIME ZONE", 2014, 32, "'", ()),
    ("INTERVAL", 1111, None, "'", ()),
    ("UUID", 1111, 36, "'", ()),
)
_NUMBERS = frozenset((-6, 5, 4, -5, 3, 7, 8))
_SEARCHABLE = 3
_SQL_DATETIME = {91: (9, 1), 92: (9, 2), 93: (9, 3)}


def _type_info(command: Any, _: Session) -> Rows:
    rows = []
    for name, number, size, quoted, parameters in _XDBC_TYPES:
        if command.HasField("data_type") and command.data_type != number:
            continue
        sql_type, subcode = _SQL_DATETIME.get(number, (number, None))
        is_number = number in _NUMBERS
        scale = 38 if parameters else None
        head = (name, number, size, quoted, quoted, list(parameters) or None)
        rest = (1, number == 12, _SEARCHABLE, False if is_number else None, False)
        scales = (0 if scale else None, scale, sql_type, subcode, 10 if is_number else None, None)
        rows.append((*head, *rest, False if is_number else None, name, *scales))
    return rows


_KEYWORDS = (
    "SELECT upper(keyword_name) FROM duckdb_keywords() WHERE keyword_category = 'reserved' "
    "ORDER BY ALL"
)


@cache
def _keywords() -> list[str]:
    """DuckDB's reserved words; not asked of a session, as drivers ask whenever they connect."""
    with duckdb.connect(config={"threads": "1"}) as con:
        return [word for (word,) in con.execute(_KEYWORDS).fetchall()]


def _sql_info(command: Any, session: Session) -> Rows:
    has_transactions = session.has_transactions
    isolation = _REPEATABLE_READ if has_transactions else _NO_TRANSACTIONS
    facts = {**_INFO, 1: session.version}
    facts[8] = int(has_transactions)  # 1: without savepoints
    facts[11] = has_transactions  # bulk ingestion in them
    facts[508] = _keywords()
    facts[562] = _Long(isolation)  # which JDBC's driver reads as 64 bits
    facts[563] = has_transactions
    facts[564] = 1 << isolation
    return [(number, facts[number]) for number in command.info or sorted(facts) if number in facts]


def _info_values(values: Sequence[Info]) -> pa.Array:
    """Values of several types, as Flight SQL has them."""
    kinds = {str: 0, bool: 1, _Long: 2, int: 3, list: 4, dict: 5}
    types = [kinds[type(value)] for value in values]
    children: list[list[Any]] = [[] for _ in range(_INFO_VALUE.num_fields)]
    offsets = []
    for value, kind in zip(values, types, strict=True):
        offsets.append(len(children[kind]))
        children[kind].append(list(value.items()) if isinstance(value, Mapping) else value)
    arrays = [pa.array(child, _INFO_VALUE.field(i).type) for i, child in enumerate(children)]
    names = [_INFO_VALUE.field(i).name for i in range(_INFO_VALUE.num_fields)]
    codes = pa.array(types, pa.int8())
    return pa.UnionArray.from_dense(codes, pa.array(offsets, _INT), arrays, names)


_ANSWERS: Mapping[str, Callable[[Any, Session], Rows]] = {
    "CommandGetCatalogs": _catalogs,
    "CommandGetDbSchemas": _schemas,
    "CommandGetTables": _tables,
    "CommandGetTableTypes": lambda _, __: [(kind,) for kind in sorted(_TABLE_TYPES.values())],
    "CommandGetPrimaryKeys": _primary_keys,
    "CommandGetXdbcTypeInfo": _type_info,
    "CommandGetSqlInfo": _sql_info,
}
