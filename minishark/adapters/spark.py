"""PySpark's API over minishark, by SQLFrame (the extra `spark`).

    >>> from minishark.adapters.spark import connect
    >>> spark = connect(nodes=1)
    >>> spark.range(3).count()
    3
    >>> spark.stop()

SQLFrame writes SQL, minishark runs it. The text of `spark.sql` is Spark's dialect; pass
`dialect="duckdb"` for DuckDB's. `cache` and `persist` keep rows in the cluster; `repartition` and
`coalesce` raise UnsupportedError, for they would change nothing here. SQLFrame has one session a
process: a second `connect` takes the place of the first.
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

from minishark.adapters import dbapi
from minishark.errors import UnsupportedError
from minishark.session.session import Session

if TYPE_CHECKING:
    import pandas as pd

_cached_numbers = itertools.count()


class SparkDataFrame(DuckDBDataFrame):
    """A DataFrame of SQLFrame whose rows minishark computes."""

    _kept_as: str | None = None

    def cache(self) -> SparkDataFrame:
        """Run the query and keep its rows in the cluster's memory, as `persist` does."""
        return self.persist()

    def persist(self, storageLevel: object = None) -> SparkDataFrame:  # noqa: N803 - PySpark's name
        """Run the query and keep its rows in the cluster's memory, until `unpersist`.

        The DataFrame that is returned reads them; this one still runs the query.

        Raises:
            UnsupportedError: a storage level was named.
        """
        if storageLevel is not None:
            raise UnsupportedError("Rows are kept in memory, on two nodes; pass no storage level.")
        session: SparkSession = self.session
        name = f"sqlframe_cached_{next(_cached_numbers)}"
        session.minishark.create_table(name, self.toArrow())
        kept: SparkDataFrame = session.table(name)
        kept._kept_as = name
        return kept

    def unpersist(self, blocking: bool = False) -> SparkDataFrame:
        """Free the rows that `persist` kept.

        Raises:
            UnsupportedError: this is not what `persist` returned.
        """
        del blocking
        if self._kept_as is None:
            raise UnsupportedError("Only what persist or cache returned can be unpersisted.")
        session: SparkSession = self.session
        session.minishark.drop_table(self._kept_as)
        self._kept_as = None
        return self

    def repartition(self, *_: object) -> NoReturn:
        """Always raise UnsupportedError."""
        raise UnsupportedError("Use minishark's own DataFrame for partitions: session.table(name).")

    coalesce = repartition
    repartitionByRange = repartition  # noqa: N815 - PySpark's name

    def toArrow(self, batch_size: int | None = None) -> Any:  # noqa: N802 - PySpark's name
        """Run the query; its rows as an Arrow table, or a reader of batches of a size."""
        self._collect(skip_rows=True)
        table: pa.Table = self.session._cur.fetch_arrow_table()  # noqa: SLF001 - SQLFrame's seam
        if batch_size is None:
            return table
        batches = table.to_batches(max_chunksize=batch_size)
        return pa.RecordBatchReader.from_batches(table.schema, batches)

    def explain(self, extended: bool | str | None = None, mode: str | None = None) -> None:
        """Print how minishark runs the query."""
        del extended, mode
        session: SparkSession = self.session
        expressions = self._get_expressions(optimize=False)
        frame = session.minishark.sql(session._to_sql(expressions[-1]))  # noqa: SLF001
        print(frame.explain())  # noqa: T201 - PySpark's explain prints


class SparkTable(SparkDataFrame, _BaseTable):
    """A table of the session; SQLFrame wants a class of its own for it."""

    _df = SparkDataFrame


class SparkSession(DuckDBSession):
    """A session of SQLFrame over one of minishark; `connect` makes one."""

    _df = SparkDataFrame
    _table = SparkTable

    def __init__(self, conn: dbapi.Connection | None = None, *args: Any, **kwargs: Any) -> None:
        self.eager_validation = False
        # Not DuckDBSession's: it makes functions in a DuckDB that is not there.
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
        self._tell_tables()
        return super().table(tableName)

    def sql(self, sqlQuery: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N803 - PySpark's name
        """A query, in Spark's dialect unless `dialect` names another."""
        self._tell_tables()
        return super().sql(sqlQuery, *args, **kwargs)

    def _tell_tables(self) -> None:
        """Tell SQLFrame the columns of tables, which it wants to know for `*`."""
        for name in self.minishark.tables:
            columns = dict(self.minishark.table(name).dtypes)
            self.catalog.add_table(name, columns)

    def _execute(self, sql: str) -> None:
        self._last_result = self._cur.execute(sql)

    def _fetchdf(self, expressions: Any, *, quote_identifiers: bool = True) -> pd.DataFrame:
        wanted = expressions if isinstance(expressions, list) else [expressions]
        for expression in wanted:
            self._execute(self._to_sql(expression, quote_identifiers=quote_identifiers))
        return self._cur.fetchdf()


def connect(session: Session | None = None, **options: Any) -> SparkSession:
    """A session with PySpark's API.

    Args:
        session: the session that runs the queries; one is started if there is none.
        options: for `minishark.connect`.
    """
    _BaseSession._instance = None  # noqa: SLF001 - SQLFrame's one session a process
    return SparkSession(dbapi.connect(session=session, **options))
