from __future__ import annotations

from pathlib import Path

import pytest

from minishark.compiler.logical.plan import plan_text
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.planner import plan_physical
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.stages.display import stages_text
from minishark.compiler.stages.split import split
from minishark.compiler.stages.stage import Stage, TableInput
from minishark.model.catalog import Catalog
from minishark.query.inputs import preferred_nodes

FOLDER = Path(__file__).parent
# In stages over the nodes; and with a session's own defaults for four slots, with which the planner
# runs most of the queries in one task of four threads.
OPTIONS = {
    FOLDER: PlannerOptions(partitions=4).without("one_task"),
    FOLDER / "default": PlannerOptions(partitions=4, threads=4, slots=4),
}
QUERIES = sorted((FOLDER.parents[1] / "queries").glob("q*.sql"))


def described(
    sql: str, planning: PlanningDatabase, catalog: Catalog, options: PlannerOptions
) -> str:
    """What the compiler makes of a query, as text; the logical plan is the same for all options."""
    (statement,) = planning.statements(sql)
    logical = planning.plan(planning.bind(statement.sql))
    physical = plan_physical(logical, catalog, options)
    stages = split(physical, options.disabled)

    def preferred(stage: Stage, index: int) -> frozenset[str]:
        inputs = [item for item in stage.inputs if isinstance(item, TableInput)]
        tables = {item.name: catalog.get(item.table) for item in inputs}
        return preferred_nodes(stage, tables, index)

    parts = {
        **({"Logical plan": plan_text(logical)} if options.disabled else {}),
        "Physical plan": plan_text(physical),
        "Stages": stages_text(stages, preferred, sql=True),
    }
    return "\n\n".join(f"{title}\n{text}" for title, text in parts.items()) + "\n"


@pytest.mark.parametrize("folder", OPTIONS, ids=lambda path: path.name)
@pytest.mark.parametrize("query", QUERIES, ids=lambda path: path.stem)
def test_query_compiles_as_recorded(
    query: Path,
    folder: Path,
    golden_planning: PlanningDatabase,
    golden_catalog: Catalog,
    pytestconfig: pytest.Config,
) -> None:
    """The plans and stages of a TPC-H query are, to the byte, those of its golden file."""
    found = described(query.read_text(), golden_planning, golden_catalog, OPTIONS[folder])
    golden = folder / f"{query.stem}.txt"
    if pytestconfig.getoption("rewrite"):
        golden.write_text(found)
    assert golden.read_text() == found


@pytest.mark.parametrize("folder", OPTIONS, ids=lambda path: path.name)
def test_there_is_a_golden_file_for_each_query(folder: Path) -> None:
    """No query lacks its file, and no file its query."""
    assert 22 == len(QUERIES)
    recorded = sorted(path.stem for path in folder.glob("q*.txt"))
    assert [query.stem for query in QUERIES] == recorded


@pytest.mark.parametrize("query", QUERIES, ids=lambda path: path.stem)
def test_compiling_twice_gives_the_same(
    query: Path, golden_planning: PlanningDatabase, golden_catalog: Catalog
) -> None:
    """A plan that is not in the cache is compiled as the cached one was."""
    sql = query.read_text()
    options = OPTIONS[FOLDER]
    first = described(sql, golden_planning, golden_catalog, options)
    assert first == described(sql + "\n", golden_planning, golden_catalog, options)
