"""Ends of logs, for error messages."""

from __future__ import annotations


def log_tail(text: str, chars: int) -> str:
    """The last whole lines of a log that have at most so many characters together.

    Of a last line that is longer than that, its end.
    """
    text = text.strip()
    if len(text) <= chars:
        return text
    # A line break right before the tail means that its first line is whole.
    first, broken, rest = text[-chars - 1 :].partition("\n")
    return rest if broken and rest else first[-chars:]
