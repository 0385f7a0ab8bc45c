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
    "WINDOW", "PARTITION", "DESCRIBE", "EXPLAIN", "ANALYZE", "SUMMARIZE", "WITH", "RECURSIVE",
)  # fmt: skip
NO_SHARED = (
    "A session's own cluster ends with it, and so do its tables: start a cluster (`minishark "
    "cluster start`), connect to it, and create shared tables there."
)
_LIST = re.compile(r"(\tCandidate functions:\n)((?:\t.*\n)+)")


def advised(message: str) -> str:
    """A message of DuckDB's with advice before the line that it quotes, and no endless lists."""
    message = _LIST.sub(_shortened, message)
    what, place, excerpt = message.partition(_PLACE)
    for pattern, advice in _ADVICE:
        match = pattern.search(what)
        text = advice(match, excerpt) if match else ""
        if text:
            return f"{what.rstrip()}\n{text}{place}{excerpt}"
    return message


def _shortened(match: re.Match[str]) -> str:
    lines = match[2].splitlines(keepends=True)
    left = len(lines) - _CANDIDATES_MAX
    if left <= 0:
        return match[0]
    return f"{match[1]}{''.join(lines[:_CANDIDATES_MAX])}\t... and {left} more\n"


def _misspelt_keyword(_found: re.Match[str], excerpt: str) -> str:
    """The keyword that was probably meant by the marked word, or by the one before it."""
    line, _, mark = excerpt.partition("\n")
    begin = len(mark) - len(mark.lstrip()) - len("LINE ")
    words = [*re.findall(r"\w+", line[:begin])[-1:], *re.findall(r"\w+", line[begin:])[:1]]
    for word in words:
        near = difflib.get_close_matches(word.upper(), _KEYWORDS, n=1, cutoff=0.75)
        if near and near[0] != word.upper():
            return f"Did you mean {near[0]} instead of {word}?"
    return ""


def _quoted_text(match: re.Match[str], excerpt: str) -> str:
    name = match[1]
    if f'"{name}"' not in excerpt:
        return ""
    return f"In SQL, \"{name}\" is the name of a column. Text has single quotes: '{name}'."


def _relative_path(match: re.Match[str], _excerpt: str) -> str:
    path = match[1]
    if "://" in path or Path(path).is_absolute():
        return "Check the path; * and ? in it match several files."
    return f"The path is relative to {Path.cwd()}; * and ? in it match several files."


def _always(text: str) -> Callable[[re.Match[str], str], str]:
    return lambda _found, _excerpt: text


_ADVICE: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], str]], ...] = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        ("^Parser Error: syntax error at or near", _misspelt_keyword),
        (r'Referenced column "([^"]+)" not found', _quoted_text),
        (
            r"argument types '\+\(.*(?:VARCHAR|STRING_LITERAL)",
            _always(
                "+ adds numbers and times. Texts are joined by || in SQL and by functions.concat "
                "in Python; a text that is a number is cast."
            ),
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
