"""Records what the stages of TPC-H cost, for `minishark bench scale`.

    python benchmarks/record_scale.py --json minishark_lab/sparrow/tpch_scale.json

All 22 queries run at two scale factors, planned for one, two and eight tasks per stage, on one
executor with one thread. Of each stage: how it reads its inputs, the CPU time of each task, the
rows and bytes that it puts out. Tasks' run times are scaled to the CPU time of the executor's
process over the query, so that other load on the machine has little effect; of several runs, the
cheapest counts.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

import minishark
from minishark.cli.tpch.queries import load_queries
from minishark.cli.tpch.tables import load_tables
from minishark.compiler.rules import RULES
from minishark.compiler.rules.rule import Phase
from minishark.compiler.stages.stage import StageInput
from minishark.query.sinks import CollectRows
from minishark.session.session import Session
from minishark_lab.harness.clocks import Steps, process_clock
from minishark_lab.harness.parameters import Count, Positive
from minishark_lab.harness.script import TpchOptions, command, run_script
from minishark_lab.sparrow.scale_model import Recording, ScaledQuery, ScaledStage, StageRead
from minishark_lab.tpch.run import versions

_GATHERED_ROWS = 2_000


def record(session: Session, number: int, text: str, repetitions: int) -> tuple[ScaledQuery, float]:
    """The cheapest run of a query, and the front end's CPU time per task of it."""
    runtime = session._runtime  # noqa: SLF001 - plans are not public
    engine = runtime.engine
    (executor,) = (each.pid for node in session.nodes() for each in node.executors)
    work, front = process_clock(executor), time.CLOCK_PROCESS_CPUTIME_ID
    runs = []
    for _ in range(repetitions + 1):  # the first one makes the plan, and caches
        frame = session.sql(text)
        before = [time.clock_gettime(clock) for clock in (work, front)]
        frame.to_arrow()
        cpu_s, front_s = (
            time.clock_gettime(clock) - then
            for clock, then in zip((work, front), before, strict=True)
        )
        runs.append((cpu_s, front_s, frame.metrics()))
    stages = runtime.planner.plan(text, CollectRows(), on_hosts=False).stages
    # A run that fell back to another plan does not count.
    planned = [stage.index for stage in stages]
    usual = [run for run in runs[1:] if [each.index for each in run[2].by_stage] == planned]
    cpu_s, front_s, metrics = min(usual, key=lambda run: run[0])
    position = {stage.index: place for place, stage in enumerate(stages)}
    tables = {table.name.lower(): table for table in engine.tables.catalog}
    measured = {stage.index: stage for stage in metrics.by_stage}
    factor = cpu_s / sum(sum(stage.run_s) for stage in metrics.by_stage)
    found = []
    for stage in stages:
        reads = []
        for item in stage.inputs:
            if isinstance(item, StageInput):
                reads.append(StageRead(mode=str(item.mode), stage=position[item.stage]))
            else:
                table = tables[item.table.lower()]
                rows = sum(partition.rows for partition in table.partitions)
                reads.append(StageRead(mode=str(item.mode), rows=rows))
        ran = measured[stage.index]
        found.append(
            ScaledStage(
                task_ms=tuple(round(1000 * each * factor, 3) for each in ran.run_s),
                rows=ran.rows,
                bytes=ran.bytes,
                reads=tuple(reads),
                after=tuple(position[each] for each in ran.after),
            )
        )
    tasks = sum(stage.tasks for stage in stages)
    return ScaledQuery(name=f"q{number}", stages=tuple(found)), front_s / tasks


@dataclass(frozen=True, kw_only=True)
class RecordScaleOptions(TpchOptions):
    json: Path = field()  # must be given
    repetitions: Count = 2
    scales: tuple[Positive, ...] = (0.2, 1.0)
    partitions: tuple[Count, ...] = (1, 2, 8)


def at_scale(
    options: RecordScaleOptions, scale: float, partitions: int
) -> tuple[Recording, list[float]]:
    """All queries at one scale, planned for so many slots."""
    options.scale = scale
    adaptive = [rule.name for rule in RULES if rule.phase is Phase.ADAPTIVE]
    with minishark.connect(
        nodes=1,
        executors_per_node=1,
        partitions=partitions,
        single_task_rows=1,
        # A task for each partition, although the data is small; and the plan as it was made.
        disabled_optimizations=["one_task", "coalesced_tasks", *adaptive],
    ) as session:
        load_tables(session, options.tables(), Steps(), partitions=partitions, replicas=1)
        # What is small enough here to be gathered in one task is not at a thousand times the scale.
        planner = session._runtime.engine.planner  # noqa: SLF001 - as below
        planner.options = replace(
            planner.options, gather_rows=_GATHERED_ROWS, read_whole_rows=_GATHERED_ROWS
        )
        found = [
            record(session, number, text, options.repetitions)
            for number, text in load_queries(range(1, 23)).items()
        ]
    recording = Recording(
        scale=scale, partitions=partitions, queries=tuple(query for query, _ in found)
    )
    return recording, [front_s for _, front_s in found]


def main(options: RecordScaleOptions) -> None:
    recordings, fronts = [], []
    for partitions in options.partitions:
        for scale in options.scales:
            found, front_s = at_scale(options, scale, partitions)
            recordings.append(found)
            fronts += front_s if partitions == max(options.partitions) else []
            work_s = sum(sum(s.task_ms) for q in found.queries for s in q.stages) / 1000
            print(f"SF {scale:g}, {partitions} partitions: {work_s:.2f} s", file=sys.stderr)
    report = {
        "about": f"DuckDB {versions()['duckdb']}, one thread a task; {command()}",
        "front_end_ms": round(1000 * statistics.median(fronts), 4),
        "recordings": recordings,
    }
    options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=0) + b"\n")


if __name__ == "__main__":
    run_script(main, quick={"scales": [0.01], "partitions": [1, 2], "repetitions": 1})
