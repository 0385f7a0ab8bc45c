"""XML for PySpark's functions: XPath, and elements as JSON; needs lxml, in executors.

Entities are not expanded and nothing is fetched, as texts may come from anywhere.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any
from xml.sax import saxutils

from minishark.functions.python.values import type_of_text
from minishark.sources.optional import library

# Section 2.3 of the recommendation, fifth edition.
_FIRST = (
    ":A-Z_a-z\xc0-\xd6\xd8-\xf6\xf8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c\u200d\u2070-\u218f"
    "\u2c00-\u2fef\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
)
_NAME = re.compile(f"[{_FIRST}][{_FIRST}\\-.0-9\xb7\u0300-\u036f\u203f\u2040]*")
_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
_INDENT = "    "
_DOCUMENT = "document_"
_LITERAL = re.compile(r"('[^']*'|\"[^\"]*\")")
_ABSOLUTE = re.compile(r"(^\s*|[(\[,|=+<>]\s*|\b(?:and|or|div|mod)\s+)/(?!/)")


def _parsed(text: str) -> Any:
    """The root element; a ValueError if the text is no XML."""
    etree = library("lxml.etree", "xml")
    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False)
    try:
        return etree.fromstring(text.strip().encode(), parser)
    except etree.XMLSyntaxError as error:
        raise ValueError(f"This is no XML: {error}: {text[:80]!r}") from None


def _found(text: str, path: str) -> Any:
    """What an XPath selects: a list of nodes, a number, a text or a boolean."""
    etree = library("lxml.etree", "xml")
    # Relative paths start at the document, above the root, which lxml has no node for.
    document = etree.Element(_DOCUMENT)
    document.append(_parsed(text))
    try:
        return etree.XPath(_below(path))(document)
    except etree.XPathError as error:
        raise ValueError(f"{path!r} is no XPath: {error}") from None


def _below(path: str) -> str:
    """A path whose absolute parts start at the document's element."""
    parts = _LITERAL.split(path)
    parts[::2] = [_ABSOLUTE.sub(rf"\1/{_DOCUMENT}/", part) for part in parts[::2]]
    return "".join(parts)


def _text(node: Any) -> str:
    """The text of a node; of an element, all within it."""
    return "".join(node.itertext()) if hasattr(node, "itertext") else str(node)


def xpath(text: str, path: str) -> list[str | None]:
    """The values of the nodes; elements have none but their texts'."""
    nodes = _found(text, path)
    if not isinstance(nodes, list):
        raise ValueError(f"{path!r} selects no nodes.")  # noqa: TRY004 - of its value
    return [str(node) if isinstance(node, str) else None for node in nodes]


def xpath_string(text: str, path: str) -> str | None:
    value = _found(text, path)
    if isinstance(value, list):
        return _text(value[0]) if value else ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value:.15g}"
    return str(value)


def xpath_boolean(text: str, path: str) -> bool:
    value = _found(text, path)
    return not math.isnan(value) and bool(value) if isinstance(value, float) else bool(value)


def xpath_double(text: str, path: str) -> float | None:
    value = _found(text, path)
    if isinstance(value, bool | float):
        return float(value)
    try:
        return float(_text(value[0]) or "nan") if isinstance(value, list) else float(value)
    except (IndexError, ValueError):
        return math.nan


def xpath_long(text: str, path: str) -> int:
    number = xpath_double(text, path)
    if number is None or math.isnan(number):
        return 0
    return int(max(_LONG_MIN, min(number, _LONG_MAX)))  # beyond these, too, as in PySpark


# Elements as values


def from_xml(text: str, structure: str, options: str) -> str | None:
    """An element as JSON of a structure, as `json_transform` takes it; NULLs where it lacks one."""
    types, chosen = json.loads(structure), _Options(json.loads(options))
    try:
        root = _parsed(text)
    except ValueError:
        return json.dumps(dict.fromkeys(types))
    return json.dumps(_value(root, types, chosen))


class _Options:
    """PySpark's options of XML."""

    def __init__(self, options: Mapping[str, str]) -> None:
        folded = {name.lower(): value for name, value in options.items()}
        self.row_tag = folded.get("rowtag", "ROW")
        self.attributes = folded.get("attributeprefix", "_")
        self.text = folded.get("valuetag", "_VALUE")
        self.checks_names = str(folded.get("validatename", "true")).lower() != "false"
        self.null = folded.get("nullvalue")
        self.skips_attributes = str(folded.get("excludeattribute", "false")).lower() == "true"

    def checked(self, name: str) -> str:
        """The name of an element or attribute to be written."""
        if self.checks_names and not _NAME.fullmatch(name):
            raise ValueError(f"XML has no names such as {name!r}: rename the field.")
        return name


def _value(element: Any, types: Any, options: _Options) -> Any:
    """An element as a value: a dictionary for a struct, else its text."""
    if not isinstance(types, dict):
        text = "".join(element.itertext()).strip()
        return None if text == options.null else text
    fields: dict[str, Any] = {}
    for name, inner in types.items():
        attribute = name.removeprefix(options.attributes)
        children = [child for child in element if _tag(child) == name]
        if name == options.text:
            fields[name] = (element.text or "").strip()
        elif isinstance(inner, list):
            fields[name] = [_value(child, inner[0], options) for child in children] or None
        elif children:
            fields[name] = _value(children[-1], inner, options)
        elif name.startswith(options.attributes) and not options.skips_attributes:
            fields[name] = element.get(attribute)
    return fields


def _tag(element: Any) -> str:
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def schema_of_xml(text: str, options: str) -> str:
    """The type of an element, as PySpark writes it."""
    return _type_of(_parsed(text), _Options(json.loads(options)))


def _type_of(element: Any, options: _Options) -> str:
    fields: dict[str, list[str]] = {}
    if not options.skips_attributes:
        for name, text in element.attrib.items():
            fields[options.attributes + name] = [_type_of_text(text)]
    for child in element:
        if tag := _tag(child):
            fields.setdefault(tag, []).append(_type_of(child, options))
    text = (element.text or "").strip()
    if not fields:
        return _type_of_text(text)
    if text:
        fields[options.text] = [_type_of_text(text)]
    parts = [f"{name}: {_joined(fields[name])}" for name in sorted(fields)]
    return f"STRUCT<{', '.join(parts)}>"


def _joined(types: list[str]) -> str:
    type_names = {type_ for type_ in types if type_ != "VOID"}
    if type_names == {"BIGINT", "DOUBLE"}:
        type_names = {"DOUBLE"}
    whole = type_names.pop() if len(type_names) == 1 else "STRING"
    return f"ARRAY<{whole}>" if len(types) > 1 else whole


def _type_of_text(text: str) -> str:
    text = text.strip()
    if not text:
        return "STRING"
    if _WHOLE.fullmatch(text):
        return "BIGINT"
    return "BOOLEAN" if text.lower() in ("true", "false") else type_of_text(text)


def to_xml(text: str, options: str) -> str:
    """A struct, as JSON, as an element."""
    chosen = _Options(json.loads(options))
    return "\n".join(_element(chosen.row_tag, json.loads(text), chosen, ""))


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _element(tag: str, value: Any, options: _Options, indent: str) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, list):
        for item in value:
            yield from _element(tag, item, options, indent)
        return
    if not isinstance(value, dict):
        yield f"{indent}<{options.checked(tag)}>{saxutils.escape(_shown(value))}</{tag}>"
        return
    options.checked(tag)
    prefix = options.attributes
    fields = {name: field for name, field in value.items() if name != options.text}
    own = {
        options.checked(name.removeprefix(prefix)): field
        for name, field in fields.items()
        if name.startswith(prefix) and field is not None
    }
    marks = "".join(f" {name}={saxutils.quoteattr(_shown(field))}" for name, field in own.items())
    inner = value.get(options.text)
    children = [
        line
        for name, field in fields.items()
        if not name.startswith(prefix)
        for line in _element(name, field, options, indent + _INDENT)
    ]
    if children:
        yield f"{indent}<{tag}{marks}>"
        yield from children
        yield f"{indent}</{tag}>"
    elif inner is not None:
        yield f"{indent}<{tag}{marks}>{saxutils.escape(_shown(inner))}</{tag}>"
    else:
        yield f"{indent}<{tag}{marks}/>"
