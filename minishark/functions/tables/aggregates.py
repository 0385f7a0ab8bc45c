"""Aggregates and window functions."""

from minishark.functions.templates import Template as T

_SKEW = (
    "CASE WHEN @count({col}) > 2 THEN @skewness({col}) * (@count({col}) - 2)"
    " / sqrt(@count({col}) * (@count({col}) - 1)) END"
)
_NO_OVERFLOW = "Sums of integers have 128 bits, which do not overflow."
_WHOLE = "CASE WHEN list_count({col}) = len({col}) THEN {col} END"
_BY_ELEMENT = (
    f"list_transform(generate_series(1, CASE WHEN @count(DISTINCT len({{col}})) > 1"
    f" THEN error('The vectors have different dimensions.') ELSE @max(len({_WHOLE})) END),"
    f" lambda i_: {{each}}(list_transform(@list({_WHOLE}), lambda v_: v_[i_])))::FLOAT[]"
)
_PREVIOUS = "@lag({value} IGNORE NULLS)"
_SINCE = (
    "@lag(CASE WHEN {value} IS NOT NULL THEN struct_pack(at := {startTime}) END IGNORE NULLS).at"
)

AGGREGATES = (
    T(
        "corr(col1, col2)",
        "CASE WHEN @regr_count({col1}, {col2}) > 1 THEN @corr({col1}, {col2}) END",
        "The correlation of two columns; NULL of fewer than two rows.",
    ),
    T(
        "regr_slope(y, x)",
        "CASE WHEN @regr_count({y}, {x}) > 1 THEN @regr_slope({y}, {x}) END",
        "The slope of the line of least squares; NULL of fewer than two rows.",
    ),
    T(
        "regr_intercept(y, x)",
        "CASE WHEN @regr_count({y}, {x}) > 1"
        " THEN @regr_avgy({y}, {x}) - @regr_slope({y}, {x}) * @regr_avgx({y}, {x}) END",
        "The value at 0 of the line of least squares; NULL of fewer than two rows.",
    ),
    T(
        "max_by(col, ord, k=None)",
        ("@arg_max_null({col}, {ord})", "@max_by({col}, {ord}, {k})"),
        "The value where another is greatest; a list of those of the `k` greatest.",
    ),
    T(
        "min_by(col, ord, k=None)",
        ("@arg_min_null({col}, {ord})", "@min_by({col}, {ord}, {k})"),
        "The value where another is least; a list of those of the `k` least.",
    ),
    T("count_if(col)", "coalesce(@count_if({col}), 0)", "In how many rows it is true."),
    T("collect_union(col)", "list_distinct(flatten(@list({col})))", "The union of lists."),
    T(
        "kurtosis(col)",
        "@kurtosis_pop({col})",
        "The excess kurtosis of all values as a population.",
    ),
    T(
        "skewness(col)",
        _SKEW,
        "The skewness of all values as a population.",
        "NULL for fewer than three values.",
    ),
    T("std(col)", "@stddev_samp({col})", "The standard deviation of a sample."),
    T("stddev(col)", "@stddev_samp({col})", "The standard deviation of a sample."),
    T("some(col)", "@bool_or({col})", "Whether it is true in any row."),
    T("every(col)", "@bool_and({col})", "Whether it is true in all rows."),
    T(
        "percentile(col, percentage: value, frequency: value = None)",
        (
            "@quantile_cont({col}, {percentage})",
            "list_aggregate(flatten(@list(list_transform("
            "range(CAST(CAST({frequency} AS UBIGINT) AS BIGINT)), lambda i_: {col}))),"
            " 'quantile_cont', {percentage})",
        ),
        "A quantile, also of values of which each is there several times.",
    ),
    T(
        "vector_sum(col)",
        _BY_ELEMENT.replace("{each}", "list_sum"),
        "The sum of vectors, element by element, without those that have NULLs.",
    ),
    T(
        "vector_avg(col)",
        _BY_ELEMENT.replace("{each}", "list_avg"),
        "The mean of vectors, element by element, without those that have NULLs.",
    ),
    T(
        "counter_diff(value, startTime=None)",
        (
            f"CASE WHEN {{value}} >= {_PREVIOUS} THEN {{value}} - {_PREVIOUS} END",
            f"CASE WHEN {{value}} >= {_PREVIOUS} AND ({{startTime}} > {_SINCE}) IS NOT TRUE"
            f" THEN {{value}} - {_PREVIOUS} END",
        ),
        "What a counter has grown by since the row before; NULL where it was reset.",
    ),
    T("try_avg(col)", "@avg({col})", "The mean.", _NO_OVERFLOW),
    T("ntile(n)", "@ntile({n})", "The number of one of n groups of equal size, from 1."),
)
