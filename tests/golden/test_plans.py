from __future__ import annotations

from pathlib import Path

import pytest

from minishark.catalog import Catalog
from minishark.compiler.logical.display import plan_text
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.planner import plan_physical
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.stages.display import stages_text
from minishark.compiler.stages.split import split
from minishark.compiler.stages.stage import Stage, TableInput
from minishark.query.inputs import preferred_nodes

FOLDER = Path(__file__).parent
QUERIES = sorted((FOLDER.parents[1] / "queries").glob("q*.sql"))


def described(sql: str, planning: PlanningDatabase, catalog: Catalog) -> str:
    """All that the compiler makes of a query, as text."""
    (statement,) = planning.statements(sql)
    logical = planning.plan(planning.bind(statement.sql))
    physical = plan_physical(logical, catalog, PlannerOptions(partitions=4).without("one_task"))
    stages = split(physical)

    def preferred(stage: Stage, index: int) -> frozenset[str]:
        inputs = [item for item in stage.inputs if isinstance(item, TableInput)]
        tables = {item.name: catalog.get(item.table) for item in inputs}
        return preferred_nodes(stage, tables, index)

    parts = {
        "Logical plan": plan_text(logical),
        "Physical plan": plan_text(physical),
        "Stages": stages_text(stages, preferred, sql=True),
    }
    return "\n\n".join(f"{title}\n{text}" for title, text in parts.items()) + "\n"


@pytest.mark.parametrize("query", QUERIES, ids=lambda path: path.stem)
def test_query_compiles_as_recorded(
    query: Path,
    golden_planning: PlanningDatabase,
    golden_catalog: Catalog,
    pytestconfig: pytest.Config,
) -> None:
    """The plans and stages of a TPC-H query are, to the byte, those of its golden file."""
    found = described(query.read_text(), golden_planning, golden_catalog)
    golden = FOLDER / f"{query.stem}.txt"
    if pytestconfig.getoption("rewrite"):
        golden.write_text(found)
    assert golden.read_text() == found


def test_there_is_a_golden_file_for_each_query() -> None:
    """No query lacks its file, and no file its query."""
    assert 22 == len(QUERIES)
    recorded = sorted(path.stem for path in FOLDER.glob("q*.txt"))
    assert [query.stem for query in QUERIES] == recorded


@pytest.mark.parametrize("query", QUERIES, ids=lambda path: path.stem)
def test_compiling_twice_gives_the_same(
    query: Path, golden_planning: PlanningDatabase, golden_catalog: Catalog
) -> None:
    """A plan that is not in the cache is compiled as the cached one was."""
    sql = query.read_text()
    first = described(sql, golden_planning, golden_catalog)
    assert first == described(sql + "\n", golden_planning, golden_catalog)
