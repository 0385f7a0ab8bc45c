"""Names that pandas has, and what to write here instead. Pure data."""

from __future__ import annotations

_PANDAS = "df.to_pandas().{name}, if the rows fit into memory."
_AGGREGATED = 'df.agg(F.{name}("column")).'

_FRAME = {
    "shape": "(df.count(), len(df.columns)).",
    "info": "df.print_schema() shows the columns, df.describe() figures.",
    "sort_values": 'df.sort("column"), or df.sort(F.desc("column")).',
    "value_counts": 'df.group_by("column").count().',
    "nunique": 'df.agg(F.count_distinct("column")).',
    "unique": 'df.select("column").distinct().',
    "rename": 'df.with_column_renamed("old", "new"), or df.with_columns_renamed({"old": "new"}).',
    "assign": 'df.with_column("name", expression).',
    "merge": 'df.join(other, on="column", how="inner").',
    "append": "df.union_by_name(other).",
    "isna": 'df.filter(F.col("column").is_null()).',
    "isnull": 'df.filter(F.col("column").is_null()).',
    "notna": 'df.filter(F.col("column").is_not_null()).',
    "notnull": 'df.filter(F.col("column").is_not_null()).',
    "query": 'df.filter("x > 1 AND y = 2"), in SQL.',
    "eval": 'df.select_expr("x + 1 AS y"), in SQL.',
    "loc": 'df.filter(condition).select("a", "b"): rows have no labels.',
    "iloc": "df.limit(n) or df.tail(n): rows have no positions.",
    "at": "df.filter(condition).select(...): rows have no labels.",
    "iat": "df.limit(n): rows have no positions.",
    "apply": "expressions, or df.map_partitions(function) for a function of tables.",
    "applymap": "expressions, or df.map_partitions(function) for a function of tables.",
    "pivot_table": 'df.group_by("row").pivot("column").agg(F.mean("value")).',
    "to_csv": 'df.write.csv("path").',
    "to_parquet": 'df.write.parquet("path").',
    "to_excel": 'df.to_pandas().to_excel("path.xlsx").',
    "to_sql": 'df.write.save_as_table("name").',
    "to_dict": "[row.as_dict() for row in df.collect()], or df.to_arrow().to_pydict().",
    "index": "rows have no labels; df.zip_with_index() numbers them.",
    "reset_index": "rows have no labels, so that there is nothing to reset.",
    "set_index": "rows have no labels: join and filter by columns.",
    "iterrows": "for row in df.to_local_iterator().",
    "itertuples": "for row in df.to_local_iterator().",
    "astype": 'df.with_column("a", F.col("a").cast("INTEGER")).',
    "nlargest": 'df.sort(F.desc("column")).limit(n).',
    "nsmallest": 'df.sort("column").limit(n).',
    "cumsum": 'F.sum("x").over(Window.order_by("y")).',
    "copy": "DataFrames do not change: df itself.",
    "duplicated": 'df.group_by("column").count().filter("count > 1").',
    **dict.fromkeys(("values", "to_numpy", "T", "memory_usage", "corrwith", "items"), _PANDAS),
    **dict.fromkeys(
        ("sum", "mean", "max", "min", "std", "median", "var", "any", "all"), _AGGREGATED
    ),
}
_COLUMN = {
    "unique": 'df.select("column").distinct().',
    "nunique": 'df.agg(F.count_distinct("column")).',
    "value_counts": 'df.group_by("column").count().',
    "apply": "expressions, or F.udf(function)(column).",
    "map": "expressions, or F.udf(function)(column).",
    "fillna": "F.coalesce(column, F.lit(value)).",
    "isna": "column.is_null().",
    "notna": "column.is_not_null().",
    "to_list": '[row[0] for row in df.select("column").collect()].',
    "tolist": '[row[0] for row in df.select("column").collect()].',
    "to_numpy": 'df.select("column").to_pandas()["column"].to_numpy().',
    "upper": "F.upper(column).",
    "lower": "F.lower(column).",
    "strip": "F.trim(column).",
    "round": "F.round(column, 2).",
    "abs": "F.abs(column).",
    "shift": 'F.lag(column).over(Window.order_by("x")).',
    "rank": 'F.rank().over(Window.order_by("x")).',
    "cumsum": 'F.sum("x").over(Window.order_by("y")).',
    "var": 'df.agg(F.var_samp("column")).',
    **dict.fromkeys(("sum", "mean", "max", "min", "std", "median", "count"), _AGGREGATED),
}


def frame_hint(name: str) -> str:
    """What to write instead of an attribute of pandas' DataFrame; empty for other names."""
    return _hint(_FRAME.get(name), name)


def column_hint(name: str) -> str:
    """What to write instead of a method of pandas' Series; empty for other names."""
    return _hint(_COLUMN.get(name), name)


def _hint(text: str | None, name: str) -> str:
    return (
        "" if text is None else f" Instead: {text.format(name=name) if '{name}' in text else text}"
    )
