"""What calls in tasks have come to, in a folder of outputs: for tasks that no cluster has ended.

    logs of a task's attempts ──look──► segments ──found──► a file, of which other attempts
    (`worker/call_log.py`)              (entries)           at the task read what was done

A segment has some of the records of a task's logs. The last one is written again with more of them
until it is large, so that a folder has few for many short calls, and all of it appears at once.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from minishark.model.events.figures import TaskFigures
from minishark.query.names import named
from minishark.query.output_folder import FolderOutputs
from minishark.worker.call_log import CALLS_ENDING, head_of, log_data, records
from minishark.worker.protocol import FileSlice, KeptOutput, TaskOutcome
from minishark.worker.store import InputMissingError, Store

_LOOK_S = 0.5
_SEGMENT_BYTES = 256 << 10


@dataclass(slots=True)
class _Task:
    """What is known of a task's calls."""

    given: tuple[FileSlice, ...] = ()  # what the folder had of them
    known: set[bytes] = field(default_factory=set)  # the records in the folder, by their heads
    complete: int = 0  # segments that are not written again
    last: bytearray = field(default_factory=bytearray)  # the one after these


@dataclass(slots=True, kw_only=True)
class CallSegments:
    """The calls of one run of a query, in a folder of outputs.

    Attributes:
        outputs: the folder.
        store: gives the session's store.
        logs: where nodes have logs, relative to their storage folders.
        folder: where the session's store has what was read of the folder.
    """

    outputs: FolderOutputs
    store: Callable[[], Store]
    logs: str
    folder: str
    _tasks: dict[str, _Task] = field(default_factory=dict)  # by the name of the calls
    _read: dict[str, int] = field(default_factory=dict)  # bytes of records, by the name of the log
    _looked_s: float = field(default_factory=time.monotonic)

    def found(self, names: Iterable[str]) -> Mapping[str, tuple[FileSlice, ...]]:
        """What the folder has of the calls of tasks that are about to run."""
        names = tuple(names)
        segments: dict[str, list[bytes]] = {name: [] for name in names if name not in self._tasks}
        left = [*segments]
        while left:
            asked = {named(name, str(len(segments[name]))): name for name in left}
            read = self.outputs.read([*asked])
            left = [asked[segment] for segment in read]
            for segment, output in read.items():
                segments[asked[segment]].append(output.outcome.inline or b"")
        for name, some in segments.items():
            heads = {head for data in some for head in map(head_of, records(data))}
            self._tasks[name] = _Task(self._stored(name, some), heads, len(some))
        return {name: self._tasks[name].given for name in names}

    def _stored(self, name: str, segments: Sequence[bytes]) -> tuple[FileSlice, ...]:
        """Segments in a file that executors read like any other; none if there is no room."""
        if not segments or not self.outputs.takes(sum(map(len, segments))):
            return ()
        store = self.store()
        file = FileSlice(f"{self.folder}/{name}-{secrets.token_hex(4)}.arrow", (store.node,))
        data = pa.py_buffer(b"".join(segments))
        column = pa.Array.from_buffers(pa.uint8(), len(data), [None, data])
        batch = pa.record_batch({"records": column})
        try:
            store.write(file.file, batch.schema, [[batch]])
        except OSError:
            return ()
        return (file,)

    def look(self) -> None:
        """Keep what calls have come to; to be called often, as it does not look each time."""
        now_s = time.monotonic()
        if self._tasks and now_s > self._looked_s + _LOOK_S and not self.outputs.is_behind:
            self._looked_s = now_s
            self._look()

    def _look(self) -> None:
        with contextlib.suppress(OSError):  # a node is gone, and its folder while it is listed
            for path in self.store().on_disks(self.logs, f"*{CALLS_ENDING}"):
                self._keep(path)

    def ended(self, log: str, node: str) -> None:
        """A task has ended, whose log stays on a node."""
        with contextlib.suppress(InputMissingError, OSError):
            self._keep(self.store().plain_file(log, node))

    def _keep(self, log: Path) -> None:
        """Keep the records of a log that are new."""
        name = log.name.partition("-")[0]
        task, read = self._tasks.get(name), self._read.get(log.name, 0)
        if task is None:  # another query's
            return
        new = [*records(log_data(log, read))]
        self._read[log.name] = read + sum(map(len, new))
        before = task.complete, len(task.last)
        for record in new:
            if head_of(record) in task.known:
                continue
            task.known.add(head_of(record))
            task.last += record
            if len(task.last) >= _SEGMENT_BYTES:
                self._write(name, task)
                task.complete += 1
                task.last.clear()
        if task.last and before != (task.complete, len(task.last)):
            self._write(name, task)

    def _write(self, name: str, task: _Task) -> None:
        segment = named(name, str(task.complete))
        outcome = TaskOutcome(figures=TaskFigures(bytes=len(task.last)), inline=bytes(task.last))
        made_s = time.time()
        self.outputs.write(
            {segment: KeptOutput(outcome=outcome, node="", identity=segment, made_s=made_s)}
        )

    def close(self) -> None:
        """The run is over."""
        if self._tasks:
            self._look()
        store = self.store()
        for task in self._tasks.values():
            for file in task.given:
                store.remove(file)
        self._tasks.clear()
