"""to_pandas: the frames that DuckDB's own `df()` gives."""

from __future__ import annotations

import sys

import duckdb
import pandas as pd
import pytest

from minishark.errors import DataError, OptionError
from minishark.session.session import Session

# DuckDB's own conversion of categories and times calls what pandas 3.1 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")

VALUES = """
    SELECT i::BIGINT AS i, nullif(i, 3) AS holes, i::UTINYINT AS small, i::HUGEINT AS wide,
        nullif(i > 4, false) AS flag, (i / 7)::DECIMAL(15, 2) AS price, i::FLOAT AS single,
        'n' || i AS name, CASE WHEN i > 2 THEN 'x' END AS maybe,
        DATE '2020-01-01' + i::INTEGER AS day, TIMESTAMP '2020-01-01' + to_hours(i) AS at,
        TIMESTAMPTZ '2020-01-01 00:00:00+00' AS zoned, make_timestamp_ns(i * 1000000007) AS nanos,
        TIME '01:02:03' AS clock, to_days(i::INTEGER) AS span, 'a'::ENUM('b', 'a') AS kind,
        '00000000-0000-0000-0000-000000000001'::UUID AS id, [i, NULL] AS list,
        {'p': i, 'q': 'x'} AS pair, MAP {'k': i} AS map, 'b'::BLOB AS bytes,
        1 AS same, 2 AS same, 3 AS "Same"
    FROM range(10) t(i) ORDER BY i
"""


@pytest.mark.parametrize("sql", [VALUES, f"FROM ({VALUES}) WHERE i < 0", "FROM kinds ORDER BY id"])
def test_a_frame_is_duckdbs(
    toy_session: Session, plain: duckdb.DuckDBPyConnection, sql: str
) -> None:
    """Values, dtypes and names, except that text is `str` also where there is none."""
    expected, found = plain.sql(sql).df(), toy_session.sql(sql).to_pandas()
    texts = [name for name in found if found[name].dtype == "str"]
    expected = expected.astype(dict.fromkeys(texts, "str"))
    pd.testing.assert_frame_equal(expected, found)


def test_what_duckdb_has_no_numpy_type_for(toy_session: Session) -> None:
    """It is converted where a value stays what it is, and else refused by a sentence."""
    sql = "SELECT 7::UHUGEINT AS u, '01:02:03+02'::TIMETZ AS t, 9::BIGNUM AS b"
    found = toy_session.sql(sql).to_pandas()
    assert [7.0, "01:02:03+02", "9"] == found.iloc[0].to_list()
    with pytest.raises(DataError, match=r"pandas can't hold a column: .* use to_arrow\(\)"):
        toy_session.sql("SELECT [9::BIGNUM] AS b").to_pandas()


def test_arrows_dtypes_by_an_option(toy_session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lose nothing; another backend, or no pandas, is told as what to do."""
    frame = toy_session.sql("SELECT 1.25::DECIMAL(9, 2) AS d, NULL::INTEGER AS n, 'x' AS s")
    found = frame.to_pandas(dtype_backend="pyarrow")
    assert ["decimal128(9, 2)[pyarrow]", "int32[pyarrow]", "string[pyarrow]"] == [
        str(dtype) for dtype in found.dtypes
    ]
    with pytest.raises(OptionError, match=r"numpy and pyarrow.*convert_dtypes"):
        frame.to_pandas(dtype_backend="numpy_nullable")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OptionError, match=r"pip install 'minishark\[pandas\]'"):
        frame.to_pandas()
