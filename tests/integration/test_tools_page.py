"""The programs of docs/tools.md that use a served session run as they stand."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy

import minishark
from minishark.cli.tpch.locations import sample_folder
from minishark.session.served import Served

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "tools.md"
_HOST = "127.0.0.1:31337"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A session with the table of the examples."""
    with minishark.connect(in_process=True, nodes=1) as session:
        session.create_table("nation", str(sample_folder() / "nation.parquet"))
        with session.serve(port=0) as found:
            yield found


def _program(heading: str) -> str:
    _, _, text = _PAGE.read_text().partition(f"\n### {heading}\n")
    found = re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    assert _HOST in found[1]
    return found[1]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("heading", "library", "shown"),
    [
        ("ADBC for Python", "adbc_driver_flightsql", "UNITED STATES"),
        ("pandas", "pandas", ""),
        ("polars", "polars", ""),
        ("SQLAlchemy", "sqlalchemy", "Ann"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_programs(served: Served, heading: str, library: str, shown: str) -> None:
    """Each prints what it reads from the server."""
    pytest.importorskip(library)
    if heading == "SQLAlchemy":
        module = "minishark.adapters.sqlalchemy"  # an installed package has an entry point
        sqlalchemy.dialects.registry.register("minishark.flight", module, "FlightDialect")
    program = _program(heading).replace(_HOST, f"127.0.0.1:{served.port}")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(program, heading, "exec"), {})
    assert shown in output.getvalue()
