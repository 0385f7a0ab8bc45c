"""`%load_ext minishark`: SQL magics for notebooks (the extra `notebook`).

    %sql SELECT count(*) FROM lineitem
    %%sql --out late
    SELECT o_orderpriority, count(*) FROM orders WHERE o_orderdate < $day ...

A query runs for its first rows, which are shown; with `--out NAME` it is assigned to NAME as a lazy
DataFrame instead. `$name` is the value of the notebook's variable of that name; `--params NAME`
takes values for `?` or `$name` from one variable instead. A frame or table in a variable can be
read by the variable's name, unless a table has that name. The session is the only one among the
notebook's variables, or the one of `--session NAME`; if there is none, one is started and assigned
to `session`.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from rich.console import Console

from minishark.compiler.sql.statements import Explain
from minishark.dataframe import DataFrame
from minishark.dataframe.actions import first_rows
from minishark.dataframe.lazy_query import query_of
from minishark.dataframe.show import print_table, table_html
from minishark.errors import MinisharkError
from minishark.session.connect import connect
from minishark.session.session import Session
from minishark.session.variables import has_rows

ROWS_MAX = 40
_PARAMETER = re.compile(r"\$([A-Za-z_]\w*)")
_LITERAL = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|\$(\w*)\$.*?\$\1\$""", re.DOTALL
)
_SOURCES = re.compile(
    r"\b(?:FROM|JOIN)\s+((?:[A-Za-z_]\w*(?:\s+(?:AS\s+)?[A-Za-z_]\w*)?\s*,\s*)*[A-Za-z_]\w*)",
    re.IGNORECASE,
)
_OPTION = re.compile(r"\s*--?(\w+)[ =]\s*(\S+)")
_OPTIONS = {"out": "out", "o": "out", "params": "params", "p": "params", "session": "session"}


class SqlAnswer:
    """The result of a cell; a notebook shows its first rows, and others run when asked for.

    Attributes:
        frame: the query.
    """

    def __init__(self, frame: DataFrame) -> None:
        self.frame = frame
        self._shown = first_rows(query_of(frame), ROWS_MAX + 1)
        self._all = self._shown if self._shown.num_rows <= ROWS_MAX else None

    @property
    def table(self) -> pa.Table:
        """All rows, as an Arrow table."""
        if self._all is None:
            self._all = self.frame.to_arrow()
        return self._all

    def to_pandas(self, dtype_backend: str = "numpy") -> Any:
        """All rows, as a pandas frame; see `DataFrame.to_pandas`."""
        return self.frame.to_pandas(dtype_backend)

    @property
    def plot(self) -> Any:
        """Plots of the rows; see `DataFrame.plot`."""
        return self.frame.plot

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        # In a notebook, rich would show an empty output beside the text that is captured.
        console = Console(width=120, force_terminal=False, force_jupyter=False, color_system=None)
        more = "" if self._shown.num_rows <= ROWS_MAX else "there are more"
        with console.capture() as captured:
            print_table(self._shown.slice(0, ROWS_MAX), console, rows_max=None, more=more)
        return captured.get().rstrip()

    def _repr_html_(self) -> str:
        return table_html(self._shown, self.frame.dtypes, ROWS_MAX)


@magics_class
class SqlMagics(Magics):
    """The magic `%sql` and `%%sql`."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        # The views that were made of variables, by session.
        self._views: weakref.WeakKeyDictionary[Session, set[str]] = weakref.WeakKeyDictionary()

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
        if "params" in options:
            params = self._variable(options["params"])
        else:
            params = self._named_in(text) or None
        parsed = session.parse(text)[-1]
        self._read_variables(session, text)
        frame = session.sql(text, params)
        if "out" in options:
            self.shell.user_ns[options["out"]] = frame
            return None
        if isinstance(parsed, Explain):
            print(frame.to_arrow().column(0)[0].as_py())  # noqa: T201 - a plan is text
            return None
        return SqlAnswer(frame)

    def _read_variables(self, session: Session, text: str) -> None:
        """Make views of the notebook's frames that a statement reads by their variables' names."""
        # Each time: pandas frames change, and a variable may hold something else by now.
        named = {
            part.split()[0]
            for sources in _SOURCES.finditer(_LITERAL.sub("", text))
            for part in sources[1].split(",")
        }
        views = self._views.setdefault(session, set())
        for name in sorted(named):
            value = self.shell.user_ns.get(name)
            if not has_rows(value):
                if name in views:
                    views.discard(name)
                    session.catalog.drop_temp_view(name)
                continue
            if name not in views:
                if name.lower() in (info.name.lower() for info in session.catalog.list_tables()):
                    continue
                views.add(name)
            frame = value if isinstance(value, DataFrame) else session.create_dataframe(value)
            frame.create_or_replace_temp_view(name)

    def _named_in(self, text: str) -> dict[str, Any]:
        """The notebook's variables that are parameters of a statement: `$name`."""
        names = _PARAMETER.findall(_LITERAL.sub("", text))
        return {name: self.shell.user_ns[name] for name in names if name in self.shell.user_ns}

    def _variable(self, name: str) -> Any:
        try:
            return self.shell.user_ns[name]
        except KeyError:
            raise UsageError(f"There is no variable called {name}.") from None

    def _session(self, name: str | None) -> Session:
        if name is not None:
            variable = self._variable(name)
            if not isinstance(variable, Session):
                raise UsageError(f"The variable {name} is not a minishark session.")
            return variable
        names = [
            name
            for name, value in self.shell.user_ns.items()
            if isinstance(value, Session) and value.is_open and not name.startswith("_")
        ]
        sessions = {id(self.shell.user_ns[name]): self.shell.user_ns[name] for name in names}
        if len(sessions) > 1:
            raise UsageError(
                f"There are several sessions: choose with --session {' or '.join(names)}."
            )
        if sessions:
            session: Session = next(iter(sessions.values()))
            return session
        print("Started a session on this machine: the variable session.")  # noqa: T201
        started = connect()
        self.shell.user_ns["session"] = started
        return started


def _split_options(line: str) -> tuple[dict[str, str], str]:
    """Parse the options at the start of a line; returns them and the rest."""
    options: dict[str, str] = {}
    position = 0
    while option := _OPTION.match(line, position):
        if option[1] not in _OPTIONS:
            raise UsageError(f"Unknown option --{option[1]}: use --out, --params or --session.")
        options[_OPTIONS[option[1]]] = option[2]
        position = option.end()
    return options, line[position:].strip()


def load(shell: InteractiveShell) -> None:
    """Register the magics; `%load_ext minishark` calls this."""
    shell.register_magics(SqlMagics)
