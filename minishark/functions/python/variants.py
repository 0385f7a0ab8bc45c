"""Changes within variants, which are JSON texts, for PySpark's functions: paths from `$`.

None for NULL, as in SQL; a JSON null is the text "null".
"""

from __future__ import annotations

import decimal
import functools
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

Step: TypeAlias = str | int
_STEP = re.compile(
    r"""\.(?P<name>[^.\[\]'"]+)|\[(?P<index>\d+)\]|\['(?P<single>[^']*)'\]|\["(?P<double>[^"]*)"\]"""
)
_ABSENT = object()
_VARIANT_BYTES = 128 << 20  # as in Spark (VARIANT_SIZE_LIMIT)


class VariantPathError(ValueError):
    """A path is not valid, or leads through a value of another kind."""


@functools.lru_cache(maxsize=256)
def _steps(path: str) -> tuple[Step, ...]:
    if not path.startswith("$"):
        raise VariantPathError(f"{path!r} is no path: write one such as '$.a[0]'.")
    steps: list[Step] = []
    place = 1
    while place < len(path):
        step = _STEP.match(path, place)
        if step is None:
            raise VariantPathError(f"{path!r} is no path: write one such as '$.a[0]'.")
        index = step["index"]
        steps.append(
            int(index) if index else step["name"] or step["single"] or step["double"] or ""
        )
        place = step.end()
    return tuple(steps)


def _read(text: str) -> Any:
    return json.loads(text, parse_float=decimal.Decimal, parse_constant=_refused)


def _refused(text: str) -> Any:
    raise ValueError(f"{text} is no JSON.")


def _write(value: Any) -> str:
    """The text of a value, the fields of objects sorted, as in PySpark."""
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, dict):
        parts = (
            f"{json.dumps(k, ensure_ascii=False)}:{_write(v)}" for k, v in sorted(value.items())
        )
        return f"{{{','.join(parts)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_write, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _child(value: Any, step: Step, path: str) -> Any:
    """The value at a step; _ABSENT if there is none."""
    if isinstance(step, str) and isinstance(value, dict):
        return value.get(step, _ABSENT)
    if isinstance(step, int) and isinstance(value, list):
        return value[step] if step < len(value) else _ABSENT
    raise VariantPathError(f"The path {path!r} leads through a value of another kind.")


def _put(value: Any, step: Step, new: Any) -> Any:
    """An object or array with a value at a step; gaps of arrays are nulls."""
    if isinstance(step, str):
        return {**value, step: new}
    if 5 * step > _VARIANT_BYTES:  # each null has as many, with its comma
        raise ValueError(f"A variant with an element {step} would have more than 128 MiB.")
    filled = [*value, *[None] * (step + 1 - len(value))]
    filled[step] = new
    return filled


def _changed(
    value: Any,
    steps: tuple[Step, ...],
    path: str,
    change: Callable[[Any, Step], Any],
    *,
    make: bool,
) -> Any:
    """The value with `change(parent, last step)` at the end of the path."""
    first, *rest = steps
    if not rest:
        _child(value, first, path)  # of the right kind
        return change(value, first)
    inner = _child(value, first, path)
    if inner is _ABSENT:
        if not make:
            return value
        inner = {} if isinstance(rest[0], str) else []
    return _put(value, first, _changed(inner, tuple(rest), path, change, make=make))


def _target(path: str) -> tuple[Step, ...]:
    steps = _steps(path)
    if not steps:
        raise VariantPathError("The path '$' is the whole value, which is not replaced.")
    return steps


def variant_insert(text: str, path: str, new: str) -> str:
    """With a field more, or an element before the one at a position."""

    def change(parent: Any, step: Step) -> Any:
        if isinstance(step, int) and step < len(parent):
            return [*parent[:step], _read(new), *parent[step:]]
        if _child(parent, step, path) is not _ABSENT:
            raise VariantPathError(f"There is a value at {path!r} already; see variant_set().")
        return _put(parent, step, _read(new))

    return _write(_changed(_read(text), _target(path), path, change, make=True))


def variant_set(text: str, path: str, new: str, create: bool) -> str:
    """With another value at a path."""

    def change(parent: Any, step: Step) -> Any:
        if not create and _child(parent, step, path) is _ABSENT:
            return parent
        return _put(parent, step, _read(new))

    return _write(_changed(_read(text), _target(path), path, change, make=create))


def variant_array_append(text: str, path: str, new: str) -> str:
    """With one more at the end of the array at a path."""
    steps = _steps(path)
    value = _read(text)
    if not steps:
        return _write(_appended(value, new, path))

    def change(parent: Any, step: Step) -> Any:
        array = _child(parent, step, path)
        return parent if array is _ABSENT else _put(parent, step, _appended(array, new, path))

    return _write(_changed(value, steps, path, change, make=False))


def _appended(value: Any, new: str, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise VariantPathError(f"There is no array at {path!r}.")
    return [*value, _read(new)]


def _trying(function: Callable[..., str]) -> Callable[..., str | None]:
    """The same, with NULL where the path does not fit; only what it says is an error."""

    def trying(text: str, path: str, *more: Any) -> str | None:
        _steps(path)
        try:
            return function(text, path, *more)
        except VariantPathError:
            return None

    trying.__name__ = trying.__qualname__ = f"try_{function.__name__}"
    return trying


try_variant_insert = _trying(variant_insert)
try_variant_set = _trying(variant_set)
try_variant_array_append = _trying(variant_array_append)


def variant_delete(text: str, paths: Iterable[str | None]) -> str:
    """Without what is at the paths, one after another; what is not there is no error."""
    value = _read(text)
    for path in paths:
        if path is not None:
            value = _changed(value, _target(path), path, _without, make=False)
    return _write(value)


def _without(parent: Any, step: Step) -> Any:
    if isinstance(step, str):
        return {name: item for name, item in parent.items() if name != step}
    return [item for place, item in enumerate(parent) if place != step]


def variant_strip_nulls(text: str, in_arrays: bool) -> str:
    """Without fields that are null, and elements that are, unless only fields are to go."""

    def stripped(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: stripped(item) for name, item in value.items() if item is not None}
        if isinstance(value, list):
            kept = [item for item in value if item is not None or not in_arrays]
            return list(map(stripped, kept))
        return value

    return _write(stripped(_read(text)))


# Types: the name of a type, ("array", element) or {field: type}; VOID is null's.


def schema_of_variant(text: str) -> str:
    return _shown(_type_of(_read(text)))


def schema_of_variant_agg(texts: Iterable[str]) -> str:
    return _shown(functools.reduce(_joined, (_type_of(_read(text)) for text in texts), "VOID"))


def _type_of(value: Any) -> Any:
    match value:
        case None:
            return "VOID"
        case bool():
            return "BOOLEAN"
        case int() if -(1 << 63) <= value < 1 << 63:
            return "BIGINT"
        case int():
            return (len(str(abs(value))), 0)
        case decimal.Decimal():
            _, digits, exponent = value.as_tuple()
            if not isinstance(exponent, int) or exponent > 0 or len(digits) > 38:
                return "DOUBLE"
            return (max(len(digits), -exponent), -exponent)
        case str():
            return "STRING"
        case list():
            return ("array", functools.reduce(_joined, map(_type_of, value), "VOID"))
    return {name: _type_of(value[name]) for name in sorted(value)}


def _is_decimal(type_: Any) -> bool:
    return isinstance(type_, tuple) and type_[0] != "array"


def _joined(left: Any, right: Any) -> Any:
    """The type of both: VARIANT if they have nothing in common."""
    if right in (left, "VOID"):
        return left
    if left == "VOID":
        return right
    if isinstance(left, dict) and isinstance(right, dict):
        both = sorted({*left, *right})
        return {name: _joined(left.get(name, "VOID"), right.get(name, "VOID")) for name in both}
    if isinstance(left, tuple) and isinstance(right, tuple) and "array" in (left[0], right[0]):
        return ("array", _joined(left[1], right[1])) if left[0] == right[0] else "VARIANT"
    sides = [(20, 0) if side == "BIGINT" else side for side in (left, right)]
    if "DOUBLE" in sides and all(side == "DOUBLE" or _is_decimal(side) for side in sides):
        return "DOUBLE"
    if all(map(_is_decimal, sides)):
        scale = max(side[1] for side in sides)
        digits = max(side[0] - side[1] for side in sides) + scale
        return (digits, scale) if digits <= 38 else "DOUBLE"
    return "VARIANT"


def _shown(type_: Any) -> str:
    match type_:
        case str():
            return type_
        case ("array", inner):
            return f"ARRAY<{_shown(inner)}>"
        case (digits, scale):
            return f"DECIMAL({digits},{scale})"
    fields = ", ".join(f"{name}: {_shown(field_type)}" for name, field_type in type_.items())
    return f"OBJECT<{fields}>"
