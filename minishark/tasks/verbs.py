"""What a session offers for calls in the cluster; the same in the front end and inside calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from minishark.dataframe.applied import check_callable
from minishark.dataframe.names import nearest
from minishark.errors import OptionError
from minishark.tasks.broadcast import Broadcast, broadcast
from minishark.tasks.call import CallOptions
from minishark.tasks.executor import Executor, mapped, submit
from minishark.tasks.future import Future
from minishark.tasks.items import Items, lazily, parallelize
from minishark.tasks.partitions import Context
from minishark.tasks.pool import CallPool
from minishark.tasks.results import Results

T = TypeVar("T")

_PLAIN = CallOptions()


class Calls:
    """Calls of Python functions in a cluster."""

    def __init__(self, pool: CallPool, slots: Callable[[], int]) -> None:
        """Calls by a pool; `slots` tells how many run at once."""
        self.pool = pool
        self._slots = slots

    @property
    def slots(self) -> int:
        """How many calls run at once."""
        return self._slots()

    def submit(
        self,
        fn: Callable[..., T],
        args: tuple[Any, ...],
        kwargs: Any,
        *,
        options: CallOptions = _PLAIN,
    ) -> Future[T]:
        """Run `fn(*args, **kwargs)` in the cluster."""
        check_callable("submit", fn)
        if kwargs:
            _check_options(fn, kwargs)
        return submit(self.pool, options, (fn, args, kwargs))

    def map(
        self,
        fn: Callable[..., T],
        iterables: tuple[Iterable[Any], ...],
        *,
        chunksize: int | None,
        options: CallOptions,
        ordered: bool,
    ) -> Results[T]:
        """`map(fn, *iterables)` in the cluster."""
        check_callable("map", fn)
        if not iterables:
            raise OptionError("map() takes at least one iterable.")
        for place, items in enumerate(iterables, 1):
            _check_iterable(place, items)
        return mapped(
            self.pool, self._checked(options), fn, iterables,
            chunksize=chunksize, slots=self._slots(), ordered=ordered,
        )  # fmt: skip

    def executor(self, options: CallOptions) -> Executor:
        """An executor whose calls have these options."""
        return Executor(self.pool, self._checked(options), self._slots())

    def broadcast(self, value: T) -> Broadcast[T]:
        """Store a value once per node."""
        return broadcast(value, self.pool.files)

    def parallelize(
        self,
        items: Iterable[Any],
        partitions: int | None,
        frame: Callable[[list[Any], Any], Any] | None = None,
    ) -> Items:
        """Items in partitions; None for one per slot. `frame` makes DataFrames of items."""
        context = Context(self.pool, self._slots(), frame)
        return parallelize(context, items, partitions or context.slots)

    def items(
        self,
        count: int,
        make: Callable[[], Sequence[Any]],
        frame: Callable[[list[Any], Any], Any],
    ) -> Items:
        """The items of the iterables that `make` returns, in `count` partitions, when needed."""
        return lazily(Context(self.pool, self._slots(), frame), count, make)

    def _checked(self, options: CallOptions) -> CallOptions:
        """Options that can be met: nodes exist, and results can be kept.

        Raises:
            OptionError: they can't.
        """
        if options.reuse and self.pool.kept is None:
            raise OptionError(
                'reuse=True needs a session that keeps outputs: pass reuse="session" or '
                'reuse="cluster" to connect(). Calls that other calls make are not kept.'
            )
        nodes = self.pool.placing().nodes if options.prefers else ()
        for name in options.prefers:
            if name not in nodes:
                raise OptionError(f"There is no node {name!r}.{nearest(name, nodes)}")
        return options


def _check_iterable(place: int, items: Any) -> None:
    if not isinstance(items, Iterable) and not hasattr(items, "__getitem__"):
        raise OptionError(
            f"map() takes a function and iterables of its arguments: number {place} is of "
            f"{type(items).__name__}. For one call, use submit()."
        )


_OPTIONS = ("prefers", "retries", "timeout", "reuse")


def _check_options(fn: Callable[..., Any], kwargs: Iterable[str]) -> None:
    """Raise OptionError if an argument that the function does not take seems to be an option."""
    meant = [name for name in kwargs if nearest(name, _OPTIONS)]
    if not meant:
        return
    try:
        taken = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # of a function in C
        return
    if any(each.kind is each.VAR_KEYWORD for each in taken.values()):
        return
    for name in meant:
        if name not in taken:
            raise OptionError(
                f"submit() passes {name!r} on to the function, which does not take it. Options of "
                f"calls go to session.executor(): {', '.join(_OPTIONS)}."
            )


def call_options(
    prefers: str | Sequence[str], retries: int, timeout: float | None, *, reuse: bool = False
) -> CallOptions:
    """Options as users give them."""
    nodes = (prefers,) if isinstance(prefers, str) else tuple(prefers)
    return CallOptions(nodes, retries, timeout, reuse)
