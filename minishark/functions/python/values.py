"""PySpark's functions that DuckDB lacks, in Python: each takes the values of a row, none NULL.

Executors import this module; docs and the functions themselves come from
`minishark.functions.python_functions`.
"""

from __future__ import annotations

import base64
import bisect
import csv
import datetime as dt
import decimal
import hashlib
import hmac as hmac_of
import itertools
import math
import os
import re
import string
import urllib.parse
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from minishark.sources.optional import library

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
    whole = 0
    for digit in text.removeprefix("-"):
        place = _DIGITS.find(digit)
        if not 0 <= place < from_base:
            break
        whole = min(whole * from_base + place, _WORD_64 - 1)
    if is_negative:
        whole = -whole if to_base < 0 else (_WORD_64 - whole) % _WORD_64
    elif to_base < 0 and whole >= _WORD_64 // 2:
        whole -= _WORD_64
    sign, left, base, digits = "-" * (whole < 0), abs(whole), abs(to_base), ""
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
    code_word, last = first, _SOUNDEX.get(first, 0)
    for letter in text[1:]:
        if not letter.isascii() or not letter.isalpha():
            last = 0
            continue
        code = _SOUNDEX.get(letter.upper(), 0)
        if letter in "HWhw":
            continue
        if code and code != last:
            code_word += str(code)
        last = code
    return code_word[:4].ljust(4, "0")


def sentences(text: str, language: str, country: str) -> list[list[str]]:
    del language, country  # sentences end alike in all that are tried
    listed = [re.findall(r"[\w'-]+", part) for part in re.split(r"(?<=[.!?])\s+", text)]
    return [words for words in listed if words]


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
    parameter = re.search(rf"(?:^|&){re.escape(key)}=([^&]*)", urllib.parse.urlsplit(url).query)
    return parameter[1] if parameter else None


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


def parsed_time(text: str, pattern: str) -> dt.datetime:
    """A text as a timestamp, by a pattern of PySpark's."""
    from minishark.dataframe.dates import date_pattern  # noqa: PLC0415 - few need it

    return dt.datetime.strptime(text, date_pattern(pattern).replace("%-", "%"))  # noqa: DTZ007


def to_number(text: str, pattern: str) -> str:
    number = try_to_number(text, pattern)
    if number is None:
        raise ValueError(f"{text!r} is no number of the format {pattern!r}.")
    return number


def try_to_number(text: str, pattern: str) -> str | None:
    """The number that a text of PySpark's pattern ("999,999.99") stands for."""
    shape = re.sub(r"[09]", "#", pattern.upper())
    plain = text.strip()
    is_negative = "-" in plain or ("PR" in shape and plain.startswith("<"))
    digits = re.sub(r"[^0-9.]", "", plain)
    allowed = re.sub(r"[^#.DG,$SMI]", "", shape).replace("D", ".").replace("G", ",")
    whole, _, fraction = allowed.partition(".")
    mine, _, rest = digits.partition(".")
    if ("$" in shape) != ("$" in plain):
        return None
    if not digits or len(mine) > whole.count("#") or len(rest) > fraction.count("#"):
        return None
    return f"{'-' if is_negative else ''}{digits}"


_CHUNK_BYTES = 4096  # of a bitmap
_NUMBER_FORMAT = re.compile(
    r"(?P<sign>S|MI)?(?P<dollar>\$)?(?P<whole>[09,G]*)(?:[.D](?P<fraction>[09]*))?"
    r"(?P<after>S|MI)?(?P<angle>PR)?"
)


def to_char(number: str, pattern: str) -> str:
    """A number, as text, in a format such as "$99,999.99"; # for digits where it does not fit."""
    parts = _NUMBER_FORMAT.fullmatch(pattern.upper())
    if parts is None or not re.search("[09]", pattern):
        raise ValueError(f"{pattern!r} is no format of numbers, such as '999,999.99'.")
    slots = parts["whole"].replace("G", ",")
    places = len(parts["fraction"] or "")
    is_negative = number.startswith("-")
    digits, _, rest = format(decimal.Decimal(number.lstrip("-")), "f").partition(".")
    digits, rest = digits.lstrip("0"), rest.rstrip("0")
    room = len(slots.replace(",", ""))
    fits = len(digits) <= room and len(rest) <= places
    if fits and not digits and places:
        digits = "0" * min(room, 1)
    whole = _in_slots(digits, slots) if fits else re.sub("[09]", "#", slots)
    fraction = rest.ljust(places, "0") if fits else "#" * places
    text = (parts["dollar"] or "") + whole + (f".{fraction}" if places else "")
    if parts["sign"] and fits:
        text = _signed(text, "-" if is_negative else "+" if parts["sign"] == "S" else " ")
    if parts["after"] and fits:
        text += "-" if is_negative else "+" if parts["after"] == "S" else " "
    if parts["angle"] and fits:
        text = f"<{text}>" if is_negative else f"{text}  "
    return text


def _in_slots(digits: str, slots: str) -> str:
    """Digits at the right of the slots; 0 shows zeros, 9 spaces, from the first 0 on all zeros."""
    padded = digits.rjust(len(slots.replace(",", "")))
    out, place, is_zero = "", 0, False
    for slot in slots:
        if slot == ",":
            out += "," if out.strip() else " "
            continue
        digit = padded[place]
        is_zero = is_zero or slot == "0"
        out += "0" if digit == " " and is_zero else digit
        place += 1
    return out


def _signed(text: str, sign: str) -> str:
    """The text with a sign before its first character that is no space."""
    start = len(text) - len(text.lstrip())
    return text[:start] + sign + text[start:]


def schema_of_csv(text: str, separator: str) -> str:
    cells = next(csv.reader([text], delimiter=separator), [])
    fields = (f"_c{place}: {_type_of_cell(cell)}" for place, cell in enumerate(cells))
    return f"STRUCT<{', '.join(fields)}>"


def _type_of_cell(cell: str) -> str:
    if re.fullmatch(r"[+-]?[0-9]+", cell):
        number = int(cell)
        small, fits = abs(number) < 1 << 31, abs(number) < 1 << 63
        return "INT" if small else "BIGINT" if fits else f"DECIMAL({len(str(abs(number)))},0)"
    if cell.lower() in ("true", "false"):
        return "BOOLEAN"
    return type_of_text(cell)


_DOUBLE = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(Infinity|Inf)|NaN", re.ASCII)
_MOMENT = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?P<time>[ T](?P<hour>\d{1,2}):(?P<minute>\d{1,2})(:(?P<second>\d{1,2})(\.\d{1,9})?)?"
    r" ?(Z|UTC|[+-]\d{1,2}(:?\d{2})?)?)?",
    re.ASCII,
)


def type_of_text(text: str) -> str:
    """DOUBLE, DATE or TIMESTAMP, if a text is one of these, else STRING.

    Python's own readers take more than Spark's, such as `1_0` and `2024-W01`.
    """
    if _DOUBLE.fullmatch(text):
        return "DOUBLE"
    moment = _MOMENT.fullmatch(text)
    if moment is None:
        return "STRING"
    try:
        dt.date(*map(int, moment.group("year", "month", "day")))
        hour, minute, second = (int(moment[name] or 0) for name in ("hour", "minute", "second"))
        dt.time(hour, minute, second)
    except ValueError:
        return "STRING"
    return "TIMESTAMP" if moment["time"] else "DATE"


def bitmap_construct_agg(positions: Iterable[int]) -> bytes:
    bits = 0
    for position in positions:
        if not 0 <= position < 8 * _CHUNK_BYTES:
            raise ValueError(f"{position} is no position in a bitmap; see bitmap_bit_position().")
        bits |= 1 << position
    return bits.to_bytes(_CHUNK_BYTES, "little")


def bitmap_or_agg(bitmaps: Iterable[bytes]) -> bytes:
    bits = 0
    for bitmap in bitmaps:
        bits |= int.from_bytes(bitmap[:_CHUNK_BYTES], "little")
    return bits.to_bytes(_CHUNK_BYTES, "little")


def bitmap_and_agg(bitmaps: Iterable[bytes]) -> bytes:
    bits = (1 << 8 * _CHUNK_BYTES) - 1
    for bitmap in bitmaps:
        bits &= int.from_bytes(bitmap[:_CHUNK_BYTES], "little")
    return bits.to_bytes(_CHUNK_BYTES, "little")


def histogram_numeric(values: Iterable[float], bins: int) -> list[dict[str, float]] | None:
    """Centres and weights of bins (Ben-Haim and Tom-Tov, JMLR 2010, as in Hive and Spark).

    NaN is in no bin: in Spark, what becomes of the others would depend on their order.
    """
    if bins < 2:
        raise ValueError("histogram_numeric() takes 2 bins at least.")
    centres: list[float] = []
    weights: list[float] = []
    for value in values:
        if math.isnan(value):
            continue
        place = bisect.bisect_left(centres, value)
        if place < len(centres) and centres[place] == value:
            weights[place] += 1
            continue
        centres.insert(place, value)
        weights.insert(place, 1.0)
        if len(centres) > bins:
            _merge_nearest(centres, weights)
    return [{"x": x, "y": y} for x, y in zip(centres, weights, strict=True)] or None


def _merge_nearest(centres: list[float], weights: list[float]) -> None:
    gaps = [right - left for left, right in itertools.pairwise(centres)]
    place = gaps.index(min(gaps))
    weight = weights[place] + weights[place + 1]
    moment = centres[place] * weights[place] + centres[place + 1] * weights[place + 1]
    centres[place : place + 2] = [moment / weight]
    weights[place : place + 2] = [weight]


# AES

_IV_BYTES = {"GCM": 12, "CBC": 16, "ECB": 0}


def aes_encrypt(data: Any, key: Any, mode: str, padding: str, aad: Any) -> bytes:
    cipher = _cipher(mode, padding, key)
    return _encrypted(cipher, data, os.urandom(_IV_BYTES[cipher.name]), aad)


def aes_encrypt_with(data: Any, key: Any, mode: str, padding: str, iv: Any, aad: Any) -> bytes:
    cipher = _cipher(mode, padding, key)
    start = _bytes(iv)
    if not start and _IV_BYTES[cipher.name]:
        raise ValueError("The initialization vector is empty: leave out iv for a random one.")
    return _encrypted(cipher, data, start, aad)


def _encrypted(cipher: _Cipher, data: Any, start: bytes, aad: Any) -> bytes:
    data, aad = _bytes(data), _bytes(aad)
    if cipher.name == "GCM":
        return start + bytes(cipher.aead.encrypt(start, data, aad or None))
    if aad:
        raise ValueError("Only the mode GCM takes additional data (aad).")
    start = b"" if cipher.name == "ECB" else start
    missing = 16 - len(data) % 16
    encryptor = cipher.of(start).encryptor()
    padded = data + bytes([missing]) * missing
    return start + bytes(encryptor.update(padded) + encryptor.finalize())


def aes_decrypt(data: Any, key: Any, mode: str, padding: str, aad: Any) -> bytes:
    cipher = _cipher(mode, padding, key)
    data, aad = _bytes(data), _bytes(aad)
    try:
        if cipher.name == "GCM":
            return bytes(cipher.aead.decrypt(data[:12], data[12:], aad or None))
        iv = b"" if cipher.name == "ECB" else data[:16]
        decryptor = cipher.of(iv).decryptor()
        padded: bytes = decryptor.update(data[len(iv) :]) + decryptor.finalize()
    except Exception as error:  # the library's types, which need not be here
        raise ValueError("This can't be decrypted: the key, mode or data are wrong.") from error
    missing = padded[-1] if padded else 0
    if not 1 <= missing <= 16 or padded[-missing:] != bytes([missing]) * missing:
        raise ValueError("This can't be decrypted: the key, mode or data are wrong.")
    return padded[:-missing]


def try_aes_decrypt(data: Any, key: Any, mode: str, padding: str, aad: Any) -> bytes | None:
    try:
        return aes_decrypt(data, key, mode, padding, aad)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _Cipher:
    name: str  # of the mode
    aead: Any  # for GCM
    of: Callable[[bytes], Any]  # for the others, given the initialization vector


def _cipher(mode: str, padding: str, key: Any) -> _Cipher:
    ciphers = library("cryptography.hazmat.primitives.ciphers", "crypto")
    aead = library("cryptography.hazmat.primitives.ciphers.aead", "crypto")
    name, key = mode.upper(), _bytes(key)
    fitting = {"GCM": ("DEFAULT", "NONE"), "CBC": ("DEFAULT", "PKCS"), "ECB": ("DEFAULT", "PKCS")}
    if padding.upper() not in fitting.get(name, ()):
        raise ValueError(f"There is no AES of mode {mode!r} with padding {padding!r}.")
    if len(key) not in (16, 24, 32):
        raise ValueError(f"A key of AES has 16, 24 or 32 bytes, not {len(key)}.")

    def of(iv: bytes) -> Any:
        modes = ciphers.modes
        return ciphers.Cipher(
            ciphers.algorithms.AES(key), modes.ECB() if name == "ECB" else modes.CBC(iv)
        )

    return _Cipher(name, aead.AESGCM(key) if name == "GCM" else None, of)


def spark_partition_id(task: int) -> int:
    return task
