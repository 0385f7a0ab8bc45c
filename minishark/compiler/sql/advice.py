"""What to do about an error of DuckDB's, where its message does not say so.

DuckDB marks the place and suggests names. People who come from Python or another SQL also need to
hear what DuckDB takes for known.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path

_PLACE = "\n\nLINE "
_CANDIDATES_MAX = 6
_KEYWORDS = (
    "SELECT", "DISTINCT", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "QUALIFY", "LIMIT", "OFFSET",
    "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "USING", "UNION", "INTERSECT", "EXCEPT",
    "INSERT", "INTO", "VALUES", "UPDATE", "DELETE", "CREATE", "REPLACE", "TABLE", "VIEW", "BETWEEN",
    "COLUMN", "WINDOW", "PARTITION", "DESCRIBE", "EXPLAIN", "ANALYZE", "SUMMARIZE", "WITH",
    "RECURSIVE",
)  # fmt: skip
_NAMES = ("SELECT", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "OFFSET", "TABLE", "END")
_INTERNAL = ("pg_", "pragma_", "sqlite_", "duckdb_")
_SUGGESTED = re.compile(r'\nDid you mean "([^"]+)"\?')
_LINE_MAX = 200
_CSV_LINE = re.compile(
    r"CSV Error on Line: (\d+)\nOriginal Line: ?(.*)\n(.*)\n[\s\S]*?^  file = (.*)\n"
    r"(?:  .*\n?|The Column types set by the user.*\n?|Column at position.*\n?)*",
    re.MULTILINE,
)
_SNIFFED = re.compile(r'Error when sniffing file "([^"]+)"\.\n[\s\S]*?(?=\n\nLINE |\Z)')
NO_SHARED = (
    "A session's own cluster ends with it, and so do its tables: start a cluster (`minishark "
    "cluster start`), connect to it, and create shared tables there."
)
_SHARED_GONE = re.compile(r'Table with name "?(shared\.[^"\s]+)"? does not exist(?! because)')
# Macros of Spark's sessions fail so: DuckDB takes error() for volatile.
_TOLD = re.compile(
    r"Could not convert string '(Division by zero|There is no element|no URL-encoded text)(.*?)'"
    r" to INT"
)
HEADER = (
    "If the first line of the CSV file has their names, pass header=True to read.csv(); else name "
    'them by .to_df("a", "b" ...).'
)
"""What to do about columns that are called `_c0`, `_c1` ..., as of a file without a header."""
_UNNAMED = re.compile(r'Candidate bindings: "(?:\w+\.)?_c\d+"')
_LIST = re.compile(r"(\tCandidate functions:\n)((?:\t.*\n)+)")


def advised(message: str) -> str:
    """A message of DuckDB's with advice before the line that it quotes, and no endless lists."""
    message = _SNIFFED.sub(_undetected, _CSV_LINE.sub(_bad_line, message))
    message = _SUGGESTED.sub(_without_internal, _LIST.sub(_shortened, message))
    message = re.sub(r"\n{3,}", "\n\n", message)
    what, place, excerpt = message.partition(_PLACE)
    if told := _TOLD.search(what):
        return f"{told[1][0].upper()}{told[1][1:]}{told[2]}"
    if gone := _SHARED_GONE.search(what):  # found before; the excerpt has what stood for it
        return f"Catalog Error: There is no table {gone[1]} any more."
    for pattern, advice in _ADVICE:
        match = pattern.search(what)
        text = advice(match, excerpt) if match else ""
        if text:
            return f"{what.rstrip()}\n{text}{place}{excerpt}"
    return message


def _without_internal(match: re.Match[str]) -> str:
    """Suggested names without those of DuckDB's own tables, which nobody means."""
    names = [name for name in match[1].split(" or ") if not name.startswith(_INTERNAL)]
    return f'\nDid you mean "{" or ".join(names)}"?' if names else ""


def _bad_line(match: re.Match[str]) -> str:
    """What is wrong with a line of a CSV file, without all settings that it is read with."""
    number, line, what, file = match.groups()
    shown = line if len(line) <= _LINE_MAX else f"{line[:_LINE_MAX]}..."
    return (
        f"Line {number} of {file}: {what}\nThe line is: {shown}\n"
        'Correct it, give the column another type, or read the file with mode="DROPMALFORMED" '
        "(in SQL, ignore_errors = true)."
    )


def _undetected(match: re.Match[str]) -> str:
    """What to do about a CSV file whose dialect is not found, without what was tried."""
    return (
        f"Can't tell how {match[1]} is written: its rows differ in their numbers of columns, or "
        'its delimiter or quotes are unusual.\nPass sep, quote and header, mode="DROPMALFORMED" '
        "to leave out rows that don't fit (in SQL, ignore_errors = true), or null_padding=True "
        "to fill short ones."
    )


def _shortened(match: re.Match[str]) -> str:
    lines = match[2].splitlines(keepends=True)
    left = len(lines) - _CANDIDATES_MAX
    if left <= 0:
        return match[0]
    return f"{match[1]}{''.join(lines[:_CANDIDATES_MAX])}\t... and {left} more\n"


def _misspelt_keyword(_found: re.Match[str], excerpt: str) -> str:
    """What was probably meant by the marked word, or by the one before it."""
    line, _, mark = excerpt.partition("\n")
    begin = len(mark) - len(mark.lstrip()) - len("LINE ")
    before, after = line[:begin], line[begin:]
    if re.search(r"\bJOIN\s+[\w.]+(\s+(AS\s+)?\w+)?\s*$", f"{before}{after}", re.IGNORECASE):
        return "A JOIN needs its condition: ON a.x = b.x, or USING (x)."
    words = [*re.findall(r"\w+", before)[-1:], *re.findall(r"\w+", after)[:1]]
    if len(words) > 1 and words[0].upper() in _NAMES and words[1].upper() == "FROM":
        return f'{words[0]} is a keyword. A column of that name is written "{words[0]}".'
    for word in words:
        near = difflib.get_close_matches(word.upper(), _KEYWORDS, n=1, cutoff=0.75)
        if near and word.upper() not in (near[0], f"{near[0]}S", "INT"):  # tables are called orders
            return f"Did you mean {near[0]} instead of {word}?"
    return ""


def _unknown_column(match: re.Match[str], excerpt: str) -> str:
    name = match[1]
    if f'"{name}"' not in excerpt:
        return HEADER if _UNNAMED.search(match.string) else ""
    return f"In SQL, \"{name}\" is the name of a column. Text has single quotes: '{name}'."


def _relative_path(match: re.Match[str], _excerpt: str) -> str:
    path = match[1]
    if "://" in path or Path(path).is_absolute():
        return "Check the path; * and ? in it match several files."
    return f"The path is relative to {Path.cwd()}; * and ? in it match several files."


def _unread_file(match: re.Match[str], excerpt: str) -> str:
    name = match[1]
    if f"'{name}'" not in excerpt:
        return ""
    return (
        f"A file is told by its ending, such as .csv, .json or .parquet: is '{name}' misspelt? "
        f"Others are read by read_csv('{name}') and the like."
    )


def _always(text: str) -> Callable[[re.Match[str], str], str]:
    return lambda _found, _excerpt: text


_ADVICE: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], str]], ...] = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        ("^Parser Error: syntax error at or near", _misspelt_keyword),
        (r'Referenced column "([^"]+)" not found', _unknown_column),
        (r"^Catalog Error: Table with name (.*[./].*) does not exist", _unread_file),
        (
            r"argument types '\+\(.*(?:VARCHAR|STRING_LITERAL)",
            _always(
                "+ adds numbers and times. Texts are joined by || in SQL and by functions.concat "
                "in Python; a text that is a number is cast."
            ),
        ),
        (
            r"argument types '(?:sum|avg|stddev\w*|var\w*|median)\(VARCHAR\)'",
            _always(
                'Numbers that are kept as text are cast: x::DOUBLE in SQL, col("x").cast("double") '
                "in Python."
            ),
        ),
        (
            "Cannot compare values of type VARCHAR and type|Cannot mix values of type VARCHAR and",
            _always('Cast one of them: x::INTEGER in SQL, col("x").cast("int") in Python.'),
        ),
        (
            r"^Conversion Error: (?:Could not convert string|(?!Type INT128).* from source column)",
            _always("TRY_CAST(x AS type) in SQL, and try_cast() in Python, give NULL there."),
        ),
        (
            "^Invalid Input Error: (?:Can't convert VARIANT|Type U?INT\\d+ with value)",
            _always(
                "Rows have VARIANTs in Parquet's encoding, which lacks such values: select them as "
                "text (v::VARCHAR), or as what they are (v::INTERVAL)."
            ),
        ),
        (
            'table "[^"]+" has \\d+ columns but',
            _always("Name those that have values: INSERT INTO t (a, b) VALUES (1, 2)."),
        ),
        (
            "^Catalog Error: (?:Table|View) with name .* already exists",
            _always("CREATE OR REPLACE replaces it; CREATE ... IF NOT EXISTS leaves it as it is."),
        ),
        (
            "extract specifier .* not recognized",
            _always(
                "There are year, quarter, month, week, day, hour, minute, second, dow, doy and "
                "epoch, among others."
            ),
        ),
        (
            "^Invalid Input Error: (?:missing|unexpected|bad repet|invalid escape|invalid char)",
            _always("That is about a regular expression, in the syntax of RE2."),
        ),
        (
            "^Binder Error: Window functions are not supported here",
            _always(
                "A window function needs its window: OVER (PARTITION BY ... ORDER BY ...) in SQL, "
                '.over(Window.partition_by("a").order_by("b")) in Python.'
            ),
        ),
        (
            'Referenced table "minishark_outer" not found',
            _always(
                "A column with outer() is of the query around a DataFrame: use that in exists(), "
                "scalar() or lateral_join()."
            ),
        ),
        (
            "clause cannot contain (?:aggregates|window functions)",
            _always("What aggregates give is filtered by HAVING, windows by QUALIFY."),
        ),
        (
            "not provided for the following parameters: (.+)",
            lambda match, _: (
                f"Pass them beside the text: session.sql(text, {{{_named(match[1])}}}), or a list "
                "for ?."
            ),
        ),
        ('^IO Error: No files found that match the pattern "([^"]+)"', _relative_path),
        (
            "Type INT128 with value .* out of range for the destination type INT64",
            _always(
                "Sums of whole numbers in DataFrames are BIGINT, as in PySpark: cast the column to "
                "decimal(38, 0) or double first, or use functions.try_sum()."
            ),
        ),
        (r'(?i)schema (?:with name )?"?shared"? does not exist', _always(NO_SHARED)),
        (
            "Set operations can only apply to expressions with the same number",
            _always(
                "Both sides need as many columns. UNION BY NAME, or "
                "union_by_name(allow_missing_columns=True), fills what one of them lacks with NULL."
            ),
        ),
    )
)


def _named(parameters: str) -> str:
    return ", ".join(f'"{name.strip()}": ...' for name in parameters.split(","))
