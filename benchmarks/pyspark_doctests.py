"""PySpark's own doctests on minishark: how many outputs are as printed there.

    python benchmarks/pyspark_doctests.py FOLDER

FOLDER is `python/` of Spark's sources, or a folder that has `pyspark/` of an installed PySpark: its
files are read as text, and nothing of it is imported. `pyspark` means minishark to the examples. An
output counts as the same if doctest says so, white space aside; with `--values`, tables that
`show()` draws count by the cells of their rows, without heads, and errors by their classes.
Examples that name the JVM, streaming or Spark Connect are left out. A second share leaves out what
minishark says it has not, too (docs/pyspark.md), such as sketches. Of what differs,
docs/pyspark_notes.toml has the reasons by function; names without one are printed.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import re
import sys
import tomllib
import types
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import minishark
import minishark.adapters.pyspark
import minishark.errors
import minishark.functions
import minishark.spark
import minishark.spark.functions
import minishark.types
from minishark.session.session import Session
from minishark_lab.harness.script import Options, described, print_table, run_script

FILES = {
    "functions": ("sql/functions/builtin.py", ""),
    "DataFrame": ("sql/dataframe.py", "DataFrame"),
    "Column": ("sql/column.py", "Column"),
    "GroupedData": ("sql/group.py", "GroupedData"),
    "Window": ("sql/window.py", "Window"),
}
NOTES = Path(__file__).parents[1] / "docs" / "pyspark_notes.toml"
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_ELSEWHERE = re.compile(
    r"_jvm|_jdf|java_|reflect|JVM|readStream|writeStream|[Ww]atermark|spark\.remote|Connect"
)
_NOT_HERE = re.compile(  # docs/pyspark.md says so
    r"hll_|kll_|theta_|sketch|pandas_api|ps\.|session\.profile|sc\.|spark\.sparkContext|mergeInto|"
    r"collation|TaskContext|inputFiles|executionInfo|metadataColumn|withMetadata|storageLevel|"
    r"asTable"
)
_ERROR = re.compile(r"[\w.]*?(\w+(?:Error|Exception)):")
_RULE = re.compile(r"^\s*[+][-+]+[+]\s*$|^[ ─]*─[ ─]*$", re.MULTILINE)


_COUNT = re.compile(r"^\s*(only showing top.*|\d+ rows?.*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class DoctestOptions(Options):
    """Which doctests, and how outputs are compared."""

    folder: Annotated[Path, described("Spark's python/, or what has pyspark/", positional=True)]
    only: Annotated[str, described("the name of one class or function")] = ""
    values: Annotated[bool, described("compare the rows of tables, not heads and drawing")] = False
    failures: Annotated[bool, described("print what differs")] = False


class _Checker(doctest.OutputChecker):
    """Compares the rows of tables, and the classes of errors."""

    def check_output(self, want: str, got: str, flags: int) -> bool:
        """Whether an output is the same."""
        return _is_such(got, want) or super().check_output(_rows(want), _rows(got), flags)


def _is_such(got: str, want: str) -> bool:
    """Whether a message is of an error that `except` would catch as the wanted one."""
    kinds = [_ERROR.match(message) for message in (got, want)]
    named = [getattr(minishark.errors, kind[1], None) for kind in kinds if kind]
    return len(named) == 2 and None not in named and issubclass(*named)


def _rows(text: str) -> str:
    """The cells of a table's rows; what is no table as it is."""
    _, *parts = _RULE.split(text)
    if not parts:
        return text
    rows = parts[1] if len(parts) > 2 else parts[0]
    return _COUNT.sub("", rows.replace("|", " ").replace("NaN", "nan")).strip()


def docstrings(file: Path, kind: str) -> Iterator[tuple[str, str]]:
    """The names and docstrings of a file's functions, or of a class and its methods."""
    holder: ast.AST = ast.parse(file.read_text())
    if kind:
        holder = next(
            node
            for node in holder.body
            if isinstance(node, ast.ClassDef) and node.name == kind  # type: ignore[attr-defined]
        )
        yield kind, ast.get_docstring(holder) or ""  # type: ignore[arg-type]
    for node in holder.body:  # type: ignore[attr-defined]
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, ast.get_docstring(node) or ""


def pretend(session: Session, functions: Path) -> dict[str, Any]:
    """Have `import pyspark` mean minishark; the names that its doctests take for given."""
    here = minishark.spark.functions
    sql = types.ModuleType("pyspark.sql")
    given = {
        "Row": minishark.Row,
        "Window": minishark.Window,
        "SparkSession": minishark.Session,
        "DataFrame": minishark.DataFrame,
        "Column": minishark.Column,
        "functions": here,
        "types": minishark.types,
    }
    vars(sql).update(given)
    root = types.ModuleType("pyspark")
    vars(root).update(sql=sql, __version__="4.0.0", errors=minishark.errors)
    vars(root).update(StorageLevel=minishark.spark.StorageLevel)
    modules = {
        "pyspark": root,
        "pyspark.sql": sql,
        "pyspark.sql.functions": here,
        "pyspark.sql.types": minishark.types,
        "pyspark.sql.window": types.SimpleNamespace(Window=minishark.Window),
        "pyspark.errors": minishark.errors,
        "pyspark.storagelevel": minishark.spark,
    }
    sys.modules.update(modules)  # type: ignore[arg-type]
    names = {name: getattr(here, name) for name in minishark.functions.__all__}
    named = dict(docstrings(functions, ""))
    names |= {name: getattr(here, name, None) for name in named}
    names |= {name: kind for name, kind in vars(minishark.types).items() if name[0] != "_"}
    return {
        **names,
        **given,
        "Any": Any,  # as their modules import it
        "StorageLevel": minishark.spark.StorageLevel,
        "spark": session,
        "sc": session,
        "sf": here,
        "__file__": str(functions),
        "sys": sys,
    }


def measure(
    options: DoctestOptions, session: Session, reasons: Collection[str]
) -> dict[str, Counter[str]]:
    """How many outputs of each part are as printed, differ (with a reason), or are left out."""
    root = options.folder / "pyspark"
    given = pretend(session, root / FILES["functions"][0])
    checker = _Checker() if options.values else doctest.OutputChecker()
    counted: dict[str, Counter[str]] = {}
    for part, (file, kind) in FILES.items():
        counts = counted[part] = Counter()
        for name, text in docstrings(root / file, kind):
            if options.only and options.only not in (part, name):
                continue
            parsed = doctest.DocTestParser().get_doctest(text, dict(given), name, file, 0)
            outcomes = Counter(_run(parsed, checker, shows=options.failures))
            counts.update(outcomes)
            if outcomes["differs"] and name in reasons:
                counts["with a reason"] += outcomes["differs"]
            elif outcomes["differs"] and options.values:
                print(f"{part} {name}: {outcomes['differs']} without a reason in {NOTES.name}")
            for table in session.tables:
                session.drop_table(table)
    return counted


def _run(parsed: doctest.DocTest, checker: doctest.OutputChecker, *, shows: bool) -> Iterator[str]:
    """For each example with an output, "same", "differs" or "left out"; and "not here"."""
    examples = [example for example in parsed.examples if not _skipped(example)]
    named = "".join([parsed.name, "\n", *(example.source for example in examples)])
    outside, beyond = map(bool, (_ELSEWHERE.search(named), _NOT_HERE.search(named)))
    if outside:
        yield from ("left out" for example in examples if example.want)
        return
    runner = doctest.DocTestRunner(checker, verbose=False, optionflags=_FLAGS)
    told: list[str] = []
    failed = _failed_lines(runner, parsed, examples, told)
    for example in examples:
        if example.want:
            outcome = "differs" if example.lineno in failed else "same"
            yield from (outcome, *([f"not here, {outcome}"] if beyond else []))
    if shows and failed:
        print(f"--- {parsed.name}\n{''.join(told)}", flush=True)


def _skipped(example: doctest.Example) -> bool:
    return bool(example.options.get(doctest.OPTIONFLAGS_BY_NAME["SKIP"]))


def _failed_lines(
    runner: doctest.DocTestRunner,
    parsed: doctest.DocTest,
    examples: list[doctest.Example],
    told: list[str],
) -> set[int]:
    """The lines of examples whose outputs differ, or that raise."""
    failed: set[int] = set()

    def differs(_out: Any, _test: Any, example: doctest.Example, *rest: Any) -> None:
        failed.add(example.lineno)
        text = rest[0] if isinstance(rest[0], str) else f"{rest[0][0].__name__}: {rest[0][1]}\n"
        told.append(f">>> {example.source}expected:\n{example.want}got:\n{text}")

    runner.report_failure = differs  # type: ignore[method-assign]
    runner.report_unexpected_exception = differs  # type: ignore[method-assign]
    parsed.examples = examples
    with contextlib.redirect_stderr(io.StringIO()):
        runner.run(parsed, out=told.append)
    return failed


def main(options: DoctestOptions) -> None:
    """Run them, and print the shares."""
    with minishark.adapters.pyspark.session(
        in_process=True, nodes=1, progress=False, prints=False
    ) as session:
        noted = tomllib.loads(NOTES.read_text())["doctests"]
        counted = measure(options, session, [name for names in noted for name in names.split()])
    rows = []
    total: Counter[str] = sum(counted.values(), Counter())
    for part, counts in {**counted, "together": total}.items():
        tried = counts["same"] + counts["differs"]
        share = f"{100 * counts['same'] / tried:.1f} %" if tried else "-"
        here = counts["same"] - counts["not here, same"]
        tried_here = tried - counts["not here, same"] - counts["not here, differs"]
        second = f"{100 * here / tried_here:.1f} % of {tried_here}" if tried_here else "-"
        rest = (share, second, str(counts["with a reason"]), str(counts["left out"]))
        rows.append((part, str(tried), str(counts["same"]), *rest))
    same = "with these rows" if options.values else "as printed"
    head = f"of | outputs | {same} | share | of what is here | differ with a reason | left out"
    print_table(head, rows)
    options.write({"counts": {part: dict(counts) for part, counts in counted.items()}})


if __name__ == "__main__":
    run_script(main)
