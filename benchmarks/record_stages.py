"""Records stages and task times of TPC-H queries on minishark, for emulations of many nodes.

    python benchmarks/record_stages.py --scale 1 --json minishark_lab/sparrow/tpch_stages.json

Each query runs alone, with as many partitions as in the papers. Of its runs, the one with the least
work is recorded: stages, their predecessors, and the service time of every task.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import minishark
from minishark.cli.tpch.queries import load_queries
from minishark.cli.tpch.tables import load_tables
from minishark.session.session import Session
from minishark_lab.harness.clocks import Steps
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import TpchOptions, run_script
from minishark_lab.sparrow.recorded import RecordedQuery, RecordedStage, Recording
from minishark_lab.tpch.run import versions


def record(session: Session, number: int, text: str, repetitions: int) -> RecordedQuery:
    """The run of a query with the least work."""
    runs = []
    for _ in range(repetitions):
        frame = session.sql(text)
        frame.to_arrow()
        runs.append(frame.metrics())
    best = min(runs, key=lambda run: sum(sum(stage.run_s) for stage in run.by_stage))
    position = {stage.index: place for place, stage in enumerate(best.by_stage)}
    stages = tuple(
        RecordedStage(
            tuple(round(1000 * each, 3) for each in stage.run_s),
            stage.constrained_tasks > 0,
            tuple(position[each] for each in stage.after),
        )
        for stage in best.by_stage
    )
    return RecordedQuery(f"q{number}", stages)


@dataclass(frozen=True, kw_only=True)
class RecordStagesOptions(TpchOptions):
    json: Path = field()  # must be given
    repetitions: Count = 5
    partitions: Count = 30
    queries: tuple[Count, ...] = (1, 3, 6, 12)


def main(options: RecordStagesOptions) -> None:
    tables = options.tables()
    # Replicas on one of three nodes only, so that constrained tasks are those that read partitions.
    with minishark.connect(
        nodes=3,
        executors_per_node=1,
        partitions=options.partitions,
        single_task_rows=0,
        disabled_optimizations=["coalesced_tasks"],  # a task for each partition
    ) as session:
        load_tables(session, tables, Steps(), partitions=options.partitions, replicas=1)
        queries = tuple(
            record(session, number, text, options.repetitions)
            for number, text in load_queries(options.queries).items()
        )
    about = (
        f"TPC-H scale {options.scale:g}, {options.partitions} partitions, "
        f"DuckDB {versions()['duckdb']}, one thread a task"
    )
    options.json.write_bytes(msgspec.json.format(msgspec.json.encode(Recording(about, queries))))
    for query in queries:
        print(query.name, *(f"{len(s.task_ms)} x {max(s.task_ms):.1f} ms" for s in query.stages))


if __name__ == "__main__":
    run_script(main, quick={"scale": 0.01, "partitions": 4, "queries": [1, 6], "repetitions": 1})
