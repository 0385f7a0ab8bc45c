"""SQLAlchemy's own tests of a dialect; see `test_sqlalchemy_suite.py`, which runs them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Integer, String
from sqlalchemy.testing import suite
from sqlalchemy.testing.schema import Table
from sqlalchemy.testing.suite import *  # noqa: F403


class CTETest(suite.CTETest):
    """Without the foreign key of a table to itself: DuckDB would refuse the rows in one INSERT."""

    @classmethod
    def define_tables(cls, metadata: Any) -> None:
        """The tables of the suite."""
        for name in ("some_table", "some_other_table"):
            Table(
                name,
                metadata,
                Column("id", Integer, primary_key=True),
                Column("data", String(50)),
                Column("parent_id", Integer),
            )


class ComponentReflectionTest(suite.ComponentReflectionTest):
    """Without what compares lengths of VARCHAR, which DuckDB does not keep."""

    test_reflect_table_temp_table = None


class ComponentReflectionTestExtra(suite.ComponentReflectionTestExtra):
    """Without lengths, and CHAR, which is VARCHAR to DuckDB."""

    test_string_length_reflection = None


class TrueDivTest(suite.TrueDivTest):
    """Without quotients of decimals, which DuckDB rounds as floats."""

    test_truediv_numeric = None
    test_truediv_divisor = None


LongNameBlowoutTest = None  # names of constraints, which DuckDB does not keep, and of indexes
