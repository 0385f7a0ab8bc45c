"""Conditions, numbers and bits."""

from minishark.functions.templates import Template as T

_WHOLE = (
    "DECIMALs become BIGINT, or DOUBLE with a scale. NULL for NaN and what is no BIGINT, of which"
    " Spark makes 0 and the nearest."
)
_SIGN = "0 for NaN, of which Spark returns NaN."

NUMBERS = (
    # Conditions and NULL
    T("isnan(col)", "coalesce(isnan({col}), false)", "Whether it is the float NaN; no NULL is."),
    T("nullifzero(col)", "nullif({col}, 0)", "The number, or NULL where it is 0."),
    T("zeroifnull(col)", "coalesce({col}, 0)", "The number, or 0 where it is NULL."),
    T(
        "equal_null(col1, col2)",
        "{col1} IS NOT DISTINCT FROM {col2}",
        "Whether both are equal, or both NULL.",
    ),
    T(
        "nanvl(col1, col2)",
        "CASE WHEN isnan({col1}) THEN {col2} ELSE {col1} END",
        "The first, or the second where the first is NaN.",
    ),
    T(
        "nvl2(col1, col2, col3)",
        "CASE WHEN {col1} IS NOT NULL THEN {col2} ELSE {col3} END",
        "`col2` where `col1` is not NULL, else `col3`.",
    ),
    # Arithmetic
    T("negate(col)", "-{col}", "The number with the other sign."),
    T("negative(col)", "-{col}", "The number with the other sign."),
    T("positive(col)", "{col}", "The number."),
    T(
        "pmod(dividend, divisor)",
        "CASE WHEN {dividend} % {divisor} < 0 THEN ({dividend} % {divisor} + {divisor}) % {divisor}"
        " ELSE {dividend} % {divisor} END",
        "The remainder that is not negative, if the divisor is not.",
    ),
    T("try_add(left, right)", "try({left} + {right})", "The sum, or NULL if it overflows."),
    T("try_subtract(left, right)", "try({left} - {right})", "The difference, or NULL."),
    T("try_multiply(left, right)", "try({left} * {right})", "The product, or NULL."),
    T(
        "try_divide(left, right)",
        "{left} / nullif({right}, 0)",
        "The quotient, or NULL where the divisor is 0.",
        "Intervals can't be divided.",
    ),
    T("try_mod(left, right)", "{left} % nullif({right}, 0)", "The remainder, or NULL."),
    T("abs(col)", "abs({col})", "The absolute value."),
    T(
        "ceil(col, scale=None)",
        (
            "TRY_CAST(ceil({col}) AS BIGINT)",
            "ceil({col} * 10::DOUBLE ** {scale}) / 10::DOUBLE ** {scale}",
        ),
        "The least whole number that is not below; with `scale`, the same at a decimal place.",
        _WHOLE,
    ),
    T(
        "ceiling(col, scale=None)",
        (
            "TRY_CAST(ceil({col}) AS BIGINT)",
            "ceil({col} * 10::DOUBLE ** {scale}) / 10::DOUBLE ** {scale}",
        ),
        "As `ceil`.",
        _WHOLE,
    ),
    T(
        "floor(col, scale=None)",
        (
            "TRY_CAST(floor({col}) AS BIGINT)",
            "floor({col} * 10::DOUBLE ** {scale}) / 10::DOUBLE ** {scale}",
        ),
        "The greatest whole number that is not above; with `scale`, the same at a decimal place.",
        _WHOLE,
    ),
    T("rint(col)", "round_even({col}::DOUBLE, 0)", "The nearest whole number, half to even."),
    T("bround(col, scale=0)", "round_even({col}, {scale})", "Rounded, half to even."),
    T(
        "round(col, scale=0)",
        "round({col}, {scale})",
        "Rounded, half away from zero.",
        "Doubles are rounded as they are stored: 2.675 is a little below, and becomes 2.67.",
    ),
    T("signum(col)", "sign({col})::DOUBLE", "-1, 0 or 1.", _SIGN),
    T("sign(col)", "sign({col})::DOUBLE", "-1, 0 or 1.", _SIGN),
    T(
        "factorial(col)",
        "CASE WHEN {col} BETWEEN 0 AND 20 THEN factorial({col}::INTEGER)::BIGINT END",
        "The factorial; NULL below 0 and above 20.",
    ),
    T(
        "width_bucket(v, min, max, numBucket)",
        "CASE WHEN {numBucket} <= 0 OR {min} = {max} OR isnan({v}::DOUBLE) THEN NULL"
        " WHEN {min} < {max} THEN CASE WHEN {v} < {min} THEN 0 WHEN {v} >= {max} THEN {numBucket}"
        " + 1 ELSE floor({numBucket} * ({v} - {min}) / ({max} - {min}))::BIGINT + 1 END"
        " ELSE CASE WHEN {v} > {min} THEN 0 WHEN {v} <= {max} THEN {numBucket} + 1"
        " ELSE floor({numBucket} * ({min} - {v}) / ({min} - {max}))::BIGINT + 1 END END",
        "The number of the histogram's bucket of equal width that a value falls into.",
    ),
    # Functions of analysis
    T("e()", "exp(1::DOUBLE)", "Euler's number."),
    T("csc(col)", 'system.main."/"(1, sin({col}))', "The cosecant."),
    T("sec(col)", 'system.main."/"(1, cos({col}))', "The secant."),
    T("hypot(col1, col2)", "sqrt({col1} ** 2 + {col2} ** 2)", "The length of a hypotenuse."),
    T("expm1(col)", "exp({col}) - 1", "E to the power of x, minus 1."),
    T("ln(col)", "CASE WHEN {col} > 0 THEN ln({col}) END", "The natural logarithm; NULL up to 0."),
    T(
        "log(arg1, arg2=None)",
        (
            "CASE WHEN {arg1} > 0 THEN ln({arg1}) END",
            "CASE WHEN {arg1} > 0 AND {arg2} > 0 THEN log({arg1}, {arg2}) END",
        ),
        "The natural logarithm; with two arguments, the first is the base.",
    ),
    T("log10(col)", "CASE WHEN {col} > 0 THEN log10({col}) END", "The decimal logarithm."),
    T("log2(col)", "CASE WHEN {col} > 0 THEN log2({col}) END", "The binary logarithm."),
    T("log1p(col)", "CASE WHEN {col} > -1 THEN ln(1 + {col}) END", "The logarithm of 1 + x."),
    # Bits and notations
    T("bitwise_not(col)", "~{col}", "All bits flipped."),
    T("bit_get(col, pos)", "({col} >> {pos}) & 1", "The bit at a position, from 0 at the right."),
    T("getbit(col, pos)", "({col} >> {pos}) & 1", "The bit at a position, from 0 at the right."),
    T("bit_count(col)", "bit_count({col}::BIGINT)", "How many bits are 1."),
    T(
        "shiftleft(col, numBits)",
        "{col} * (1::BIGINT << {numBits})",
        "Shifted to the left.",
        "An overflow is an error, where Spark's bits wrap.",
    ),
    T("shiftright(col, numBits)", "{col} >> {numBits}", "Shifted to the right, keeping the sign."),
    T(
        "shiftrightunsigned(col, numBits)",
        "CASE WHEN {col} < 0 THEN ((18446744073709551616::HUGEINT + {col}) >> {numBits})::BIGINT"
        " ELSE {col} >> {numBits} END",
        "Shifted to the right, with zeros from the left.",
        "All integers have 64 bits.",
    ),
    T("bin(col)", "bin({col}::BIGINT)", "The number in binary notation."),
    T("hex(col)", "hex({col})", "A whole number, a text's or a blob's bytes in hexadecimals."),
    T("unhex(col)", "unhex({col})", "The bytes that hexadecimals stand for."),
)
