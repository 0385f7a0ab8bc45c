"""What commands list, for people and for programs."""

from __future__ import annotations

import json

import pytest

from minishark.cli.console import print_json, print_rows


def test_a_cell_is_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Names and arguments of programs may have brackets, which are no markup."""
    print_rows(("job", "starts"), [("load [all]", 2), ("[red]", 10)], none="no jobs")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert ["job         starts", "load [all]  2", "[red]       10"] == lines


def test_nothing_is_said_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """A table without rows has no heads either."""
    print_rows(("job", "starts"), [], none="no jobs")
    assert "no jobs\n" == capsys.readouterr().out


def test_documents_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    """They keep the order of their fields."""
    print_json([{"name": "t", "rows": 3}])
    assert [{"name": "t", "rows": 3}] == json.loads(capsys.readouterr().out)
