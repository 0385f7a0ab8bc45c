"""A query's page as one file, which needs no server and no network."""

from __future__ import annotations

import base64
import hashlib
import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from minishark.model.events.kinds import AnyEvent
from minishark.session.page import views
from minishark.session.page.board import Board

STATIC = Path(__file__).with_name("static")
_EXPLAINED_MAX = 2_000  # tasks whose placement goes along, the longest first


def newest_query(board: Board) -> str | None:
    """The key of the newest query that is over; None if there is none."""
    over = (key for key, query in reversed(board.queries.items()) if query.state != "running")
    return next(over, None)


def export_query(board: Board, key: str) -> str | None:
    """The page of a query as HTML; None if it is not known."""
    query = board.queries.get(key)
    if query is None:
        return None
    session = board.sessions.get(query.session)
    return _page(board, key, session.began.version if session else "")


@dataclass(frozen=True, slots=True)
class QueryPage:
    """The page of one query that is over; called, its HTML.

    Attributes:
        events: all events of the query.
        version: minishark's.
    """

    events: tuple[AnyEvent, ...]
    version: str

    def __call__(self) -> str:
        board = Board()
        for event in self.events:
            board.apply(event, "")
        (key,) = board.queries
        return _page(board, key, self.version)


def _page(board: Board, key: str, version: str) -> str:
    return _document(
        f"Query {board.queries[key].number}",
        {
            "query": views.query(board, key),
            "why": _explained(board, key),
            "now_s": board.now_s,
            "version": version,
        },
    )


def _explained(board: Board, key: str) -> dict[str, Any]:
    stages = board.queries[key].by_index
    tasks = [task for stage in stages.values() for task in stage.ended.values()]
    longest = sorted(tasks, key=lambda task: -task.figures.run_s)[:_EXPLAINED_MAX]
    return {
        f"{task.stage}.{task.task}": views.why(board, key, task.stage, task.task)
        for task in longest
    }


def _document(title: str, data: Any) -> str:
    """One file; its policy allows no script or style but these, and no connection at all."""
    style, script = ((STATIC / name).read_text("utf-8") for name in ("page.css", "page.js"))
    # In a script element, only `<` could end it or begin a comment.
    shown = msgspec.json.encode(data).decode().replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    body = (STATIC / "index.html").read_text("utf-8")
    body = body[body.index("<body>") : body.index("</body>")]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(title)} · minishark</title>\n<style>{style}</style>\n</head>\n"
        f'{body}<script id="export" type="application/json">{shown}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
