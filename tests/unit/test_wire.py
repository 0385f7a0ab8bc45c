"""What a process says of itself to a cluster."""

from __future__ import annotations

import os
import pwd

import pytest

from minishark.cluster import wire


def test_a_user_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that by which the user has logged in."""
    monkeypatch.setenv("LOGNAME", "ada")
    assert "ada" == wire.own_user()


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user need not be in its list of users; a session is attached all the same."""

    def unlisted(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unlisted)
    assert str(os.getuid()) == wire.own_user()
