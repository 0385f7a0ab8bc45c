"""The jobs of a cluster as events, for those that look at it again and again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from minishark.cluster.jobs.client import JobsClient
from minishark.cluster.jobs.records import JobState, Status
from minishark.errors import ClusterError
from minishark.model.events import kinds

FORGOTTEN = "forgotten"
_SHOWN_MAX = 200
_LOG_BYTES = 4 << 10


@dataclass(slots=True)
class JobsSeen:
    """What was told of jobs before, so that only changes are told."""

    _told: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # by uid

    def forget(self) -> None:
        """Tell all of them again."""
        self._told = {}

    def changes(self, jobs: JobsClient, now: float) -> Iterator[kinds.JobReport]:
        """The newest jobs that have changed, or have printed something, since the last look."""
        states = list(jobs.states().values())[-_SHOWN_MAX:]
        uids = [state.terms.uid for state in states]
        for uid in [uid for uid in self._told if uid not in uids]:
            del self._told[uid]
            yield kinds.JobReport(at=now, uid=uid, name="", status=FORGOTTEN)
        for state in states:
            last = self._told.get(state.terms.uid)
            version = (*state.order, state.is_unwanted)
            if state.status is not Status.RUNNING and last is not None and last[0] == version:
                continue
            log = _end_of_log(jobs, state)
            if last != (version, log):
                self._told[state.terms.uid] = (version, log)
                yield _report(state, log, now)


def _end_of_log(jobs: JobsClient, state: JobState) -> str:
    try:
        return jobs.log(state, -_LOG_BYTES)[1].decode(errors="replace")
    except ClusterError:  # its node has died just now
        return ""


def _report(state: JobState, log: str, now: float) -> kinds.JobReport:
    terms = state.terms
    return kinds.JobReport(
        at=now,
        uid=terms.uid,
        name=terms.name,
        status=str(state.status),
        user=terms.user,
        node=state.node,
        what=kinds.shortened(terms.what, 200),
        starts=state.starts,
        submitted_s=terms.submitted_s,
        ended_s=state.ended_s,
        why=state.why,
        log=kinds.shortened(log, _LOG_BYTES),
    )
