"""A back end of joblib, and so of scikit-learn (the extra `joblib`).

    import minishark.adapters.joblib

    with joblib.parallel_config("minishark", session=session):
        GridSearchCV(model, grid, n_jobs=-1).fit(x, y)

joblib's batches of calls become calls of the session. Arrays that all of them get are stored once
per node.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import joblib
from joblib._parallel_backends import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
)

from minishark.session.session import Session


class MinisharkBackend(AutoBatchingMixin, ParallelBackendBase):
    """Runs joblib's batches in a session's cluster.

    Args:
        session: where calls run.
    """

    supports_retrieve_callback = True

    def __init__(self, session: Session, nesting_level: int | None = None, **options: Any) -> None:
        super().__init__(nesting_level=nesting_level, **options)
        self._session = session
        self._executor: Executor | None = None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """As many as there are slots, for -1; joblib's other negative numbers count from there."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        slots = self._session.total_slots
        if n_jobs is None:
            return 1
        return max(1, slots + 1 + n_jobs) if n_jobs < 0 else n_jobs

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
        """Begin a `Parallel`; one job at a time runs here."""
        del options
        count = self.effective_n_jobs(n_jobs)
        if count == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        self._executor = self._session.executor()
        return count

    def submit(
        self, func: Callable[[], Any], callback: Callable[[Any], object] | None = None
    ) -> Future[Any]:
        """Run a batch of calls."""
        assert self._executor is not None
        future = self._executor.submit(func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """The results of a batch."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """A call has raised: cancel the others."""
        self.terminate()
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel)

    def terminate(self) -> None:
        """End a `Parallel`, and cancel what is left of it."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None


joblib.register_parallel_backend("minishark", MinisharkBackend)
