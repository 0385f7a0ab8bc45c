"""An `Executor` of Python's `concurrent.futures` over the cluster, for all that takes one."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ParamSpec, TypeVar

from minishark.session.tasks.call import CallOptions
from minishark.session.tasks.functions import name_of
from minishark.session.tasks.future import Future
from minishark.session.tasks.pool import CallPool
from minishark.session.tasks.results import MapPlan, Results, length_of
from minishark.worker.python_tasks import EachOf, EachOfRows

P = ParamSpec("P")
T = TypeVar("T")


def submit(
    pool: CallPool,
    options: CallOptions,
    wanted: tuple[Callable[..., T], tuple[Any, ...], dict[str, Any]],
    owned: set[Future[Any]] | None = None,
    on_done: Callable[[Future[Any]], None] | None = None,
) -> Future[T]:
    """Run one call `(fn, args, kwargs)`; its future is in `owned` from the start."""
    fn, args, kwargs = wanted
    function = pool.functions.pickled(fn)
    future: Future[T] = Future(pool, function.label, on_done)
    future.call = call = pool.call(
        future, function, args, kwargs, options, pool.naming(function, options)
    )
    if owned is not None:
        owned.add(future)
    try:
        pool.submit((call,))
    except BaseException:
        if owned is not None:
            owned.discard(future)
        raise
    return future


def mapped(
    pool: CallPool,
    options: CallOptions,
    fn: Callable[..., T],
    iterables: tuple[Iterable[Any], ...],
    *,
    chunksize: int | None,
    slots: int,
    timeout: float | None = None,
    ordered: bool = True,
) -> Results[T]:
    """`map(fn, *iterables)` in chunks."""
    if len(iterables) == 1:
        call: Callable[..., Any] = EachOf(fn)
        items = iter(iterables[0])
    else:
        call = EachOfRows(fn)
        items = zip(*iterables, strict=False)
    if options.reuse and chunksize is None:
        chunksize = 1  # what is found again must not depend on how long calls take
    function = pool.functions.pickled(call, name_of(fn))
    plan = MapPlan(
        function=function,
        naming=pool.naming(function, options),
        options=options,
        items=items,
        chunksize=chunksize,
        total=length_of(iterables),
        slots=slots,
        ordered=ordered,
        deadline_s=None if timeout is None else time.monotonic() + timeout,
    )
    return Results(pool, plan)


class Executor(concurrent.futures.Executor):
    """Runs calls in the cluster; its end is the end of its calls, not of the session."""

    def __init__(self, pool: CallPool, options: CallOptions, slots: int) -> None:
        self._pool = pool
        self._options = options
        self._max_workers = slots  # what joblib, dask and others look at
        self._open: set[Future[Any]] = set()
        self._changed = threading.Condition()
        self._is_shut = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn(*args, **kwargs)` in the cluster.

        Raises:
            RuntimeError: `shutdown` was called.
            OptionError: the function or an argument can't be pickled.
            ClusterError: the session is stopped.
        """
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        return submit(self._pool, self._options, (fn, args, kwargs), self._open, self._over)

    def _over(self, future: Future[Any]) -> None:
        self._open.discard(future)
        if self._is_shut and not self._open:
            with self._changed:
                self._changed.notify_all()

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """Like `map(fn, *iterables)`; reads the input as the results are taken.

        Args:
            fn: a function of as many arguments as there are iterables.
            iterables: may be endless.
            timeout: seconds from now after which taking a result raises TimeoutError.
            chunksize: items per call in the cluster.
        """
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        return mapped(
            self._pool, self._options, fn, iterables,
            chunksize=chunksize, slots=self._max_workers, timeout=timeout,
        )  # fmt: skip

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; wait for those of `submit`, or cancel them.

        With `cancel_futures`, those that run are cancelled, too. The session goes on.
        """
        self._is_shut = True
        if cancel_futures:
            for future in tuple(self._open):
                future.cancel()
        if wait:
            for future in tuple(self._open):
                future.awaited()  # in a call, whose slot they may need
            with self._changed:
                while self._open:
                    # In steps: the last future may have ended just before it was looked at.
                    self._changed.wait(0.1)
