"""What a query may take."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from minishark.errors import OptionError, QueryCancelledError, QueryTimeoutError, ResourceError
from minishark.model.events.figures import TaskFigures
from minishark.query.limits import DiskUse, Limits
from minishark.query.observer import QueryObserver
from minishark.session.options import OPTIONS
from minishark.worker.protocol import TaskOutcome


def observer() -> QueryObserver:
    """Of a query whose events nobody hears."""
    return QueryObserver(number=1, emit=lambda _: None)


def test_a_query_that_takes_too_long_is_cancelled() -> None:
    """Whatever it waits for then; a shorter one is left alone."""
    late = observer()

    def run() -> None:
        with late.limited_to(0.01):
            while True:
                late.check()
                time.sleep(0.001)

    with pytest.raises(QueryTimeoutError, match=r"took longer than query_timeout_s, 0\.01 s"):
        run()
    for seconds in (60.0, math.inf):
        with observer().limited_to(seconds):
            pass
    with observer().limited_to(None):
        pass


def test_who_cancels_a_query_in_time_hears_that() -> None:
    """The limit is told only if it was the cause."""
    cancelled = observer()
    cancelled.cancel()
    with pytest.raises(QueryCancelledError), cancelled.limited_to(60.0):
        cancelled.check()


def test_a_querys_share_of_the_disk() -> None:
    """What lies in memory does not count; each task may spill its part of the limit."""
    use = DiskUse(10 << 20)
    use.add(TaskOutcome(figures=TaskFigures(rows=1, bytes=99 << 20)))
    use.add(TaskOutcome(figures=TaskFigures(rows=1, disk_bytes=10 << 20)))
    with pytest.raises(ResourceError, match=r"written 11 MiB .* query_disk_limit is 10 MiB"):
        use.add(TaskOutcome(figures=TaskFigures(rows=1, disk_bytes=1 << 20)))
    DiskUse(None).add(TaskOutcome(figures=TaskFigures(rows=1, disk_bytes=1 << 60)))
    limits = Limits(query_disk_bytes=1024)
    assert ("SET max_temp_directory_size = '256B'",) == limits.settings(4)
    assert () == Limits().settings(4)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("query_timeout_s", 0),
        ("task_timeout_s", -1.0),
        ("query_timeout_s", math.nan),
        ("query_timeout_s", "5"),
        ("query_disk_limit", "much"),
    ],
)
def test_limits_are_above_zero(name: str, value: Any) -> None:
    """A limit that nothing meets is a mistake, and so is a text; the option is named."""
    with pytest.raises(OptionError, match=name):
        OPTIONS[name].check(name, value)
