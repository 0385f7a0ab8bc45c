"""What users see of their own mistakes: their line, and the message."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import minishark
from minishark.dataframe.doors import door, doors
from minishark.errors import ClusterError, FunctionError, QueryError
from minishark.model import debugging


@doors
@dataclass(frozen=True, slots=True)
class _Door:
    """Public methods that fail in several ways, two calls below."""

    error: BaseException

    def open(self, key: str = "", *, quietly: bool = False) -> None:
        """Fail."""
        _deeper(self.error)


def _deeper(error: BaseException) -> None:
    raise error from LookupError("of DuckDB")


def _frames(error: BaseException) -> list[str]:
    with pytest.raises(type(error)) as caught:
        _Door(error).open()
    return [frame.name for frame in traceback.extract_tb(caught.tb)][1:]


@pytest.fixture(autouse=True)
def _ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is in this file counts as minishark's, and records of clusters are its own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(debugging, "_OURS", ("minishark", __name__.partition(".")[0]))
    monkeypatch.delenv("MINISHARK_DEBUG", raising=False)


def test_mistakes_are_shown_without_our_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """And without the exception that they were told by; MINISHARK_DEBUG shows all."""
    mistake = QueryError("no table")
    assert [] == _frames(mistake)
    assert mistake.__cause__ is None
    monkeypatch.setenv("MINISHARK_DEBUG", "1")
    mistake = QueryError("no table")
    assert ["called", "open", "_deeper"] == _frames(mistake)
    assert isinstance(mistake.__cause__, LookupError)


def test_ctrl_c_ends_at_the_users_line() -> None:
    """Where we waited says nothing to who has enough of it."""
    assert [] == _frames(KeyboardInterrupt())


def test_what_is_no_mistake_has_all_frames() -> None:
    """It may be a bug of ours."""
    assert ["called", "open", "_deeper"] == _frames(ClusterError("silent"))
    function = FunctionError("of a user")
    function.__context__ = LookupError("what was tried before")
    assert [] == _frames(function)
    assert function.__suppress_context__


def test_a_misspelt_keyword_is_suggested() -> None:
    """Or all that there are, if none is like it."""
    door = _Door(QueryError(""))
    with pytest.raises(TypeError, match=r"argument 'quitely'\. Did you mean quietly\?"):
        door.open(quitely=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"argument 'x'\. It takes key, quietly\."):
        door.open(x=1)  # type: ignore[call-arg]


def test_a_generator_is_a_door_too() -> None:
    """The loop's line is the last one."""

    @door
    def items() -> Iterator[int]:
        yield 1
        _deeper(QueryError("later"))

    with pytest.raises(QueryError) as caught:
        list(items())
    assert ["test_a_generator_is_a_door_too"] == [
        frame.name for frame in traceback.extract_tb(caught.tb)
    ]


def test_a_function_that_users_pass_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in it is at its own line, and all else ends at the line of the call."""
    monkeypatch.setattr(debugging, "_OURS", ("minishark",))

    def wrong(frame: minishark.DataFrame) -> minishark.DataFrame:
        return frame.select("nmae")

    with minishark.connect(in_process=True, nodes=1) as session:
        with pytest.raises(QueryError) as caught:
            session.range(3).transform(wrong)
        assert "wrong" == traceback.extract_tb(caught.tb)[-1].name
        assert 2 == len(traceback.extract_tb(caught.tb))
        for failing in (
            lambda: list(session.map(_divided, [0])),
            lambda: session.submit(_divided, 0).result(),
            lambda: session.parallelize([0]).map(_divided).collect(),
            lambda: session.range(3)["nmae"],
            lambda: minishark.connect("no-such-cluster"),
        ):
            with pytest.raises((ZeroDivisionError, ClusterError, QueryError)) as failed:
                failing()
            assert "<lambda>" == traceback.extract_tb(failed.tb)[-1].name


def test_all_errors_are_at_the_top() -> None:
    """`except minishark.FunctionError` needs no import of the module with errors."""
    assert minishark.FunctionError is FunctionError
    assert {"FunctionError", "OptionError", "MinisharkError"} <= set(dir(minishark))


def _divided(number: int) -> float:
    return 1 / number
