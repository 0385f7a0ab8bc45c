"""Digests of Python values and functions, by what they do: the same in every process.

A function's digest covers its code, constants and defaults, what its closure holds, and the globals
that it names, with the functions and classes among them in turn; modules count by name and version,
or by their source if they have none. Pickles won't do: cloudpickle's bytes differ between processes
for the same function.

    def clean(text):              code, constants, names
        return PATTERN.sub(       a global: its value
            "", helpers.fold(     a module of the user's: its source, and what that imports
                text))

Line numbers, file names and comments do not count. Whatever can't be told for sure has no digest:
it raises `NoDigestError`, whose text says what, for EXPLAIN.
"""

from __future__ import annotations

import ast
import copyreg
import dis
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import platform
import struct
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import pyarrow as pa

from minishark.query.reach import Reach
from minishark.worker.user_modules import is_installed, is_own

_BYTES = 16
_PICKLED_BYTES_MAX = 64 << 20
_CACHED_MAX = 1024
_REFLECTIVE = frozenset(["eval", "exec", "globals", "__import__", "import_module"])
"""Functions that reach what a function's code does not name."""

# fmt: off
_DERIVED = frozenset([
    "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__firstlineno__",
    "__slotnames__", "__static_attributes__", "__abstractmethods__", "_abc_impl", "__match_args__",
])
# fmt: on
"""Entries of classes that say nothing of what they do, or follow from others."""

_SLOTS = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)


class NoDigestError(Exception):
    """A value has no digest; the text says which, and why."""


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest of a value, in hexadecimal digits, and what it can reach."""

    text: str
    reach: Reach


def digest(value: object) -> str:
    """The digest of a value, in hexadecimal digits.

    Raises:
        NoDigestError: it has none.
    """
    return _digest(value).text


def _digest(value: object, reach: Reach | None = None) -> Digest:
    reach = Reach() if reach is None else reach
    digester = _Digester(reach)
    try:
        digester.add(value)
    except RecursionError:
        raise NoDigestError("a value is nested too deeply") from None
    return Digest(digester.hexdigest(), reach)


def pickled_digest(pickled: bytes) -> Digest | NoDigestError:
    """The digest of what was pickled, which is what executors call; or why there is none.

    It is another one when what is pickled by name only, such as a user's module, has changed.
    """
    if len(pickled) > _PICKLED_BYTES_MAX:
        return NoDigestError("it carries more than 64 MiB of data along")
    try:
        return _digest(cloudpickle.loads(pickled))
    except NoDigestError as error:
        return error
    except Exception as error:  # noqa: BLE001 - unpickling and reducing run the user's code
        return NoDigestError(f"it can't be looked into ({type(error).__name__}: {error})")


class _Digester:
    """A digest that is being computed.

    Every value is preceded by its kind, and texts by their length, so that no two different
    sequences of values look the same.
    """

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._hash = hashlib.blake2b(digest_size=_BYTES)
        self._met: dict[int, int] = {}  # the numbers of values that may occur again, by their ids
        self._kept: list[object] = []  # they stay, so that no other gets their ids

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def _put(self, kind: str, data: bytes = b"") -> None:
        head = kind.encode()
        self._hash.update(struct.pack("<HQ", len(head), len(data)) + head)
        self._hash.update(data)

    def add(self, value: object) -> None:
        """Add a value."""
        kind = type(value)
        plain = _PLAIN.get(kind)
        if plain is not None:
            self._put(kind.__name__, plain(value))
            return
        if isinstance(value, tuple) and kind is tuple:
            self._tuple(value)
            return
        add = self._ADDERS.get(kind)
        if self._is_met(value):
            return
        if add is not None:
            add(self, value)
        elif isinstance(value, type):
            self._class(value)
        else:
            self._instance(value)

    def _is_met(self, value: object) -> bool:
        number = self._met.get(id(value))
        if number is not None:
            self._put("met", struct.pack("<Q", number))
            return True
        self._met[id(value)] = len(self._met)
        self._kept.append(value)
        return False

    # Containers

    def _tuple(self, values: Any) -> None:
        self._put("tuple", struct.pack("<Q", len(values)))
        for value in values:
            self.add(value)

    def _list(self, values: Any) -> None:
        self._put("list", struct.pack("<Q", len(values)))
        for value in values:
            self.add(value)

    def _dict(self, values: Any) -> None:
        self._put("dict", struct.pack("<Q", len(values)))
        for key, value in values.items():
            self.add(key)
            self.add(value)

    def _set(self, values: Any) -> None:
        digests = sorted(_digest(value, self._reach).text for value in values)
        self._put(type(values).__name__, "".join(digests).encode())

    def _buffer(self, value: Any) -> None:
        self._put("buffer", memoryview(value).cast("B"))  # type: ignore[arg-type]

    # Code

    def _function(self, function: Any) -> None:
        if self._is_of_package(function):
            return
        self._note_module(function)
        self._put("function")
        self._code(function.__code__)
        self._defaults(function)
        self._cells(function)
        self._globals(function)
        self.add(vars(function))
        # They decide nothing, or the types of parameters in SQL.
        for name, annotation in function.__annotations__.items():
            self._put("annotation", f"{name}: {_annotation(annotation)}".encode())

    def _defaults(self, function: Any) -> None:
        self.add((function.__defaults__, function.__kwdefaults__))

    def _cells(self, function: Any) -> None:
        for cell in function.__closure__ or ():
            try:
                contents = cell.cell_contents
            except ValueError:
                self._put("empty cell")
            else:
                self.add(contents)

    def _globals(self, function: Any) -> None:
        variables, names = function.__globals__, dict[str, None]()
        for code in _nested(function.__code__):
            names.update(dict.fromkeys(code.co_names))
            for module in _imports(code, variables):
                self._module(module)
        self._reach.add_names(names)
        for name in names:
            if name in _REFLECTIVE:
                raise NoDigestError(f"{function.__qualname__} calls {name}")
            self._put("global", name.encode())
            if name in variables:
                self.add(variables[name])

    def _code(self, code: types.CodeType) -> None:
        self._put("code", code.co_code)
        self._put("exceptions", code.co_exceptiontable)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.add(counts)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        self.add(names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant)
            else:
                self.add(constant)

    def _method(self, method: Any) -> None:
        self._put("method")
        self.add(method.__func__)
        self.add(method.__self__)

    def _builtin(self, function: Any) -> None:
        owner = function.__self__
        self._put("builtin", f"{function.__module__}.{function.__qualname__}".encode())
        if owner is not None and not isinstance(owner, types.ModuleType):
            self.add(owner)
        elif function.__module__ is not None:
            self._module(function.__module__, function.__qualname__)

    def _wrapped(self, member: Any) -> None:
        """A static or class method."""
        self._put(type(member).__name__)
        self.add(member.__func__)

    def _property(self, member: Any) -> None:
        self._put("property")
        self.add((member.fget, member.fset, member.fdel))

    def _is_of_package(self, thing: Any) -> bool:
        """Add a function or class that a package has under its own name; whether it is such."""
        name, path = thing.__module__, thing.__qualname__
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is None or _package(name) is None:
            return False
        value: Any = module
        for part in path.split("."):
            value = getattr(value, part, None)
        if value is not thing:
            return False
        self._put("named", f"{name}.{path}".encode())
        self._module(name, path)
        return True

    def _class(self, class_: Any) -> None:
        if self._is_of_package(class_):
            return
        self._note_module(class_)
        self._put("class", class_.__qualname__.encode())
        self.add(type(class_))
        self._tuple(class_.__bases__)
        for name, member in sorted(vars(class_).items()):
            if name not in _DERIVED and not isinstance(member, _SLOTS):
                self._put("member", name.encode())
                self.add(member)

    # Modules

    def _note_module(self, thing: Any) -> None:
        if thing.__module__ != "__main__":  # else it is pickled by value
            self._reach.may_change = True

    def _a_module(self, module: Any) -> None:
        self._module(module.__name__)

    def _module(self, name: str, member: str = "") -> None:
        self._reach.add_module(name, member)
        package = _package(name)
        if package is not None:
            self._put("package", f"{name} of {package}".encode())
            return
        self._reach.may_change = True
        self._put("module", "".join(_sources(name)).encode())

    # All else

    def _global(self, value: Any, name: str, shown: str) -> None:
        """Add what is pickled as the name of a global, such as a function with a cache."""
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:
            self._put("wrapped", shown.encode())
            self.add(wrapped)
            return
        module = getattr(value, "__module__", None)
        if not isinstance(module, str) or _package(module) is None:
            raise NoDigestError(f"{shown} has no digest")
        self._put("named", f"{module}.{name}".encode())
        self._module(module, name)

    def _instance(self, value: Any) -> None:
        """Add an instance by what it is pickled as."""
        shown = f"a {type(value).__module__}.{type(value).__qualname__}"
        reduce = copyreg.dispatch_table.get(type(value))
        try:
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception as error:
            raise NoDigestError(f"{shown} has no digest ({error})") from error
        if isinstance(reduced, str):
            self._global(value, reduced, shown)
            return
        self._put("instance")
        self.add(type(value))
        function, arguments, *rest = reduced
        self.add(function)
        self._tuple(arguments)
        for part in rest:  # its state, and iterators over items and over pairs
            self.add(list(part) if isinstance(part, Iterator) else part)

    _ADDERS: ClassVar[dict[type, Callable[[_Digester, Any], None]]] = {
        list: _list,
        dict: _dict,
        types.MappingProxyType: _dict,
        set: _set,
        frozenset: _set,
        memoryview: _buffer,
        pa.Buffer: _buffer,
        types.FunctionType: _function,
        types.MethodType: _method,
        types.BuiltinFunctionType: _builtin,
        types.CodeType: _code,
        types.ModuleType: _a_module,
        staticmethod: _wrapped,
        classmethod: _wrapped,
        property: _property,
    }


_PLAIN: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"",
    type(Ellipsis): lambda _: b"",
    type(NotImplemented): lambda _: b"",
    bool: lambda value: b"1" if value else b"0",
    int: lambda value: str(value).encode() if abs(value) < 1 << 64 else hex(value).encode(),
    float: lambda value: struct.pack("<d", value),
    complex: lambda value: struct.pack("<dd", value.real, value.imag),
    str: lambda value: value.encode("utf-8", "surrogatepass"),
    bytes: lambda value: value,
    bytearray: bytes,
}


def _annotation(annotation: object) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object, and those of the functions and classes that it defines."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _imports(code: types.CodeType, variables: dict[str, Any]) -> Iterator[str]:
    """The modules that code imports when it runs.

    Raises:
        NoDigestError: there is no such module.
    """
    depth = 0
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, int):
            depth = instruction.argval
        elif instruction.opname == "IMPORT_NAME":
            name = "." * depth + instruction.argval
            try:
                yield importlib.util.resolve_name(name, variables.get("__package__") or "")
            except ImportError as error:
                raise NoDigestError(f"it imports {name}: {error}") from error


@lru_cache(_CACHED_MAX)
def _package(name: str) -> str | None:
    """The package that a module is part of, with its version; None for one of the user's.

    Raises:
        NoDigestError: it is installed, but without a version.
    """
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return f"Python {platform.python_version()}"
    if is_own(top):  # its version is in every name
        return top
    if top == "__main__":  # whatever file runs
        return None
    module = sys.modules.get(top)
    file = getattr(module, "__file__", None) or _file_of(top)
    if file is None or not is_installed(file):
        return None
    try:
        return f"{top} {importlib.metadata.version(top)}"
    except importlib.metadata.PackageNotFoundError:
        version = getattr(module, "__version__", None)
    if version is None:
        packages = importlib.metadata.packages_distributions().get(top, ())
        version = " ".join(
            f"{package} {importlib.metadata.version(package)}" for package in sorted(packages)
        )
    if not version:
        raise NoDigestError(f"module {name} has no version")
    return f"{top} {version}"


def _file_of(name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return None if spec is None else spec.origin


def _sources(name: str) -> list[str]:
    """The sources of a user's module, and of those of the user's that it imports, by name.

    Raises:
        NoDigestError: one has none.
    """
    digests: dict[str, str] = {}
    waiting = [name]
    while waiting:
        name = waiting.pop()
        if name in digests:
            continue
        if name == "__main__":
            raise NoDigestError("a function reads the module __main__ as a whole")
        module = sys.modules.get(name)
        if module is None:
            try:
                module = importlib.import_module(name)
            except Exception as error:
                raise NoDigestError(f"module {name} can't be imported ({error})") from error
        try:
            data = Path(inspect.getsourcefile(module) or "").read_bytes()
        except (OSError, TypeError) as error:
            raise NoDigestError(f"module {name} has no source") from error
        digests[name] = f"{name} {hashlib.blake2b(data, digest_size=_BYTES).hexdigest()}\n"
        waiting += [imported for imported in _related(module, data) if _package(imported) is None]
        waiting += [parent] if (parent := name.rpartition(".")[0]) else []
    return [digests[name] for name in sorted(digests)]


def _related(module: types.ModuleType, source: bytes) -> Iterator[str]:
    """The modules that a module imports, wherever in its source."""
    parent = module.__package__ or ""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = importlib.util.resolve_name("." * node.level + (node.module or ""), parent)
            yield name
            names = (f"{name}.{alias.name}" for alias in node.names)
            yield from (imported for imported in names if imported in sys.modules)
