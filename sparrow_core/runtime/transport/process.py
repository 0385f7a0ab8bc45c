"""Entry point of child processes, run by `python -m`; settings come on stdin.

A node process hosts a node monitor and perhaps schedulers, and supervises its executor processes.
An executor process hosts an executor, whose slots are threads; its main thread is the ZeroMQ loop.
Both exit at end of file on stdin or on SIGTERM, and clean up.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, assert_never

import msgspec

from machine_kit.addresses import Address, address
from machine_kit.endpoint import remove_socket
from machine_kit.local_driver import CALLER, Caller
from machine_kit.machine import Envelope, Machine
from sparrow_core.machines.node_monitor import NodeMonitor
from sparrow_core.protocol.errors import RunnerError
from sparrow_core.protocol.ids import NodeName
from sparrow_core.protocol.messages import (
    Drained,
    ExecutorLost,
    KillExecutor,
    NodeRefused,
    PeerGone,
)
from sparrow_core.runtime.hosting import end_slots, host_executor, host_scheduler
from sparrow_core.runtime.runner import load_factory
from sparrow_core.runtime.specs import ExecutorGroup
from sparrow_core.runtime.transport.child import (
    Child,
    ExecutorSettings,
    NodeSettings,
    end_children,
    has_lost_parent,
    read_settings,
)
from sparrow_core.runtime.transport.deaths import Respawns
from sparrow_core.runtime.transport.observe import observed
from sparrow_core.runtime.transport.spawning import Started, can_fork, fork, interpreter, started
from sparrow_core.runtime.transport.zmq_driver import ZmqDriver

RUNNER_BROKEN_STATUS = 70
_REFUSED_STATUS = 71
_SLOT_CRASHED_STATUS = 72
_COLLECT_EVERY = 100_000  # allocations
_EXECUTORS_END_S = 0.7
_SLOTS_END_S = 0.4
_BURY_S = 1.0


_SupervisorIn = NodeRefused | Drained | KillExecutor


class Supervisor(Machine[_SupervisorIn]):
    """Starts the executors of a node, and restarts those that die, with backoff.

    It kills those that the node monitor has given up.
    """

    inputs: ClassVar[Any] = _SupervisorIn

    def __init__(
        self,
        driver: ZmqDriver,
        settings: NodeSettings,
        node_monitor: Address,
        begun: Sequence[Started] = (),
    ) -> None:
        """Start the executors, of which some may have been begun."""
        self.status = 0
        self._driver = driver
        self._settings = settings
        self._node_monitor = node_monitor
        self._groups = [group for group in settings.groups for _ in range(group.count)]
        self._respawns = [Respawns() for _ in self._groups]
        self._children: dict[int, Child] = {}
        self._begun = dict(enumerate(begun))
        for index in range(len(self._groups)):
            self._spawn(index)

    def on_message(self, msg: _SupervisorIn, now: float) -> list[Envelope]:
        """Kill an executor, or exit: a scheduler refused the node, or it has drained."""
        match msg:
            case KillExecutor():
                self._kill(msg)
            case NodeRefused() if msg.others:
                _log(f"{msg.scheduler} refused this node: {msg.message}")
            case NodeRefused():
                self._give_up(f"node refused: {msg.message}", _REFUSED_STATUS)
            case Drained():
                self._driver.stop()
            case _:
                assert_never(msg)
        return []

    def gauges(self) -> dict[str, float]:
        return {"executor_deaths": sum(respawn.count for respawn in self._respawns)}

    def _spawn(self, index: int) -> None:
        settings, deaths = self._settings, self._respawns[index].count
        group = self._groups[index]
        died = str(settings.restarts + deaths)
        group = msgspec.structs.replace(group, runner_config={**group.runner_config, "died": died})
        name = _executor(settings.name, index, settings.restarts) + (f"r{deaths}" if deaths else "")
        log = Path(settings.log_dir or settings.run_dir, f"{name}.log")
        process = self._begun.pop(index, None)
        child = Child(
            ExecutorSettings(
                name=name,
                endpoint=f"ipc://{settings.run_dir}/{name}.sock",
                node=settings.name,
                node_monitor=self._node_monitor,
                group=group,
                keys=settings.keys,
                audit_dir=settings.audit_dir,
            ),
            log,
            process or started(log, interpreter(log, new_session=False)),
        )
        self._children[index] = child
        self._respawns[index].started(time.monotonic())
        self._driver.watch(child.alive_fd, lambda: self._on_death(index))

    def _restart(self, index: int) -> None:
        try:
            self._spawn(index)
        except OSError as error:  # for instance no memory to fork: as if it had died at once
            self._plan_restart(index, f"{self._settings.name}-e{index}: {error}")

    def _plan_restart(self, index: int, how: str) -> None:
        delay_s = self._respawns[index].died(time.monotonic())
        assert delay_s is not None
        _log(f"{how}; restarting it")
        self._driver.call(partial(self._restart, index), delay_s)

    def _on_death(self, index: int) -> None:
        child = self._children.pop(index)
        self._driver.unwatch(child.alive_fd)
        how = child.describe_exit()
        if child.exit_status() is None:
            child.kill()  # it closed its pipe: useless, even if it runs
        self._clear(child)
        settings = child.settings
        lost = ExecutorLost(address(settings.endpoint, settings.name), how)
        self._driver.post(self._node_monitor, lost)
        if child.exit_status() == RUNNER_BROKEN_STATUS and not self._respawns[index].count:
            self._give_up(child.log.read_text(errors="replace"), RUNNER_BROKEN_STATUS)
            return
        self._plan_restart(index, f"{settings.name}: {how}")

    def _kill(self, msg: KillExecutor) -> None:
        for index, child in self._children.items():
            if address(child.settings.endpoint, child.settings.name) == msg.executor:
                _log(f"{child.settings.name}: {msg.reason}; killing it")
                child.send_kill()
                self._await_death(index, child)
                return

    def _await_death(self, index: int, child: Child) -> None:
        self._driver.call(partial(self._bury, index, child), _BURY_S)

    def _bury(self, index: int, child: Child) -> None:
        """Forked copies of an executor keep the pipe open by which its death is seen."""
        if self._children.get(index) is not child:
            return
        if child.exit_status() is None:
            self._await_death(index, child)
        else:
            self._on_death(index)

    def _clear(self, child: Child) -> None:
        child.close()
        self._driver.forget(child.settings.endpoint)
        remove_socket(child.settings.endpoint)

    def _give_up(self, message: str, status: int) -> None:
        _log(message)
        self.status = status
        self._driver.stop()

    def close(self) -> None:
        end_children(self._children.values(), _EXECUTORS_END_S)
        for child in self._children.values():
            remove_socket(child.settings.endpoint)


def calm_collector() -> None:
    """Run the garbage collector rarely: machines make many small objects but no cycles."""
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY)


def tell_gone(driver: ZmqDriver, schedulers: Sequence[Address], endpoint: str) -> None:
    """Tell schedulers of this process that a peer's process has ended."""
    for scheduler in schedulers:
        driver.post(scheduler, PeerGone(endpoint))


def _executor(node: str, index: int, restarts: int) -> str:
    return f"{node}-e{index}" + (f"n{restarts}" if restarts else "")


def begun_executors(
    groups: Sequence[ExecutorGroup], node: str, logs: Path, restarts: int = 0
) -> list[Started]:
    """Fork a node's executors, before it has threads; none if that is not possible.

    They wait for their settings, which `run_node` gives them.
    """
    for group in groups:
        with contextlib.suppress(RunnerError):  # the executor says more
            load_factory(group.runner)
    if not can_fork():
        return []
    calm_collector()
    names = [
        _executor(node, index, restarts) for index in range(sum(group.count for group in groups))
    ]
    files = [logs / f"{name}.log" for name in names]
    return [started(log, fork(log, main)) for log in files]


def run_node(
    settings: NodeSettings,
    until_told: Callable[[ZmqDriver, Address], None],
    on_incompatible: Callable[[str, int], None] | None = None,
    begun: Sequence[Started] = (),
) -> int:
    """Run a node; returns the exit status.

    `until_told` runs the driver until the node is to end; it is given the node monitor's address.
    Executors that were `begun` need not be started.
    """
    parent = os.getppid()
    schedulers: list[Address] = []
    driver = ZmqDriver(
        settings.endpoint,
        settings.keys,
        settings.bind,
        on_incompatible=on_incompatible,
        on_gone=(lambda peer: tell_gone(driver, schedulers, peer))
        if settings.own_schedulers
        else None,
    )
    node_monitor = driver.address(f"monitor-{settings.name}")
    supervisor = Supervisor(driver, settings, node_monitor, begun)
    driver.host("supervisor", supervisor)
    driver.host(CALLER, Caller())
    for name in settings.own_schedulers:
        host_scheduler(driver, name, settings.seed, settings.limits.release)
        schedulers.append(driver.address(name))
    monitor = NodeMonitor(
        NodeName(settings.name),
        node_monitor,
        tuple(Address(scheduler) for scheduler in settings.schedulers),
        supervisor=driver.address("supervisor"),
        attributes=settings.attributes,
        config=settings.limits,
    )
    driver.host(f"monitor-{settings.name}", monitor)
    with observed(
        driver, settings.name, settings.audit_dir, metrics=settings.metrics, figures=monitor.figures
    ):
        until_told(driver, node_monitor)
        supervisor.close()
        driver.close()
    if settings.client_endpoint is not None:
        remove_socket(settings.client_endpoint)  # exists only if the parent was killed
    if has_lost_parent(parent):
        for folder in settings.orphaned_folders:
            shutil.rmtree(folder, ignore_errors=True)
    return supervisor.status


def run_executor(settings: ExecutorSettings) -> int:
    """Run an executor until stdin ends; returns the exit status."""
    status = [0]
    driver = ZmqDriver(settings.endpoint, settings.keys)

    def on_broken(trace: str) -> None:
        _log(trace)
        status[0] = RUNNER_BROKEN_STATUS
        driver.stop()

    node, monitor = NodeName(settings.node), Address(settings.node_monitor)
    try:
        slots = host_executor(
            driver, settings.name, node, monitor, settings.group, on_broken, on_crash=_crash
        )
    except RunnerError as error:
        _log(error)
        driver.close()
        return RUNNER_BROKEN_STATUS
    with observed(driver, settings.name, settings.audit_dir, metrics=False):
        run_until_stdin_ends(driver)
        end_slots(slots, _SLOTS_END_S)
        driver.close()
    return status[0]


def _crash() -> None:
    """A slot's thread broke: end the process, as nothing else may work any more."""
    try:
        traceback.print_exc()
    finally:
        os._exit(_SLOT_CRASHED_STATUS)


def _log(text: object) -> None:
    """Write to stderr, which is a log file."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def run_until_stdin_ends(driver: ZmqDriver, _: Address | None = None) -> None:
    """Run a driver until stdin ends, or SIGTERM."""
    driver.watch(_moved_stdin(), driver.stop)
    signal.signal(signal.SIGTERM, lambda *_: driver.stop())
    driver.run()


def _moved_stdin() -> int:
    """The pipe from the parent under another number; for others, stdin is empty from now on.

    User code that reads stdin, as input() and breakpoint() do, would wait for the parent's death.
    """
    pipe = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return pipe


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1)  # `kill -USR1` writes all threads' stacks into the log
    calm_collector()
    settings = read_settings()
    match settings:
        case NodeSettings():
            logs = Path(settings.log_dir or settings.run_dir)
            begun = begun_executors(settings.groups, settings.name, logs, settings.restarts)
            status = run_node(settings, run_until_stdin_ends, begun=begun)
        case ExecutorSettings():
            status = run_executor(settings)
        case _:
            assert_never(settings)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # even if a runner's thread hangs


if __name__ == "__main__":
    main()
