"""Plain DuckDB as the judge of a session's answers."""

from __future__ import annotations

import duckdb

from minishark.answers import differences, output_order
from minishark.dataframe import DataFrame
from minishark.session.session import Session


def divergences(session: Session, plain: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    """What distinguishes the session's answer from DuckDB's: names, types, rows, order."""
    return frame_divergences(session.sql(sql), plain, sql)


def frame_divergences(frame: DataFrame, plain: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    """The same for a DataFrame of the statement, whose metrics can be looked at then."""
    relation = plain.sql(sql)
    wanted_types = list(zip(relation.columns, map(str, relation.types), strict=True))
    expected = relation.to_arrow_table()
    if wanted_types != frame.dtypes:
        return [f"The columns are {frame.dtypes}, expected {wanted_types}."]
    actual = frame.to_arrow()
    order = output_order(plain, sql, expected.column_names)
    return differences(expected, actual, ordered_by=order)
