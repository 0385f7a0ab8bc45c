"""minishark as a backend of ibis (the extra `ibis`).

    >>> import ibis
    >>> backend = ibis.minishark.connect(nodes=1)
    >>> numbers = backend.create_table("numbers", {"n": [1, 2, 3]})
    >>> numbers.n.sum().execute()
    6
    >>> backend.disconnect()

ibis generates SQL in DuckDB's dialect, and minishark runs it over the session's tables. Databases
and user-defined functions are not supported.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("pyarrow_hotfix") is None:
    # ibis imports it unconditionally, but it fixes only versions of pyarrow older than required.
    sys.modules["pyarrow_hotfix"] = types.ModuleType("pyarrow_hotfix")

import ibis.backends.sql.compilers as sc
import ibis.common.exceptions as exc
import ibis.expr.operations as ops
import ibis.expr.schema as sch
import ibis.expr.types as ir
import pyarrow as pa
from ibis import memtable
from ibis.backends import NoUrl
from ibis.backends.duckdb.converter import DuckDBPandasData, DuckDBPyArrowData
from ibis.backends.sql import SQLBackend

from minishark.errors import CatalogError, MinisharkError
from minishark.model.expressions import quote
from minishark.session.connect import connect as connect_session
from minishark.session.session import Session

if TYPE_CHECKING:
    import pandas as pd


class _ArrowData(DuckDBPyArrowData):
    """ibis's conversion of Arrow tables, except decimals, whose scales ibis guesses wrong."""

    @classmethod
    def convert_column(cls, column: pa.ChunkedArray, dtype: Any) -> pa.ChunkedArray:
        if dtype.is_decimal() and pa.types.is_decimal(column.type):
            return column
        return super().convert_column(column, dtype)

    @classmethod
    def convert_table(cls, table: pa.Table, schema: sch.Schema) -> pa.Table:
        columns = [cls.convert_column(table[name], dtype) for name, dtype in schema.items()]
        return pa.Table.from_arrays(columns, names=list(schema.names))


class Backend(SQLBackend, NoUrl):
    """The ibis backend over a session; `ibis.minishark.connect` creates one."""

    name = "minishark"
    compiler = sc.duckdb.compiler

    def do_connect(self, session: Session | None = None, **options: Any) -> None:
        """Use a session, or start one.

        Args:
            session: an open session, which stays open on disconnect. None starts one.
            options: arguments of `minishark.connect`.
        """
        self.con = session if session is not None else connect_session(**options)
        self._owns_session = session is None

    @classmethod
    def from_connection(cls, con: Session, /, **_: Any) -> Backend:
        """A backend over an open session."""
        return cls().connect(con)

    def disconnect(self) -> None:
        """Stop the session if `connect` started it."""
        if self._owns_session:
            self.con.stop()

    @property
    def version(self) -> str:
        return self.con.version

    def list_tables(
        self, *, like: str | None = None, database: tuple[str, str] | str | None = None
    ) -> list[str]:
        """The names of the tables and views that match a pattern."""
        _refuse_database(database)
        shown = self.con.sql("SHOW TABLES").to_arrow()
        return self._filter_with_like(shown.column(0).to_pylist(), like)

    def get_schema(
        self, table_name: str, *, catalog: str | None = None, database: str | None = None
    ) -> sch.Schema:
        """The columns of a table or view."""
        _refuse_database(catalog or database)
        if table_name.lower() not in map(str.lower, self.list_tables()):
            raise exc.TableNotFound(table_name)
        return self._get_schema_using_query(f"FROM {quote(table_name)}")

    def _get_schema_using_query(self, query: str) -> sch.Schema:
        from_text = self.compiler.type_mapper.from_string
        types = self.con.sql(query).dtypes
        return sch.Schema({name: from_text(type_, nullable=True) for name, type_ in types})

    def to_pyarrow(
        self,
        expr: ir.Expr,
        /,
        *,
        params: Mapping[ir.Scalar, Any] | None = None,
        limit: int | str | None = None,
        **_: Any,
    ) -> pa.Table:
        """Run an expression; an Arrow table, array or scalar."""
        answer = self._answer(expr, params, limit)
        return expr.__pyarrow_result__(answer, data_mapper=_ArrowData)

    def to_pyarrow_batches(
        self,
        expr: ir.Expr,
        /,
        *,
        params: Mapping[ir.Scalar, Any] | None = None,
        limit: int | str | None = None,
        chunk_size: int = 1_000_000,
        **_: Any,
    ) -> pa.RecordBatchReader:
        """Run an expression; Arrow record batches of at most `chunk_size` rows."""
        answer = self.to_pyarrow(expr.as_table(), params=params, limit=limit)
        return pa.RecordBatchReader.from_batches(answer.schema, answer.to_batches(chunk_size))

    def execute(
        self,
        expr: ir.Expr,
        /,
        *,
        params: Mapping[ir.Scalar, Any] | None = None,
        limit: int | str | None = None,
        **_: Any,
    ) -> pd.DataFrame | pd.Series | Any:
        """Run an expression; a pandas DataFrame, Series or scalar."""
        import pandas as pd  # noqa: PLC0415 - an optional dependency

        answer = self._answer(expr, params, limit)
        columns = {
            name: column.to_pylist()
            if pa.types.is_nested(column.type) or column.null_count
            else column.to_pandas()
            for name, column in zip(answer.column_names, answer.columns, strict=True)
        }
        frame = DuckDBPandasData.convert_table(pd.DataFrame(columns), expr.as_table().schema())
        return expr.__pandas_result__(frame)

    def _answer(
        self, expr: ir.Expr, params: Mapping[ir.Scalar, Any] | None, limit: int | str | None
    ) -> pa.Table:
        self._run_pre_execute_hooks(expr)
        return self.con.sql(self.compile(expr.as_table(), params=params, limit=limit)).to_arrow()

    def raw_sql(self, query: Any) -> Any:
        """Run a statement; a minishark DataFrame."""
        text = query if isinstance(query, str) else query.sql(dialect=self.dialect)
        return self.con.sql(text)

    @contextlib.contextmanager
    def _safe_raw_sql(self, query: Any) -> Iterator[Any]:
        yield self.raw_sql(query)

    def create_table(
        self,
        name: str,
        /,
        obj: Any = None,
        *,
        schema: Any = None,
        database: str | None = None,
        temp: bool = False,
        overwrite: bool = False,
    ) -> ir.Table:
        """Load a table into the cluster.

        Args:
            name: the table's name.
            obj: an expression, or rows as `ibis.memtable` takes them.
            schema: the columns to which `obj` is cast, or those of an empty table without `obj`.
            database: not supported.
            temp: not supported; all tables end with the session.
            overwrite: whether to replace a table of that name.
        """
        _refuse_database(database)
        if temp:
            raise exc.UnsupportedArgumentError("All tables end with the session; omit temp.")
        declared = None if schema is None else sch.schema(schema).to_pyarrow()
        if isinstance(obj, ir.Expr):
            data = self._answer(obj, None, None)
        elif obj is not None:
            rows = memtable(obj).op()
            data = rows.data.to_pyarrow(rows.schema)
        elif declared is not None:
            data = declared.empty_table()
        else:
            raise ValueError("Pass the rows of the table, or its schema.")
        if declared is not None:
            data = data.cast(declared)
        self.con.create_table(name, data, replace=overwrite)
        return self.table(name)

    def drop_table(
        self, name: str, /, *, database: tuple[str, str] | str | None = None, force: bool = False
    ) -> None:
        """Drop a table; with `force`, it need not exist."""
        _refuse_database(database)
        with contextlib.suppress(*((CatalogError,) if force else ())):
            self.con.drop_table(name)

    def drop_view(
        self, name: str, /, *, database: tuple[str, str] | str | None = None, force: bool = False
    ) -> None:
        """Drop a view; with `force`, it need not exist."""
        _refuse_database(database)
        self.con.sql(f"DROP VIEW {'IF EXISTS ' if force else ''}{quote(name)}")

    def _register_udfs(self, expr: ir.Expr) -> None:
        functions = expr.op().find(ops.ScalarUDF)
        if any(function.__input_type__.name != "BUILTIN" for function in functions):
            raise exc.UnsupportedOperationError(
                "The minishark backend does not support Python functions."
            )

    def _register_in_memory_table(self, op: ops.InMemoryTable) -> None:
        self.con.create_table(op.name, op.data.to_pyarrow(op.schema), replace=True)

    def _make_memtable_finalizer(self, name: str) -> Callable[[], None]:
        session = self.con

        def drop() -> None:
            with contextlib.suppress(MinisharkError):
                session.drop_table(name)

        return drop


def _refuse_database(database: object) -> None:
    if database is not None:
        raise exc.UnsupportedArgumentError("minishark has no databases: omit the database.")
