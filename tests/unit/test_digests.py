"""Digests of functions: the same for what does the same, others for what does not."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from minishark.query import digests
from minishark.query.digests import NoDigestError, digest, pickled_digest

PROGRAM = """
    import re
    PATTERN = re.compile("a+")
    LIMITS = {"low": 1, "names": {"x", "y", "z"}}

    class Base:
        factor = 2

    class Scaler(Base):
        def __init__(self, by):
            self.by = by
        def __call__(self, x):
            return helper(x) * self.by * self.factor

    def helper(x):
        return x + len(LIMITS["names"])

    def outer(shift):
        def f(x, y=3, *, z=5):
            import math
            try:
                return helper(x) * y + shift + len(PATTERN.findall("aab")) + math.floor(z)
            except ValueError:
                return 0
        return f

    wanted = outer(7)
"""


def function_of(program: str, name: str = "wanted") -> Any:
    """What a program calls so, as it is when it was pickled and unpickled."""
    known: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(dedent(program), "program.py", "exec"), known)
    return cloudpickle.loads(cloudpickle.dumps(known[name]))


def changed(old: str, new: str) -> str:
    """The program with another text in place of one."""
    assert old in PROGRAM
    return PROGRAM.replace(old, new)


CHANGES = {
    "the body": changed("* y + shift", "* y - shift"),
    "a constant": changed("return 0", "return 1"),
    "what is caught": changed("except ValueError", "except TypeError"),
    "a default": changed("y=3", "y=4"),
    "a keyword's default": changed("z=5", "z=6"),
    "the closure": changed("outer(7)", "outer(8)"),
    "a global": changed('"low": 1', '"low": 2'),
    "a set in a global": changed('"x", "y", "z"', '"x", "y", "w"'),
    "a pattern": changed('"a+"', '"a*"'),
    "a helper's body": changed("x + len", "x - len"),
    "what a global is": changed("math.floor", "math.ceil"),
    "a type": changed("return 0", "return 0.0"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_function_does_changes_its_digest(what: str) -> None:
    """However far away it is."""
    assert digest(function_of(PROGRAM)) != digest(function_of(CHANGES[what]))


def test_comments_and_places_do_not_count() -> None:
    """Nor does the file's name."""
    moved = "\n\n# A comment.\n" + dedent(PROGRAM).replace("return helper", "return  helper")
    assert digest(function_of(PROGRAM)) == digest(function_of(moved))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("self.by * self.factor", "self.by + self.factor"),
        ("factor = 2", "factor = 3"),
        ("x + len", "x - len"),
    ],
)
def test_objects_that_are_called_count_with_their_classes(old: str, new: str) -> None:
    """And these with their bases, and the functions that their methods call."""
    made = "\n    wanted = Scaler(3)\n"
    assert digest(function_of(PROGRAM + made)) != digest(function_of(changed(old, new) + made))


def test_the_state_of_objects_counts() -> None:
    """Also of those that are bound to methods."""
    one, two = (function_of(f"{PROGRAM}\n    wanted = Scaler({by}).__call__\n") for by in (3, 4))
    assert digest(one) != digest(two)


def test_digests_are_those_of_other_processes(tmp_path: Path) -> None:
    """Hashes of texts, and so the order of sets, are others there."""
    program = tmp_path / "program.py"
    program.write_text(
        dedent(PROGRAM)
        + "import cloudpickle\nfrom minishark.query.digests import pickled_digest\n"
        + "for each in (wanted, Scaler(3)):\n"
        + "    print(pickled_digest(cloudpickle.dumps(each)).text)\n"
    )
    told = set()
    for seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        told.add(subprocess.check_output([sys.executable, program], env=environment))
    (lines,) = told
    assert all(re.fullmatch(b"[0-9a-f]{32}", line) for line in lines.split())


def test_a_users_module_counts_by_its_source_and_what_that_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that a function calls by an attribute, and one below that gives a number only."""
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for limit in (1, 2):
        (tmp_path / f"low{limit}.py").write_text(f"LIMIT = {limit}\n")
        (tmp_path / "helpers_of_test.py").write_text(
            f"from low{limit} import LIMIT\ndef f(x):\n    return x + LIMIT\n"
        )
        sys.modules.pop("helpers_of_test", None)
        found.append(
            digest(
                function_of("def wanted(x):\n    import helpers_of_test as h\n    return h.f(x)")
            )
        )
    (tmp_path / "low2.py").write_text("LIMIT = 3\n")
    found.append(
        digest(function_of("def wanted(x):\n    import helpers_of_test as h\n    return h.f(x)"))
    )
    assert 3 == len(set(found))


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("wanted = lambda x: eval('x')", "calls eval"),
        ("def wanted(x):\n    import no_such_module\n", "can't be imported"),
        ("import __main__\nwanted = lambda x: __main__.x", "__main__"),
    ],
)
def test_what_cannot_be_told_has_no_digest(program: str, why: str) -> None:
    """And says why."""
    found = pickled_digest(cloudpickle.dumps(function_of(program)))
    assert isinstance(found, NoDigestError)
    assert why in str(found)


@pytest.mark.parametrize("value", [threading.Lock(), Path(os.devnull).open(), iter([1])])  # noqa: SIM115
def test_what_has_a_state_of_its_own_has_no_digest(value: object) -> None:
    """Unless that is what is pickled of it."""
    if isinstance(value, type(iter([]))):
        assert digest(value) != digest(iter([2]))
        return
    with pytest.raises(NoDigestError):
        digest(value)


def test_a_cache_counts_by_what_it_calls() -> None:
    """It is pickled by its name."""
    one, two = (functools.lru_cache(eval(f"lambda x: x + {n}")) for n in (1, 2))
    assert digest(one) != digest(two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ("1", b"1"),
        ((1, 2), [1, 2]),
        ([1, [2]], [1, 2]),
        (("a", "bc"), ("ab", "c")),
        ({"a": 1}, {"a": 2}),
        ({1}, frozenset({1})),
        (pa.table({"a": [1]}), pa.table({"a": [2]})),
        (pa.int32(), pa.int64()),
        (str, bytes),
        (str.upper, str.lower),
    ],
)
def test_values_that_differ_have_other_digests(one: object, two: object) -> None:
    """However alike they look."""
    assert digest(one) != digest(two)


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "the body": lambda patch: patch.setattr(digests._Digester, "_code", lambda *_: None),
    "a helper's body": lambda patch: patch.setattr(digests._Digester, "_globals", lambda *_: None),
    "a global": lambda patch: patch.setattr(digests._Digester, "_globals", lambda *_: None),
    "the closure": lambda patch: patch.setattr(digests._Digester, "_cells", lambda *_: None),
    "a default": lambda patch: patch.setattr(digests._Digester, "_defaults", lambda *_: None),
}


@pytest.mark.parametrize("what", PLANTED)
def test_planted_mistakes_are_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this ingredient, the pair that differs in it has one digest."""
    PLANTED[what](monkeypatch)
    assert digest(function_of(PROGRAM)) == digest(function_of(CHANGES[what]))
