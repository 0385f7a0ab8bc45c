"""Each optimizer rule has a file of queries with their plans without the rule and with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

import minishark
from minishark.catalog import Catalog
from minishark.compiler.logical.plan import plan_text
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.planner import plan_physical
from minishark.compiler.rules import RULES, enabled, rules_table
from minishark.compiler.rules.rule import Phase, Rule
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.stages.display import stages_text
from minishark.compiler.stages.split import split
from minishark.compiler.stages.stage import Stage
from minishark.errors import OptionError

FOLDER = Path(__file__).parent / "rules"
DOCS = FOLDER.parents[2] / "docs"


def planned(sql: str, planning: PlanningDatabase, catalog: Catalog, *disabled: str) -> str:
    """The physical plan, the stages, and the hints that EXPLAIN does not show."""
    (statement,) = planning.statements(sql)
    logical = planning.plan(planning.bind(statement.sql))
    options = PlannerOptions(partitions=4).without(*disabled)
    physical = plan_physical(logical, catalog, options)
    stages = split(physical, options.disabled)
    for rule, own in enabled(Phase.TASKS, options):
        stages = rule.apply(stages, {}, options, own)
    text = stages_text(stages, lambda *_: frozenset())
    return "\n".join((plan_text(physical), text, *map(flags, stages)))


def flags(stage: Stage) -> str:
    """The switches and limits among the hints of a stage."""
    hints = structs.asdict(stage.hints).items()
    names = [
        name if value is True else f"{name} {value}"
        for name, value in hints
        if isinstance(value, int) and value
    ]
    return f"Hints {stage.index}: {', '.join(names) or '-'}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_changes_plans_as_recorded(
    rule: Rule,
    golden_planning: PlanningDatabase,
    golden_catalog: Catalog,
    pytestconfig: pytest.Config,
) -> None:
    """To the byte; write the queries of a new rule into its file and call pytest --rewrite."""
    file = FOLDER / f"{rule.name}.txt"
    cases = []
    for case in file.read_text().split("\n\n\n"):
        sql = case.partition("\n\n")[0].strip()
        others = () if rule.name == "one_task" else ("one_task",)
        without = planned(sql, golden_planning, golden_catalog, *others, rule.name)
        with_it = planned(sql, golden_planning, golden_catalog, *others)
        assert without != with_it, f"{rule.name} changes nothing of {sql}"
        cases.append(f"{sql}\n\nWithout\n{without}\n\nWith\n{with_it}")
    found = "\n\n\n".join(cases) + "\n"
    if pytestconfig.getoption("rewrite"):
        file.write_text(found)
    assert file.read_text() == found


def test_every_file_belongs_to_a_rule() -> None:
    """Names are unique, and a rule that is gone leaves no file."""
    assert sorted(rule.name for rule in RULES) == sorted(file.stem for file in FOLDER.iterdir())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rules_are_documented(rule: Rule) -> None:
    """Where users look for the switch: in `connect`, and in the table of the documentation."""
    assert f'"{rule.name}"' in (minishark.connect.__doc__ or "")
    assert rules_table() in (DOCS / "performance.md").read_text()


def test_unknown_rules_are_refused() -> None:
    """With the names of those that there are."""
    with pytest.raises(OptionError, match="'nothing'") as found:
        minishark.connect(in_process=True, nodes=1, disabled_optimizations=["nothing"])
    assert all(rule.name in str(found.value) for rule in RULES)
