"""What a session offers for calls in the cluster; the same in the front end and inside calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from minishark.dataframe.applied import check_callable
from minishark.dataframe.doors import doors
from minishark.dataframe.names import nearest
from minishark.errors import OptionError
from minishark.session.tasks.broadcast import Broadcast, broadcast
from minishark.session.tasks.call import CallOptions
from minishark.session.tasks.executor import Executor, mapped, submit
from minishark.session.tasks.future import Future
from minishark.session.tasks.items import Items, lazily, parallelize
from minishark.session.tasks.partitions import Context
from minishark.session.tasks.pool import CallPool
from minishark.session.tasks.results import Results

P = ParamSpec("P")
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


@doors
class CallVerbs:
    """The methods of sessions that run Python functions, in the front end and inside calls."""

    def _calls(self) -> Calls:
        raise NotImplementedError

    def _call_timeout(self, named: float | None) -> float | None:
        """The seconds that a call may take, given what its caller says."""
        return named

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn(*args, **kwargs)` in the cluster; its result is the future's.

        Functions that refer to this session may submit calls themselves.

        Raises:
            OptionError: the function or an argument can't be pickled.

        Examples:
            >>> session.submit(pow, 2, 10).result()
            1024
        """
        options = call_options((), 0, self._call_timeout(None))
        return self._calls().submit(fn, args, kwargs, options=options)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        chunksize: int | None = None,
        prefers: str | Sequence[str] = (),
        retries: int = 0,
        timeout: float | None = None,
        ordered: bool = True,
        reuse: bool = False,
    ) -> Results[T]:
        """An iterator over `fn(*items)` for the items of all iterables, run in the cluster.

        The input is read as results are taken, so it may be endless. The first exception ends the
        iteration, and cancels what is left.

        Args:
            fn: a function of as many arguments as there are iterables.
            iterables: of items that can be pickled.
            chunksize: items per call; None for several per slot, or if the number of items is not
                known, as many as take some milliseconds; with `reuse`, one.
            prefers: nodes to run on; others only after a while, or if none of these is alive.
            retries: how often a call that raised is tried again.
            timeout: seconds after which a running call is given up, with TaskTimeoutError.
            ordered: whether results come in the order of the items, or else as they are done.
            reuse: whether to keep what calls return, where the outputs of queries are kept (see
                `connect`), and to take what the same function has returned for equal items
                before. It has to be a function of its arguments alone.

        Raises:
            OptionError: the function or an item can't be pickled, or an option is out of range; or
                the session keeps no outputs.

        Examples:
            >>> list(session.map(pow, [2, 3], [5, 2]))
            [32, 9]
        """
        options = call_options(prefers, retries, self._call_timeout(timeout), reuse=reuse)
        return self._calls().map(
            fn, iterables, chunksize=chunksize, options=options, ordered=ordered
        )

    def executor(
        self,
        *,
        prefers: str | Sequence[str] = (),
        retries: int = 0,
        timeout: float | None = None,
        reuse: bool = False,
    ) -> Executor:
        """A `concurrent.futures.Executor` over the cluster; its calls have these options.

        Args:
            prefers: nodes to run on; others only after a while, or if none of these is alive.
            retries: how often a call that raised is tried again.
            timeout: seconds after which a running call is given up, with TaskTimeoutError.
            reuse: whether to keep what calls return, as for `map`.

        Raises:
            OptionError: an option is out of range; or the session keeps no outputs.

        Examples:
            >>> with session.executor() as executor:
            ...     executor.submit(pow, 2, 10).result()
            1024
        """
        options = call_options(prefers, retries, self._call_timeout(timeout), reuse=reuse)
        return self._calls().executor(options)

    def broadcast(self, value: T) -> Broadcast[T]:
        """Store a value once per node, for functions that read it as `shared.value`.

        Raises:
            OptionError: it can't be pickled.

        Examples:
            >>> shared = session.broadcast({"a": 1})
            >>> session.submit(lambda key: shared.value[key], "a").result()
            1
        """
        return self._calls().broadcast(value)


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
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
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
