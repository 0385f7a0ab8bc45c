"""The TOML file of a standalone cluster, read by every `sparrow` command.

    schedulers = ["tcp://10.0.0.1:7077/<public key>", "tcp://10.0.0.2:7077/<public key>"]

    [security]                       # needed for tcp; ipc endpoints need none
    key = "own.key"                  # made by `sparrow keygen`
    allowed = "allowed.keys"         # public keys of the processes that may connect

    [scheduler]
    listen = "tcp://10.0.0.1:7077"

    [node]
    name = "n0"
    listen = "tcp://10.0.0.1:7078"
    attributes = ["gpu", "zone=a"]
    [[node.executors]]
    runner = "module:factory"
    slots = 4

    [client]
    listen = "tcp://10.0.0.9:*"

    [observe]
    audit = "audit"                  # a folder
    http = "127.0.0.1:9464"          # metrics for Prometheus

A process reads only its own table. Paths are relative to the file; unknown names are errors.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from machine_kit.addresses import Address, address
from machine_kit.errors import TransportError
from machine_kit.keys import Keys, read_keys
from sparrow_core.machines.node_monitor import NodeMonitorConfig
from sparrow_core.machines.scheduler import SchedulerConfig
from sparrow_core.protocol.errors import ConfigError
from sparrow_core.runtime.specs import ExecutorGroup

SCHEDULER_NAME = "scheduler"


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the file's tables."""


class Security(_Section, frozen=True):
    """Files with the process's own key pair and with the public keys that it accepts."""

    key: str
    allowed: str


class SchedulerSection(_Section, frozen=True):
    """A scheduler: the address that peers are told, the one to bind (if it differs), limits.

    `placements` are those that jobs may name beside the built-in ones, each as "module:factory".
    """

    listen: str
    bind: str | None = None
    limits: SchedulerConfig = SchedulerConfig()
    placements: tuple[str, ...] = ()


class NodeSection(_Section, frozen=True, kw_only=True):
    """A node: its executors, the attributes that jobs may require, limits and policy.

    `logs` is the folder of its executors' logs, by default in `$XDG_STATE_HOME/sparrow`.
    """

    name: str
    listen: str
    executors: tuple[ExecutorGroup, ...]
    bind: str | None = None
    logs: str | None = None
    attributes: tuple[str, ...] = ()
    limits: NodeMonitorConfig = NodeMonitorConfig()


class ClientSection(_Section, frozen=True):
    """Where `sparrow submit` and others listen for answers over tcp, and how long they wait."""

    listen: str | None = None
    answer_s: float = 5.0


class Observe(_Section, frozen=True):
    """A folder for audit logs, and where to serve metrics over HTTP."""

    audit: str | None = None
    http: str | None = None


class Config(_Section, frozen=True, kw_only=True):
    """The whole file; `folder` contains it."""

    schedulers: tuple[str, ...]
    security: Security | None = None
    scheduler: SchedulerSection | None = None
    node: NodeSection | None = None
    client: ClientSection = ClientSection()
    observe: Observe = Observe()
    folder: str = "."

    def path(self, name: str) -> str:
        """A path from the file, relative to its folder."""
        return str(Path(self.folder, name))

    @property
    def keys(self) -> Keys | None:
        """The process's keys, if any.

        Raises:
            ConfigError: They cannot be read, or others may.
        """
        if self.security is None:
            return None
        files = Path(self.path(self.security.key)), Path(self.path(self.security.allowed))
        try:
            return read_keys(*files)
        except TransportError as error:
            raise ConfigError(str(error)) from error

    @property
    def audit_dir(self) -> str | None:
        """The folder for audit logs; None for no logs."""
        return None if self.observe.audit is None else self.path(self.observe.audit)

    @property
    def scheduler_addresses(self) -> tuple[Address, ...]:
        return tuple(address(endpoint, SCHEDULER_NAME) for endpoint in self.schedulers)


def read_config(file: Path) -> Config:
    """Read a TOML file.

    Raises:
        ConfigError: It cannot be read, or has unknown names or invalid values.
    """
    try:
        config = msgspec.toml.decode(file.read_bytes(), type=Config)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    return msgspec.structs.replace(config, folder=str(file.absolute().parent))
