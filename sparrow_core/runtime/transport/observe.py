"""Observability of a process: an audit log, a log of messages, and metrics on request."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from machine_kit.local_driver import LocalDriver
from machine_kit.machine import Figure
from sparrow_core.observe.audit import AuditFile
from sparrow_core.observe.message_log import VARIABLE, MessageLog
from sparrow_core.observe.metrics import Metrics


@contextmanager
def observed(
    driver: LocalDriver,
    name: str,
    audit_dir: str | None,
    *,
    metrics: bool,
    figures: Callable[[], Iterable[Figure]] = tuple,
) -> Iterator[None]:
    """Observe all messages that a driver delivers; SPARROW_MESSAGES=FOLDER logs each of them.

    Args:
        driver: Whose machines are hosted already.
        name: Of the process.
        audit_dir: Where to write `<name>.<pid>.jsonl`; None for no log.
        metrics: Host a machine "metrics" that answers GetMetrics.
        figures: More metrics, beside message counts and the machines' gauges.
    """
    if metrics:
        machine = Metrics(name, driver.machines, driver.counters, figures)
        driver.taps.append(machine.tap)
        driver.host("metrics", machine)
    with ExitStack() as logs:
        if audit_dir is not None:
            Path(audit_dir).mkdir(parents=True, exist_ok=True)
            audit = AuditFile(Path(audit_dir, f"{name}.{os.getpid()}.jsonl"))
            driver.taps.append(logs.enter_context(closing(audit)))
        if messages_dir := os.environ.get(VARIABLE):
            log = MessageLog(Path(messages_dir, f"{name}.{os.getpid()}.log"))
            driver.taps.append(logs.enter_context(closing(log)))
        yield
