"""What holds for every optimizer rule, and all that a new one takes: its entry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import pytest
from toy_cluster import ToyTable, believed_catalog

import minishark
from minishark.compiler import rules
from minishark.compiler.logical import operators as ops
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import PhysicalPlan
from minishark.compiler.physical.planner import plan_physical
from minishark.compiler.rules import RULES, rules_table
from minishark.compiler.rules.rule import Phase, Rule
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.stages.display import stages_text
from minishark.compiler.stages.split import split
from minishark.compiler.stages.stage import Stage
from minishark.model.catalog import Catalog
from minishark.session.connect import check_optimizations

TABLES = (ToyTable("t", (("a", "INTEGER"), ("b", "INTEGER")), ((1, 2),), (), 2, 1_000_000),)
MINISHARK = Path(minishark.__file__).parent


@dataclass(frozen=True)
class Share:
    """The options of a rule: which part of the rows it believes in."""

    share: float


def believes_less(plan: PhysicalPlan, _: Catalog, options: Share) -> PhysicalPlan:
    """Estimates fewer rows of the whole plan."""
    return replace(plan, rows=plan.rows * options.share)


def explains(stage: Stage) -> Iterator[str]:
    """Its line of EXPLAIN."""
    yield f"believes in {stage.plan.rows:.0f} rows"


LESS = Rule(
    name="less",
    doc="believe in fewer rows",
    phase=Phase.PHYSICAL,
    apply=believes_less,
    options=Share(0.5),
    everywhere=Share(0.0),
    explain=explains,
)


@pytest.fixture(scope="module")
def planning() -> Iterator[PlanningDatabase]:
    """A planning database that knows the table."""
    database = PlanningDatabase()
    for table in TABLES:
        database.put_table(table.catalog_table())
    yield database
    database.close()


def planned(planning: PlanningDatabase, options: PlannerOptions) -> PhysicalPlan:
    """A scan of the table."""
    logical = planning.plan(planning.bind("SELECT a, b FROM t"))
    return plan_physical(logical, believed_catalog(TABLES), options)


def test_a_rule_is_an_entry(planning: PlanningDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan, its switch, its options, EXPLAIN and the documentation follow from it."""
    monkeypatch.setattr(rules, "RULES", (*RULES, LESS))
    options = PlannerOptions(partitions=2).in_stages()
    assert 500_000 == planned(planning, options).rows
    assert 1_000_000 == planned(planning, options.without("less")).rows
    assert 0 == planned(planning, replace(options, everywhere=True)).rows
    assert 250_000 == planned(planning, replace(options, rules={"less": Share(0.25)})).rows
    check_optimizations(["less", "group_keys"])
    assert '| `"less"` | physical | believe in fewer rows |' in rules_table()
    monkeypatch.setattr("minishark.compiler.stages.display.RULES", rules.RULES)
    text = stages_text(split(planned(planning, options)), lambda *_: frozenset())
    assert "\n  believes in 500000 rows\n" in text


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rules_leave_other_plans_alone(rule: Rule, planning: PlanningDatabase) -> None:
    """What finds nothing to do returns the very same plan, or hints that are equal."""
    plan = planned(planning, PlannerOptions(partitions=2).in_stages())
    if rule.phase is Phase.PHYSICAL:
        assert plan is rule.apply(plan, believed_catalog(TABLES), rule.options)
    elif rule.phase is Phase.FRAGMENT:
        (stage,) = split(plan)
        assert stage.hints == rule.apply(stage, stage.hints, rule.options)


def test_rules_have_a_line_of_documentation() -> None:
    """Short enough for a table; names are words in lower case, and unique."""
    assert len(RULES) == len({rule.name for rule in RULES})
    for rule in RULES:
        assert re.fullmatch(r"[a-z]+(?:_[a-z]+)*", rule.name)
        assert 0 < len(rule.doc) < 100
        assert (rule.options is None) == (rule.everywhere is None)


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", ["DistinctOn", "Window", "Unnest", "SetOperation", "Values"])
def test_few_files_know_an_operator(kind: str) -> None:
    """At most six have to: all others ask it for its schema, label and expressions."""
    assert kind in [operator.__name__ for operator in get_args(ops.Operator)]
    named = re.compile(rf"\bops\.{kind}\b|^    {kind},$|^class {kind}\b", re.MULTILINE)
    files = {file for file in MINISHARK.rglob("*.py") if named.search(file.read_text())}
    # An operator that is not there has no measured rows in EXPLAIN ANALYZE, which says so.
    files -= {MINISHARK / "query" / "operators.py"}
    assert 3 <= len(files) <= 6, files
