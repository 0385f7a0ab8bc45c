"""PySpark's functions that run as Python in executors, and commands to which items are piped."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Iterator

import pytest

from minishark.functions.python.values import histogram_numeric, schema_of_csv, type_of_text
from minishark.functions.python.variants import try_variant_set, variant_insert, variant_set
from minishark.functions.python.xml import to_xml
from minishark.session.tasks.algebra import Piped


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("1.5", "DOUBLE"),
        (".5e-3", "DOUBLE"),
        ("NaN", "DOUBLE"),
        ("1_0", "STRING"),
        ("1e", "STRING"),
        ("\u0663.\u0665", "STRING"),
        ("2024-01-31", "DATE"),
        ("2024-02-31", "STRING"),
        ("20240131T010203", "STRING"),
        ("2024-W01-1", "STRING"),
        ("2024-01-31T01:02", "TIMESTAMP"),
        ("2024-01-31 01:02:03.123456789+01:00", "TIMESTAMP"),
        ("2024-01-31 25:02:03", "STRING"),
        ("2024-01-31T010203", "STRING"),
    ],
)
def test_types_of_texts(text: str, type_: str) -> None:
    """As PySpark tells them, which does not read all that Python reads."""
    assert type_ == type_of_text(text)
    assert f"STRUCT<_c0: {type_}>" == schema_of_csv(text, ",")


def test_nan_is_in_no_bin() -> None:
    """The bins of the others do not depend on where it stands."""
    values = [3.0, 1.0, 2.0, 10.0]
    expected = histogram_numeric(values, 2)
    for place in range(5):
        assert expected == histogram_numeric([*values[:place], math.nan, *values[place:]], 2)
    assert histogram_numeric([math.nan], 2) is None


def test_variants_have_a_limit() -> None:
    """An element far beyond the end of an array is refused before memory is taken for the gap."""
    assert "[1,null,null,2]" == variant_set("[1]", "$[3]", "2", True)
    for function in (variant_set, try_variant_set):
        with pytest.raises(ValueError, match="more than 128 MiB"):
            function("[]", "$[99999999999]", "1", True)
    with pytest.raises(ValueError, match="more than 128 MiB"):
        variant_insert('{"a": []}', "$.a[99999999999][0]", "1")


def test_names_of_elements_are_checked() -> None:
    """Else the text would be no XML, or another."""
    assert "<ROW>\n    <a.b-ü>1</a.b-ü>\n</ROW>" == to_xml('{"a.b-ü": 1}', "{}")
    assert '<ROW on="true">false</ROW>' == to_xml('{"_on": true, "_VALUE": false}', "{}")
    tagged = '{"attributePrefix": "@", "valueTag": "_v"}'
    assert '<ROW a="1">x</ROW>' == to_xml('{"@a": 1, "_v": "x"}', tagged)
    for fields in ('{"a b": 1}', '{"1": 1}', '{"_a>": 1}', '{"": 1}', '{"a/><b": {"c": 1}}'):
        with pytest.raises(ValueError, match="rename the field"):
            to_xml(fields, "{}")
    assert "<a b>" in to_xml('{"a b": 1}', '{"validateName": "false"}')


def test_items_are_piped_one_by_one() -> None:
    """Lines come while items are still taken, however many there are."""
    taken = itertools.count()
    items = (next(taken) for _ in itertools.count())
    lines = Piped("cat", {}, checks=True)(items)
    assert [str(n) for n in range(100_000)] == list(itertools.islice(lines, 100_000))
    lines.close()
    assert next(taken) < 200_000


def test_commands_that_end_early_or_fail() -> None:
    """What they do not read is no error; their status is one if it is asked for."""
    many = (f"{n:0100}\n" for n in range(10_000))
    assert [f"{n:0100}" for n in range(2)] == list(Piped("head -n 2", {}, checks=True)(many))
    assert [] == list(Piped("false", {}, checks=False)(iter("ab")))
    large = "é" * 1_000_000  # in many pieces, as a pipe takes them
    assert [large, "", large] == list(Piped("cat", {}, checks=True)(iter((large, "", large))))
    assert ["é", "x"] == list(Piped("printf 'é\\nx'", {}, checks=True)(iter(())))
    with pytest.raises(subprocess.CalledProcessError, match="exit status 3"):
        list(Piped(f"{sys.executable} -c 'exit(3)'", {}, checks=True)(iter(())))

    def failing() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(Piped("sleep 60", {}, checks=True)(failing()))
