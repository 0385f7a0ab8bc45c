"""What users see of their own mistakes: their line, and the message."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

import pytest

from minishark.dataframe.doors import doors
from minishark.errors import ClusterError, FunctionError, QueryError


@doors
@dataclass(frozen=True, slots=True)
class _Door:
    """Public methods that fail in several ways, two calls below."""

    error: Exception

    def open(self, key: str = "", *, quietly: bool = False) -> None:
        """Fail."""
        _deeper(self.error)


def _deeper(error: Exception) -> None:
    raise error from LookupError("of DuckDB")


def _frames(error: Exception) -> list[str]:
    with pytest.raises(type(error)) as caught:
        _Door(error).open()
    return [frame.name for frame in traceback.extract_tb(caught.tb)][1:]


def test_mistakes_are_shown_without_our_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """And without the exception that they were told by; MINISHARK_DEBUG shows all."""
    monkeypatch.delenv("MINISHARK_DEBUG", raising=False)
    mistake = QueryError("no table")
    assert ["called"] == _frames(mistake)
    assert mistake.__cause__ is None
    monkeypatch.setenv("MINISHARK_DEBUG", "1")
    mistake = QueryError("no table")
    assert ["called", "open", "_deeper"] == _frames(mistake)
    assert isinstance(mistake.__cause__, LookupError)


def test_what_is_no_mistake_has_all_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a bug of ours."""
    monkeypatch.delenv("MINISHARK_DEBUG", raising=False)
    assert ["called", "open", "_deeper"] == _frames(ClusterError("silent"))
    assert ["called"] == _frames(FunctionError("of a user"))


def test_a_misspelt_keyword_is_suggested() -> None:
    """Or all that there are, if none is like it."""
    door = _Door(QueryError(""))
    with pytest.raises(TypeError, match=r"argument 'quitely'\. Did you mean quietly\?"):
        door.open(quitely=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"argument 'x'\. It takes key, quietly\."):
        door.open(x=1)  # type: ignore[call-arg]
