"""`minishark submit` and `minishark jobs`: programs that run on a cluster and outlive this one."""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from minishark.cli.options import debug_option, keys_option, output_options
from minishark.cli.sql_command import results_to
from minishark.errors import OptionError

if TYPE_CHECKING:
    from minishark.cluster.jobs.client import JobsClient
    from minishark.cluster.jobs.records import JobState

_Command = TypeVar("_Command", bound=Callable[..., Any])
_STATUS_FAILURE = 1
_FOLLOW_S = 0.3
_SIMILAR = 0.8  # to an option: else it is the program's
_SUBMIT_EXAMPLES = """\b
Examples:
  minishark submit report.py --cluster default
  minishark submit report.py --day 2026-11-26 --name nightly --wait
  minishark submit etl/main.py --with etl --time-limit 3600
  minishark submit report.py -- --name is-for-the-program
"""
_JOBS_EXAMPLES = """\b
Examples:
  minishark jobs                           list them
  minishark jobs show nightly
  minishark jobs log nightly --follow
  minishark jobs result nightly --output nightly.parquet
  minishark jobs cancel nightly
"""


def cluster_option(command: _Command) -> _Command:
    """The options that name a cluster."""
    option = click.option(
        "--cluster", "which", metavar="NAME|ADDRESS", default="default", show_default=True
    )
    return option(keys_option(debug_option(command)))


def _jobs(which: str, keys: str | None) -> AbstractContextManager[JobsClient]:
    from minishark.cluster.jobs.visit import jobs_of
    from minishark.cluster.launch import resolve

    return jobs_of(*resolve(which, keys))


def _variables(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise OptionError(f"--env takes NAME=VALUE, not {name!r}.")
    return {name: value for name, _, value in pairs}


class _SubmitCommand(click.Command):
    """Takes options that it does not have as the program's, unless they look like its own."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Refuse what is probably misspelt; whatever follows `--` is the program's."""
        from minishark.dataframe.names import nearest

        own = [option for parameter in self.params for option in parameter.opts]
        for text in itertools.takewhile(lambda text: text != "--", args):
            option = text.partition("=")[0]
            if option in own or not option.startswith("--"):
                continue
            if near := nearest(option, own, alike=_SIMILAR):
                raise click.UsageError(
                    f"No such option: {option}.{near} If it is the program's, write it after --.",
                    context,
                )
        return super().parse_args(context, args)


@click.command(
    cls=_SubmitCommand, epilog=_SUBMIT_EXAMPLES, context_settings={"ignore_unknown_options": True}
)
@click.argument("program", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--name", help="Name of the job, unique while it runs.  [default: the program's]")
@click.option(
    "--with",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Take all files of this folder along, which contains the program. Without it, the program "
    "travels alone.",
)
@click.option(
    "--env", "environment", multiple=True, metavar="NAME=VALUE", callback=_variables,
    help="Set a variable of the program's environment. Repeatable.",
)  # fmt: skip
@click.option(
    "--restart",
    type=click.Choice(["never", "crash", "error"]),
    default="crash",
    show_default=True,
    help="When to start it again: if it dies by a signal, or also if it fails. If its node dies, "
    "another one always starts it.",
)
@click.option(
    "--attempts",
    type=click.IntRange(min=1),
    metavar="N",
    default=5,
    show_default=True,
    help="Start it at most so often.",
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End it after this time, counted from its first start.  [default: none]",
)
@click.option(
    "--keep",
    "keep_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=86_400.0,
    show_default=True,
    help="Keep its log and result so long after its end.",
)
@click.option(
    "--priority",
    type=int,
    metavar="N",
    default=0,
    show_default=True,
    help="Of the jobs that wait for a place on a node, those of the highest start first.",
)
@click.option("--wait", "waits", is_flag=True, help="Print its log, and end as it ends.")
@cluster_option
def submit(
    *,
    program: Path,
    arguments: tuple[str, ...],
    name: str | None,
    folder: Path | None,
    environment: dict[str, str],
    waits: bool,
    which: str,
    keys: str | None,
    **terms: Any,
) -> int:
    """Run a Python program on a node of a running cluster.

    It is supervised there, and goes on when this command, the terminal or this machine end.
    minishark.connect() in it opens a session on its cluster. It may be started several times: see
    --restart.

    Options that are not listed here, and all after --, are the program's. Before --, those that
    look like one of these are refused.
    """
    from msgspec import structs

    from minishark.cluster.jobs.client import new_terms, program_files
    from minishark.cluster.jobs.records import JobProgram, Restart

    script, files = program_files(program, folder)
    agreed = new_terms(name or _name_of(program), " ".join((program.name, *arguments)))
    terms["restart"] = Restart(terms["restart"])
    agreed = structs.replace(agreed, **terms)
    payload = JobProgram(script=script, arguments=arguments, environment=environment, files=files)
    with _jobs(which, keys) as jobs:
        state = jobs.submit(agreed, payload)
        click.echo(f"{agreed.name} runs on {state.node}.", err=waits)
        return _follow(jobs, state) if waits else 0


def _name_of(program: Path) -> str:
    return re.sub("[^A-Za-z0-9_.-]+", "-", program.stem).strip("-.") or "job"


@click.group(epilog=_JOBS_EXAMPLES, invoke_without_command=True)
@cluster_option
@click.pass_context
def jobs(context: click.Context, *, which: str, keys: str | None) -> None:
    """List, follow and cancel the jobs of a running cluster."""
    # Options may stand before or after the command; those after it count.
    context.default_map = {command: {"which": which, "keys": keys} for command in jobs.commands}
    if context.invoked_subcommand is None:
        context.invoke(list_jobs, as_json=False, which=which, keys=keys)


@jobs.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with more details.")
@cluster_option
def list_jobs(*, as_json: bool, which: str, keys: str | None) -> None:
    """List the jobs of a cluster, those submitted last at the end."""
    from minishark.cli.console import age, print_json, print_rows

    with _jobs(which, keys) as client:
        states = list(client.states().values())
    if as_json:
        print_json(states)
        return
    now_s = time.time()
    rows = [
        (
            state.terms.name,
            state.status,
            state.terms.user,
            state.node,
            state.starts,
            age(now_s - state.terms.submitted_s),
            state.terms.what,
        )
        for state in states
    ]
    heads = ("job", "status", "user", "node", "starts", "age", "what")
    print_rows(heads, rows, none="no jobs")


@jobs.command()
@click.argument("name")
@cluster_option
def show(*, name: str, which: str, keys: str | None) -> None:
    """Show what a job is, and what has happened to it."""
    with _jobs(which, keys) as client:
        state = client.find(name)
    terms = state.terms
    limit = "none" if terms.time_limit_s is None else f"{terms.time_limit_s:g} s"
    for what, value in (
        ("job", terms.name),
        ("runs", terms.what),
        ("status", state.status),
        ("user", terms.user),
        ("node", state.node),
        ("held by", ", ".join(holder.name for holder in state.holders)),
        ("starts", f"{state.starts} of at most {terms.attempts}"),
        ("time limit", limit),
        ("submitted", time.strftime("%F %T", time.localtime(terms.submitted_s))),
    ):
        click.echo(f"{what + ':':<12}{value}")
    for event in state.history:
        click.echo(f"  {time.strftime('%F %T', time.localtime(event.at_s))}  {event.sentence}")


@jobs.command()
@click.argument("name")
@click.option("--follow", "-f", "follows", is_flag=True, help="Go on until the job is over.")
@cluster_option
def log(*, name: str, follows: bool, which: str, keys: str | None) -> None:
    """Print what a job has printed.

    These are stdout and stderr, the last 4 MiB of them at most.
    """
    with _jobs(which, keys) as client:
        state = client.find(name)
        if follows:
            _follow(client, state)
        else:
            _print_log(client, state, 0)


@jobs.command()
@click.argument("name")
@cluster_option
def cancel(*, name: str, which: str, keys: str | None) -> None:
    """End a job with all its processes, and wait until it is over."""
    with _jobs(which, keys) as client:
        state = client.find(name)
        client.cancel(state)
        click.echo(f"{name} is {client.wait(name, state.terms.uid, 30.0).status}.")


@jobs.command()
@click.argument("name")
@click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait at most so long."
)
@output_options
@cluster_option
def result(
    *,
    name: str,
    timeout: float | None,
    form: str | None,
    output: Path | None,
    rows_max: int,
    which: str,
    keys: str | None,
    **_: Any,
) -> int:
    """Print or write the rows that a job has left, when it is over."""
    from minishark.session.connect import connect

    with (
        results_to(form, output, rows_max) as answers,
        connect(which, keys=keys) as session,
    ):
        table = session.job(name).result(timeout)
        if table is None:
            click.echo(f"{name} is done, and has left no rows.", err=True)
            return 1
        answers.write_all(table)
        return 0


def _print_log(client: JobsClient, state: JobState, since: int) -> int:
    """Print a log from a byte on; the position after its end."""
    start, data = client.log(state, since)
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    return start + len(data)


def _follow(client: JobsClient, state: JobState) -> int:
    """Print a log until the job is over; the exit status that says whether it succeeded."""
    from minishark.errors import ClusterError

    position = 0
    while True:
        state = client.patiently(state.terms.name, state.terms.uid)
        try:
            position = _print_log(client, state, position)
        except ClusterError:  # its node has died just now
            if state.is_over:
                raise
        if state.is_over:
            break
        time.sleep(_FOLLOW_S)
    click.echo(f"{state.terms.name}: {state.ending}", err=True)
    return 0 if state.status == "done" else _STATUS_FAILURE
