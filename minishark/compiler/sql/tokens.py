"""SQL text as DuckDB's tokens: a cursor to parse with, parameters, arguments. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import duckdb

from minishark.errors import QueryError

Token: TypeAlias = tuple[int, str, Any]
"""A token's offset in the text, its text, and its type in DuckDB's terms."""

_FIRST_COMMENTS = re.compile(r"\s*(?:--[^\n]*\n\s*)*")
# Without quotes, dollars and asterisks, which would end a constant or a comment that began above.
_LAST_COMMENT = re.compile(r"\n\s*--[^\n'\"$*]*\Z")
_NAMED_ARGUMENT = re.compile(r"(\w+)\s*:?=\s*(.*)", re.DOTALL)


def without_comments_around(sql: str) -> str:
    """A statement without the comment lines before it, and without one after it."""
    begin, last = _FIRST_COMMENTS.match(sql), _LAST_COMMENT.search(sql)
    return sql[begin.end() if begin else 0 : last.start() if last else None]


def sql_tokens(sql: str) -> list[Token]:
    """The tokens of a text, without comments."""
    encoded = sql.encode()  # DuckDB counts bytes
    marks = [*duckdb.tokenize(sql), (len(encoded), None)]
    texts, offset = [], len(encoded[: marks[0][0]].decode())
    for (start, type_), (end, _) in itertools.pairwise(marks):
        piece = encoded[start:end].decode()
        texts.append((offset, piece.strip(), type_))
        offset += len(piece)
    return [token for token in texts if token[2] != duckdb.token_type.comment]


class TokenCursor:
    """Reads a statement token by token."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._tokens = sql_tokens(sql)
        self._at = 0

    @property
    def code(self) -> str:
        tokens = self._tokens
        return " ".join(t for _, t, type_ in tokens if type_ != duckdb.token_type.string_const)

    @property
    def offset(self) -> int:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else len(self._sql)

    @property
    def rest(self) -> str:
        return self._sql[self.offset :]

    @property
    def next(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def ends_with(self, *words: str) -> bool:
        return [text.upper() for _, text, _ in self._tokens[-len(words) :]] == list(words)

    def skip(self, *words: str) -> bool:
        """Move past these words, if all of them come next in this order."""
        end = self._at + len(words)
        if [text.upper() for _, text, _ in self._tokens[self._at : end]] != list(words):
            return False
        self._at = end
        return True

    def skip_any(self, *words: str) -> None:
        """Move past all of the next tokens that are among these words."""
        while self.next and self.next.upper() in words:
            self._at += 1

    def skip_to(self, word: str) -> bool:
        """Move to the next token that is this word, outside of brackets; whether there is one."""
        depth = 0
        for at in range(self._at, len(self._tokens)):
            _, text, type_ = self._tokens[at]
            if type_ == duckdb.token_type.operator:
                depth += text.count("(") - text.count(")")
            elif depth == 0 and text.upper() == word:
                self._at = at
                return True
        return False

    def word(self) -> str:
        text = self.next.upper()
        self._at += 1
        return text

    def name(self) -> tuple[str, ...]:
        parts = []
        while self.next.startswith('"') or self.next.isidentifier():
            name = self.next
            parts.append(name[1:-1].replace('""', '"') if name.startswith('"') else name)
            self._at += 1
            if not self.skip("."):
                break
        return tuple(parts)


class SqlText(str):
    """SQL that stands for itself among parameter values."""

    __slots__ = ()


def split_arguments(text: str) -> list[str]:
    """The parts of `text` between commas outside of brackets."""
    parts, depth, first = [], 0, 0
    for start, token, type_ in sql_tokens(text):
        if type_ != duckdb.token_type.operator:
            continue
        for offset, char in enumerate(token):
            depth += (char in "([{") - (char in ")]}")
            if char == "," and depth == 0:
                parts.append(text[first : start + offset].strip())
                first = start + offset + 1
    last = text[first:].strip()
    return [*parts, last] if last else parts


def find_calls(sql: str, functions: Collection[str]) -> list[tuple[int, int, str, str]]:
    """The calls of functions in a text, which are not inside each other.

    Args:
        sql: any statement.
        functions: names in lower case.

    Returns:
        for each call the places of its first character and of the one after its last, the
        function in lower case, and the text between the brackets.
    """
    found: list[tuple[int, int, str, str]] = []
    tokens = sql_tokens(sql)
    for at, (first, name, _) in enumerate(tokens[:-1]):
        start = tokens[at + 1][0]
        is_call = name.lower() in functions and sql.startswith("(", start)
        if not is_call or (found and first < found[-1][1]):
            continue
        end = _closing_bracket(tokens[at + 1 :])
        if end is not None:
            found.append((first, end + 1, name.lower(), sql[start + 1 : end]))
    return found


def _closing_bracket(tokens: Iterable[Token]) -> int | None:
    """The place of the bracket that closes the one with which the tokens begin."""
    depth = 0
    for start, token, type_ in tokens:
        if type_ != duckdb.token_type.operator:
            continue
        for offset, char in enumerate(token):
            depth += (char in "([{") - (char in ")]}")
            if depth == 0:
                return start + offset
    return None


def call_arguments(text: str) -> Sequence[SqlText] | Mapping[str, SqlText]:
    """The arguments between brackets, by name if all of them are named."""
    text = text.strip()
    arguments = split_arguments(text[1:-1]) if text.startswith("(") else []
    named = [found for found in map(_NAMED_ARGUMENT.match, arguments) if found]
    if arguments and len(named) == len(arguments):
        return {found[1]: SqlText(found[2]) for found in named}
    return [SqlText(argument) for argument in arguments]


def fill_parameters(sql: str, values: Sequence[Any] | Mapping[str, Any]) -> str:
    """`sql` with a literal for each `?`, `$1` or `$name`; `SqlText` is put in as it is."""
    named = values if isinstance(values, Mapping) else {str(i + 1): v for i, v in enumerate(values)}
    out: list[str] = []
    used: dict[str, None] = {}
    done = position = 0
    tokens = sql_tokens(sql)
    skip = False
    for (start, text, type_), following in itertools.zip_longest(tokens, tokens[1:]):
        if skip:
            skip = False
            continue
        if type_ != duckdb.token_type.operator or text[:1] not in ("?", "$"):
            continue
        # DuckDB's tokenizer may split `?1` and `$name` into two tokens.
        if text == "?" and following and following[0] == start + 1 and following[1].isdigit():
            name, end, skip = following[1], start + 1 + len(following[1]), True
        elif text.startswith("?"):
            position += 1
            name, end = str(position), start + 1
        else:
            name = text[1:] or (following[1] if following else "")
            end = start + 1 + len(name)
            skip = not text[1:]
        out += [sql[done:start], _literal(name, named)]
        used[name] = None
        done = end
    extra = [name for name in named if name not in used]
    if extra:
        raise QueryError(f"There is no parameter for the value of {', '.join(extra)}.")
    return "".join([*out, sql[done:]])


def _literal(name: str, values: Mapping[str, Any]) -> str:
    if name not in values:
        raise QueryError(f"Parameter {name} has no value; pass one in params.")
    value = values[name]
    if isinstance(value, SqlText):
        return f"({value})"
    try:
        return f"({duckdb.ConstantExpression(value)})"
    except (duckdb.Error, TypeError) as error:
        raise QueryError(f"Parameter {name}: {error}") from error
