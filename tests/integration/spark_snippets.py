"""Snippets as ported programs have them, whose answers Spark has given once.

`python tests/integration/spark_snippets.py` asks Spark anew; it needs PySpark, and Java.
A snippet is Spark's SQL, or Python over `spark`, `F`, `Window`, `Row`, `people` and `depts`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import re
from pathlib import Path
from typing import Any

ANSWERS = Path(__file__).parents[1] / "golden" / "spark_snippets.json"
_DATE = dt.date.fromisoformat
_SCHEMA = (
    "name string, age int, dept string, sex string, salary double, hired date, tags string, "
    "zero int"
)
_PEOPLE = (
    _SCHEMA,
    [
        ("a", 30, "x", "f", 10.5, _DATE("2020-01-31"), "p,q", 0),
        ("b", 25, "y", "m", 20.25, _DATE("2021-02-28"), "", 0),
        ("c", None, "x", "m", None, _DATE("2019-12-01"), None, 0),
        ("d", 45, None, "f", 7.5, None, "r", 0),
    ],
)
_DEPTS = [("x", "Ex"), ("y", "Why"), ("z", "Zed")]
_RULE = re.compile(r"^\+[-+]+\+$", re.MULTILINE)


def names(spark: Any, functions: Any, window: Any, row: Any) -> dict[str, Any]:
    """What snippets refer to."""
    schema, people = _PEOPLE
    return {
        "spark": spark,
        "F": functions,
        "Window": window,
        "Row": row,
        "people": spark.createDataFrame(people, schema),
        "depts": spark.createDataFrame(_DEPTS, ["dept", "title"]),
    }


def answer(text: str, given: dict[str, Any]) -> list[str] | None:
    """The rows that `show` draws, or the value; None for an error."""
    try:
        is_sql = text.startswith(("SELECT", "WITH "))
        found = given["spark"].sql(text) if is_sql else eval(text, dict(given))
        if not hasattr(found, "show"):
            return [repr(found)]
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            found.show(50, False)
    except Exception:  # noqa: BLE001 - an error is an answer, whichever it is
        return None
    _, _, rows, _ = _RULE.split(shown.getvalue())
    return [re.sub(r"\s*\|\s*", "|", line) for line in rows.strip().split("\n")]


def main() -> None:
    """Ask Spark."""
    from pyspark.sql import Row, SparkSession, Window
    from pyspark.sql import functions as F

    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    given = names(spark, F, Window, Row)
    texts = json.loads(ANSWERS.read_text())["answers"]
    answers = {text: answer(text, given) for text in texts}
    ANSWERS.write_text(json.dumps({"version": spark.version, "answers": answers}, indent=0))


if __name__ == "__main__":
    main()
