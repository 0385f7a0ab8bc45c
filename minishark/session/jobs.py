"""Jobs that outlive who submitted them, as sessions of their cluster see them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import structs

from minishark.cluster.contract import Cluster
from minishark.cluster.jobs.client import new_terms, program_files
from minishark.cluster.jobs.records import (
    PROGRESS_VARIABLE,
    JobFile,
    JobProgram,
    JobProgress,
    JobState,
    JobTerms,
    Restart,
    Status,
    result_file,
)
from minishark.dataframe.names import ident
from minishark.errors import JobError, OptionError, UnsupportedError
from minishark.query.progress import ProgressHandler, QueryProgress
from minishark.session.engine import Engine
from minishark.session.scope import Scope
from minishark.tables.shared_tables import is_shared
from minishark.worker.protocol import FileSlice

QUERY = "query.json"
_QUERY_MODULE = "minishark.session.submitted"
_WHAT_CHARS = 200
_PROGRESS_S = 0.5


class JobQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query that runs as a job: its text, and what has to be set and defined before."""

    sql: str
    settings: tuple[str, ...]
    definitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """A program or query that runs on a cluster, or has run there, whoever submitted it.

    It lives there: what a property says is asked for each time.

    Attributes:
        name: its name, unique among the jobs of its cluster that are not over.
    """

    name: str
    _uid: str
    _cluster: Cluster

    @property
    def _state(self) -> JobState:
        return self._cluster.jobs().find(self.name, self._uid)

    def __repr__(self) -> str:
        """Its name only: the cluster is not asked."""
        return f"<minishark job {self.name!r}>"

    @property
    def status(self) -> str:
        """Whether it is "waiting", "running", "done", "failed" or "cancelled".

        Raises:
            JobError: it was forgotten.
            ClusterError: no node answers.
        """
        return str(self._state.status)

    @property
    def user(self) -> str:
        """Who submitted it, as their program said."""
        return self._state.terms.user

    @property
    def node(self) -> str:
        """The node that runs it, or has run it last."""
        return self._state.node

    @property
    def starts(self) -> int:
        """How often it was started."""
        return self._state.starts

    def why(self) -> str:
        """What has happened to it, a sentence a line: starts, deaths, its end."""
        return self._state.why

    def progress(self) -> JobProgress | None:
        """How far the statement is that it runs now; None if it runs none, or that is not known."""
        return self._cluster.jobs().progress(self._uid)

    def log(self) -> str:
        """What it has printed, as far as that is kept."""
        return self._cluster.jobs().log(self._state)[1].decode(errors="replace")

    def cancel(self) -> None:
        """End it with all its processes; returns at once. Does nothing if it is over."""
        self._cluster.jobs().cancel(self._state)

    def wait(self, timeout: float | None = None) -> str:
        """Wait until it is over; its status.

        Raises:
            TimeoutError: it is not over after `timeout` seconds.
        """
        return str(self._cluster.jobs().wait(self.name, self._uid, timeout).status)

    def result(self, timeout: float | None = None) -> pa.Table | None:
        """Wait until it is over; the rows of a query, or what a program has left as its result.

        Args:
            timeout: seconds to wait at most; None for no limit.

        Returns:
            an Arrow table; None for a program without a result.

        Raises:
            TimeoutError: it is not over in time.
            JobError: it failed, was cancelled, or was forgotten with its result.
        """
        state = self._cluster.jobs().wait(self.name, self._uid, timeout)
        if state.status is not Status.DONE:
            end = self._cluster.jobs().log_tail(state)
            raise JobError(
                f"The job {self.name!r} has no result. {state.ending}"
                + (f" Its log ends with:\n{end}" if end else "")
            )
        if state.result_bytes is None:
            return None
        holders = sorted(state.holders, key=lambda holder: holder.home != state.owner)
        homes = self._cluster.homes()
        names = tuple(holder.name for holder in holders if homes.get(holder.name) == holder.home)
        if not names:
            raise JobError(f"No node that holds the result of {self.name!r} is there any more.")
        return self._cluster.store().read((FileSlice(result_file(self._uid), names),))


def jobs_in(cluster: Cluster) -> list[Job]:
    """All jobs of a cluster, in the order in which they were submitted."""
    return [Job(name, state.terms.uid, cluster) for name, state in cluster.jobs().states().items()]


def job_in(cluster: Cluster, name: str) -> Job:
    """The job of that name."""
    return Job(name, cluster.jobs().find(name).terms.uid, cluster)


def terms_of(name: str, program: str, given: Mapping[str, Any]) -> JobTerms:
    """The terms of a new job.

    Raises:
        OptionError: one is of the wrong type.
    """
    shown = program if len(program) <= _WHAT_CHARS else f"{program[:_WHAT_CHARS]}…"
    terms = structs.replace(new_terms(name, " ".join(shown.split())), **given)
    try:
        return msgspec.convert(msgspec.to_builtins(terms), JobTerms)
    except (msgspec.ValidationError, TypeError) as error:
        raise OptionError(f"An option of the job {name!r} is invalid: {error}.") from error


def submit_program(
    cluster: Cluster,
    script: str | Path,
    arguments: Sequence[str],
    *,
    name: str | None,
    folder: str | Path | None,
    environment: Mapping[str, str],
    terms: Mapping[str, Any],
) -> Job:
    """Submit a file with a program; the arguments are those of `Session.submit_program`."""
    path = Path(script)
    source, files = program_files(path, None if folder is None else Path(folder))
    texts = tuple(map(str, arguments))
    program = JobProgram(script=source, arguments=texts, environment=dict(environment), files=files)
    agreed = terms_of(name or path.stem, " ".join((path.name, *texts)), terms)
    return Job(agreed.name, cluster.jobs().submit(agreed, program).terms.uid, cluster)


def submit_query(
    engine: Engine, scope: Scope, sql: str, name: str, terms: Mapping[str, Any]
) -> Job:
    """Submit a query that needs nothing of this program.

    Raises:
        UnsupportedError: it reads what only this program or session has.
    """
    jobs = engine.cluster.jobs()
    text = _text_for_others(engine, scope, sql)
    environment = engine.environment(scope)
    query = JobQuery(
        sql=text,
        settings=environment.settings,
        definitions=tuple(map(engine.sources.shown, environment.definitions)),
    )
    program = JobProgram(module=_QUERY_MODULE, files=(JobFile(QUERY, msgspec.json.encode(query)),))
    agreed = terms_of(name, text, terms)
    return Job(agreed.name, jobs.submit(agreed, program).terms.uid, engine.cluster)


def _text_for_others(engine: Engine, scope: Scope, sql: str) -> str:
    """A query as any session of the cluster understands it."""
    planning = scope.planning
    tables = planning.tables_in(sql)
    handles = engine.sources.handles(sql)
    if engine.cached.handles(sql) or any(_is_private(held.text) for held in handles):
        raise UnsupportedError(
            "A job can't read rows that this program holds: a frame made of its objects, cached "
            "rows, a registered source. Write them to files that the nodes can read "
            "(df.write.parquet), and read these."
        )
    unnamed = {held.name for held in handles}
    if own := [table for table in tables if table not in unnamed and not is_shared(table)]:
        raise UnsupportedError(
            f"A job can't read tables of this session: {', '.join(map(ident, own))}. Create them "
            "as shared ones (create_table(..., shared=True)), read files or stores that the nodes "
            "reach, or submit a program that loads the table (session.submit_program)."
        )
    called = [function for function in engine.planner.functions if function in sql.lower()]
    if called:
        raise UnsupportedError(
            f"A job can't call this session's Python functions: {', '.join(called)}. Submit a "
            "program that registers them (session.submit_program)."
        )
    return engine.sources.shown(sql)


def _is_private(text: str) -> bool:
    """Whether what stands for a source is the name that this program gave it."""
    return text.startswith('"')


def reports_progress() -> ProgressHandler | None:
    """In a job, notes for those who ask for it how far its queries are."""
    path = os.environ.get(PROGRESS_VARIABLE)
    if path is None:
        return None
    file = Path(path)
    written_s = 0.0

    def note(progress: QueryProgress) -> None:
        nonlocal written_s
        if time.monotonic() < written_s + _PROGRESS_S:
            return
        written_s = time.monotonic()
        done = sum(stage.done for stage in progress.stages)
        tasks = sum(stage.tasks for stage in progress.stages)
        draft = file.with_suffix(f".{os.getpid()}")
        try:
            draft.write_bytes(msgspec.json.encode(JobProgress(progress.query, done, tasks)))
            draft.rename(file)
        except OSError:
            return  # the disk is full: a query does not fail for that

    return note


def restart_of(restart: str) -> Restart:
    """The policy of that name.

    Raises:
        OptionError: there is none.
    """
    try:
        return Restart(restart)
    except ValueError:
        choices = ", ".join(Restart)
        raise OptionError(f"restart is one of {choices}, not {restart!r}.") from None
