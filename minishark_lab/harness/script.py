"""Scripts that measure: their options are a dataclass, as an experiment's parameters are.

    @dataclass(frozen=True, kw_only=True)
    class WritesOptions(Options):
        rows: Annotated[Count, described("of the large table")] = 6_000_000

    def main(options: WritesOptions) -> int: ...

    if __name__ == "__main__":
        run_script(main, quick={"rows": 10_000})

The command line derives from the fields: `--rows 5`, a flag for a `bool`, several values for a
tuple (`--keys 1 2` or `--keys 1,2`). `--quick` takes the values of a smoke test for all that is not
given, and `--json` writes what was measured. The script's docstring is its help.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from minishark.cli.tpch.locations import default_data_folder
from minishark.cli.tpch.tables import tpch_tables
from minishark.errors import MinisharkError
from minishark_lab.harness.parameters import Positive, check_names, checked
from minishark_lab.tpch.data import tpch_folder
from minishark_lab.tpch.run import versions

Chosen = TypeVar("Chosen", bound="Options")


def described(text: str = "", *, choices: Iterable[str] = (), positional: bool = False) -> Meta:
    """An option's help, the texts that it takes if not all, and whether it stands without name."""
    extra = {"choices": tuple(choices), "positional": positional}
    return Meta(description=text or None, extra=extra)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What all scripts take."""

    json: Annotated[Path | None, described("write what was measured")] = None

    def write(self, report: Mapping[str, Any]) -> None:
        """Write a report with options, command and versions, if a file was asked for."""
        if self.json is not None:
            chosen = {name: each for name, each in asdict(self).items() if name != "json"}
            full = {"command": command(), "versions": versions(), "options": chosen, **report}
            text = msgspec.json.encode(full, enc_hook=str)
            self.json.write_bytes(msgspec.json.format(text, indent=2) + b"\n")


@dataclass(frozen=True, kw_only=True)
class TpchOptions(Options):
    """What scripts on TPC-H data take."""

    scale: Annotated[Positive, described("TPC-H's scale factor")] = 1.0
    data: Path = field(default_factory=default_data_folder)

    def tables(self) -> dict[str, str]:
        """TPC-H's tables at this scale (name to Parquet pattern); generated if need be."""
        return tpch_tables(tpch_folder(self.scale, str(self.data)))


def command() -> str:
    """The command line of this script, to be quoted beside its figures."""
    return shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def run_sections(
    sections: Mapping[str, Callable[[Chosen], Iterable[Mapping[str, Any]]]],
    names: Sequence[str],
    options: Chosen,
) -> None:
    """Measure the sections that are named, or all; print each row as JSON, and write all."""
    rows = []
    for name in names or sections:
        for row in sections[name](options):
            rows.append({"section": name, **row})
            print(msgspec.json.encode(rows[-1]).decode(), flush=True)
    options.write({"rows": rows})


def print_table(header: str, rows: Sequence[Sequence[str]]) -> None:
    """Print Markdown for the documentation; the header's cells are parted by `|`.

    The first column is aligned to the left, the others to the right.
    """
    columns = header.count("|")
    print(f"| {header} |\n|---|{'---:|' * columns}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def run_script(
    main: Callable[[Chosen], int | None], *, quick: Mapping[str, Any] | None = None
) -> NoReturn:
    """Run a script's `main` with the options of the command line, and exit with its status."""
    kind = get_type_hints(main)["options"]
    try:
        options = parse(kind, sys.argv[1:], sys.modules["__main__"].__doc__, quick)
        sys.exit(main(options))
    except MinisharkError as error:
        sys.exit(f"Error: {error}")


def parse(
    kind: type[Chosen],
    arguments: Sequence[str],
    doc: str | None = None,
    quick: Mapping[str, Any] | None = None,
) -> Chosen:
    """Options from a command line; SystemExit with a sentence if one makes no sense."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments_of = {each.name: _Argument.of(each, hint) for each, hint in _hinted(kind)}
    for argument in arguments_of.values():
        argument.add_to(parser)
    if quick is not None:
        parser.add_argument("--quick", action="store_true", help="smoke test with tiny values")
    given = vars(parser.parse_args(arguments))
    values = {**(quick or {}), **given} if given.pop("quick", False) else given
    try:
        for name in given:
            values[name] = arguments_of[name].read(given[name])
        return checked(kind, values, strict=False)
    except ValueError as error:
        parser.error(str(error))


def _hinted(kind: type) -> list[tuple[Field[Any], Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return [(each, hints[each.name]) for each in fields(kind)]


@dataclass(frozen=True)
class _Argument:
    """A field as an argument of the command line."""

    field: Field[Any]
    kind: Any  # without None and annotations
    text: str | None
    choices: tuple[str, ...]
    positional: bool

    @classmethod
    def of(cls, field: Field[Any], hint: Any) -> _Argument:
        kind, metas = _stripped(hint)
        extra: dict[str, Any] = {}
        for meta in metas:
            extra |= meta.extra or {}
        text = next((each.description for each in metas if each.description), None)
        return cls(field, kind, text, extra.get("choices", ()), extra.get("positional", False))

    @property
    def is_tuple(self) -> bool:
        return get_origin(self.kind) is tuple

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """What is not given is left to the field's default."""
        name = f"--{self.field.name.replace('_', '-')}"
        if self.kind is bool:
            parser.add_argument(
                name, action="store_true", help=self.text, default=argparse.SUPPRESS
            )
            return
        settings: dict[str, Any] = {"help": self.text, "default": argparse.SUPPRESS}
        settings["metavar"] = "|".join(self.choices) or _metavar(self.kind)
        defaults = (self.field.default, self.field.default_factory)
        optional = any(each is not MISSING for each in defaults)
        if self.is_tuple:
            settings["nargs"] = "*" if optional else "+"
        elif self.positional and optional:
            settings["nargs"] = "?"
        if self.positional:
            parser.add_argument(self.field.name, **settings)
        else:
            parser.add_argument(name, dest=self.field.name, required=not optional, **settings)

    def read(self, given: Any) -> Any:
        """The value as given, a tuple's in parts; ValueError if it is none of the choices."""
        if self.is_tuple:
            given = [part for text in given for part in text.split(",") if part]
        if self.choices:
            check_names(self.field.name, given if self.is_tuple else [given], self.choices)
        return given


def _stripped(hint: Any) -> tuple[Any, list[Meta]]:
    """A type without None and annotations, and what annotates it."""
    if get_origin(hint) is Annotated:
        inner, metas = _stripped(get_args(hint)[0])
        return inner, [*(each for each in hint.__metadata__ if isinstance(each, Meta)), *metas]
    if get_origin(hint) in (Union, UnionType):
        return _stripped(next(each for each in get_args(hint) if each is not type(None)))
    return hint, []


def _metavar(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return _metavar(_stripped(get_args(kind)[0])[0])
    return {int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")
