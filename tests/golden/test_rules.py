"""Each optimizer rule has a file of queries with their plans without the rule and with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

import minishark
from minishark.compiler.logical.plan import plan_text
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import PhysicalPlan
from minishark.compiler.physical.planner import Placer, plan_physical
from minishark.compiler.physical.sizes import Situation, StageSize, TaskSize
from minishark.compiler.rules import RULES, rules_table
from minishark.compiler.rules.rule import Phase, Rule
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.stages.adapt import adapt
from minishark.compiler.stages.display import stages_text
from minishark.compiler.stages.remaining import remaining
from minishark.compiler.stages.split import split, with_tasks
from minishark.compiler.stages.stage import Stage
from minishark.errors import OptionError
from minishark.model.catalog import Catalog

# What is pushed into sources has tests of its own (tests/unit/test_source_pushdown.py).
STATIC = [rule for rule in RULES if rule.phase not in (Phase.ADAPTIVE, Phase.SOURCES)]
ADAPTIVE = [rule for rule in RULES if rule.phase is Phase.ADAPTIVE]
FOLDER = Path(__file__).parent / "rules"
DOCS = FOLDER.parents[2] / "docs"


def planned(sql: str, planning: PlanningDatabase, catalog: Catalog, *disabled: str) -> str:
    """The physical plan, the stages, and the hints that EXPLAIN does not show."""
    (statement,) = planning.statements(sql)
    logical = planning.plan(planning.bind(statement.sql))
    options = PlannerOptions(partitions=4).without(*disabled)
    physical = plan_physical(logical, catalog, options)
    stages = with_tasks(split(physical, options.disabled), {}, options)
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


@pytest.mark.parametrize("rule", STATIC, ids=lambda rule: rule.name)
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
    _compare(file, cases, pytestconfig)


def _compare(file: Path, cases: list[str], config: pytest.Config) -> None:
    found = "\n\n\n".join(cases) + "\n"
    if config.getoption("rewrite"):
        file.write_text(found)
    assert file.read_text() == found


def divided(catalog: Catalog) -> Catalog:
    """The tables in four times as many partitions, so that shuffles are worth their cost."""
    found = Catalog()
    for table in catalog:
        count = 4 * len(table.partitions) if table.partition_by else 1
        parts = tuple(replace(table.partitions[0], index=i) for i in range(count))
        found.add(replace(table, partitions=parts))
    return found


_SIZE = re.compile(r"stage (\d+): ([\d,]+) rows(?:, (\d+) % of them in bucket (\d+))?")


def size_of(stage: Stage, rows: int, share: int, hot: int) -> StageSize:
    """A stage's output: rows spread evenly, but for `share` percent of them in bucket `hot`."""
    own = rows // stage.tasks
    buckets = [0] * stage.buckets
    if buckets:
        buckets = [own * (100 - share) // 100 // stage.buckets] * stage.buckets
        buckets[hot] += own - sum(buckets)
    return StageSize((TaskSize(own, own * 16, tuple(buckets)),) * stage.tasks)


def adapted(
    rule: Rule, sql: str, told: str, planning: PlanningDatabase, catalog: Catalog
) -> tuple[str, str]:
    """What is left of a query when stages are complete, as planned and as the rule makes it."""
    (statement,) = planning.statements(sql)
    logical = planning.plan(planning.bind(statement.sql))
    others = (other.name for other in ADAPTIVE if other is not rule)
    options = PlannerOptions(partitions=16).without("one_task", *others)
    physical = plan_physical(logical, catalog, options)
    stages = with_tasks(split(physical, options.disabled), {}, options)
    sizes = {
        int(stage): size_of(
            stages[int(stage)], int(rows.replace(",", "")), int(share or 0), int(hot or 0)
        )
        for stage, rows, share, hot in _SIZE.findall(told)
    }
    started = [stage for stage in stages if stage.index in sizes]
    assert all(number in sizes for stage in started for number in stage.parents)
    situation = Situation(
        sizes=sizes,
        empty=[stage for stage, size in sizes.items() if not size.rows],
        catalog=catalog,
        options=options,
        placing=Placer(catalog, options, whole=False),
        free_root=True,
    )
    revision = adapt(physical, stages, sizes.keys(), situation)
    assert revision is not None, f"{rule.name} changes nothing of {sql}"
    assert {rule.name} == {name for name, _ in revision.reasons}
    left = remaining(physical, started, sizes)
    first = revision.stages[0].index
    kept = {stage.index: stage.tasks for stage in started}
    planned_stages = with_tasks(split(left, options.disabled, first=first), kept, options)
    reasons = "\n".join(reason for _, reason in revision.reasons)
    return _left(left, planned_stages), f"{reasons}\n{_left(revision.plan, revision.stages)}"


def _left(plan: PhysicalPlan, stages: Sequence[Stage]) -> str:
    return f"{plan_text(plan)}\n{stages_text(stages, lambda *_: frozenset())}"


@pytest.mark.parametrize("rule", ADAPTIVE, ids=lambda rule: rule.name)
def test_adaptive_rule_changes_what_is_left_as_recorded(
    rule: Rule,
    golden_planning: PlanningDatabase,
    golden_catalog: Catalog,
    pytestconfig: pytest.Config,
) -> None:
    """The same for rules that know the sizes of complete stages, which stand below the query."""
    file = FOLDER / f"{rule.name}.txt"
    cases = []
    for case in file.read_text().split("\n\n\n"):
        sql, told = (part.strip() for part in case.split("\n\n")[:2])
        without, with_it = adapted(rule, sql, told, golden_planning, divided(golden_catalog))
        cases.append(f"{sql}\n\n{told}\n\nWithout\n{without}\n\nWith\n{with_it}")
    _compare(file, cases, pytestconfig)


def test_every_file_belongs_to_a_rule() -> None:
    """Names are unique, and a rule that is gone leaves no file."""
    recorded = [rule.name for rule in RULES if rule.phase is not Phase.SOURCES]
    assert sorted(recorded) == sorted(file.stem for file in FOLDER.iterdir())


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
