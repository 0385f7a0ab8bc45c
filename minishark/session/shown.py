"""A session as HTML, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence

from minishark.dataframe.show import human_bytes
from minishark.model.events.kinds import NodeReport
from minishark.session.catalog import TableInfo

_TABLES_MAX = 50
_COLUMNS = ("table", "rows", "size", "partitions", "replicas")


def session_html(nodes: Sequence[NodeReport], tables: Sequence[TableInfo], page: str | None) -> str:
    """The cluster in a sentence, its tables, and a link to the page at that address, if any."""
    alive = [node for node in nodes if node.alive]
    slots = sum(node.slots for node in alive)
    stored = human_bytes(sum(node.stored_bytes for node in alive))
    parts = [f"{len(alive)} of {len(nodes)} nodes alive", f"{slots} slots", f"{stored} stored"]
    if page is not None:
        parts.append(f'<a href="{html.escape(page)}">page</a>')
    head = f"<p><b>minishark</b>: {', '.join(parts)}</p>"
    if not tables:
        return f"{head}<p>No tables yet: session.create_table(name, data) loads some.</p>"
    rows = "".join(map(_row, tables[:_TABLES_MAX]))
    more = len(tables) - _TABLES_MAX
    note = f"<p>and {more} more</p>" if more > 0 else ""
    names = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    return f"{head}<table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>{note}"


def _row(info: TableInfo) -> str:
    if info.rows is None:
        cells = [html.escape(info.name), "view", "", "", ""]
    else:
        cells = [
            html.escape(info.name),
            f"{info.rows:,}",
            human_bytes(info.bytes or 0),
            str(info.partitions or 0),
            f"{info.replicas} of {info.replicas_wanted}" if info.replicas is not None else "",
        ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
