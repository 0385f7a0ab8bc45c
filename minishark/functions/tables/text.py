"""Text and blobs."""

from minishark.functions.templates import Template as T

_RE2 = "Regular expressions are RE2's, which has no lookaround or backreferences."
_PRINTF = "NULL if an argument is, of which Spark prints null."
_CASE = "ß stays one letter, ẞ; Spark's is SS."
_VALID = "Text is always valid UTF-8; of blobs use decode()."
_MASKED = (
    "array_to_string(list_transform(string_split({col}, ''), lambda c_: CASE"
    " WHEN regexp_full_match(c_, '\\p{{Lu}}') THEN {upperChar}"
    " WHEN regexp_full_match(c_, '\\p{{Ll}}') THEN {lowerChar}"
    " WHEN regexp_full_match(c_, '[0-9]') THEN {digitChar}"
)

TEXT = (
    # Patterns
    T(
        "like(str, pattern, escapeChar: value = '\\\\')",
        "{str} LIKE {pattern} ESCAPE {escapeChar}",
        "Whether it matches a SQL pattern, with % and _.",
    ),
    T(
        "ilike(str, pattern, escapeChar: value = '\\\\')",
        "{str} ILIKE {pattern} ESCAPE {escapeChar}",
        "Whether it matches a SQL pattern, ignoring case.",
    ),
    T("rlike(str, regexp)", "regexp_matches({str}, {regexp})", "Whether a part matches.", _RE2),
    T("regexp(str, regexp)", "regexp_matches({str}, {regexp})", "Whether a part matches.", _RE2),
    T(
        "regexp_like(str, regexp)",
        "regexp_matches({str}, {regexp})",
        "Whether a part matches a regular expression.",
        _RE2,
    ),
    T(
        "regexp_count(str, regexp)",
        "len(regexp_extract_all({str}, {regexp}))",
        "How many parts match a regular expression.",
        _RE2,
    ),
    T(
        "regexp_extract(str, pattern: value, idx=1)",
        "regexp_extract({str}, {pattern}, {idx})",
        "What a group of a regular expression matches; empty if there is no match.",
        _RE2,
    ),
    T(
        "regexp_extract_all(str, regexp, idx=1)",
        "regexp_extract_all({str}, {regexp}, {idx})",
        "What a group of a regular expression matches, each time.",
        _RE2,
    ),
    T(
        "regexp_instr(str, regexp, idx=0)",  # which group is meant has no effect in Spark either
        "CASE WHEN {idx} IS NULL THEN NULL WHEN regexp_matches({str}, {regexp})"
        " THEN length(regexp_extract({str}, '(?s)^(.*?)(?:' || {regexp} || ')', 1)) + 1"
        " WHEN {str} IS NOT NULL AND {regexp} IS NOT NULL THEN 0 END",
        "The position of the first match, from 1; 0 if there is none.",
        _RE2,
    ),
    T(
        "regexp_substr(str, regexp)",
        "CASE WHEN regexp_matches({str}, {regexp}) THEN regexp_extract({str}, {regexp}) END",
        "The first part that matches; NULL if none does.",
        _RE2,
    ),
    # Parts
    T("contains(left, right)", "contains({left}, {right})", "Whether a text contains another."),
    T("startswith(str, prefix)", "starts_with({str}, {prefix})", "Whether it starts with it."),
    T("endswith(str, suffix)", "ends_with({str}, {suffix})", "Whether it ends with it."),
    T("left(str, len)", "left({str}, greatest({len}, 0))", "The first characters."),
    T("right(str, len)", "right({str}, greatest({len}, 0))", "The last characters."),
    T(
        "substr(str, pos, len=None)",
        (
            "substring({str}, CASE WHEN {pos} = 0 THEN 1 ELSE {pos} END)",
            "substring({str}, CASE WHEN {pos} = 0 THEN 1 ELSE {pos} END,"
            " CASE WHEN {len} < 0 THEN 0 ELSE {len} END)",  # DuckDB goes back from there
        ),
        "The characters from a position, counted from 1, or from the end if negative.",
    ),
    T(
        "substring_index(str, delim: value, count)",
        "CASE WHEN {count} > 0 THEN array_to_string(string_split({str}, {delim})[1:{count}],"
        " {delim}) WHEN {count} < 0"
        " THEN array_to_string(string_split({str}, {delim})[{count}:], {delim}) ELSE '' END",
        "What is before the `count`-th delimiter, or after it, from the end, if negative.",
    ),
    T(
        "split_part(src, delimiter, partNum)",
        "split_part({src}, {delimiter}, {partNum})",
        "A part between delimiters, from 1, or from the end if negative.",
    ),
    T(
        "position(substr, str, start=1)",
        "CASE WHEN {start} < 1 THEN 0 WHEN instr(substring({str}, {start}), {substr}) = 0 THEN 0"
        " ELSE instr(substring({str}, {start}), {substr}) + {start} - 1 END",
        "The position of a text in another, from 1; 0 if it is not there.",
    ),
    T(
        "locate(substr: value, str, pos=1)",
        "CASE WHEN {pos} < 1 THEN 0 WHEN instr(substring({str}, {pos}), {substr}) = 0 THEN 0"
        " ELSE instr(substring({str}, {pos}), {substr}) + {pos} - 1 END",
        "The position of a text in another, from 1; 0 if it is not there.",
    ),
    T("instr(str, substr: value)", "instr({str}, {substr})", "The position of a text, from 1."),
    T(
        "find_in_set(str, str_array)",
        "CASE WHEN contains({str}, ',') THEN 0"
        " ELSE coalesce(list_position(string_split({str_array}, ','), {str}),"
        " CASE WHEN {str} IS NOT NULL AND {str_array} IS NOT NULL THEN 0 END) END",
        "The position of a text in a list with commas, from 1; 0 if it is not there.",
    ),
    T("elt(n, *inputs)", "list_extract([{inputs}], {n})", "The n-th of the others, from 1."),
    # Changes
    T("btrim(str, trim=None)", ("trim({str})", "trim({str}, {trim})"), "Trimmed at both ends."),
    T("trim(col, trim=None)", ("trim({col})", "trim({col}, {trim})"), "Trimmed at both ends."),
    T("ltrim(col, trim=None)", ("ltrim({col})", "ltrim({col}, {trim})"), "Trimmed at the left."),
    T("rtrim(col, trim=None)", ("rtrim({col})", "rtrim({col}, {trim})"), "Trimmed at the right."),
    T(
        "lpad(col, len, pad: value = ' ')",
        "lpad({col}, {len}, {pad})",
        "Padded at the left, or truncated, to a length.",
    ),
    T(
        "rpad(col, len, pad: value = ' ')",
        "rpad({col}, {len}, {pad})",
        "Padded at the right, or truncated, to a length.",
    ),
    T(
        "replace(src, search, replace=None)",
        ("replace({src}, {search}, '')", "replace({src}, {search}, {replace})"),
        "All occurrences of a text replaced; removed, without a replacement.",
    ),
    T(
        "overlay(src, replace, pos, len=-1)",
        "substring({src}, 1, {pos} - 1) || {replace} || substring({src},"
        " {pos} + CASE WHEN {len} < 0 THEN length({replace}) ELSE {len} END)",
        "A part replaced, from a position counted from 1.",
    ),
    T(
        "translate(srcCol, matching: value, replace: value)",
        "translate({srcCol}, {matching}, {replace})",
        "Each character of `matching` replaced by the one at its position in `replace`.",
    ),
    T(
        "initcap(col)",
        "array_to_string(list_transform(string_split(lower({col}), ' '),"
        " lambda word_: upper(word_[1]) || word_[2:]), ' ')",
        "The first letter of each word in upper case, the others in lower case.",
    ),
    T("quote(col)", "'''' || replace({col}, '''', '\\''') || ''''", "In single quotes."),
    T(
        "mask(col, upperChar: value = 'X', lowerChar: value = 'x', digitChar: value = 'n',"
        " otherChar: value = None)",
        (f"{_MASKED} ELSE c_ END), '')", f"{_MASKED} ELSE {{otherChar}} END), '')"),
        "Letters and digits replaced, and with `otherChar` all else.",
    ),
    T("concat_ws(sep: value, *cols)", "concat_ws({sep}, {cols})", "Joined; NULLs are skipped."),
    T(
        "format_string(format: value, *cols)",
        "printf({format}, {cols})",
        "As by C's printf.",
        _PRINTF,
    ),
    T("printf(format, *cols)", "printf({format}, {cols})", "As by C's printf.", _PRINTF),
    T(
        "format_number(col, d)",
        "CASE WHEN isnan({col}::DOUBLE) THEN 'NaN'"
        " WHEN {d} >= 0 THEN format('{{:,.' || {d} || 'f}}', {col}::DOUBLE) END",
        "A number with commas between thousands, and with so many digits after the point.",
    ),
    T("ucase(str)", "upper({str})", "In upper case.", _CASE),
    T("upper(col)", "upper({col})", "In upper case.", _CASE),
    T("lcase(str)", "lower({str})", "In lower case."),
    # Measures
    T("octet_length(col)", "bit_length({col}) // 8", "The number of bytes."),
    T(
        "levenshtein(left, right, threshold=None)",
        (
            "levenshtein({left}, {right})",
            "CASE WHEN levenshtein({left}, {right}) <= {threshold} THEN"
            " levenshtein({left}, {right})"
            " WHEN {left} IS NOT NULL AND {right} IS NOT NULL THEN -1 END",
        ),
        "How many characters must be changed; -1 if more than the threshold.",
        "It counts bytes: a letter such as ü is two.",
    ),
    # Characters and bytes
    T(
        "char(col)",
        "CASE WHEN {col} < 0 THEN '' ELSE chr(({col} % 256)::INTEGER) END",
        "The character of a code from 0 to 255.",
    ),
    T("base64(col)", "to_base64(unhex(hex({col})))", "The bytes of a text or blob in base 64."),
    T("unbase64(col)", "from_base64({col})", "The bytes that a text in base 64 stands for."),
    T(
        "to_binary(col, format: value = 'hex')",
        "CASE lower({format}) WHEN 'hex' THEN unhex({col}) WHEN 'base64' THEN from_base64({col})"
        " WHEN 'utf-8' THEN encode({col}) WHEN 'utf8' THEN encode({col})"
        " ELSE error('The format is hex, base64 or utf-8.') END",
        "A text as a blob.",
    ),
    T(
        "try_to_binary(col, format: value = 'hex')",
        "try(CASE lower({format}) WHEN 'hex' THEN unhex({col})"
        " WHEN 'base64' THEN from_base64({col})"
        " WHEN 'utf-8' THEN encode({col}) WHEN 'utf8' THEN encode({col}) END)",
        "A text as a blob; NULL where it is none.",
    ),
    T("is_valid_utf8(str)", "CASE WHEN {str} IS NOT NULL THEN true END", "Whether it is.", _VALID),
    T("make_valid_utf8(str)", "{str}", "The text.", _VALID),
    T("validate_utf8(str)", "{str}", "The text.", _VALID),
    T("try_validate_utf8(str)", "{str}", "The text.", _VALID),
    T(
        "url_encode(str)",
        "replace(replace(replace(url_encode({str}), '%20', '+'), '%2A', '*'), '~', '%7E')",
        "Encoded as in an HTML form.",
    ),
    T("url_decode(str)", "url_decode(replace({str}, '+', ' '))", "Decoded from an HTML form."),
    T("try_url_decode(str)", "try(url_decode(replace({str}, '+', ' ')))", "Decoded, or NULL."),
)
