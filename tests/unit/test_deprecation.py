"""Deprecated names go on working, and say what to use instead."""

from __future__ import annotations

import warnings

import pytest

from minishark import errors
from minishark.errors import MinisharkDeprecationWarning, deprecated


@deprecated("0.3", use="`new`")
def old(number: int, *, more: int = 0) -> int:
    """Add."""
    return number + more


class Owner:
    """Something with a deprecated method."""

    @deprecated("0.4", use="`Owner.newer`")
    def older(self) -> Owner:
        """Return itself."""
        return self


def test_a_deprecated_function_warns_its_caller() -> None:
    """The warning has the version and the replacement, and points at the line of the call."""
    with pytest.warns(MinisharkDeprecationWarning) as found:
        assert 3 == old(1, more=2)
    (warning,) = found
    assert "old() is deprecated since 0.3; use `new`." == str(warning.message)
    assert __file__ == warning.filename


def test_a_deprecated_method_warns() -> None:
    """It is named with its class."""
    owner = Owner()
    with pytest.warns(MinisharkDeprecationWarning, match=r"Owner\.older\(\) is .* since 0\.4"):
        assert owner is owner.older()


def test_each_place_is_warned_once() -> None:
    """Python's default filter shows a warning once for each line that causes it."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(3):
            old(1)
        old(2)
    assert 2 == len(found)


def test_a_deprecated_function_looks_as_it_did() -> None:
    """Name, docstring and module stay; tools find the mark that Python 3.13's decorator sets."""
    assert ("old", "Add.") == (old.__name__, old.__doc__)
    assert "Deprecated since 0.3; use `new`." == old.__deprecated__


def test_the_warning_is_a_deprecation_warning() -> None:
    """`-W error::DeprecationWarning` finds it, and it is no error of a query."""
    assert issubclass(MinisharkDeprecationWarning, DeprecationWarning)
    assert not issubclass(MinisharkDeprecationWarning, errors.MinisharkError)
