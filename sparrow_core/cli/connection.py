"""From a configuration file to an open connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sparrow_core.protocol.errors import ConfigError
from sparrow_core.runtime.config import read_config
from sparrow_core.runtime.remote import RemoteCluster


@contextmanager
def connect(file: Path) -> Iterator[RemoteCluster]:
    """A connection to the schedulers that a file names; ClusterStartError if none answers."""
    config = read_config(file)
    listen = config.client.listen
    if listen is None and any(scheduler.startswith("tcp:") for scheduler in config.schedulers):
        raise ConfigError(
            f"{file}: with schedulers over tcp, [client] listen is needed for their answers"
        )
    cluster = RemoteCluster(
        config.scheduler_addresses,
        listen=listen,
        keys=config.keys,
        audit_dir=Path(config.audit_dir) if config.audit_dir else None,
    )
    cluster.start(config.client.answer_s)
    with closing(cluster):
        yield cluster
