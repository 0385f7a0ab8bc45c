"""PySpark's API over minishark by SQLFrame (the extra `spark`): deprecated, see `pyspark`.

SQLFrame generates SQL, and minishark runs it. `spark.sql` takes Spark's dialect; pass
`dialect="duckdb"` for DuckDB's. `cache` and `persist` store rows in the cluster; `repartition` and
`coalesce` raise UnsupportedError, as they have no effect on generated SQL. SQLFrame has one session
per process: a second `connect` replaces the first.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
from sqlframe.base.session import _BaseSession
from sqlframe.base.table import _BaseTable
from sqlframe.duckdb.dataframe import DuckDBDataFrame
from sqlframe.duckdb.session import DuckDBSession
from sqlglot import exp

from minishark.adapters import dbapi
from minishark.errors import UnsupportedError, deprecated
from minishark.session.session import Session

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SparkDataFrame", "SparkTable", "connect"]
_cached_numbers = itertools.count()


class SparkDataFrame(DuckDBDataFrame):
    """A DataFrame of SQLFrame that minishark computes."""

    _cached_as: str | None = None

    def cache(self) -> SparkDataFrame:
        """Run the query and store its rows in the cluster's memory; see `persist`."""
        return self.persist()

    def persist(self, storageLevel: object = None) -> SparkDataFrame:  # noqa: N803 - PySpark's name
        """Run the query and store its rows in the cluster's memory, until `unpersist`.

        The returned DataFrame reads the stored rows; this one still runs the query.

        Raises:
            UnsupportedError: a storage level was passed.
        """
        if storageLevel is not None:
            raise UnsupportedError("Rows are stored in memory, on two nodes: omit storageLevel.")
        session: SparkSession = self.session
        name = f"sqlframe_cached_{next(_cached_numbers)}"
        session.minishark.create_table(name, self.toArrow())
        cached: SparkDataFrame = session.table(name)
        cached._cached_as = name
        return cached

    def unpersist(self, blocking: bool = False) -> SparkDataFrame:
        """Free the rows that `persist` stored.

        Raises:
            UnsupportedError: `persist` did not return this DataFrame.
        """
        if self._cached_as is None:
            raise UnsupportedError("Call unpersist on the DataFrame that persist returned.")
        session: SparkSession = self.session
        session.minishark.drop_table(self._cached_as)
        self._cached_as = None
        return self

    def repartition(self, *_: object) -> NoReturn:
        """Always raise UnsupportedError."""
        raise UnsupportedError("Use minishark's own DataFrame for partitions: session.table(name).")

    coalesce = repartition
    repartitionByRange = repartition  # noqa: N815 - PySpark's name

    def toArrow(self, batch_size: int | None = None) -> Any:  # noqa: N802 - PySpark's name
        """Run the query; an Arrow table, or a RecordBatchReader if a batch size is passed."""
        self._collect(skip_rows=True)
        table: pa.Table = self.session._cur.fetch_arrow_table()  # noqa: SLF001 - SQLFrame's seam
        if batch_size is None:
            return table
        batches = table.to_batches(max_chunksize=batch_size)
        return pa.RecordBatchReader.from_batches(table.schema, batches)

    def explain(self, extended: bool | str | None = None, mode: str | None = None) -> None:
        """Print how minishark runs the query."""
        session: SparkSession = self.session
        expressions = self._get_expressions(optimize=False)
        frame = session.minishark.sql(session._to_sql(expressions[-1]))  # noqa: SLF001
        frame.explain()


class SparkTable(SparkDataFrame, _BaseTable):
    """A table of the session, for which SQLFrame requires a class of its own."""

    _df = SparkDataFrame


class SparkSession(DuckDBSession):
    """A session of SQLFrame over one of minishark; `connect` creates one."""

    _df = SparkDataFrame
    _table = SparkTable

    def __init__(self, conn: dbapi.Connection | None = None, *args: Any, **kwargs: Any) -> None:
        self.eager_validation = False
        # Skips DuckDBSession's constructor, which creates functions in a local DuckDB.
        super(DuckDBSession, self).__init__(conn, *args, **kwargs)

    @property
    def minishark(self) -> Session:
        """The session of minishark that runs the queries."""
        connection: dbapi.Connection = self._conn
        return connection.session

    @cached_property
    def _cur(self) -> dbapi.Cursor:
        connection: dbapi.Connection = self._conn
        return connection.cursor()

    def table(self, tableName: str) -> Any:  # noqa: N803 - PySpark's name
        """All rows of a table."""
        self._register_tables()
        return super().table(tableName)

    def sql(self, sqlQuery: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N803 - PySpark's name
        """A query, in Spark's dialect unless `dialect` names another."""
        self._register_tables()
        return super().sql(sqlQuery, *args, **kwargs)

    def _register_tables(self) -> None:
        """Register the columns of all tables with SQLFrame, which expands `*` itself."""
        for name in self.minishark.tables:
            columns = dict(self.minishark.table(name).dtypes)
            self.catalog.add_table(name, columns)

    def _to_sql(self, sql: Any, **kwargs: Any) -> str:
        if isinstance(sql, exp.Expression):
            sql = sql.copy().transform(_with_escape)
        return super()._to_sql(sql, **kwargs)

    def _execute(self, sql: str) -> None:
        self._last_result = self._cur.execute(sql)

    def _fetchdf(self, expressions: Any, *, quote_identifiers: bool = True) -> pd.DataFrame:
        statements = expressions if isinstance(expressions, list) else [expressions]
        for expression in statements:
            self._execute(self._to_sql(expression, quote_identifiers=quote_identifiers))
        return self._cur.fetchdf()


def _with_escape(node: exp.Expression) -> exp.Expression:
    r"""A LIKE in which a backslash escapes, as in Spark, where DuckDB has no escape by default."""
    pattern = node.expression if isinstance(node, exp.Like | exp.ILike) else None
    is_plain = isinstance(pattern, exp.Literal) and "\\" not in pattern.this
    if pattern is None or is_plain or isinstance(node.parent, exp.Escape):
        return node
    return exp.Escape(this=node.copy(), expression=exp.Literal.string("\\"))


@deprecated("0.3", use="minishark.spark.session()")
def connect(session: Session | None = None, **options: Any) -> SparkSession:
    """Create a session of SQLFrame; `minishark.spark.session` has more of Spark.

    Args:
        session: the session that runs the queries; None starts one.
        options: arguments of `minishark.connect`.
    """
    _BaseSession._instance = None  # noqa: SLF001 - SQLFrame's one session a process
    return SparkSession(dbapi.connect(session=session, **options))
