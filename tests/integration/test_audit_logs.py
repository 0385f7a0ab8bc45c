"""`minishark.connect(audit=folder)`: Sparrow's audit logs of a session's own cluster."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import minishark
from minishark.errors import DataError, OptionError
from sparrow_core.cli.app import main as sparrow
from sparrow_core.observe.audit import read_events


@pytest.mark.parametrize("in_process", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_session_writes_audit_logs_that_the_command_reads(
    tmp_path: Path, in_process: bool
) -> None:
    """All that began has ended, where EXPLAIN ANALYZE says it ran; a second session appends."""
    folder = tmp_path / "new" / "audit logs"
    for _ in range(2):
        with minishark.connect(
            nodes=2, executors_per_node=1, in_process=in_process, audit=str(folder)
        ) as session:
            session.sql("CREATE TABLE t AS SELECT i FROM range(1000) AS r(i)")
            assert 499_500 == session.sql("SELECT sum(i) FROM t").collect()[0][0]
            # Answers come before nodes hear that tasks have ended; then they would be stopped.
            deadline = time.monotonic() + 10
            while not _all_ended(folder) and time.monotonic() < deadline:
                time.sleep(0.02)
    events = list(read_events(sorted(folder.iterdir())))
    began, ended = _runs(folder, "scheduler_assigned_task"), _runs(folder, "task_completed")
    assert began
    assert began == ended
    assert {"node-0", "node-1"} >= {each.node for each in events if each.event == "task_completed"}
    found = CliRunner().invoke(sparrow, ["audit", str(folder), "--json"])
    assert 0 == found.exit_code, found.output
    report = json.loads(found.stdout)
    jobs = {job for job, _ in began}
    assert ({}, 0) == (report["failed"], report["lost"])
    assert len(jobs) <= report["jobs"]  # one may be sent to two schedulers, if the first is slow


def _runs(folder: Path, event: str) -> set[tuple[str, int | None]]:
    """The tasks of which an event tells."""
    events = read_events(sorted(folder.iterdir()))
    return {(each.job, each.task) for each in events if each.event == event}


def _all_ended(folder: Path) -> bool:
    began = _runs(folder, "scheduler_assigned_task")
    return bool(began) and began == _runs(folder, "task_completed")


def test_audit_logs_that_can_not_be_written_are_refused_before_the_cluster_starts(
    tmp_path: Path,
) -> None:
    """With what to do; nothing is started that would have to be ended."""
    with pytest.raises(OptionError, match="new cluster on this machine"):
        minishark.connect(cluster="127.0.0.1:1", audit=tmp_path)
    (tmp_path / "file").write_text("")
    for folder in ("file", "file/below"):
        with pytest.raises(DataError, match="Can't write audit logs to"):
            minishark.connect(nodes=1, audit=tmp_path / folder)
