"""EXPLAIN: the phases of a query's plan as text."""

from __future__ import annotations

from minishark.compiler.logical.display import plan_text
from minishark.compiler.stages.display import stages_text
from minishark.compiler.stages.stage import Stage, TableInput
from minishark.query.inputs import preferred_nodes
from minishark.query.planner import QueryPlan


def explain_text(plan: QueryPlan, mode: str, *, threads: int) -> str:
    """A plan as text; `mode` is "logical", "physical", "stages", "sql", or "all" but the last."""
    match mode:
        case "logical":
            return plan_text(plan.logical)
        case "physical":
            return plan_text(plan.physical)
        case "stages" | "sql":
            return _stages_text(plan, threads=threads, sql=mode == "sql")
        case _:
            phases = (("Logical plan", "logical"), ("Physical plan", "physical"))
            texts = (
                f"{title}\n{explain_text(plan, phase, threads=threads)}"
                for title, phase in (*phases, ("Stages", "stages"))
            )
            return "\n\n".join(texts)


def _stages_text(plan: QueryPlan, *, threads: int, sql: bool) -> str:
    def preferred(stage: Stage, index: int) -> frozenset[str]:
        inputs = [item for item in stage.inputs if isinstance(item, TableInput)]
        tables = {item.name: plan.tables[item.table.lower()] for item in inputs}
        return preferred_nodes(stage, tables, index)

    return stages_text(plan.stages, preferred, threads=threads, sql=sql)
