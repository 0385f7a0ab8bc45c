"""Whether a function may open files, and so depend on the folder in which it runs.

A function's digest (`digests`) meets everything that the function can reach. Here is what of that
is known to open no file; whatever is not known may, so that a gap costs a miss, never an answer.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterable
from dataclasses import dataclass, field


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OPENING = frozenset([
    "open", "getattr", "vars", "dir", "attrgetter", "methodcaller", "modules",
    "__dict__", "__getattribute__", "__class__", "__subclasses__", "__loader__", "__spec__",
    "__builtins__", "__self__", "__globals__",
])  # fmt: skip
"""Names of what opens files, or may reach by a text, or from any object, what does."""

_HARMLESS = _words("""
    abc array base64 binascii bisect builtins calendar cmath collections collections.abc colorsys
    copy copyreg dataclasses datetime decimal difflib enum fractions functools hashlib heapq hmac
    html ipaddress itertools json math numbers operator random re statistics string struct textwrap
    time types typing unicodedata urllib.parse uuid zlib _bisect _collections _datetime _decimal
    _functools _hashlib _heapq _operator _random _struct numpy.linalg numpy.random
    numpy.dtypes pyarrow.compute pyarrow.types
""")
"""Modules with nothing that opens files, but for other modules that they name."""

_WRAPPERS = "minishark.worker."
"""The modules with what users' functions are wrapped into."""

_ARROW = _words("""
    Array ChunkedArray DataType DictionaryArray Field ListArray RecordBatch Scalar Schema
    StructArray Table array binary bool_ chunked_array compute concat_arrays concat_tables date32
    date64 decimal128 dictionary duration field float32 float64 int16 int32 int64 int8 large_string
    list_ map_ null nulls record_batch repeat scalar schema string struct table time32 time64
    timestamp types uint16 uint32 uint64 uint8 unify_schemas utf8
""")

_NAMES = {
    "numpy": _words("""
        abs add all allclose any arange argmax argmin argsort array array_equal asarray astype
        average bincount bool_ ceil clip concatenate copy corrcoef cos cumsum diff digitize divide
        dot dtype empty equal exp expand_dims eye float32 float64 floor full hstack imag inf int16
        int32 int64 int8 interp isclose isfinite isin isinf isnan linalg linspace log log10 log1p
        log2 logical_and logical_not logical_or max maximum mean median min minimum mod multiply nan
        nan_to_num nanmax nanmean nanmin nansum ndarray ndim newaxis nonzero ones ones_like outer
        percentile pi power prod quantile random ravel real repeat reshape round searchsorted shape
        sign sin size sort split sqrt square stack std str_ subtract sum tan tanh tile transpose
        uint8 unique var vstack where zeros zeros_like
"""),
    "numpy._core.multiarray": _words("_reconstruct scalar"),
    "pandas": _words("""
        DataFrame Index NA NaT Series Timedelta Timestamp array concat cut date_range isna isnull
        merge notna notnull qcut to_datetime to_numeric to_timedelta unique
"""),
    "pyarrow": _ARROW,
    "pyarrow.lib": _ARROW,
}
"""Of modules that also open files, what does not."""


@dataclass(slots=True)
class Reach:
    """What functions can reach, as it is met."""

    may_change: bool = False  # some of it is in modules of the user's, and not in what was pickled
    _names: set[str] = field(default_factory=set)  # that code has: globals and attributes
    _modules: set[str] = field(default_factory=set)  # that it has as a whole
    _members: set[tuple[str, str]] = field(default_factory=set)  # of modules: functions, classes

    def add_names(self, names: Iterable[str]) -> None:
        """Code has these names, whatever they mean there."""
        self._names.update(names)

    def add_module(self, name: str, member: str = "") -> None:
        """Code has a module, or only this function or class of it."""
        if member:
            self._members.add((name, member.partition(".")[0]))
        else:
            self._modules.add(name)

    @property
    def opens_files(self) -> bool:
        """Whether any of it may open files."""
        opening = self._names | {member for _, member in self._members}
        if not opening.isdisjoint(_OPENING):
            return True
        if not all(_is_harmless(module, member) for module, member in self._members):
            return True
        looked, waiting = set[str](), [*self._modules]
        while waiting:
            name = waiting.pop()
            if name in looked:
                continue
            looked.add(name)
            if not _is_harmless(name) and name not in _NAMES:
                return True
            for member, value in self._named_in(name).items():
                if isinstance(value, types.ModuleType):
                    waiting.append(value.__name__)
                elif not _is_harmless(name, member):
                    return True
        return False

    def _named_in(self, module: str) -> dict[str, object]:
        """What a harmless module has under names of the code, whosever these are."""
        there = importlib.import_module(module)
        return {name: getattr(there, name) for name in self._names if hasattr(there, name)}


def _is_harmless(module: str, member: str = "") -> bool:
    is_wrapper = module.startswith(_WRAPPERS)
    return module in _HARMLESS or is_wrapper or member in _NAMES.get(module, ())
