"""What must hold when all is well again, and which failures faults excuse."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from minishark.cluster.outputs import FOLDER
from minishark.errors import ClusterError, MinisharkError, PartitionsLostError, ResourceError
from minishark.model.catalog import Table
from minishark.query.inputs import partition_slices
from minishark.session.kept_outputs import FOLDER as OWN_FOLDER
from minishark.tables.cached import CachedTables
from minishark_lab.simulation.attached import SimulatedAttached
from minishark_lab.simulation.faults import Faults
from minishark_lab.simulation.hosts import Hosts
from minishark_lab.simulation.script import FAULTS
from minishark_lab.simulation.work import Row, rows_of

LASTS_S = 10.0  # so long after a fault's end, statements that begin then may fail because of it
_FULL = frozenset({"full_disk"})
_APART = frozenset({"cut_one_way", "separate"})
_SILENT = frozenset(FAULTS) - {"full_disk", "lost_file", "lost_output", "join", "drift"}
_IDLE = ("nodes", "executors", "slots_free", "slots_idle", "schedulers_silent")


def unexcused(error: MinisharkError, faults: Faults, began_s: float) -> str:
    """Why faults can't be the reason of a statement's failure; empty if they can.

    Args:
        error: how the statement has failed, just now.
        faults: what has gone wrong so far.
        began_s: when the statement began.
    """
    first_s, last_s = began_s - LASTS_S, faults.world.now
    match error:
        case PartitionsLostError():
            if faults.within(_APART, first_s, last_s):
                return ""  # tasks may run for seconds where they can't read what the session can
            gone = faults.destroyed | _abandoned(faults)
            never = [file for file in error.files if file not in gone]
            return f"no fault has taken {never[0]}" if never else ""
        case ResourceError():
            return "" if faults.within(_FULL, first_s, last_s) else "no disk was full"
        case ClusterError():
            return "" if faults.within(_SILENT, first_s, last_s) else "all answered"
    # An output that is lost is computed again, far more often than there are faults.
    return "no fault makes a statement fail so"


def _abandoned(faults: Faults) -> set[str]:
    """What was on nodes that were drained while others were away: these could not take it."""
    return {
        file
        for left_s, files in faults.hosts.left
        if faults.within(_SILENT - {"drain"}, left_s - LASTS_S, left_s)
        for file in files
    }


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


def claims(tables: Iterable[Table], hosts: Hosts, faults: Faults) -> Iterator[str]:
    """What the catalog says of nodes that was never so, at any moment.

    A node may have come back empty without the session's knowing. But one that has run since before
    a file was written either has it, or the catalog must not say so.
    """
    disks = hosts.disks.by_name
    for table in tables:
        for item in (item for part in table.partitions for item in partition_slices(part)):
            for place in item.locations:
                disk = disks.get(place)
                if disk is None or item.file in disk.files or item.file in faults.lost:
                    continue
                found = (each.files.get(item.file) for each in disks.values())
                if any(file is not None and disk.since_s < file.made_s for file in found):
                    yield f"{place} counts as holder of {item.file}, of {table.name}"


def stored(table: Table, hosts: Hosts) -> list[Row] | None:
    """The rows of a table as they are on disks; None if a file is nowhere."""
    found = list[Row]()
    for item in (item for part in table.partitions for item in partition_slices(part)):
        disks = (hosts.disks.by_name.get(place) for place in item.locations)
        files = (disk.files.get(item.file) for disk in disks if disk is not None)
        file = next((file for file in files if file is not None), None)
        if file is None:
            return None
        found += rows_of(file.read(item))
    return found


def left_behind(hosts: Hosts) -> Iterator[str]:
    """What is still held anywhere, after all sessions have ended."""
    for name, service in hosts.services.items():
        for kept in (*service.disk.files, *service.disk.folders):
            if kept == FOLDER or kept.startswith(f"{FOLDER}/"):
                continue  # these outlive sessions
            yield f"{name} has {kept}"
    for at, machine in hosts.world.machines.items():
        for figure, value in machine.gauges().items():
            if value and figure not in _IDLE:
                yield f"{at} has {value:g} {figure}"


def strays(cluster: SimulatedAttached, tables: Iterable[Table], hosts: Hosts) -> Iterator[str]:
    """Folders of a session that has no open query, besides its tables' and those of merges.

    Those that tasks make may be of queries that are over: they go with the session.
    """
    known = {table.folder for table in tables} | {cluster.folder(OWN_FOLDER)}
    merging = {folder for folder in cluster.open_folders if folder.rpartition("-")[0] in known}
    for name, service in hosts.services.items():
        for folder in service.disk.folders:
            is_own = folder.startswith(f"{cluster.store_name}/")
            if is_own and folder not in {*known, *merging, *service.disk.late}:
                yield f"{name} still has {folder}"


def unheld(cached: CachedTables, held: Collection[str]) -> Iterator[str]:
    """Kept rows of a session that has no open query, which no user holds any more."""
    for table in cached:
        if table.name not in held:
            yield f"{table.name} is kept, though nobody holds it"
