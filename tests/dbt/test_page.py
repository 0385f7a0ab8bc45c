"""The profile of docs/tools.md, and a warehouse: projects as users have them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("dbt.tests.adapter", reason="needs dbt-core and dbt-tests-adapter")

from dbt.adapters.factory import reset_adapters
from dbt.cli.main import dbtRunner

import minishark
from minishark.session.session import Session

pytestmark = pytest.mark.filterwarnings("ignore")  # of dbt's own code

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "tools.md"


def _project(folder: Path, profile: dict[str, Any], models: dict[str, str]) -> list[str]:
    """A project in a folder; the options that name it."""
    (folder / "models").mkdir()
    (folder / "dbt_project.yml").write_text(
        "name: shop\nversion: '1.0'\nprofile: shop\nflags: {send_anonymous_usage_stats: false}\n"
    )
    (folder / "profiles.yml").write_text(yaml.safe_dump(profile))
    for name, text in models.items():
        (folder / "models" / f"{name}.sql").write_text(text)
    return ["--project-dir", str(folder), "--profiles-dir", str(folder)]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Later tests have profiles of their own."""
    yield
    reset_adapters()


def _run(command: str, options: list[str]) -> None:
    done = dbtRunner().invoke([*command.split(), *options])
    assert done.success, done.exception or [result.message for result in done.result]


def _rows(session: Session, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in session.sql(query).collect()]


def test_the_profile_of_the_page(tmp_path: Path) -> None:
    """A view over a table of the server, and an incremental model over the view, run twice."""
    _, _, text = _PAGE.read_text().partition("\n### dbt\n")
    found = re.search(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    profile = yaml.safe_load(found[1])
    with minishark.connect(in_process=True, nodes=1) as session, session.serve(port=0) as served:
        session.sql("CREATE TABLE orders AS SELECT 1 AS id, 10 AS price")
        target = profile["shop"]["outputs"]["dev"]
        assert target["server"] == "grpc://127.0.0.1:31337"
        target["server"] = served.address
        models = {
            "paid": "SELECT id, 2 * price AS price FROM main.orders",
            "totals": "{{ config(materialized='incremental', unique_key='id') }}"
            " SELECT id, price FROM {{ ref('paid') }}",
        }
        options = _project(tmp_path, profile, models)
        _run("build", options)
        assert [(1, 20)] == _rows(session, "FROM totals")
        session.sql("UPDATE orders SET price = 11")
        session.sql("INSERT INTO orders VALUES (2, 5)")
        _run("build", options)
        assert [(1, 22), (2, 10)] == _rows(session, "FROM totals ORDER BY id")


def test_a_warehouse_lasts(tmp_path: Path) -> None:
    """Tables and incremental models in a warehouse, of a session that ends with the command."""
    warehouse = tmp_path / "warehouse"
    target = {
        "type": "minishark",
        "database": "warehouse",
        "schema": "sales",
        "threads": 2,
        "options": {"in_process": True, "nodes": 1, "warehouse": str(warehouse)},
    }
    models = {
        "days": "{{ config(materialized='table') }} SELECT range AS id FROM range(3)",
        "kept": "{{ config(materialized='incremental', unique_key='id') }}"
        " SELECT id, count(*) AS n FROM {{ ref('days') }} GROUP BY id",
    }
    profile = {"shop": {"target": "dev", "outputs": {"dev": target}}}
    options = _project(tmp_path, profile, models)
    _run("run", options)
    _run("run", options)
    with minishark.connect(in_process=True, nodes=1, warehouse=str(warehouse)) as session:
        assert [(0, 1), (1, 1), (2, 1)] == _rows(session, "FROM sales.kept ORDER BY id")
