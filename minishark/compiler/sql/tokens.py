"""SQL text as DuckDB's tokens: a cursor over them, names and calls, and edits of the text. Pure.

All that reads or rewrites SQL goes through here. Places are counted in characters of the text; in
DuckDB's tokens and syntax trees they are bytes of UTF-8.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import duckdb

from minishark.errors import QueryError, UnsupportedError
from minishark.model.expressions import quote, quote_text

_TYPES = duckdb.token_type
_NAMES = (_TYPES.identifier, _TYPES.keyword)
_OPEN = {"(": ")", "[": "]", "{": "}", "CASE": "END"}
_FIRST_COMMENTS = re.compile(r"\s*(?:--[^\n]*\n\s*)*")
# Without quotes, dollars and asterisks, which would end a constant or a comment that began above.
_LAST_COMMENT = re.compile(r"\n\s*--[^\n'\"$*]*\Z")
_NAMED_ARGUMENT = re.compile(r"(\w+)\s*(?::=|=>|=)\s*(.*)", re.DOTALL)
_WORD = re.compile(r"\w+")
SETTINGS = ("SET", "RESET", "PRAGMA")
"""How statements begin that change settings."""


class Token(NamedTuple):
    """A word, a name, a constant or an operator."""

    first: int  # its place in the text
    text: str
    type: Any  # in DuckDB's terms
    depth: int = 0  # how many brackets and CASEs are open around it

    @property
    def last(self) -> int:
        """The place after it."""
        return self.first + len(self.text)

    @property
    def word(self) -> str:
        """Its text as keywords are compared: in upper case, but for what is in quotes."""
        return self.text if self.is_text or self.text[:1] == '"' else self.text.upper()

    @property
    def is_name(self) -> bool:
        return self.type in _NAMES

    @property
    def is_text(self) -> bool:
        return bool(self.type == _TYPES.string_const)


class Edit(NamedTuple):
    """What comes in place of a text's characters from `first` up to `last`."""

    first: int
    last: int
    text: str


def edited(sql: str, edits: Iterable[Edit]) -> str:
    """A text with edits, which come in order and do not overlap."""
    pieces, done = [], 0
    for edit in edits:
        pieces += [sql[done : edit.first], edit.text]
        done = edit.last
    return "".join([*pieces, sql[done:]]) if pieces else sql


def syntax_tree(text: str, sql: str) -> Any:
    """DuckDB's syntax tree of a statement, which it gives as JSON, with places in characters."""
    encoded = sql.encode()

    def place(offset: int) -> int:
        return len(encoded[:offset].decode())

    def in_characters(node: dict[str, Any]) -> dict[str, Any]:
        first = node.get("query_location")
        if isinstance(first, int):
            node["query_location"] = place(first)
            end = place(first + node.get("query_location_length", 0))
            node["query_location_length"] = end - place(first)
        return node

    return json.loads(text, object_hook=None if sql.isascii() else in_characters)


def without_comments_around(sql: str) -> str:
    """A statement without the comment lines before it, and without one after it."""
    begin, last = _FIRST_COMMENTS.match(sql), _LAST_COMMENT.search(sql)
    return sql[begin.end() if begin else 0 : last.start() if last else None]


def without_comments(sql: str) -> str:
    """A text without comments."""
    return "".join(
        piece if type_ != _TYPES.comment else " " * (not sql[:first][-1:].isspace())
        for first, piece, type_ in _pieces(sql)
    ).strip()


def _pieces(sql: str) -> Iterator[tuple[int, str, Any]]:
    """Each token's place, its text with the space after it, and its type."""
    marks = duckdb.tokenize(sql)
    starts = [start for start, _ in marks]
    if not sql.isascii():  # DuckDB counts bytes
        encoded, ends = sql.encode(), [0, *starts]
        pieces = (encoded[start:end] for start, end in itertools.pairwise(ends))
        starts = [*itertools.accumulate(len(piece.decode()) for piece in pieces)]
    for (_, type_), (start, end) in zip(
        marks, itertools.pairwise([*starts, len(sql)]), strict=True
    ):
        yield start, sql[start:end], type_


def sql_tokens(sql: str) -> list[Token]:
    """The tokens of a text, without comments."""
    tokens: list[Token] = []
    ends: list[str] = []  # what ends the brackets and CASEs that are open
    for first, piece, type_ in _pieces(sql):
        if type_ == _TYPES.comment:
            continue
        text = piece.rstrip()
        word = "" if tokens and tokens[-1].text == "." else text.upper()  # `t.end` ends nothing
        while word in (")", "]", "}") and ends[-1:] == ["END"]:  # of a CASE that is not ended
            ends.pop()
        if ends[-1:] == [word]:
            ends.pop()
        tokens.append(Token(first, text, type_, len(ends)))
        if word in _OPEN:
            ends.append(_OPEN[word])
    return tokens


def unquoted(name: str) -> str:
    """A name without its quotes."""
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


class Name(NamedTuple):
    """A name of one or more parts, and where it stands."""

    first: int
    last: int
    path: tuple[str, ...]
    at: int  # the number of its first token
    after: int  # of the one after its last

    @property
    def key(self) -> tuple[str, ...]:
        """Its parts as names are compared."""
        return tuple(part.lower() for part in self.path)


def names_in(tokens: Sequence[Token]) -> Iterator[Name]:
    """The names among tokens, keywords too, each with all of its parts."""
    at = 0
    while at < len(tokens):
        name = name_at(tokens, at)
        if name is not None:
            yield name
        at = at + 1 if name is None else name.after


def name_at(tokens: Sequence[Token], at: int) -> Name | None:
    """The name that begins at a token; None if it is none."""
    path, next_ = [], at
    while next_ < len(tokens) and tokens[next_].is_name:
        path.append(unquoted(tokens[next_].text))
        after = next_ + 1
        if after == len(tokens) or tokens[after].text != ".":
            break
        next_ += 2
    return Name(tokens[at].first, tokens[after - 1].last, (*path,), at, after) if path else None


def without_database(sql: str, database: str, names: AbstractSet[str]) -> str:
    """A text in which names of a database's schema main, in lower case, stand without it."""
    if not mentioned(sql, (database,)):
        return sql
    tokens = sql_tokens(sql)
    return edited(
        sql,
        (
            Edit(name.first, tokens[name.at + 2].first, "")
            for name in names_in(tokens)
            if name.key[:1] == (database,)
            and not names.isdisjoint(name.key[2 if name.key[1:2] == ("main",) else 1 :][:1])
        ),
    )


def mentioned(sql: str, names: Iterable[str]) -> list[str]:
    """The names that a text has in it as words: of tables, columns, or in texts and comments."""
    text = sql.lower()
    quoted = text.replace('""', '"')
    there = [name for name in names if name.lower() in quoted]  # perhaps as parts of words
    words = {*_WORD.findall(text)} if there else ()
    return [
        name for name in there if name.lower() in words or _WORD.fullmatch(name.lower()) is None
    ]


class Cursor:
    """Reads a text token by token."""

    def __init__(self, sql: str, tokens: Sequence[Token] | None = None) -> None:
        """At the beginning of a text, whose tokens are known or not."""
        self.sql = sql
        self.tokens = sql_tokens(sql) if tokens is None else tokens
        self._at = 0

    def again(self) -> Cursor:
        """Another cursor, at the beginning of the text."""
        return Cursor(self.sql, self.tokens)

    @property
    def next(self) -> str:
        """The next token, as keywords are compared; empty at the end."""
        return self.tokens[self._at].word if self._at < len(self.tokens) else ""

    @property
    def offset(self) -> int:
        """The place of the next token."""
        return self.tokens[self._at].first if self._at < len(self.tokens) else len(self.sql)

    @property
    def rest(self) -> str:
        return self.sql[self.offset :]

    @property
    def code(self) -> str:
        """All tokens but texts."""
        return " ".join(token.text for token in self.tokens if not token.is_text)

    def comes(self, *words: str) -> bool:
        """Whether these words come next, in this order."""
        end = self._at + len(words)
        return [token.word for token in self.tokens[self._at : end]] == list(words)

    def skip(self, *words: str) -> bool:
        """Move past these words, if all of them come next in this order."""
        is_there = self.comes(*words)
        self._at += len(words) * is_there
        return is_there

    def skip_any(self, *words: str) -> None:
        """Move past all of the next tokens that are among these words."""
        while self.next and self.next in words:
            self._at += 1

    def skip_to(self, *phrases: str) -> bool:
        """Move to where one of these begins outside of brackets; stay if none does."""
        begin, place = {phrase.split()[0] for phrase in phrases}, self._at
        for at in range(self._at, len(self.tokens)):
            token = self.tokens[at]
            if token.depth == 0 and token.word in begin:
                self._at = at
                if any(self.comes(*phrase.split()) for phrase in phrases):
                    return True
        self._at = place
        return False

    def take(self) -> str:
        """Move past the next token, and return it as keywords are compared."""
        text = self.next
        self._at += 1
        return text

    def path(self) -> tuple[str, ...]:
        """Move past a name, if one comes next; its parts, of which there are none otherwise."""
        name = name_at(self.tokens, self._at)
        if name is None:
            return ()
        self._at = name.after
        return name.path

    def name(self) -> tuple[str, ...]:
        """Move past a name; its parts (QueryError if there is none)."""
        name = self.ahead()
        self.path()
        return name

    def ahead(self) -> tuple[str, ...]:
        """The parts of the name that comes next (QueryError if there is none)."""
        return self.here().path

    def here(self) -> Name:
        """The name that comes next (QueryError if there is none)."""
        name = name_at(self.tokens, self._at)
        if name is None:
            if self.next.startswith("'"):
                raise UnsupportedError(f"Write a name in double quotes: {quote(self.next[1:-1])}.")
            missing = f"There is no name before {self.next}."
            raise QueryError(
                missing if self.next else "The statement ends where a name should come."
            )
        return name

    def until(self, *phrases: str) -> str:
        """The text up to one of these outside of brackets, or the end; moves there."""
        start = self.offset
        if not self.skip_to(*phrases):
            self._at = len(self.tokens)
        return self.sql[start : self.offset].strip().rstrip(";").rstrip()

    def alias(self, default: str, *ends: str) -> str:
        """An optional alias before one of the words `ends`."""
        if self.skip("AS") or (self.next and self.next not in (*ends, ";")):
            return self.name()[0]
        return default

    def brackets(self) -> str:
        """The text in brackets that comes next, with these; QueryError if there is none."""
        if self.next != "(":
            where = f"before {self.next}" if self.next else "at the end of the statement"
            raise QueryError(f"A list in brackets is missing {where}.")
        start = self.tokens[self._at]
        self._at += 1
        while self._at < len(self.tokens) and self.tokens[self._at].depth > start.depth:
            self._at += 1
        if not self.skip(")"):
            raise QueryError("A bracket is not closed.")
        return self.sql[start.first : self.tokens[self._at - 1].last]

    def names_in_brackets(self) -> tuple[str, ...] | None:
        """Names in brackets, if those come next."""
        if not self.skip("("):
            return None
        names = [self.name()[0]]
        while self.skip(","):
            names.append(self.name()[0])
        self.skip(")")
        return tuple(names)

    def parts(self, *ends: str) -> list[str]:
        """What commas outside of brackets separate, up to one of these words."""
        parts = [self.until(",", *ends)]
        while self.skip(","):
            parts.append(self.until(",", *ends))
        return parts


def split_arguments(text: str) -> list[str]:
    """The parts of `text` between commas outside of brackets."""
    *parts, last = (part.strip() for part in _between_commas(text))
    return [*parts, last] if last else parts


def _between_commas(text: str) -> Iterator[str]:
    first = 0
    for token in sql_tokens(text):
        if token.text == "," and token.depth == 0:
            yield text[first : token.first]
            first = token.last
    yield text[first:]


class Call(NamedTuple):
    """A call of a function, from its name up to the bracket that ends it."""

    first: int
    last: int
    function: str  # in lower case
    arguments: str  # the text between the brackets
    after: int  # the number of the token after it


def find_calls(sql: str, functions: Collection[str]) -> Iterator[Call]:
    """The calls of functions, whose names are in lower case, that are not inside each other."""
    tokens, at = sql_tokens(sql) if mentioned(sql, functions) else [], 0
    while at + 1 < len(tokens):
        name, bracket = tokens[at : at + 2]
        at += 1
        if name.text.lower() not in functions or bracket.text != "(":
            continue
        rest = range(at + 1, len(tokens))
        end = next((i for i in rest if tokens[i].depth <= bracket.depth), None)
        if end is not None:
            inside = sql[bracket.last : tokens[end].first]
            yield Call(name.first, tokens[end].last, name.text.lower(), inside, end + 1)
            at = end + 1


def named_argument(text: str) -> tuple[str, str]:
    """The name of an argument, which is empty if it has none, and what it is."""
    named = _NAMED_ARGUMENT.fullmatch(text)
    return (named[1], named[2]) if named else ("", text)


def call_arguments(text: str) -> Sequence[SqlText] | Mapping[str, SqlText]:
    """The arguments between brackets, by name if all of them are named."""
    text = text.strip()
    arguments = split_arguments(text[1:-1]) if text.startswith("(") else []
    named = {name: SqlText(value) for name, value in map(named_argument, arguments) if name}
    if arguments and len(named) == len(arguments):
        return named
    return [SqlText(argument) for argument in arguments]


class SqlText(str):
    """SQL that stands for itself among parameter values."""

    __slots__ = ()


def fill_parameters(sql: str, values: Sequence[Any] | Mapping[str, Any]) -> str:
    """`sql` with a literal for each `?`, `$1` or `$name`; `SqlText` is put in as it is."""
    named = values if isinstance(values, Mapping) else {str(i + 1): v for i, v in enumerate(values)}
    used: dict[str, None] = {}

    def literal(name: str) -> str:
        used[name] = None
        return _literal(name, named)

    filled = edited(sql, _parameters(sql, literal))
    extra = [name for name in named if name not in used]
    if extra:
        raise QueryError(f"There is no parameter for the value of {', '.join(extra)}.")
    return filled


def without_parameters(sql: str) -> str:
    """`sql` with NULL for each parameter."""
    return edited(sql, _parameters(sql, lambda _: "(NULL)"))


def _parameters(sql: str, literal: Callable[[str], str]) -> Iterator[Edit]:
    """What puts a literal in the place of each parameter, given its name or number."""
    numbers = itertools.count(1)
    tokens = sql_tokens(sql)
    before = ""
    for mark, name in itertools.zip_longest(tokens, tokens[1:]):
        is_searched, before = before == "IN", mark.word
        if mark.text not in ("?", "$"):
            continue
        has_name = name is not None and name.first == mark.last
        if mark.text == "?" and not (has_name and name.text.isdigit()):
            key, last = str(next(numbers)), mark.last
        else:
            key, last = (name.text, name.last) if has_name else ("", mark.last)
        # `IN (value)` would be a list of one value: here the value is the list.
        yield Edit(mark.first, last, f"coalesce{literal(key)}" if is_searched else literal(key))


def fill_variables(sql: str, names: Callable[[], Collection[str]]) -> str:
    """`sql` with the value of a variable, of these names in lower case, for each `$name`.

    There are none to ask for where `$` is only in texts, or before numbers.
    """
    marks = [
        (mark, name)
        for mark, name in itertools.pairwise(sql_tokens(sql) if "$" in sql else ())
        if mark.text == "$" and name.first == mark.last and not name.text.isdigit()
    ]
    variables = names() if marks else ()
    return edited(
        sql,
        (
            Edit(mark.first, name.last, f"getvariable({quote_text(name.text)})")
            for mark, name in marks
            if name.text.lower() in variables
        ),
    )


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
