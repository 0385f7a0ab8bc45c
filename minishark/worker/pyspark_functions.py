"""PySpark's functions that DuckDB lacks, in Python: each takes the values of a row, none NULL.

Executors import this module; docs and the functions themselves come from
`minishark.dataframe.python_functions`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac as hmac_of
import re
import string
import urllib.parse
import zlib
from collections.abc import Mapping
from typing import Any

_DIGITS = string.digits + string.ascii_uppercase
_WORD_64 = 1 << 64
_SOUNDEX = {
    letter: code
    for code, letters in enumerate(("BFPV", "CGJKQSXZ", "DT", "L", "MN", "R"), 1)
    for letter in letters
}


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def conv(number: str, from_base: int, to_base: int) -> str | None:
    """A whole number in another base; of 64 bits, without a sign unless `to_base` is negative."""
    if not (2 <= from_base <= 36 and 2 <= abs(to_base) <= 36):
        return None
    text = number.strip().upper()
    is_negative = text.startswith("-")
    found = 0
    for digit in text.removeprefix("-"):
        place = _DIGITS.find(digit)
        if not 0 <= place < from_base:
            break
        found = min(found * from_base + place, _WORD_64 - 1)
    if is_negative:
        found = -found if to_base < 0 else (_WORD_64 - found) % _WORD_64
    elif to_base < 0 and found >= _WORD_64 // 2:
        found -= _WORD_64
    sign, left, base, digits = "-" * (found < 0), abs(found), abs(to_base), ""
    while left:
        left, digit_ = divmod(left, base)
        digits = _DIGITS[digit_] + digits
    return sign + (digits or "0")


def crc32(value: Any) -> int:
    return zlib.crc32(_bytes(value))


def sha2(value: Any, bits: int) -> str | None:
    names = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}
    return hashlib.new(names[bits], _bytes(value)).hexdigest() if bits in names else None


def hmac(key: Any, message: Any, algorithm: str) -> bytes:
    return hmac_of.new(_bytes(key), _bytes(message), algorithm.replace("-", "").lower()).digest()


def soundex(text: str) -> str:
    if not text or not ("A" <= text[0].upper() <= "Z"):
        return text
    first = text[0].upper()
    found, last = first, _SOUNDEX.get(first, 0)
    for letter in text[1:]:
        if not letter.isascii() or not letter.isalpha():
            last = 0
            continue
        code = _SOUNDEX.get(letter.upper(), 0)
        if letter in "HWhw":
            continue
        if code and code != last:
            found += str(code)
        last = code
    return found[:4].ljust(4, "0")


def sentences(text: str) -> list[list[str]]:
    found = [re.findall(r"[\w'-]+", part) for part in re.split(r"(?<=[.!?])\s+", text)]
    return [words for words in found if words]


def to_base32(value: Any) -> str:
    return base64.b32encode(_bytes(value)).decode()


def from_base32(text: str) -> bytes:
    return base64.b32decode(text)


def to_csv(value: Mapping[str, Any]) -> str:
    return ",".join("" if cell is None else _cell(cell) for cell in value.values())


def _cell(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if text and not re.search(r'[",\n\r]', text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def parse_url(url: str, part: str) -> str | None:
    parsed = urllib.parse.urlsplit(url)
    query = f"?{parsed.query}" if parsed.query else ""
    authority = parsed.netloc or None
    host = parsed.netloc.rpartition("@")[2].rpartition(":")
    user, mark, _ = parsed.netloc.rpartition("@")
    parts = {
        "PROTOCOL": parsed.scheme or None,
        "HOST": (host[0] if host[1] and host[2].isdecimal() else parsed.netloc.rpartition("@")[2])
        or None,
        "PATH": parsed.path,
        "QUERY": parsed.query or None,
        "REF": parsed.fragment or None,
        "FILE": parsed.path + query,
        "AUTHORITY": authority,
        "USERINFO": user if mark else None,
    }
    return parts.get(part)


def parse_url_query(url: str, part: str, key: str) -> str | None:
    if part != "QUERY":
        return None
    found = re.search(rf"(?:^|&){re.escape(key)}=([^&]*)", urllib.parse.urlsplit(url).query)
    return found[1] if found else None


def bitmap_count(bitmap: bytes) -> int:
    return int.from_bytes(bitmap, "big").bit_count()


def schema_of_json(text: str) -> str:
    import json  # noqa: PLC0415 - few need it

    return _type_of(json.loads(text))


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "STRING"
        case bool():
            return "BOOLEAN"
        case int():
            return "BIGINT"
        case float():
            return "DOUBLE"
        case list():
            return f"ARRAY<{_type_of(next((x for x in value if x is not None), None))}>"
        case dict():
            fields = ", ".join(f"{name}: {_type_of(value[name])}" for name in sorted(value))
            return f"STRUCT<{fields}>"
    return "STRING"


def to_number(text: str, pattern: str) -> str:
    found = try_to_number(text, pattern)
    if found is None:
        raise ValueError(f"{text!r} is no number of the format {pattern!r}.")
    return found


def try_to_number(text: str, pattern: str) -> str | None:
    """The number that a text of PySpark's pattern ("999,999.99") stands for."""
    shape = re.sub(r"[09]", "#", pattern.upper())
    plain = text.strip()
    is_negative = "-" in plain or ("PR" in shape and plain.startswith("<"))
    digits = re.sub(r"[^0-9.]", "", plain)
    allowed = re.sub(r"[^#.DG,$SMI]", "", shape).replace("D", ".").replace("G", ",")
    whole, _, fraction = allowed.partition(".")
    mine, _, rest = digits.partition(".")
    if not digits or len(mine) > whole.count("#") or len(rest) > fraction.count("#"):
        return None
    return f"{'-' if is_negative else ''}{digits}"
