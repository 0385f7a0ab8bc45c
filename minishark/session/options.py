"""The options of `connect`, as one table.

From it derive the arguments in `connect`'s docstring, the checks of values with their sentences,
options of commands and of SQLAlchemy's URLs, and docs/options.md. `connect`'s signature is written
out, for editors and mypy, and a test compares it. Light: commands import this before all else.
"""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from numbers import Real
from typing import Any

from minishark.compiler.physical.options import PARTITIONS_MAX, SINGLE_TASK_ROWS
from minishark.errors import OptionError
from minishark.worker.memory import parse_size

_SWITCHES = {
    **dict.fromkeys(("1", "on", "true", "yes"), True),
    **dict.fromkeys(("0", "off", "false", "no"), False),
}
_NO_TEXTS: dict[str, Any] = {}


class Where(Enum):
    """Where a session's cluster is."""

    HERE = "a new cluster on this machine"
    PLATFORM = "a new cluster on Ray or Dask"
    RUNNING = "a running cluster"


class Kind(Enum):
    """What a value is: in a command's help, as a type, in words; and how a text becomes one."""

    WHOLE = ("N", int, "a whole number", int)
    NUMBER = ("NUMBER", Real, "a number", float)
    SECONDS = ("SECONDS", Real, "a number of seconds above 0", float)
    SWITCH = ("BOOLEAN", bool, "True or False", lambda text: _SWITCHES[text.lower()])
    SIZE = ("SIZE", object, "an amount of memory such as 4GiB", str)
    NAMES = ("NAMES", object, "a list of names", lambda text: text.split(","))
    TEXT = ("TEXT", object, "a text, or a path", str)  # or an object that says more
    OBJECT = ("OBJECT", object, "an object", _NO_TEXTS.__getitem__)

    def __init__(self, metavar: str, type_: Any, words: str, parse: Callable[[str], Any]) -> None:
        self.metavar, self.type, self.words, self.parse = metavar, type_, words, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of `connect`.

    Attributes:
        sentence: what it is; "; None for ..." says what its default stands for, if that is None.
        least: the smallest value; `most` the greatest one.
        on: the clusters that take it.
    """

    kind: Kind
    sentence: str
    default: Any = None
    least: float = -math.inf
    most: float = math.inf
    on: tuple[Where, ...] = tuple(Where)

    @property
    def place(self) -> str:
        """The clusters that take it, in words."""
        places = {_NEW: "a new cluster", tuple(Where): "any cluster"}
        return places.get(self.on) or " or ".join(place.value for place in self.on)

    @property
    def range(self) -> str:
        """The values that it takes, in words."""
        words = self.kind.words
        if self.kind in (Kind.WHOLE, Kind.NUMBER):
            bounded = self.kind is Kind.WHOLE and self.most < math.inf
            words += f" from {self.least} to {self.most}" if bounded else f", at least {self.least}"
        return f"{words}, or None" if self.default is None else words

    @property
    def text(self) -> str:
        """The sentence, in one line."""
        return " ".join(self.sentence.split())

    def help(self, *, default: bool = True) -> str:
        """What a command says of it: the first sentence."""
        text, _, none = self.text.partition(". ")[0].rstrip(".").partition("; None for ")
        return f"{text[0].upper()}{text[1:]}." + (
            f"  [default: {none}]" if none and default else ""
        )

    def check(self, name: str, value: Any) -> None:
        """Raise OptionError if it does not take a value; texts and objects are for their users."""
        type_ = self.kind.type
        if value is None and self.default is None:
            return
        if self.kind is Kind.SIZE:
            parse_size(value, name)
        elif type_ is not object:
            fits = isinstance(value, type_) and isinstance(value, bool) is (type_ is bool)
            if not fits or not self.least <= value <= self.most:
                raise OptionError(f"{name} must be {self.range}, not {value!r}.")

    def parsed(self, name: str, text: str) -> Any:
        """The value for which a text stands in a URL or a command.

        Raises:
            OptionError: it stands for none.
        """
        if self.kind is Kind.SIZE:
            return parse_size(text, name)
        try:
            return self.kind.parse(text)
        except (LookupError, ValueError):
            raise OptionError(f"{name} must be {self.range}, not {text!r}.") from None


_NEW, _HERE = (Where.HERE, Where.PLATFORM), (Where.HERE,)
_ABOVE_0, _FINITE = math.ulp(0.0), sys.float_info.max
# fmt: off
OPTIONS: Mapping[str, Option] = {
    "cluster": Option(kind=Kind.TEXT, sentence="""
        a running cluster: its name on this machine, or the address of one of its nodes,
        `tcp://host:port` or `ipc://path`. Also `ray:NAME` for one that was started with
        `minishark cluster start --on ray`, or `@FILE` for one whose nodes meet in a file. None
        starts one that ends with the session, on this machine; "ray", "ray://host:port", "dask"
        or a Client of Dask's distributed start one on machines of Ray or Dask (see
        docs/cluster.md). In a submitted program, None stands for the cluster that runs it, unless
        there are options for a new one."""),
    "keys": Option(kind=Kind.TEXT, on=(Where.RUNNING,), sentence="""
        folder of the cluster's keys, required for tcp, as `minishark cluster keygen` makes it;
        None for MINISHARK_KEYS, or the folder that the cluster was started with."""),
    "nodes": Option(kind=Kind.WHOLE, least=1, on=_NEW, sentence="""
        number of nodes; None for two (one on a machine with one core); on Ray or Dask for one
        on each machine."""),
    "cpus_per_node": Option(kind=Kind.WHOLE, least=1, on=(Where.PLATFORM,), sentence="""
        the cores that each node takes; None for those of the smallest machine."""),
    "executors_per_node": Option(kind=Kind.WHOLE, least=1, on=_NEW, sentence="""
        executor processes per node, each of which runs one task at a time; None for one slot
        per core in all."""),
    "schedulers": Option(kind=Kind.WHOLE, least=1, on=_NEW, sentence="""
        number of Sparrow schedulers; None for two, or one if there is one node; on Ray for one
        (Dask: two), in a process of its own."""),
    "partitions": Option(kind=Kind.WHOLE, least=1, most=PARTITIONS_MAX, sentence="""
        default number of partitions of tables and shuffles; None for one per slot."""),
    "min_nodes": Option(kind=Kind.WHOLE, least=1, on=_NEW, sentence="""
        the fewest nodes of a cluster with `max_nodes`; None for one. It starts with these, or
        with `nodes` if given."""),
    "max_nodes": Option(kind=Kind.WHOLE, least=1, on=_NEW, sentence="""
        the most nodes, for a cluster that grows while tasks wait for slots, and shrinks while
        it is idle; None for one that keeps its number of nodes. A running cluster grows by
        nodes that join it."""),
    "idle_s": Option(kind=Kind.SECONDS, default=60.0, least=_ABOVE_0, on=_NEW, sentence="""
        seconds for which one node fewer would have sufficed, after which one goes."""),
    "placement": Option(kind=Kind.TEXT, default="sparrow", sentence="""
        how tasks are placed on nodes: one of `sparrow_core.placement_names()`, or "module:factory"
        for a policy of your own. Schedulers must be able to import that (see docs/policies.md).
        By default Sparrow's batch sampling with late binding."""),
    "probe_ratio": Option(kind=Kind.NUMBER, default=2.0, least=1, most=_FINITE, sentence="""
        reservations per task, at least 1."""),
    "in_process": Option(kind=Kind.SWITCH, default=False, on=_HERE, sentence="""
        run the cluster on threads of this process, for tests and debugging."""),
    "single_task_rows": Option(kind=Kind.WHOLE, default=SINGLE_TASK_ROWS, least=0, sentence="""
        statements over tables of at most this many rows in total run in one task, and larger
        ones if that is estimated to be faster; 0 distributes everything, for tests and
        demonstrations."""),
    "reuse": Option(kind=Kind.TEXT, default="off", sentence="""
        who takes what tasks of the session's queries have put out, instead of computing it again
        (see docs/reuse.md): "off" for nobody; "session" for its later queries; "cluster" for those
        of all sessions of a running cluster that ask so, elsewhere the same as "session"."""),
    "reuse_folder": Option(kind=Kind.TEXT, sentence="""
        a folder, or the URI of one in an object store, in which outputs stay when the cluster is
        gone: sessions with the same folder find them (see docs/reuse.md); None for none. It goes
        with `reuse`."""),
    "reuse_folder_limit": Option(kind=Kind.SIZE, sentence="""
        how much that folder may have, as "100GiB" or in bytes, before what nobody has used for
        the longest time is removed; None for 64 GiB."""),
    "task_threads": Option(kind=Kind.WHOLE, least=1, sentence="""
        threads of a task that runs alone, on a single-machine cluster; None for one per slot,
        or 1 if `partitions` is given. Concurrent queries share them."""),
    "disabled_optimizations": Option(kind=Kind.NAMES, default=(), sentence="""
        names of optimizer rules to switch off, for comparisons (docs/performance.md says what
        each does): "one_task", "eager_aggregation", "semi_join_duplicates", "group_keys",
        "semi_join_filters", "group_runs", "join_sides", "prepared_fragments", "inline_outputs",
        "coalesced_tasks", "source_pushdown"; and those that change the plan while it runs,
        "empty_inputs", "join_switch", "collapse", "skew_split"."""),
    "memory_limit": Option(kind=Kind.SIZE, on=_NEW, sentence="""
        memory of all nodes together, such as 4GiB, or in bytes; what exceeds it goes to disk;
        None for MINISHARK_MEMORY_LIMIT, or 3/4 of the machine's (or container's) memory. It
        counts executors with their DuckDBs, and tables and shuffles in shared memory."""),
    "event_log": Option(kind=Kind.TEXT, sentence="""
        a folder for the history of the session: what happens, as lines of JSON of at most 64
        MiB, which `minishark ui FOLDER` shows; None for none."""),
    "storage_options": Option(kind=Kind.OBJECT, sentence="""
        how object stores are reached, beside what the environment says: settings by name, as
        pandas and polars have them ("aws_access_key_id", "aws_endpoint_url" ...); or such
        settings by URI prefix ({"s3://bucket": {...}}); or a function that returns them, called
        for each statement that needs a store."""),
    "warehouse": Option(kind=Kind.TEXT, sentence="""
        named schemas and durable tables: a folder, which is made if it is missing, also of S3
        ("s3://bucket/lake"), or the address of an Iceberg REST catalog or of a DuckLake
        ("ducklake:sqlite:FILE"); None for none. Or the properties of a catalog as PyIceberg takes
        them (see docs/warehouse.md)."""),
    "audit": Option(kind=Kind.TEXT, on=_HERE, sentence="""
        a folder for Sparrow's audit logs, one file for each process: when each task was placed,
        started and ended; None for none. `sparrow audit FOLDER` reports times and shares, and
        says why a task ran where it did."""),
    "recovery_timeout_s": Option(kind=Kind.SECONDS, default=30.0, least=_ABOVE_0, sentence="""
        how long statements and calls wait for a node and a scheduler that answer, in seconds,
        while those that died are being started again, or nodes with the only replicas are cut
        off (see docs/reliability.md). Ctrl-C ends the wait."""),
    "query_timeout_s": Option(kind=Kind.SECONDS, least=_ABOVE_0, sentence="""
        seconds after which a query or load is cancelled, with QueryTimeoutError; None for no
        limit."""),
    "task_timeout_s": Option(kind=Kind.SECONDS, least=_ABOVE_0, sentence="""
        seconds after which a call of a Python function is given up that names no timeout of its
        own, with TaskTimeoutError; None for no limit."""),
    "query_disk_limit": Option(kind=Kind.SIZE, sentence="""
        how much a query may write to disk for itself, where its rows do not fit into memory, as
        "10GiB" or in bytes; more is a ResourceError. None for no limit."""),
    "progress": Option(kind=Kind.SWITCH, sentence="""
        whether queries and programs that take a while show their progress on stderr, if that is
        a terminal; None for an interactive Python only."""),
    "prints": Option(kind=Kind.SWITCH, default=True, sentence="""
        whether what user code prints in tasks is shown on stderr, with the executor's name
        before each line; at most 16,384 characters of a task. In a cluster that was running
        already, or on Ray or Dask, lines come when their task has ended."""),
}
# fmt: on


def check_options(values: Mapping[str, Any], where: Where) -> None:
    """Raise OptionError if a value is none of its option's, or this cluster does not take it."""
    for name, value in values.items():
        option = OPTIONS[name]
        if where not in option.on and value != option.default:
            raise OptionError(
                f"{name} is for {option.place}, and this is {where.value}: connect without it."
            )
        option.check(name, value)


def documented(function: Callable[..., Any]) -> str:
    """A function's docstring, with the options as arguments before what it raises."""
    before, raises, after = textwrap.dedent(f"    {function.__doc__}").partition("Raises:\n")
    arguments = ["Args:"]
    for name, option in OPTIONS.items():
        only = "" if option.on == tuple(Where) else f" For {option.place}."
        text = f"    {name}: {option.text}{only}"
        arguments.append(textwrap.fill(text, 96, subsequent_indent=" " * 8, break_on_hyphens=False))
    return before + "\n".join([*arguments, "", raises]) + after
