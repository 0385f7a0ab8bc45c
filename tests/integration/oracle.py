"""Plain DuckDB as the judge of a session's answers."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import pyarrow as pa

from minishark.dataframe import DataFrame
from minishark.query.answers import differences, output_order
from minishark.session.session import Session


@dataclass(frozen=True)
class Answer:
    """DuckDB's rows, with its own types and the columns by which they are ordered."""

    rows: pa.Table
    dtypes: list[tuple[str, str]]
    order: tuple[int, ...]


def divergences(session: Session, plain: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    """What distinguishes the session's answer from DuckDB's: names, types, rows, order."""
    return frame_divergences(session.sql(sql), answer(plain, sql))


def answer(plain: duckdb.DuckDBPyConnection, sql: str) -> Answer:
    """What is expected."""
    relation = plain.sql(sql)
    dtypes = list(zip(relation.columns, map(str, relation.types), strict=True))
    return Answer(relation.to_arrow_table(), dtypes, output_order(plain, sql, relation.columns))


def frame_divergences(frame: DataFrame, expected: Answer) -> list[str]:
    """The same for a DataFrame of the statement, whose metrics can be looked at then."""
    if expected.dtypes != frame.dtypes:
        return [f"The columns are {frame.dtypes}, expected {expected.dtypes}."]
    return differences(expected.rows, frame.to_arrow(), ordered_by=expected.order)
