"""Python functions that SQL and Columns call: `session.udf.register`, `functions.udf`.

The planning database gets a stub with the function's signature, which is never called; each
executor creates the real function when a fragment calls it.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import duckdb

from minishark.dataframe.applied import check_callable, pickled
from minishark.dataframe.column import Column, Kind, call, column_or_name, sql_type
from minishark.dataframe.generated_functions import generated
from minishark.dataframe.local import declared_columns
from minishark.dataframe.names import ident
from minishark.dataframe.runtime import Runtime
from minishark.errors import DataError, OptionError, UnsupportedError
from minishark.worker.protocol import ScalarFunction

_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
NULL_HANDLINGS = ("default", "special")
UDF_ON_ERROR = ("raise", "null")


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFunction:
    """What `functions.udf` and the like return: called with columns, it makes a Column.

    Attributes:
        func: the user's function.
        returns: its DuckDB result type.
        run: what executors call.
        vectorized: whether that takes Arrow arrays.
        of_groups: whether it takes the values of a group, and so is an aggregate.
        deterministic: whether equal arguments always give equal results.
    """

    func: Callable[..., Any]
    returns: str
    run: Callable[..., Any]
    vectorized: bool = False
    of_groups: bool = False
    deterministic: bool = True

    @property
    def name(self) -> str:
        """The user's function's name."""
        return getattr(self.func, "__name__", "udf").strip("<>")

    def __call__(self, *columns: Any, **named: Any) -> Column:
        """The function of columns, or of columns' names."""
        if named:
            columns = inspect.signature(self.func).bind(*columns, **named).args
        name = generated(
            self.name,
            self.run,
            self.returns,
            vectorized=self.vectorized,
            volatile=not self.deterministic,
        )
        chosen = [column_or_name(column) for column in columns]
        if self.of_groups:
            chosen = [call("list", column, kind=Kind.GROUP) for column in chosen]
        shown = ", ".join(
            argument.name or argument.sql(lambda ref: ref.name) for argument in chosen
        )
        return replace(call(name, *chosen), name=f"{self.name}({shown})")

    def asNondeterministic(self) -> PythonFunction:  # noqa: N802 - PySpark's name
        """The same, called once for each row, like random()."""
        return replace(self, deterministic=False)


@dataclass(frozen=True, slots=True)
class OfSeries:
    """A function of pandas Series as one of Arrow arrays."""

    fn: Callable[..., Any]
    takes_iterator: bool  # whether it maps an iterator of Series (or tuples of them)

    def __call__(self, *arrays: Any) -> Any:
        import pyarrow as pa  # noqa: PLC0415 - in executors

        series = [array.to_pandas() for array in arrays]
        if self.takes_iterator:
            (result,) = self.fn(iter([series[0] if len(series) == 1 else tuple(series)]))
        else:
            result = self.fn(*series)
        return pa.Array.from_pandas(result)


@dataclass(frozen=True, slots=True)
class OfGroup:
    """A function of pandas Series that returns a value, as one of lists."""

    fn: Callable[..., Any]

    def __call__(self, *lists: Any) -> Any:
        import pandas as pd  # noqa: PLC0415 - an optional dependency, in executors

        result = self.fn(*map(pd.Series, lists))
        return result.item() if hasattr(result, "item") else result


def udf(f: Any = None, returnType: Any = None, *, useArrow: bool | None = None) -> Any:
    """A Python function of the values of a row, to call with columns; also a decorator.

    Args:
        f: the function; it gets None for NULL. Or the type of the result, in a decorator.
        returnType: the type of its result: "int", `IntegerType()`, a Python type; text if omitted.
        useArrow: ignored: values always travel in Arrow's form.

    Raises:
        DataError: the type is not valid.
        OptionError: it can't be pickled; raised where it is called.

    Examples:
        >>> from minishark import functions as F
        >>> twice = F.udf(lambda x: 2 * x, "bigint")
        >>> session.range(2).select(twice("id").alias("twice")).collect()
        [Row(twice=0), Row(twice=2)]
    """
    if not callable(f) or isinstance(f, type):
        return functools.partial(_decorated, udf, f if f is not None else returnType)
    check_callable("udf", f)
    returns = _type("string" if returnType is None else returnType)
    return PythonFunction(func=f, returns=returns, run=_giving(f, returns))


def _decorated(make: Callable[..., Any], type_: Any, f: Callable[..., Any]) -> Any:
    return make(f, type_)


def pandas_udf(f: Any = None, returnType: Any = None, functionType: Any = None) -> Any:
    """A Python function of pandas Series, to call with columns; also a decorator.

    Its annotations tell what it takes: Series, to return a Series of the same length; an iterator
    of Series, to return one; or Series of a group, to return a value: then it is an aggregate.

    Args:
        f: the function; or the type of the result, in a decorator.
        returnType: the type of its result; see `udf`.
        functionType: ignored: annotations tell.

    Raises:
        OptionError: there is no type.

    Examples:
        >>> from minishark import functions as F
        >>> import pandas as pd
        >>> @F.pandas_udf("double")
        ... def half(x: pd.Series) -> pd.Series:
        ...     return x / 2
        >>> session.range(2).select(half("id").alias("half")).collect()
        [Row(half=0.0), Row(half=0.5)]
    """
    if not callable(f) or isinstance(f, type):
        return functools.partial(_decorated, pandas_udf, f if f is not None else returnType)
    if returnType is None:
        raise OptionError("pandas_udf() needs the type of the result: pandas_udf(f, 'double').")
    returns, takes, gives = _type(returnType), *_annotations(f)
    if gives and "Series" not in gives and "Iterator" not in gives and "DataFrame" not in gives:
        return PythonFunction(func=f, returns=returns, run=OfGroup(f), of_groups=True)
    run = OfSeries(f, "Iterator" in takes)
    return PythonFunction(func=f, returns=returns, run=run, vectorized=True)


def arrow_udf(f: Any = None, returnType: Any = None, functionType: Any = None) -> Any:
    """A Python function of Arrow arrays that returns one of the same length; see `udf`."""
    if not callable(f) or isinstance(f, type):
        return functools.partial(_decorated, arrow_udf, f if f is not None else returnType)
    if returnType is None:
        raise OptionError("arrow_udf() needs the type of the result: arrow_udf(f, 'double').")
    return PythonFunction(func=f, returns=_type(returnType), run=f, vectorized=True)


def _annotations(f: Callable[..., Any]) -> tuple[str, str]:
    """The annotations of what a function takes and returns, as text."""
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):
        return "", ""
    takes = [str(p.annotation) for p in signature.parameters.values()]
    gives = signature.return_annotation
    return " ".join(takes), "" if gives is inspect.Signature.empty else str(gives)


class UserFunctions:
    """`session.udf`: Python functions for SQL and for Columns.

    Examples:
        >>> shout = session.udf.register("shout", lambda text: text.upper() + "!", "VARCHAR")
        >>> session.sql("SELECT shout('hey') AS said").collect()
        [Row(said='HEY!')]
        >>> @session.udf("BIGINT")
        ... def doubled(x: int) -> int:
        ...     return 2 * x
        >>> session.range(3).select(doubled("id").alias("twice")).collect()
        [Row(twice=0), Row(twice=2), Row(twice=4)]
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def register(
        self,
        name: str,
        fn: Callable[..., Any],
        return_type: Any = None,
        parameters: Sequence[Any] | None = None,
        *,
        vectorized: bool = False,
        null_handling: str = "default",
        deterministic: bool = True,
        on_error: str = "raise",
    ) -> Callable[..., Column]:
        """Make a Python function callable from SQL, replacing one of the same name.

        Args:
            name: its name in SQL.
            fn: takes the values of a row and returns a value; with `vectorized`, takes Arrow arrays
                and returns one of the same length.
            return_type: the type of its result: DuckDB's, PySpark's, Python's or pyarrow's; None
                for text, or what the udf returns.
            parameters: the types of its arguments; None for its annotations, or for any types if it
                has none.
            vectorized: whether it takes many rows at once, which is many times faster. It gets
                NULLs as nulls.
            null_handling: "default": where an argument is NULL the result is NULL, and `fn` is not
                called. "special": it is called with None.
            deterministic: whether equal arguments always give equal results; if not, it is called
                once for each row, like random().
            on_error: "raise": what `fn` raises ends the query. "null": the result is NULL where it
                raises; with `vectorized`, it is called again with single rows then.

        Returns:
            A function of Columns or column names that returns a Column.

        Raises:
            DataError: a type is not valid.
            OptionError: DuckDB has a function of that name, or `fn` can't be pickled.
        """
        check_callable("udf.register", fn)
        if self._runtime.dialect.has_function(name):
            raise OptionError(f"SQL has a function {name!r}; choose another name.")
        if isinstance(fn, PythonFunction):
            if fn.of_groups:
                raise UnsupportedError("SQL can't call a function of groups; use it with agg().")
            return_type, vectorized = return_type or fn.returns, fn.vectorized
            deterministic, null_handling, fn = fn.deterministic, "special", fn.run
        return_type = "string" if return_type is None else return_type
        if null_handling not in NULL_HANDLINGS:
            raise OptionError(f"null_handling is one of {', '.join(NULL_HANDLINGS)}.")
        if on_error not in UDF_ON_ERROR:
            raise OptionError(f"on_error of a function in SQL is one of {', '.join(UDF_ON_ERROR)}.")
        if not name.isidentifier():
            raise OptionError(f"{name!r} can't be called in SQL; use letters, digits and _.")
        returns = _type(return_type)
        run = fn if vectorized else _giving(fn, returns)
        if on_error == "null":
            run = NullForArrays(run) if vectorized else NullForValues(run)
        function = ScalarFunction(
            name=name.lower(),
            pickled=pickled(name, run),
            returns=returns,
            parameters=_parameters(fn, parameters),
            vectorized=vectorized,
            sees_nulls=vectorized or null_handling == "special",
            volatile=not deterministic,
        )
        self._runtime.register_function(function, run)
        return lambda *columns: call(function.name, *map(column_or_name, columns))

    def __call__(
        self, return_type: Any, *, name: str | None = None, **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Column]]:
        """A decorator that registers a function under its own name; see `register`."""

        def decorate(fn: Callable[..., Any]) -> Callable[..., Column]:
            return self.register(name or fn.__name__, fn, return_type, **options)

        return decorate

    def remove(self, name: str) -> None:
        """Remove a function.

        Raises:
            OptionError: no function of that name was registered.
        """
        self._runtime.remove_function(name.lower())


@dataclass
class _Of:
    """A function whose results are made into others; its parameters stay those of `fn`."""

    fn: Callable[..., Any]

    def __post_init__(self) -> None:
        # DuckDB counts the parameters that `inspect.signature` finds.
        self.__wrapped__ = self.fn


@dataclass
class OfStruct(_Of):
    """A function that returns structs, as Rows, tuples or mappings, as one of mappings."""

    names: tuple[str, ...]

    def __call__(self, *values: Any) -> Any:
        result = self.fn(*values)
        if isinstance(result, tuple | list):
            return dict(zip(self.names, result, strict=True))
        return result


@dataclass
class OfWhole(_Of):
    """A function that returns numbers, as one of whole numbers: fractions are cut off."""

    def __call__(self, *values: Any) -> Any:
        result = self.fn(*values)
        if type(result) is int or result is None or isinstance(result, Integral):
            return result
        return math.trunc(result) if isinstance(result, Real | Decimal) else result


@dataclass
class NullForValues(_Of):
    """A function that returns None where it would raise."""

    def __call__(self, *values: Any) -> Any:
        try:
            return self.fn(*values)
        except MemoryError:  # says nothing of the values
            raise
        except Exception:  # noqa: BLE001 - whatever user code raises
            return None


@dataclass
class NullForArrays(_Of):
    """A function of Arrow arrays that gives NULL for rows for which it would raise."""

    def __call__(self, *arrays: Any) -> Any:
        try:
            return self.fn(*arrays)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - whatever user code raises
            if len(arrays[0]) == 1:
                return [None]
        return [
            value.as_py() if hasattr(value, "as_py") else value
            for row in range(len(arrays[0]))
            for value in self(*(array.slice(row, 1) for array in arrays))
        ]


def _fields_of(type_: str) -> tuple[str, ...]:
    """The names of a struct's fields; none of another type."""
    is_struct = type_.startswith("STRUCT(") and not type_.endswith("]")
    return tuple(name for name, _ in duckdb.sqltype(type_).children) if is_struct else ()


def _giving(fn: Callable[..., Any], returns: str) -> Callable[..., Any]:
    if returns in _WHOLE:
        return OfWhole(fn)
    names = _fields_of(returns)
    return OfStruct(fn, names) if names else fn


def _type(type_: Any) -> str:
    try:
        ((_, declared),) = declared_columns({"x": sql_type(type_)})
    except DataError:
        if not isinstance(type_, str) or len(type_.split()) == 1:
            raise
        fields = (f"{ident(name)} {field_type}" for name, field_type in declared_columns(type_))
        return f"STRUCT({', '.join(fields)})"  # of "a int, b string"
    return declared


def _parameters(fn: Callable[..., Any], parameters: Sequence[Any] | None) -> tuple[str, ...] | None:
    """The types of a function's arguments; None if not all of them are known."""
    if parameters is None:
        try:
            signature = inspect.signature(fn, eval_str=True)
        except (NameError, TypeError, ValueError):
            return None
        annotations = [p.annotation for p in signature.parameters.values()]
        if not all(isinstance(a, type) and a is not inspect.Parameter.empty for a in annotations):
            return None
        try:
            return tuple(_type(annotation) for annotation in annotations)
        except OptionError:  # annotated with something else, such as an Arrow array
            return None
    return tuple(map(_type, parameters))
