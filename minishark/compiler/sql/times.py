"""What functions tell of the time: when the statement began, or the transaction it is part of.

DuckDB asks the transaction in which it binds a statement. A session's transaction is none of
DuckDB's: while it is open, temporary macros take the place of the functions, wherever these are
called, also in views, macros and defaults of columns, which keep their texts. No catalog says so
afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

import duckdb

from minishark.compiler.sql.tokens import Edit, edited, sql_tokens
from minishark.model.expressions import quote_text

# Their values become constants of a plan, which must not be reused.
_TELLS_TIME = re.compile(
    r"\b(?:now|today|age|current_\w+|get_current_\w+|localtime|localtimestamp|"
    r"transaction_timestamp|txid_current|ago|pg_\w+_time|in_search_path)\b",
    re.IGNORECASE,
)
_FUNCTIONS = {
    "now": "",
    "get_current_timestamp": "",
    "transaction_timestamp": "",
    "current_date": "::DATE",
    "today": "::DATE",
    "get_current_time": "::TIMETZ",
    "current_localtime": "::TIMESTAMP::TIME",
    "current_localtimestamp": "::TIMESTAMP",
}
"""Functions that tell the time, and the casts that make it of a TIMESTAMPTZ."""
_DEFINES = re.compile(
    rf"\b(?:MACRO|FUNCTION)\b[^(]*\b(?:{'|'.join(_FUNCTIONS)})\b\"?\s*\(", re.IGNORECASE
)
_MACROS = (
    "SELECT DISTINCT lower(function_name) FROM duckdb_functions() "
    "WHERE NOT internal AND function_type = 'macro'"
)
_KEYWORDS = {
    "current_timestamp": "get_current_timestamp",
    "current_date": "current_date",
    "current_time": "get_current_time",
    "localtime": "current_localtime",
    "localtimestamp": "current_localtimestamp",
}
"""Words that call one of them without parentheses."""


def tells_time(sql: str) -> bool:
    """Whether part of a statement may tell the time, or something else that changes with it."""
    return _TELLS_TIME.search(sql) is not None


def defines_time(sql: str) -> bool:
    """Whether a statement may create a macro with the name of a function that tells the time."""
    return _DEFINES.search(sql) is not None


def at_moment(sql: str, moment: datetime) -> str:
    """Part of a statement in which functions that tell the time tell this one.

    Statements run as several queries, all of which must find the same rows.
    """

    def edits() -> Iterator[Edit]:
        tokens = sql_tokens(sql)
        for at, token in enumerate(tokens):
            word = token.word.lower()
            following = [other.text for other in tokens[at + 1 : at + 3]]
            if at and tokens[at - 1].text == ".":
                continue
            if following == ["(", ")"] and word in _FUNCTIONS:
                yield Edit(token.first, tokens[at + 2].last, _value(moment, word))
            elif word in _KEYWORDS and following[:1] not in (["."], ["("]):
                yield Edit(token.first, token.last, _value(moment, _KEYWORDS[word]))

    return edited(sql, edits()) if tells_time(sql) else sql


def _value(moment: datetime, function: str) -> str:
    return f"(TIMESTAMPTZ {quote_text(moment.isoformat())}){_FUNCTIONS[function]}"


@dataclass(slots=True, kw_only=True)
class ToldTime:
    """What a connection tells of the time; for who holds the connection.

    Attributes:
        began: when the transaction of its session did; None if there is none.
        defined: whether users may have macros with the names of functions that tell it.
        definitions: what has it tell that, for others that are to tell the same.
        names: of the functions whose places these macros take.
    """

    con: duckdb.DuckDBPyConnection
    began: Callable[[], datetime | None]
    defined: Callable[[], bool]
    definitions: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    _told: datetime | None = field(default=None)

    def tell(self, needed: Callable[[], bool]) -> None:
        """Before a statement, outside of DuckDB's transactions; `needed` if it may tell the time.

        It takes milliseconds, so only such statements have it done, and the first after the end of
        the transaction that is no longer to be told of.
        """
        began = self.began()
        if began == self._told or (began is not None and not needed()):
            return
        for name in self.names:
            self.con.execute(f"DROP MACRO temp.main.{name}")
        self.names, self.definitions = (), ()
        if began is not None:
            users = self._users() if self.defined() else frozenset()
            self.names = tuple(name for name in _FUNCTIONS if name not in users)
            create = "CREATE OR REPLACE TEMP MACRO"
            self.definitions = tuple(
                f"{create} {name}() AS {_value(began, name)}" for name in self.names
            )
        for sql in self.definitions:
            self.con.execute(sql)
        self._told = began

    def _users(self) -> frozenset[str]:
        """The names of users' macros, which take the place of functions themselves."""
        return frozenset(name for (name,) in self.con.execute(_MACROS).fetchall())
