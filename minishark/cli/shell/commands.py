"""The dot-commands."""

from __future__ import annotations

import difflib
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa

from minishark.cli.console import open_reporter
from minishark.cli.data import sample_tables, tables_at
from minishark.cli.options import FORMATS
from minishark.cli.shell.interpreter import Interpreter, table_columns
from minishark.cli.tpch.queries import QUERY_COUNT, load_queries, parse_selection
from minishark.cli.tpch.tables import TABLES, load_tables
from minishark.dataframe import EXPLAIN_MODES
from minishark.dataframe.show import human_bytes
from minishark.errors import ClusterError, OptionError
from minishark.model.expressions import quote
from minishark.query.report import metrics_text
from minishark.session.catalog import TableInfo

if TYPE_CHECKING:
    from minishark.session.session import Session

_REPLICAS = 2
# Commands of the DuckDB and SQLite shells, and their equivalents.
_OTHER_SHELLS = {
    ".databases": ".tables",
    ".describe": ".schema",
    ".import": ".load",
    ".maxrows": ".rows",
    ".once": ".output",
    ".open": ".load",
}
# What has no command here, and what does the same.
_OTHERWISE = {
    ".changes": "INSERT, UPDATE and DELETE always tell how many rows they changed.",
    ".constraints": "write FROM duckdb_constraints();",
    ".cd": "change the folder before minishark is started.",
    ".dump": "write a table with COPY name TO 'file.parquet';",
    ".echo": "statements of a script are not shown.",
    ".headers": "the names of columns are always shown.",
    ".indexes": "write FROM duckdb_indexes();",
    ".nullvalue": "write coalesce(column, 'text') in the query.",
    ".print": "write SELECT 'text';",
    ".prompt": "the prompt is always the same.",
    ".separator": "choose .mode csv or .mode tsv, or write COPY (query) TO 'file' (DELIMITER '|');",
    ".shell": "press Ctrl-Z, and enter fg to come back.",
    ".show": ".help says what can be set.",
    ".system": "press Ctrl-Z, and enter fg to come back.",
    ".version": "write SELECT version(); for DuckDB's, `minishark --version` for minishark's.",
    ".width": "columns are as wide as the terminal has room; .mode line shows all of them.",
}
_HELP_NOTE = "Statements end with a semicolon. Ctrl-C cancels a query, Ctrl-D quits."


@dataclass(frozen=True)
class Command:
    """A dot-command."""

    usage: str
    help: str
    run: Callable[[Interpreter, str], None]  # called with the text after the name
    arguments: Sequence[str] = ()  # for completion: words, "*path", "*table" or "*statement"


def run_command(shell: Interpreter, line: str) -> None:
    name, _, rest = line.partition(" ")
    command, argument = _find(name), rest.strip().rstrip(";").rstrip()
    if argument and " " not in command.usage:
        raise OptionError(f"{command.usage} takes no arguments.")
    command.run(shell, argument)


def _find(name: str) -> Command:
    """The command, or an error that suggests one: abbreviated, of another shell, or misspelt."""
    if name in COMMANDS:
        return COMMANDS[name]
    if name in _OTHERWISE:
        raise OptionError(f"There is no command {name}: {_OTHERWISE[name]}")
    near = [command for command in COMMANDS if len(name) > 1 and command.startswith(name)]
    near += [_OTHER_SHELLS[name]] if name in _OTHER_SHELLS else []
    near += difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else ".help lists them all."
    raise OptionError(f"There is no command {name}: {hint}")


def _help(shell: Interpreter, argument: str) -> None:
    name = f".{argument.lstrip('.')}" if argument else ""
    shown = [_find(name)] if name else list(COMMANDS.values())
    indent = max(len(command.usage) for command in shown) + 2
    width = shell.output.width
    lines = []
    for command in shown:
        help_lines = textwrap.wrap(command.help, max(20, width - indent))
        lines.append(command.usage.ljust(indent) + f"\n{' ' * indent}".join(help_lines))
    if not name:
        lines += ["", textwrap.fill(_HELP_NOTE, width)]
    shell.output.print("\n".join(lines))


def _tables(shell: Interpreter, _: str) -> None:

    columns = table_columns(shell.session)
    if not columns:
        shell.output.say("No tables. .sample loads some; .load PATH loads files.")
        return
    names = pa.array(columns, pa.string())
    counts = pa.array([len(values) for values in columns.values()], pa.int64())
    replicas = {info.name: _replicas(info) for info in shell.session.catalog.list_tables()}
    held = pa.array([replicas.get(name, "") for name in columns], pa.string())
    shell.output.write(pa.table({"table": names, "columns": counts, "replicas": held}))


def _replicas(info: TableInfo) -> str:
    """The fewest live replicas of a table's partitions, of how many are wanted."""
    if info.replicas is None:
        return ""
    healing = f", healing {info.healing} partitions" if info.healing else ""
    return f"{info.replicas} of {info.replicas_wanted}{healing}"


def _schema(shell: Interpreter, argument: str) -> None:
    found_columns = table_columns(shell.session)
    columns = {name.lower(): (name, described) for name, described in found_columns.items()}
    table = argument.strip('"').lower()
    if table and table not in columns:
        near = difflib.get_close_matches(table, columns, n=1)
        hint = f"did you mean {near[0]}?" if near else ".tables lists them all."
        raise OptionError(f"There is no table {argument}: {hint}")
    for name, described in [columns[table]] if table else columns.values():
        lines = ",\n".join(f"  {_name(column)} {type_}" for column, type_ in described)
        shell.output.print(f"CREATE TABLE {_name(name)} (\n{lines}\n);")


def _explain(shell: Interpreter, argument: str) -> None:
    first, _, rest = argument.partition(" ")
    mode, statement = (first, rest.strip()) if first in EXPLAIN_MODES else ("all", argument)
    if statement:
        shell.output.print(shell.session.sql(statement).plan_text(mode))
    else:
        shell.run_last(lambda last: last.frame.plan_text(mode))


def _profile(shell: Interpreter, argument: str) -> None:
    match argument.split():
        case []:
            shell.run_last(lambda last: metrics_text(last.ran.metrics()))
        case ["tasks"]:
            shell.run_last(lambda last: last.ran.profile().text(tasks=True))
        case ["why", stage, task] if stage.isdecimal() and task.isdecimal():
            shell.run_last(lambda last: last.ran.profile().why(int(stage), int(task)))
        case _:
            raise OptionError("Write .profile, .profile tasks, or .profile why STAGE TASK.")


def _timer(shell: Interpreter, argument: str) -> None:
    if argument not in ("on", "off"):
        raise OptionError("Write .timer on or .timer off.")
    shell.timer = argument == "on"


def _mode(shell: Interpreter, argument: str) -> None:
    form, _, path = argument.partition(" ")
    if not form:
        raise OptionError(f"Write .mode and one of {', '.join(FORMATS)}.")
    if form not in FORMATS:
        near = difflib.get_close_matches(form, FORMATS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise OptionError(f"Unknown mode {form!r}{hint}. The modes are {', '.join(FORMATS)}.")
    shell.output.set_form(form, _path(path))


def _rows(shell: Interpreter, argument: str) -> None:
    if not argument.isdecimal():
        raise OptionError("Write .rows and a number; 0 shows all rows.")
    shell.output.rows_max = int(argument) or None
    shell.output.fits_screen = False


def _pager(shell: Interpreter, argument: str) -> None:
    if argument not in ("on", "off"):
        raise OptionError("Write .pager on or .pager off.")
    shell.output.pages = argument == "on"


def _cluster(shell: Interpreter, _: str) -> None:

    nodes = shell.session.nodes()
    rows = [
        {
            "node": node.name,
            "state": "alive" if node.alive else "dead",
            "pid": node.pid,
            "executors": ", ".join(
                f"{executor.name} ({executor.pid})" for executor in node.executors
            ),
            "slots": node.slots,
            "running": node.running,
            "queued": node.queued,
            "memory": human_bytes(node.memory_bytes),
            "stored": human_bytes(node.stored_bytes),
            "on disk": human_bytes(node.disk_bytes),
            "deaths": node.deaths,
            "last death": node.last_death,
        }
        for node in nodes
    ]
    shell.output.write(pa.Table.from_pylist(rows))
    for node in nodes:
        if node.last_death:  # the table may truncate it
            shell.output.say(f"Last death on {node.name}: {node.last_death}")
    tables = shell.session.catalog.list_tables()
    if short := [f"{info.name} {_replicas(info)}" for info in tables if info.healing]:
        shell.output.say(f"Replicas: {'; '.join(short)}")


def _read(shell: Interpreter, argument: str) -> None:
    path = _path(argument)
    if path is None:
        raise OptionError("Write .read FILE.")
    shell.read(path)


def _load(shell: Interpreter, argument: str) -> None:
    first, _, rest = argument.partition(" ")
    replace = first == "--replace"
    if replace:
        argument = rest.strip()
    text, _, name = argument.rpartition(" AS ") if " AS " in argument else (argument, "", "")
    path = _path(text)
    if path is None:
        raise OptionError("Write .load PATH or .load PATH AS TABLE; .load --replace PATH ...")
    tables = tables_at(path)
    if name:
        if len(tables) != 1:
            raise OptionError(f"{path} has {len(tables)} tables; AS names a single one.")
        tables = {name.strip(): next(iter(tables.values()))}
    present = {table.lower() for table in shell.session.tables}
    if (there := [table for table in tables if table.lower() in present]) and not replace:
        raise OptionError(
            f"There is a table {there[0]} already: replace it with .load --replace {text.strip()}"
            f"{f' AS {name.strip()}' if name else ''}, or load the file under another name with "
            ".load PATH AS TABLE."
        )
    _load_tables(shell, tables, replace=replace)


def _load_tables(shell: Interpreter, tables: Mapping[str, str], *, replace: bool = False) -> None:
    with open_reporter(verbose=False) as reporter:
        load_tables(shell.session, tables, reporter, replicas=_REPLICAS, replace=replace)
    shell.output.say(f"Loaded {', '.join(tables)}" if tables else "All tables are loaded already")


def load_sample(shell: Interpreter) -> None:
    """Load the tables of the bundled sample that do not exist yet."""
    present = {name.lower() for name in shell.session.tables}
    _load_tables(shell, {n: path for n, path in sample_tables().items() if n not in present})


def _tpch(shell: Interpreter, argument: str) -> None:
    numbers = parse_selection(argument or "0")
    present = {name.lower() for name in shell.session.tables}
    if not present.issuperset(TABLES):
        question = "TPC-H tables are missing. Load the bundled sample?"
        if shell.confirm is None or not shell.confirm(question):
            raise OptionError("TPC-H tables are missing; .sample loads a small set.")
        load_sample(shell)
    for number, text in load_queries(numbers).items():
        shell.output.say(text.strip())
        shell.run_text(text, f"query {number}")


def kill_executor(session: Session, node: str = "") -> str:
    """Kill an executor, which its node restarts; what happened, as a sentence.

    Args:
        session: whose cluster runs on this machine.
        node: the executor's node; "" for the first that has one, a busy one if there is.

    Raises:
        ClusterError: there is none to kill.
        OptionError: there is no such node, or it runs in this process.
    """
    nodes = {status.name: status for status in session.nodes()}
    if node and node not in nodes:
        raise OptionError(f"There is no node {node}; the nodes are {', '.join(nodes)}.")
    chosen = (
        [nodes[node]] if node else sorted(nodes.values(), key=lambda status: not status.running)
    )
    executors = [
        (place.pid, executor)
        for place in chosen
        if place.alive
        for executor in place.executors
        if executor.pid
    ]
    if not executors:
        raise ClusterError("There is no executor on this machine to kill.")
    parent, victim = executors[0]
    if victim.pid == os.getpid():
        raise OptionError("This cluster runs inside the shell's own process.")
    try:
        process = psutil.Process(victim.pid)
        # The pid may be reused by now, or belong to another machine.
        if process.ppid() != parent:
            raise ClusterError(f"Executor {victim.name} is not a process of this machine.")
        process.kill()
    except psutil.Error:
        raise ClusterError(f"Executor {victim.name} is dead already; try again.") from None
    return f"Killed executor {victim.name} (pid {victim.pid}); its node restarts it."


def _quit(shell: Interpreter, _: str) -> None:

    shell.is_over = True


def _path(text: str) -> Path | None:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return Path(text).expanduser() if text else None


def _name(name: str) -> str:
    return name if name.isidentifier() and name.islower() else quote(name)


COMMANDS = {
    command.usage.split()[0]: command
    for command in (
        Command(".help [COMMAND]", "list the commands, or explain one", _help),
        Command(".tables", "list tables and views", _tables),
        Command(".schema [TABLE]", "show columns and types", _schema, ("*table",)),
        Command(
            ".explain [MODE] [STATEMENT]",
            f"show the plan of the last query or another one; modes: {', '.join(EXPLAIN_MODES)}",
            _explain,
            (*EXPLAIN_MODES, "*statement"),
        ),
        Command(
            ".profile [tasks|why STAGE TASK]",
            "show figures per stage of the last query; with arguments, run it again for figures "
            "per task, or for why a task ran on its node",
            _profile,
            ("tasks", "why"),
        ),
        Command(".timer on|off", "show execution times or not", _timer, ("on", "off")),
        Command(
            ".mode FORMAT [FILE]", f"set the output format: {', '.join(FORMATS)}", _mode, FORMATS
        ),
        Command(
            ".output [FILE]",
            "write results to a file; without it, to the screen",
            lambda shell, argument: shell.output.redirect(_path(argument)),
            ("*path",),
        ),
        Command(
            ".last",
            "show all rows and columns of the last query, in $MINISHARK_PAGER, $PAGER or less; it "
            "runs again if not all were shown",
            lambda shell, _: shell.show_last(),
        ),
        Command(
            ".pager on|off",
            "show what is longer than the screen in a pager or not",
            _pager,
            ("on", "off"),
        ),
        Command(".rows N", "set how many rows of a table to print; 0 prints all", _rows),
        Command(".read FILE", "run a script", _read, ("*path",)),
        Command(
            ".load [--replace] PATH [AS TABLE]",
            "load a file, or a folder of tables",
            _load,
            ("--replace", "*path"),
        ),
        Command(".sample", "load the bundled TPC-H sample", lambda shell, _: load_sample(shell)),
        Command(
            ".tpch N",
            f"run TPC-H query N, from 1 to {QUERY_COUNT}; or several: 1,3,5-7",
            _tpch,
            tuple(map(str, range(1, QUERY_COUNT + 1))),
        ),
        Command(".cluster", "show nodes, processes, slots and memory", _cluster),
        Command(
            ".kill-executor [NODE]",
            "kill an executor, to demonstrate recovery; while a query runs, press Ctrl-\\",
            lambda shell, argument: shell.output.say(kill_executor(shell.session, argument)),
        ),
        Command(".quit", "quit; so does Ctrl-D", _quit),
    )
}
COMMANDS[".exit"] = Command(".exit", "quit", _quit)
