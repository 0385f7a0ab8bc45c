"""JSON, hashes, errors, and what a session knows."""

from minishark.dataframe.column import Kind
from minishark.functions.templates import Template as T

_VARIANT = "Variants are JSON."

OTHER = (
    # JSON and variants
    T(
        "get_json_object(col, path: value)",
        "json_extract_string(TRY_CAST({col} AS JSON), {path})",
        "The value at a path such as '$.a.b', as text; NULL if the text is no JSON.",
    ),
    T(
        "json_object_keys(col)",
        "CASE json_type(TRY_CAST({col} AS JSON)) WHEN 'OBJECT' THEN json_keys({col}) END",
        "The keys of an object; NULL if the text is none.",
    ),
    T(
        "json_array_length(col)",
        "CASE json_type(TRY_CAST({col} AS JSON)) WHEN 'ARRAY'"
        " THEN json_array_length({col})::INTEGER END",
        "The number of elements of an array; NULL if the text is none.",
    ),
    T("parse_json(col)", "json({col}::JSON)", "A text as JSON.", _VARIANT),
    T("try_parse_json(col)", "json(TRY_CAST({col} AS JSON))", "A text as JSON, or NULL.", _VARIANT),
    T("to_variant_object(col)", "to_json({col})", "A nested value as JSON.", _VARIANT),
    T("is_variant_null(v)", "coalesce(json_type({v}) = 'NULL', false)", "Whether it is null."),
    T("is_valid_variant(v)", "json_valid({v})", "Whether it is valid.", _VARIANT),
    # Hashes
    T("sha(col)", "sha1({col})", "The SHA-1 hash in hexadecimals."),
    T(
        "xxhash64(*cols)",
        "(hash({cols}) - 9223372036854775808::HUGEINT)::BIGINT",
        "A hash of 64 bits.",
        "The values are DuckDB's, not Spark's.",
    ),
    # Errors
    T(
        "assert_true(col, errMsg: value = 'assert_true: the condition is not true.')",
        "CASE WHEN {col} THEN NULL ELSE error({errMsg}::VARCHAR) END",
        "NULL where a condition is true; an error elsewhere.",
    ),
    T("raise_error(errMsg: value)", "error({errMsg})", "Always an error.", kind=Kind.FREE),
    # The session
    T("current_user()", "current_user", "The user: always duckdb."),
    T("session_user()", "session_user", "The user: always duckdb."),
    T("user()", "user", "The user: always duckdb."),
    T(
        "current_path()",
        "array_to_string(current_schemas(true), ',')",
        "The schemas in which names are looked up.",
        "They are DuckDB's schemas.",
    ),
    # Bitmaps
    T(
        "bitmap_bit_position(col)",
        "CASE WHEN {col} > 0 THEN ({col} - 1) % 32768 ELSE (-{col}) % 32768 END",
        "The position of a number in its bitmap.",
    ),
    T(
        "bitmap_bucket_number(col)",
        "CASE WHEN {col} > 0 THEN 1 + ({col} - 1) // 32768 ELSE {col} // 32768 END",
        "The number of a number's bitmap.",
    ),
)
