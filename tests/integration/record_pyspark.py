"""Writes down PySpark's answers to `pyspark_cases.py`; needs PySpark, and Java.

python tests/integration/record_pyspark.py        # what is not recorded yet
python tests/integration/record_pyspark.py --all  # everything, for a new version
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

sys.path.insert(0, str(Path(__file__).parent))

from pyspark_cases import GROUPS, TABLES, expressions, plain

ANSWERS = Path(__file__).parents[1] / "golden" / "pyspark_answers.json"


def answer(frame: DataFrame, group: str, text: str) -> object:
    """The values of an expression, row by row; or an error's class."""
    names = {"F": F, "Window": Window, "p": Window.partitionBy("k")}
    names["w"] = Window.partitionBy("k").orderBy(F.asc_nulls_last("v"), F.asc_nulls_last("x"))
    try:
        column = eval(text, names).alias("value")
        if group == "aggregates":
            found = frame.agg(column)
        elif group == "groups":
            found = frame.groupBy("k").agg(column).orderBy(F.asc_nulls_last("k"))
        elif group == "windows":
            order = [F.asc_nulls_last(name) for name in ("k", "v", "x")]
            found = frame.select("k", "v", "x", column).orderBy(*order)
        else:
            found = frame.select("id", column).orderBy("id")
        return [plain(row["value"]) for row in found.collect()]
    except Exception as error:  # noqa: BLE001 - PySpark's answer is an error, then
        return {"error": type(error).__name__, "message": str(error).split("\n")[0][:200]}


def main() -> None:
    """Record all answers."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    frames = {name: spark.createDataFrame(rows, schema) for name, (schema, rows) in TABLES.items()}
    for frame in frames.values():
        frame.cache()
    known = json.loads(ANSWERS.read_text()) if ANSWERS.exists() and "--all" not in sys.argv else {}
    found: dict[str, dict[str, object]] = {}
    for group, (table, _) in GROUPS.items():
        old = known.get(group, {})
        found[group] = {
            text: old[text] if text in old else answer(frames[table], group, text)
            for text in expressions(group)
        }
    ANSWERS.write_text(json.dumps({"version": spark.version, **found}, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
