"""Views as the planning database holds them, and which of them read files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from minishark.compiler.sql.tokens import Cursor, mentioned
from minishark.model.expressions import quote

_MAY_NAME_FILES = re.compile("parquet|csv|tsv|json", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class View:
    """A view, by its definition."""

    name: str
    columns: str  # the names that it gives its columns, in brackets; empty if it gives none
    query: str
    is_temporary: bool = False

    def relation(self, query: str) -> str:
        """A relation with the columns of this view, over a query that means the same as its own."""
        if not self.columns:
            return f"({query})"
        return f"(FROM ({query}) AS {quote(self.name)}{self.columns})"


def view_of(definition: str) -> View:
    """The view that a CREATE VIEW in DuckDB's spelling defines."""
    cursor = Cursor(definition)
    cursor.skip("CREATE")
    is_temporary = cursor.next.startswith("TEMP")
    cursor.skip_any("TEMP", "TEMPORARY")
    cursor.skip("VIEW")
    name = cursor.name()[-1]
    columns = cursor.until("AS")
    cursor.skip("AS")
    return View(name, columns, cursor.until(), is_temporary)


def may_name_files(sql: str) -> bool:
    """Whether a text may name files that tasks can read in parts; cheap."""
    return _MAY_NAME_FILES.search(sql) is not None


def over_files(views: Mapping[str, View]) -> dict[str, View]:
    """The views that may read such files, themselves or by others, of all by name in lower case."""
    reading: dict[str, View] = {}
    while True:
        more = {
            name: view
            for name, view in views.items()
            if may_name_files(view.query) or mentioned(view.query, reading)
        }
        if more == reading:
            return reading
        reading = more
