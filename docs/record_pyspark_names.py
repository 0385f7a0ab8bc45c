"""Writes pyspark_names.json, the public names of PySpark; needs PySpark.

python docs/record_pyspark_names.py
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pyspark
from pyspark import RDD
from pyspark.sql import (
    Catalog,
    Column,
    DataFrame,
    DataFrameNaFunctions,
    DataFrameReader,
    DataFrameStatFunctions,
    DataFrameWriter,
    GroupedData,
    Row,
    SparkSession,
    UDFRegistration,
    Window,
    WindowSpec,
    functions,
    types,
)
from pyspark.sql.conf import RuntimeConfig

CLASSES = (
    DataFrame, DataFrameNaFunctions, DataFrameStatFunctions, Column, GroupedData, Window,
    WindowSpec, DataFrameReader, DataFrameWriter, Catalog, SparkSession, SparkSession.Builder,
    UDFRegistration, RuntimeConfig, Row, RDD,
)  # fmt: skip


def main() -> None:
    """Record the names."""
    found = {
        kind.__name__: sorted(name for name in dir(kind) if not name.startswith("_"))
        for kind in CLASSES
    }
    called = [name for name in functions.__all__ if inspect.isfunction(getattr(functions, name))]
    names = {**found, "functions": sorted(called), "types": sorted(types.__all__)}
    text = json.dumps({"version": pyspark.__version__, **names}, indent=0)
    Path(__file__).with_name("pyspark_names.json").write_text(text)


if __name__ == "__main__":
    main()
