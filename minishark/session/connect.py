"""`connect`: starts or attaches to a cluster, and opens a session.

The processes of a new cluster start while this one imports Arrow, DuckDB and the rest: nothing that
is slow to import may be imported at the top of this module, directly or not.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import numbers
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from minishark.cluster import placements
from minishark.cluster.jobs.records import CLUSTER_VARIABLE
from minishark.cluster.local import RECOVERY_S, ClusterOptions, OwnCluster
from minishark.cluster.platforms import Shape, platform_of
from minishark.cluster.scaling import ScalingOptions
from minishark.compiler.physical.options import SINGLE_TASK_ROWS, PlannerOptions
from minishark.errors import MinisharkError, OptionError
from minishark.model.debugging import debugging, shorten
from minishark.query.limits import Limits
from minishark.session.lazy import imported
from minishark.session.options import OPTIONS, Where, check_options, documented
from minishark.sources.storage_options import Storage, StorageOptions
from minishark.worker.cores import usable_cores
from minishark.worker.memory import parse_size

if TYPE_CHECKING:
    from minishark.cluster.contract import Cluster
    from minishark.session.session import Session


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _by_options(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function whose arguments are OPTIONS: its docstring has them, and their values are checked.

    Whoever misspells one is told what others are near.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        for name in kwargs.keys() - OPTIONS.keys():
            from minishark.dataframe.names import nearest  # noqa: PLC0415 - slow to import

            near = nearest(name, OPTIONS) or f" Its options are {', '.join(OPTIONS)}."
            raise OptionError(f"{function.__name__}() has no option {name!r}.{near}")
        given = signature.bind(*args, **kwargs).arguments
        bound: Callable[..., _T] = function
        job_cluster = os.environ.get(CLUSTER_VARIABLE)  # in a job, that of its node
        if given.get("cluster") is None and job_cluster and _fits(given, Where.RUNNING):
            given = {"reuse": "cluster", **given, "cluster": job_cluster}
        try:
            check_options(given, _where(given.get("cluster")))
            return bound(**given)
        except (MinisharkError, KeyboardInterrupt) as error:
            if not debugging():
                shorten(error, cause=error.__cause__)
            raise

    called.__doc__ = documented(function)
    return called


def _fits(given: Mapping[str, Any], where: Where) -> bool:
    """Whether such a cluster takes all that is given."""
    return all(
        where in OPTIONS[name].on or value == OPTIONS[name].default for name, value in given.items()
    )


def _where(cluster: Any) -> Where:
    if isinstance(cluster, numbers.Number):
        raise OptionError(
            f"connect() takes the address or name of a cluster; write connect(nodes={cluster}) for "
            "a number of nodes."
        )
    if cluster is None:
        return Where.HERE
    platform = platform_of(cluster)
    return Where.RUNNING if platform is None or not platform.launches(cluster) else Where.PLATFORM


@_by_options
def connect(
    cluster: Any = None,
    *,
    keys: str | Path | None = None,
    nodes: int | None = None,
    cpus_per_node: int | None = None,
    executors_per_node: int | None = None,
    schedulers: int | None = None,
    partitions: int | None = None,
    min_nodes: int | None = None,
    max_nodes: int | None = None,
    idle_s: float = 60.0,
    placement: str = "sparrow",
    probe_ratio: float = 2.0,
    in_process: bool = False,
    single_task_rows: int = SINGLE_TASK_ROWS,
    reuse: str = "off",
    reuse_folder: str | Path | None = None,
    reuse_folder_limit: int | str | None = None,
    task_threads: int | None = None,
    disabled_optimizations: Collection[str] = (),
    memory_limit: int | str | None = None,
    event_log: str | Path | None = None,
    storage_options: StorageOptions | None = None,
    warehouse: str | Path | Mapping[str, str] | None = None,
    audit: str | Path | None = None,
    recovery_timeout_s: float = RECOVERY_S,
    query_timeout_s: float | None = None,
    task_timeout_s: float | None = None,
    query_disk_limit: int | str | None = None,
    progress: bool | None = None,
    prints: bool = True,
) -> Session:
    """Open a session on a new cluster on this machine, or on a running one.

    Raises:
        OptionError: an argument is invalid.
        DataError: `event_log`, `audit` or `warehouse` can't be written.
        ClusterError: the cluster does not start or answer, or has another version.

    Examples:
        >>> import minishark
        >>> with minishark.connect() as session:
        ...     session.sql("SELECT 42 AS answer").collect()
        [Row(answer=42)]
    """
    placements.check_name(placement)
    if not isinstance(disabled_optimizations, str):
        disabled_optimizations = frozenset(disabled_optimizations)
    check_optimizations(disabled_optimizations)
    check_reuse(reuse, reuse_folder)
    folder_bytes = None if reuse_folder_limit is None else parse_size(reuse_folder_limit)

    def begin(on: Cluster) -> Session:
        imported("minishark.session.session")
        from minishark.session.engine import Engine  # noqa: PLC0415 - slow to import
        from minishark.session.group import SessionGroup  # noqa: PLC0415
        from minishark.session.jobs import reports_progress  # noqa: PLC0415
        from minishark.session.kept_outputs import Reuses  # noqa: PLC0415
        from minishark.session.scope import Scope  # noqa: PLC0415
        from minishark.session.session import Session  # noqa: PLC0415

        planner = planner_options(
            on,
            partitions=partitions,
            single_task_rows=single_task_rows,
            task_threads=task_threads,
            disabled=disabled_optimizations,
            reuse=reuse,
        )
        placing = partial(on.placement, placement, probe_ratio)
        reuses = Reuses(reuse, reuse_folder, folder_bytes)
        with contextlib.ExitStack() as undo:
            undo.callback(on.close)
            engine = Engine(
                on, planner, placing, storage, limits=limits, prints=prints, reuse=reuses
            )
            undo.callback(engine.stop)
            group = SessionGroup(engine, warehouse=warehouse, event_log=event_log)
            session = Session(group, Scope(engine), progress=progress, owns=True)
            undo.pop_all()
        if (noting := reports_progress()) is not None:
            session.register_progress_handler(noting)
        return session

    disk = None if query_disk_limit is None else parse_size(query_disk_limit)
    limits = Limits(
        query_timeout_s=query_timeout_s, task_timeout_s=task_timeout_s, query_disk_bytes=disk
    )
    storage = Storage.of(storage_options)
    limit = None if memory_limit is None else parse_size(memory_limit)
    where = _where(cluster)
    if where is Where.PLATFORM:
        scaling = _scaling(min_nodes, max_nodes, idle_s)
        if scaling is not None:
            scaling.check()
        shape = Shape(
            nodes=scaling.min_nodes if nodes is None and scaling else nodes,
            cpus_per_node=cpus_per_node,
            executors_per_node=executors_per_node,
            schedulers=schedulers,
            memory_limit_bytes=limit,
            most_nodes=max_nodes,
        )
        platform = platform_of(cluster)
        assert platform is not None, "the place says so"
        on = platform.launch(
            cluster,
            shape,
            scaling=scaling,
            recovery_timeout_s=recovery_timeout_s,
            meanwhile=partial(imported, "minishark.session.session"),
        )
        return begin(on)
    if where is Where.RUNNING:
        return begin(_attached(cluster, keys, recovery_timeout_s))
    placements.check_import(placement)
    cores = usable_cores()
    few = min(2, cores)  # two nodes, so that partitions have replicas, and a slot for each core
    scaling = _scaling(min_nodes, max_nodes, idle_s)
    least = few if scaling is None else scaling.min_nodes
    count = least if nodes is None else nodes
    options = ClusterOptions(
        nodes=count,
        executors_per_node=(
            max(1, cores // few) if executors_per_node is None else executors_per_node
        ),
        schedulers=(1 if count == 1 else 2) if schedulers is None else schedulers,
        in_process=in_process,
        memory_limit_bytes=limit,
        scaling=scaling,
        audit=None if audit is None else Path(audit).absolute(),
        recovery_timeout_s=recovery_timeout_s,
    )
    with contextlib.ExitStack() as undo:
        own = OwnCluster(options, meanwhile=partial(imported, "minishark.session.session"))
        undo.callback(own.close)
        session = begin(own)
        undo.callback(session.stop)
        own.await_start()
        undo.pop_all()
    return session


def _scaling(min_nodes: int | None, max_nodes: int | None, idle_s: float) -> ScalingOptions | None:
    if max_nodes is None:
        if min_nodes is not None:
            raise OptionError("min_nodes goes with max_nodes; `nodes` is for a fixed number.")
        return None
    return ScalingOptions(
        min_nodes=1 if min_nodes is None else min_nodes, max_nodes=max_nodes, idle_s=idle_s
    )


def _attached(cluster: str, keys: str | Path | None, recovery_timeout_s: float) -> Cluster:
    imported("minishark.session.session")
    from minishark.cluster.attached import AttachedCluster  # noqa: PLC0415 - slow to import
    from minishark.cluster.launch import resolve  # noqa: PLC0415

    folder = None if keys is None else str(keys)
    address, keys_folder = resolve(cluster, folder)
    return AttachedCluster(
        address,
        keys_folder,
        find=lambda: resolve(cluster, folder, waits=False)[0],
        recovery_timeout_s=recovery_timeout_s,
    )


REUSES = ("off", "session", "cluster")


def check_reuse(reuse: str, folder: str | Path | None = None) -> None:
    if reuse not in REUSES:
        raise OptionError(f"reuse is one of {', '.join(map(repr, REUSES))}, not {reuse!r}.")
    if folder is not None and reuse == "off":
        raise OptionError("reuse_folder goes with reuse='session' or reuse='cluster'.")


def check_optimizations(disabled: Collection[str]) -> None:
    if not disabled:
        return
    from minishark.compiler.rules import RULES  # noqa: PLC0415 - `connect` is light

    names = {rule.name for rule in RULES}
    if isinstance(disabled, str) or not names.issuperset(disabled):
        others = [] if isinstance(disabled, str) else sorted(set(disabled) - names, key=repr)
        wrong = f", not {', '.join(map(repr, others))}" if others else ""
        listed = ", ".join(sorted(names))
        raise OptionError(f"disabled_optimizations takes a list of these names{wrong}: {listed}.")


def planner_options(
    cluster: Cluster,
    *,
    partitions: int | None,
    single_task_rows: int,
    task_threads: int | None,
    disabled: Collection[str],
    reuse: str = "off",
) -> PlannerOptions:
    most, slots, cores = cluster.most_slots, cluster.total_slots, cluster.cores
    outputs = cluster.shared_outputs() if reuse == "cluster" else None
    if outputs is not None:
        most = slots = cores = outputs.slots(slots)
    reuses = reuse != "off"
    if not single_task_rows and "coalesced_tasks" in disabled:
        eager = PlannerOptions.eager(partitions or most).without(*disabled)
        return replace(eager, slots=cores, reuses=reuses)
    alone = partitions or not single_task_rows
    options = PlannerOptions(
        partitions=partitions or most,
        single_task_rows=single_task_rows,
        threads=task_threads or (1 if alone else slots),
        slots=cores,
        task_bytes=cluster.task_bytes,
        alone_bytes=cluster.task_bytes if cluster.loses_files else math.inf,
        disabled=frozenset(disabled),
        reuses=reuses,
    )
    return options if single_task_rows else options.in_stages()
