"""Tags of running statements, and their interruption; jobs; which session is the active one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from minishark.dataframe.runtime import latest_session
from minishark.errors import OptionError
from minishark.session.jobs import Job, job_in, jobs_in, restart_of, submit_program

if TYPE_CHECKING:
    from typing import Self

    from minishark.session.runtime import Runtime


class Operations:
    """The methods of sessions that name, tag and interrupt what runs, here and as jobs."""

    _runtime: Runtime

    @classmethod
    def get_active_session(cls) -> Self | None:
        """The session that this thread made last, or else the process; None if none is open."""
        session: Self | None = latest_session()
        return session

    @classmethod
    def active(cls) -> Self:
        """As `get_active_session`.

        Raises:
            OptionError: no session is open.
        """
        session = cls.get_active_session()
        if session is None:
            raise OptionError("No session is open; make one with minishark.connect().")
        return session

    def add_tag(self, tag: str) -> None:
        """Give a tag to the statements that this thread runs from now on, for `interrupt_tag`.

        Raises:
            OptionError: it is empty, or has a comma.
        """
        if not tag or "," in tag:
            raise OptionError("A tag is a text that is not empty, without commas.")
        scope = self._runtime.scope
        scope.set_tags(scope.tags | {tag})

    def remove_tag(self, tag: str) -> None:
        """Give a tag to later statements no more."""
        scope = self._runtime.scope
        scope.set_tags(scope.tags - {tag})

    def get_tags(self) -> set[str]:
        """The tags of what this thread runs."""
        return set(self._runtime.scope.tags)

    def clear_tags(self) -> None:
        """Give no tags to later statements."""
        self._runtime.scope.set_tags(frozenset())

    def interrupt_all(self) -> list[str]:
        """Cancel this session's queries that run now; their numbers."""
        return self._interrupted(None)

    def interrupt_tag(self, tag: str) -> list[str]:
        """Cancel those that have a tag; their numbers."""
        return self._interrupted(tag)

    def interrupt_operation(self, op_id: str) -> list[str]:
        """Cancel a query by its number, as the page and events have it."""
        engine = self._runtime.engine
        return [op_id] if op_id.isdecimal() and engine.cancel(int(op_id)) else []

    def _interrupted(self, tag: str | None) -> list[str]:
        engine, scope = self._runtime.engine, self._runtime.scope
        return [str(number) for number in scope.tagged(tag) if engine.cancel(number)]

    # Jobs that outlive the session

    def jobs(self) -> list[Job]:
        """All jobs of the cluster, whoever submitted them, in the order in which that was.

        Raises:
            ClusterError: the session's cluster ends with it, or does not answer.
        """
        self._runtime.check_open()
        return jobs_in(self._runtime.cluster)

    def job(self, name: str) -> Job:
        """The job of that name; of several after each other, the last.

        Raises:
            JobError: there is none, or it was forgotten some time after its end.
            ClusterError: the session's cluster ends with it, or does not answer.
        """
        self._runtime.check_open()
        return job_in(self._runtime.cluster, name)

    def submit_program(
        self,
        script: str | Path,
        *arguments: str,
        name: str | None = None,
        folder: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        restart: str = "crash",
        priority: int = 0,
        time_limit_s: float | None = None,
        keep_s: float = 86_400.0,
        attempts: int = 5,
    ) -> Job:
        """Run a Python program on a node of the cluster, supervised there; returns at once.

        It goes on when this program ends, is started again if its process or its node dies, and
        finds the cluster by `minishark.connect()`. docs/submitted.md says what is promised.

        Args:
            script: the program's file, which travels alone.
            arguments: its arguments.
            name: the job's name, unique among those that are not over; None for the file's.
            folder: takes all files of this folder along, which contains the script.
            environment: variables that are set in the program's environment.
            restart: after what it is started again: "crash" (a signal), "error" (also an exit
                status other than 0), or "never". After the death of its node it always is.
            priority: of the jobs that wait for a place on a node, the highest goes first.
            time_limit_s: seconds after which it is ended; None for no limit.
            keep_s: for how long its log and result are kept in the cluster.
            attempts: how often it is started at most.

        Raises:
            OptionError: an option is invalid, or the files can't be read or are too large.
            AlreadyExistsError: there is a job of that name that is not over.
            ClusterError: the session's cluster ends with it, or does not answer.
        """
        self._runtime.check_open()
        return submit_program(
            self._runtime.cluster,
            script,
            arguments,
            name=name,
            folder=folder,
            environment=environment or {},
            terms={
                "restart": restart_of(restart),
                "priority": priority,
                "time_limit_s": time_limit_s,
                "keep_s": keep_s,
                "attempts": attempts,
            },
        )
