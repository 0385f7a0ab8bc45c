"""What must hold when all is well again, and which failures faults excuse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from minishark.bench.simulation.faults import Faults
from minishark.bench.simulation.hosts import Hosts
from minishark.catalog import Table
from minishark.errors import ClusterError, MinisharkError, PartitionsLostError, ResourceError
from minishark.query.inputs import partition_slices

_FULL = "full_disk"
_APART = frozenset({"cut_one_way", "separate"})
_IDLE = ("nodes", "executors", "slots_free", "slots_idle", "schedulers_silent")


def unexcused(error: MinisharkError, faults: Faults) -> str:
    """Why faults can't be the reason of a statement's failure; empty if they can."""
    match error:
        case PartitionsLostError():
            if not _APART.isdisjoint(faults.kinds):
                return ""  # tasks may run for seconds where they can't read what the session can
            never = [file for file in error.files if file not in faults.destroyed]
            return f"no fault has taken {never[0]}" if never else ""
        case ResourceError():
            return "" if _FULL in faults.kinds else "no disk was full"
        case ClusterError():
            return "" if faults.kinds else "there was no fault"
    # An output that is lost is computed again, far more often than there are faults.
    return "no fault makes a statement fail so"


def misplaced(tables: Iterable[Table], hosts: Hosts, faults: Faults) -> Iterator[str]:
    """Where the catalog is wrong about live nodes, and what has too few replicas."""
    staying = [name for name, each in hosts.services.items() if not each.is_draining]
    for table in tables:
        for partition in table.partitions:
            if not faults.lost.isdisjoint(partition.files):
                continue  # a disk that lies is found out by who reads
            for item in partition_slices(partition):
                for place in item.locations:
                    disk = hosts.disks.by_name.get(place)
                    if disk is not None and item.file not in disk.files:
                        yield f"{place} does not have {item.file}, of {table.name}"
            held = sum(name in partition.locations for name in staying)
            wanted = min(table.replicas, len(staying))
            if 0 < held < wanted:
                yield f"partition {partition.index} of {table.name} has {held} of {wanted} replicas"


def left_behind(hosts: Hosts) -> Iterator[str]:
    """What is still held anywhere, after all sessions have ended."""
    for name, service in hosts.services.items():
        for kept in (*service.disk.files, *service.disk.folders):
            yield f"{name} has {kept}"
    for at, machine in hosts.world.machines.items():
        for figure, value in machine.gauges().items():
            if value and figure not in _IDLE:
                yield f"{at} has {value:g} {figure}"


def strays(session: str, tables: Iterable[Table], hosts: Hosts) -> Iterator[str]:
    """Folders of a session that has no open query, besides those of its tables."""
    known = {table.folder for table in tables}
    for name, service in hosts.services.items():
        for folder in service.disk.folders:
            if folder.startswith(f"{session}/") and folder not in known:
                yield f"{name} still has {folder}"
