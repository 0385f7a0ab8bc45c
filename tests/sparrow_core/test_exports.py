"""What the package gives by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sparrow_core


def test_all_names_can_be_imported() -> None:
    """Each from the module that the list of homes says, and no others are promised."""
    assert {"__version__", *sparrow_core._HOME_OF} == {*sparrow_core.__all__}
    for name in sparrow_core.__all__:
        assert getattr(sparrow_core, name) is not None
    assert {*sparrow_core.__all__} <= {*dir(sparrow_core)}
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = sparrow_core.Nothing


def test_a_child_process_imports_no_more_than_it_needs() -> None:
    """Each of them starts in a tenth of a second, and a query waits for the slowest."""
    program = (
        "import sys, sparrow_core.runtime.transport.process\n"
        "heavy = ('sparrow_core.runtime.cluster', 'asyncio', 'numpy', 'pyarrow')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "[]" == found.stdout.strip()
