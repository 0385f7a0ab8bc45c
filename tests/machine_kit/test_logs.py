"""Ends of logs."""

from __future__ import annotations

import pytest

from machine_kit.logs import log_tail


@pytest.mark.parametrize(
    ("text", "chars", "expected"),
    [
        ("", 5, ""),
        ("\nab\ncd\n", 9, "ab\ncd"),
        ("ab\ncd\nef\n", 5, "cd\nef"),
        ("ab\ncd\nef\n", 4, "ef"),
        ("ab\ncdefgh\n", 3, "fgh"),
        ("abcdefgh", 3, "fgh"),
    ],
)
def test_a_tail_has_whole_lines(text: str, chars: int, expected: str) -> None:
    """A line that does not fit is left out, but for the end of the last one."""
    assert expected == log_tail(text, chars)
