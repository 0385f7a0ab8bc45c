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
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from minishark.cluster.local import RECOVERY_S, ClusterOptions, OwnCluster
from minishark.cluster.scaling import ScalingOptions
from minishark.compiler.physical.options import SINGLE_TASK_ROWS, PlannerOptions, check_partitions
from minishark.deploy.targets import Shape, deploy, is_platform, resolve
from minishark.errors import OptionError
from minishark.query.limits import Limits, is_duration
from minishark.session.lazy import imported
from minishark.sources.storage_options import Storage, StorageOptions
from minishark.worker.cores import usable_cores
from minishark.worker.memory import parse_size
from sparrow_core import PLACEMENTS, InvalidJob, make_placement
from sparrow_core import check_placement as check_policy

if TYPE_CHECKING:
    from minishark.cluster.backend import Cluster
    from minishark.session.session import Session


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _named(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function with keywords, which says what others are near when one is misspelt."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        for name in kwargs.keys() - known.keys():
            from minishark.dataframe.names import nearest  # noqa: PLC0415 - slow to import

            near = nearest(name, known) or f" Its options are {', '.join(known)}."
            raise OptionError(f"{function.__name__}() has no option {name!r}.{near}")
        return function(*args, **kwargs)

    return called


@_named
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

    Args:
        cluster: a running cluster: `tcp://host:port` or `ipc://path` of one of its nodes, or its
            name on this machine; `ray:NAME` for one that was started with `minishark cluster start
            --on ray`; `@FILE` for one whose nodes meet in a file. None starts one that ends with
            the session, on this machine; "ray", "ray://host:port", "dask" or a Client of Dask's
            distributed start one on machines of Ray or Dask (see docs/cluster.md). `nodes`,
            `cpus_per_node` (Ray and Dask), `executors_per_node`, `schedulers` and
            `memory_limit` are for those, `in_process` is for this machine.
        keys: the folder of the cluster's keys, for tcp; None for the environment variable
            MINISHARK_KEYS, or the folder that the cluster was started with.
        nodes: number of nodes; None for two (one on a machine with one core); on Ray or Dask for
            one on each machine.
        cpus_per_node: on Ray or Dask, the cores that each node takes; None for those of the
            smallest machine.
        executors_per_node: executor processes per node; None for one slot per core in all.
        schedulers: number of Sparrow schedulers; None for two, or one if there is one node; on Ray
            for one (Dask: two), in a process of its own.
        partitions: default number of partitions of tables and shuffles; None for one per slot.
        min_nodes: the fewest nodes of a new cluster with `max_nodes`; None for one. It starts with
            these, or with `nodes` if given.
        max_nodes: for a new cluster that grows up to there while tasks wait for slots, and shrinks
            while it is idle; None for one that keeps its number of nodes.
        idle_s: seconds for which one node fewer would have sufficed, after which one goes.
        placement: how tasks are placed on nodes, a name of `sparrow_core.PLACEMENTS`, or
            "module:factory" for a policy of your own, which schedulers must be able to import (see
            docs/policies.md); by default Sparrow's batch sampling with late binding.
        probe_ratio: reservations per task, at least 1.
        in_process: run the cluster on threads of this process, for tests and debugging.
        single_task_rows: statements over tables of at most this many rows in total run in one
            task, and larger ones if that is estimated to be faster; 0 distributes everything,
            for tests and demonstrations.
        task_threads: threads of a task that runs alone, on a single-machine cluster; None for one
            per slot, or 1 if `partitions` is given. Concurrent queries share them.
        disabled_optimizations: optimizer rules to switch off, for comparisons: "one_task" (one task
            where that is faster, above `single_task_rows`), "eager_aggregation" (pre-aggregation
            below joins), "semi_join_duplicates" (no duplicate elimination on the tested side),
            "group_keys" (grouping by dictionary codes instead of text), "semi_join_filters" (scans
            skip rows without a join partner), "group_runs" (aggregation of consecutive groups
            without hash tables), "join_sides" (build sides chosen by statistics),
            "prepared_fragments" (prepared statements for repeated queries), "inline_outputs"
            (small outputs in messages), "coalesced_tasks" (several small partitions in one task),
            "source_pushdown" (only the needed columns, files and parts of sources);
            and of those that change the plan while it runs, by the true sizes of complete stages:
            "empty_inputs" (what has no rows is skipped), "join_switch" (shuffle instead of
            broadcast, and back), "collapse" (one task for the rest), "skew_split" (several tasks
            for a large bucket).
        memory_limit: for a new cluster, as "4GiB" or in bytes: executors with their DuckDBs, tables
            and shuffles in shared memory. The rest goes to disk. None for the environment variable
            MINISHARK_MEMORY_LIMIT, or 3/4 of the machine's (or container's) memory.
        event_log: a folder for the history of the session: what happens, as lines of JSON of at
            most 64 MiB, which `minishark ui FOLDER` shows. None for none.
        storage_options: how object stores are reached, beside what the environment says: settings
            by name, as pandas and polars have them ("aws_access_key_id", "aws_endpoint_url" ...);
            or such settings by URI prefix ({"s3://bucket": {...}}); or a function that returns
            them, called for each statement that needs a store.
        warehouse: named schemas and durable tables (see docs/warehouse.md): a folder, which is made
            if it is missing, also of S3 ("s3://bucket/lake"); the address of an Iceberg REST
            catalog; or the properties of a catalog as PyIceberg takes them. None for none.
        audit: for a new cluster on this machine, a folder for Sparrow's audit logs, one file for
            each process: when each task was placed, started and ended. `sparrow audit FOLDER`
            reports times and shares, and says why a task ran where it did. None for none.
        recovery_timeout_s: how long statements and calls wait for a node and a scheduler that
            answer, in seconds, while those that died are being started again, or nodes with the
            only replicas are cut off (see docs/reliability.md). Ctrl-C ends the wait.
        query_timeout_s: seconds after which a query or load is cancelled, with QueryTimeoutError;
            None for no limit.
        task_timeout_s: seconds after which a call of a Python function is given up that names no
            timeout of its own, with TaskTimeoutError; None for no limit.
        query_disk_limit: how much a query may write to disk for itself, where its rows do not fit
            into memory, as "10GiB" or in bytes; more is a ResourceError. None for no limit.
        progress: whether queries and programs that take a while show their progress on stderr, if
            that is a terminal; None for an interactive Python only.
        prints: whether what user code prints in tasks is shown on stderr, with the executor's name
            before each line; at most 16,384 characters of a task. In a cluster that was running
            already, or on Ray or Dask, lines come when their task has ended.

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
    if isinstance(cluster, numbers.Number):
        raise OptionError(
            f"connect() takes the address or name of a cluster; write connect(nodes={cluster}) for "
            "a number of nodes."
        )
    check_placement(placement, probe_ratio)
    check_partitions(partitions)
    if not isinstance(disabled_optimizations, str):
        disabled_optimizations = frozenset(disabled_optimizations)
    check_optimizations(task_threads, disabled_optimizations)

    def begin(on: Cluster) -> Session:
        imported("minishark.session.session")
        from minishark.session.engine import Engine  # noqa: PLC0415 - slow to import
        from minishark.session.group import SessionGroup  # noqa: PLC0415
        from minishark.session.scope import Scope  # noqa: PLC0415
        from minishark.session.session import Session  # noqa: PLC0415

        planner = planner_options(
            on,
            partitions=partitions,
            single_task_rows=single_task_rows,
            task_threads=task_threads,
            disabled=disabled_optimizations,
        )
        placing = partial(on.placement, placement, probe_ratio)
        engine = Engine(on, planner, placing, storage, limits=limits, prints=prints)
        group = SessionGroup(engine, warehouse=warehouse, event_log=event_log)
        return Session(group, Scope(engine), progress=progress, owns=True)

    if not is_duration(recovery_timeout_s):
        raise OptionError("recovery_timeout_s must be a number of seconds above 0.")
    limits = Limits.of(query_timeout_s, task_timeout_s, query_disk_limit)
    storage = Storage.of(storage_options)
    limit = None if memory_limit is None else parse_size(memory_limit, "memory_limit")
    if audit is not None and cluster is not None:
        raise OptionError("Only a new cluster on this machine has audit logs; connect without.")
    if is_platform(cluster):
        if in_process or keys is not None:
            raise OptionError("On Ray or Dask, nodes are processes, and keys are made for them.")
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
        return begin(_deployed(cluster, shape, scaling, recovery_timeout_s))
    if cpus_per_node is not None:
        raise OptionError("cpus_per_node is for clusters on Ray or Dask; use executors_per_node.")
    if cluster is not None:
        if not (min_nodes is max_nodes is None):
            raise OptionError("A running cluster grows by nodes that join it, not by max_nodes.")
        if in_process or not (nodes is executors_per_node is schedulers is None):
            raise OptionError("A running cluster has its nodes; connect without them.")
        if memory_limit is not None:
            raise OptionError("A running cluster has its memory limit.")
        return begin(_attached(cluster, keys, recovery_timeout_s))
    if keys is not None:
        raise OptionError("keys go with the address of a cluster.")
    _check_import(placement)
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
        own = OwnCluster(options)
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


def _deployed(
    cluster: Any, shape: Shape, scaling: ScalingOptions | None, recovery_timeout_s: float
) -> Cluster:
    deployment = deploy(cluster, shape)
    with contextlib.ExitStack() as undo:
        undo.callback(deployment.close)
        imported("minishark.session.session")
        from minishark.deploy.cluster import DeployedCluster  # noqa: PLC0415 - slow to import

        deployment.await_start()
        found = DeployedCluster(deployment, scaling, recovery_timeout_s)
        undo.pop_all()
    return found


def _attached(cluster: str, keys: str | Path | None, recovery_timeout_s: float) -> Cluster:
    imported("minishark.session.session")
    from minishark.cluster.attached import AttachedCluster  # noqa: PLC0415 - slow to import

    folder = None if keys is None else str(keys)
    address, found = resolve(cluster, folder)
    return AttachedCluster(
        address,
        found,
        find=lambda: resolve(cluster, folder, waits=False)[0],
        recovery_timeout_s=recovery_timeout_s,
    )


def check_placement(placement: str, probe_ratio: object) -> None:
    try:
        check_policy(placement)
    except InvalidJob as error:
        known = ", ".join(PLACEMENTS)
        text = f"Unknown placement {placement!r}; choose {known}, or module:factory."
        raise OptionError(text) from error
    if not isinstance(probe_ratio, numbers.Real) or not 1 <= float(probe_ratio) < math.inf:
        raise OptionError("probe_ratio must be at least 1: each task needs a reservation.")


def _check_import(placement: str) -> None:
    """Refuse a plug-in that the schedulers of a new cluster, which have our path, can't import."""
    try:
        make_placement(placement)
    except InvalidJob as error:
        raise OptionError(f"{error}.") from error


def check_optimizations(task_threads: int | None, disabled: Collection[str]) -> None:
    if task_threads is not None and task_threads < 1:
        raise OptionError("task_threads must be at least 1.")
    if not disabled:
        return
    from minishark.compiler.rules import RULES  # noqa: PLC0415 - `connect` is light

    names = {rule.name for rule in RULES}
    if isinstance(disabled, str) or not names.issuperset(disabled):
        others = [] if isinstance(disabled, str) else sorted(set(disabled) - names, key=repr)
        wrong = f", not {', '.join(map(repr, others))}" if others else ""
        known = ", ".join(sorted(names))
        raise OptionError(f"disabled_optimizations takes a list of these names{wrong}: {known}.")


def planner_options(
    cluster: Cluster,
    *,
    partitions: int | None,
    single_task_rows: int,
    task_threads: int | None,
    disabled: Collection[str],
) -> PlannerOptions:
    slots = cluster.most_slots
    if not single_task_rows and "coalesced_tasks" in disabled:
        eager = PlannerOptions.eager(partitions or slots).without(*disabled)
        return replace(eager, slots=cluster.cores)
    alone = partitions or not single_task_rows
    options = PlannerOptions(
        partitions=partitions or slots,
        single_task_rows=single_task_rows,
        threads=task_threads or (1 if alone else cluster.total_slots),
        slots=cluster.cores,
        task_bytes=cluster.task_bytes,
        disabled=frozenset(disabled),
    )
    return options if single_task_rows else options.in_stages()
