"""Functions and expressions against PySpark's answers, which `record_pyspark.py` has written down.

One query computes all expressions of a group; if it fails, each of them alone says which one does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark_cases import GROUPS, TABLES, expressions, plain, same

from minishark import Column, DataFrame, Window
from minishark import functions as F
from minishark.errors import MinisharkError
from minishark.session.session import Session

ANSWERS = json.loads((Path(__file__).parents[1] / "golden" / "pyspark_answers.json").read_text())

# What differs, with the reason that docs/pyspark.md gives; all else is PySpark's answer.
_NAN = "Spark makes 0 of NaN"
DIFFERENT = {
    'F.ceil("x")': _NAN,
    'F.ceiling("x")': _NAN,
    'F.floor("x")': _NAN,
    'F.sign("x")': "DuckDB makes 0 of NaN",
    'F.format_string("%s|%d", "s", "k")': "NULL, not the text null",
    'F.ucase("s")': "one letter, ẞ",
    'F.upper("s")': "one letter, ẞ",
    'F.window("ts", "10 minutes").start': "rows without a time are kept",
    'F.window("ts", "1 hour", "1 hour", "15 minutes").end': "rows without a time are kept",
    'F.session_window("ts", "10 minutes").end': "rows without a time are kept",
    'F.to_char("l", F.lit("9G999"))': "a comma, not a space, where the number does not fit",
    'F.from_xml("x", "STRUCT<b: INT>")': "of several elements the last counts",
    'F.levenshtein("s", "u")': "counts bytes",
    'F.to_json("m")': "entries that are NULL are left out",
    'F.max(F.struct("v", "s"))': "NULL is the greatest value within structs",
}


def _column(text: str) -> Column:
    part = Window.partitionBy("k")
    ordered = part.orderBy(F.asc_nulls_last("v"), F.asc_nulls_last("x"))
    names = {"F": F, "Window": Window, "p": part, "w": ordered}
    return eval(text, names)


def _answers(frame: DataFrame, group: str, texts: list[str]) -> list[list[Any]]:
    """The values of each expression, row by row."""
    columns = [_column(text).alias(f"value{number}") for number, text in enumerate(texts)]
    match group:
        case "aggregates":
            found = frame.agg(*columns)
        case "groups":
            found = frame.groupBy("k").agg(*columns).orderBy(F.asc_nulls_last("k"))
        case "windows":
            keys = [F.asc_nulls_last(name) for name in ("k", "v", "x")]
            found = frame.select("k", "v", "x", *columns).orderBy(*keys)
        case _:
            found = frame.select("id", *columns).orderBy("id")
    rows = found.collect()
    return [[plain(row[f"value{number}"]) for row in rows] for number in range(len(texts))]


@pytest.fixture(scope="module")
def frames(toy_session: Session) -> dict[str, DataFrame]:
    """The tables of the cases."""
    return {
        name: toy_session.create_dataframe(rows, schema) for name, (schema, rows) in TABLES.items()
    }


@pytest.mark.sample(12)
@pytest.mark.parametrize("group", GROUPS)
def test_expressions_have_pysparks_answers(group: str, frames: dict[str, DataFrame]) -> None:
    """Each expression gives what PySpark gave, and what differs is listed with its reason."""
    recorded = ANSWERS[group]
    assert set(expressions(group)) == set(recorded), "run record_pyspark.py"
    texts = [text for text in expressions(group) if "error" not in recorded[text]]
    frame = frames[GROUPS[group][0]]
    try:
        found = _answers(frame, group, texts)
    except (MinisharkError, AttributeError, TypeError):
        failing = []
        for text in texts:
            try:
                _answers(frame, group, [text])
            except (MinisharkError, AttributeError, TypeError) as error:
                failing.append(f"{text}: {error}")
        raise AssertionError("\n".join(failing)) from None
    wrong = [
        f"{text}\n  PySpark   {recorded[text]}\n  minishark {mine}"
        for text, mine in zip(texts, found, strict=True)
        if same(recorded[text], mine) == (text in DIFFERENT)
    ]
    assert not wrong, "\n".join(wrong)
