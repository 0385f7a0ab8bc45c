"""The daemons of a standalone cluster: `sparrow scheduler` and `sparrow node-monitor`.

Both run until SIGINT or SIGTERM. A node drains first: it takes no new task, finishes what runs,
tells the schedulers and exits; a second signal ends it at once.
"""

from __future__ import annotations

import signal
import sys
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from random import Random

from machine_kit.addresses import Address
from sparrow_core.machines.scheduler import Scheduler
from sparrow_core.policy.placement import Placements
from sparrow_core.protocol.errors import ConfigError, InvalidJob
from sparrow_core.protocol.messages import Drain
from sparrow_core.runtime.config import SCHEDULER_NAME, Config
from sparrow_core.runtime.transport.child import NodeSettings
from sparrow_core.runtime.transport.folders import log_folder, make_private, socket_folder
from sparrow_core.runtime.transport.http_metrics import HttpMetrics
from sparrow_core.runtime.transport.observe import observed
from sparrow_core.runtime.transport.process import calm_collector, run_node, tell_gone
from sparrow_core.runtime.transport.zmq_driver import ZmqDriver

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_scheduler(config: Config) -> int:
    """Run a scheduler until a signal comes; returns the exit status.

    Raises:
        ConfigError: There is no [scheduler] table, or a placement in it can't be imported.
        SparrowError: Cannot listen.
    """
    section = config.scheduler
    if section is None:
        raise ConfigError("there is no [scheduler] table in the file")
    placements = Placements(section.placements)
    for name in section.placements:
        try:
            placements.of(name)
        except InvalidJob as error:
            raise ConfigError(f"[scheduler] placements: {error}") from error
    _make_socket_folder(section.listen)
    driver = ZmqDriver(
        section.listen,
        config.keys,
        section.bind,
        on_incompatible=_warn_of_version,
        on_gone=lambda peer: tell_gone(driver, (driver.address(SCHEDULER_NAME),), peer),
    )
    scheduler = Scheduler(driver.address(SCHEDULER_NAME), Random(), section.limits, placements)
    driver.host(SCHEDULER_NAME, scheduler)
    calm_collector()
    with observed(driver, SCHEDULER_NAME, config.audit_dir, metrics=True):
        with _served(driver, config.observe.http):
            for number in _SIGNALS:
                signal.signal(number, lambda *_: driver.stop())
            _say(f"scheduler at {driver.endpoint}")
            driver.run()
        driver.close()
    return 0


def run_node_monitor(config: Config) -> int:
    """Run a node with its executors until a signal comes; returns the exit status.

    Raises:
        ConfigError: There is no [node] table.
        SparrowError: Cannot listen.
    """
    node = config.node
    if node is None:
        raise ConfigError("there is no [node] table in the file")

    def until_told(driver: ZmqDriver, monitor: Address) -> None:
        with _served(driver, config.observe.http):
            for number in _SIGNALS:
                signal.signal(number, lambda *_: _drain(driver, monitor))
            _say(f"node {node.name} at {driver.endpoint}")
            _say(f"logs of its executors: {logs}")
            driver.run()

    logs = Path(config.path(node.logs)) if node.logs else log_folder(node.name)
    make_private(logs)
    _make_socket_folder(node.listen)
    with socket_folder() as run_dir:
        settings = NodeSettings(
            name=node.name,
            endpoint=node.listen,
            run_dir=str(run_dir),
            groups=node.executors,
            schedulers=config.scheduler_addresses,
            attributes=node.attributes,
            limits=node.limits,
            bind=node.bind,
            keys=config.keys,
            audit_dir=config.audit_dir,
            metrics=True,
            log_dir=str(logs),
        )
        calm_collector()
        return run_node(settings, until_told, on_incompatible=_warn_of_version)


def _make_socket_folder(endpoint: str) -> None:
    if endpoint.startswith("ipc://"):
        make_private(Path(endpoint.removeprefix("ipc://")).parent)


def _drain(driver: ZmqDriver, monitor: Address) -> None:
    for number in _SIGNALS:
        signal.signal(number, lambda *_: driver.stop())
    driver.post(monitor, Drain())


def _served(driver: ZmqDriver, where: str | None) -> AbstractContextManager[object]:
    return closing(HttpMetrics(driver, where)) if where is not None else nullcontext()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _warn_of_version(peer: str, version: int) -> None:
    sys.stderr.write(f"{peer} speaks protocol {version}: its messages are ignored\n")
    sys.stderr.flush()
