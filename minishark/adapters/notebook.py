"""`%load_ext minishark`: statements in notebook cells (the extra `notebook`).

    %sql SELECT count(*) FROM lineitem
    %%sql --out late
    SELECT o_orderpriority, count(*) FROM orders WHERE o_orderdate < $day ...

A query runs and its first rows are shown; with `--out NAME` it becomes a lazy DataFrame called NAME
instead. `--params NAME` takes values for `?` or `$name` from a variable. The session is the one in
the notebook's variables, or the one that `--session NAME` names; if there is none, one is started
and called `session`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from rich.console import Console

import minishark
from minishark.compiler.sql.statements import Explain
from minishark.dataframe.show import table_html
from minishark.display import print_table
from minishark.errors import MinisharkError
from minishark.session.session import Session

ROWS_MAX = 40
_OPTION = re.compile(r"\s*--?(\w+)[ =]\s*(\S+)")
_OPTIONS = {"out": "out", "o": "out", "params": "params", "p": "params", "session": "session"}


class SqlAnswer:
    """The rows of a query that ran in a cell; a notebook shows the first of them.

    Attributes:
        table: the rows.
    """

    def __init__(self, table: pa.Table, dtypes: Sequence[tuple[str, str]]) -> None:
        self.table = table
        self._dtypes = dtypes

    def to_pandas(self) -> Any:
        """The rows as a pandas frame (needs pandas)."""
        return self.table.to_pandas()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows for any library that reads Arrow streams."""
        return self.table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        console = Console(width=120, force_terminal=False, color_system=None)
        with console.capture() as captured:
            print_table(self.table, console, rows_max=ROWS_MAX)
        return captured.get().rstrip()

    def _repr_html_(self) -> str:
        return table_html(self.table, self._dtypes, ROWS_MAX)


@magics_class
class SqlMagics(Magics):
    """The magic `%sql` and `%%sql`."""

    @no_var_expand
    @line_cell_magic
    def sql(self, line: str, cell: str | None = None) -> SqlAnswer | None:
        """Run SQL: `%sql [--out NAME] [--params NAME] [--session NAME] statement`."""
        options, rest = _split_options(line)
        text = f"{rest}\n{cell}" if cell is not None else rest
        if not text.strip():
            raise UsageError("Write a statement after %sql, or below %%sql.")
        try:
            return self._run(text, options)
        except MinisharkError as error:
            raise UsageError(str(error)) from error

    def _run(self, text: str, options: Mapping[str, str]) -> SqlAnswer | None:
        session = self._session(options.get("session"))
        params = self._variable(options["params"]) if "params" in options else None
        parsed = session.parse(text)[-1]
        frame = session.sql(text, params)
        if "out" in options:
            self.shell.user_ns[options["out"]] = frame
            return None
        table = frame.to_arrow()
        if isinstance(parsed, Explain):
            print(table.column(0)[0].as_py())  # noqa: T201 - a plan is text
            return None
        return SqlAnswer(table, frame.dtypes)

    def _variable(self, name: str) -> Any:
        try:
            return self.shell.user_ns[name]
        except KeyError:
            raise UsageError(f"There is no variable called {name}.") from None

    def _session(self, name: str | None) -> Session:
        if name is not None:
            found = self._variable(name)
            if not isinstance(found, Session):
                raise UsageError(f"The variable {name} is no session of minishark.")
            return found
        names = [
            name
            for name, value in self.shell.user_ns.items()
            if isinstance(value, Session) and value.is_open and not name.startswith("_")
        ]
        sessions = {id(self.shell.user_ns[name]): self.shell.user_ns[name] for name in names}
        if len(sessions) > 1:
            raise UsageError(
                f"There are several sessions: choose by --session {' or '.join(names)}."
            )
        if sessions:
            session: Session = next(iter(sessions.values()))
            return session
        print("Started a session on this machine; it is called session.")  # noqa: T201
        started = minishark.connect()
        self.shell.user_ns["session"] = started
        return started


def _split_options(line: str) -> tuple[dict[str, str], str]:
    """The options at the start of a line, and the rest of it."""
    options: dict[str, str] = {}
    position = 0
    while found := _OPTION.match(line, position):
        if found[1] not in _OPTIONS:
            raise UsageError(f"There is no option --{found[1]}: --out, --params and --session are.")
        options[_OPTIONS[found[1]]] = found[2]
        position = found.end()
    return options, line[position:].strip()


def load(shell: InteractiveShell) -> None:
    """Make the magic known; `%load_ext minishark` calls this."""
    shell.register_magics(SqlMagics)
