"""Which functions may open files: all but those of which it is known that they do not."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import cloudpickle
import pytest

from minishark.query.digests import Digest, pickled_digest

MODULES = """
    import functools, json, math, os, re
    from datetime import datetime
    from pathlib import Path
    import numpy as np
    import pyarrow as pa
    PATTERN = re.compile("a+")
    WEIGHTS = {"a": 1.5, "b": [2, 3]}

    def helper(x):
        return open(x).read()

    class Scaler:
        def __init__(self, by):
            self.by = by
        def __call__(self, x):
            return self.by * x

    class Reader(Scaler):
        def __call__(self, x):
            return helper(x)
"""

OPENING = {
    "open": "lambda x: open(x)",
    "a helper that opens": "lambda x: helper(x)",
    "an object's method that opens": "Reader(1)",
    "a method that is named open": "lambda x: x.open()",
    "a default": "lambda x, opens=open: opens(x)",
    "a set": "(lambda all_of: lambda x: [each(x) for each in all_of])({open})",
    "a partial": "functools.partial(open, mode='r')",
    "pathlib": "lambda x: Path(x).read_text()",
    "os": "lambda x: os.listdir()",
    "a module's module": "lambda x: json.codecs.lookup(x)",
    "numpy": "lambda x: np.load(x)",
    "numpy's function": "(lambda loads: lambda x: loads(x))(np.load)",
    "a part of numpy": "(lambda part: lambda x: part.fromfile(x))(np._core.multiarray)",
    "Arrow": "lambda x: pa.memory_map(x)",
    "a module that is handed on": "(lambda f: lambda x: f(pa))(lambda module: module.OSFile('x'))",
    "a name in a text": "lambda x: getattr(pa, 'OSFile')(x)",
    "a class's dictionary": "lambda x: vars(pa)['OSFile'](x)",
    "all subclasses": "lambda x: x.__class__.__base__.__subclasses__()",
}

OTHERS = {
    "builtins": "lambda x: len(str(x)) + abs(x)",
    "a pattern": "lambda x: PATTERN.sub('', x) + str(WEIGHTS['a'])",
    "modules": "lambda x: json.dumps({'at': math.floor(x), 'day': datetime.fromtimestamp(x).day})",
    "numpy": "lambda x: np.where(np.asarray(x) > 0, np.sin(x), np.nan).astype('f4')",
    "Arrow": "lambda x: pa.table({'a': pa.array(x['a'].to_pylist(), pa.int64())})",
    "an object": "Scaler(3)",
    "a closure": "(lambda by: lambda x: by * x)(3)",
    "an array": "(lambda by: lambda x: by * x)(np.arange(3))",
    "a number of numpy": "(lambda by: lambda x: by * x)(np.float64(3))",
}


def digest_of(expression: str, more: str = "") -> Digest:
    """The digest of what an expression gives."""
    known: dict[str, Any] = {"__name__": "__main__"}
    exec(dedent(MODULES) + dedent(more), known)
    told = pickled_digest(cloudpickle.dumps(eval(expression, known)))
    assert isinstance(told, Digest), told
    return told


@pytest.mark.parametrize("what", OPENING)
def test_what_may_open_files(what: str) -> None:
    """However it gets at that."""
    assert digest_of(OPENING[what]).reach.opens_files


@pytest.mark.parametrize("what", OTHERS)
def test_what_opens_none(what: str) -> None:
    """Then the folder does not count in which it runs."""
    assert not digest_of(OTHERS[what]).reach.opens_files


@pytest.mark.parametrize(
    ("line", "opens"),
    [("import os", True), ("from numpy import load", True), ("import numpy, math", False)],
)
def test_what_a_function_imports_counts(line: str, opens: bool) -> None:
    """When it runs."""
    more = f"""
        def wanted(x):
            {line}
            return x
    """
    assert digest_of("wanted", more).reach.opens_files == opens


def test_a_module_of_the_users_may_open_files(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a whole; its functions are looked into."""
    (tmp_path / "of_the_user.py").write_text("def f(x):\n    return x + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert digest_of("lambda x: of_the_user.f(x)", "\nimport of_the_user").reach.opens_files
    assert not digest_of("lambda x: f(x)", "\nfrom of_the_user import f").reach.opens_files
