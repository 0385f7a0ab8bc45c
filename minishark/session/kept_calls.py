"""What calls of Python functions have returned, among the outputs that a session keeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from minishark.model.events.figures import TaskFigures
from minishark.query.digests import Digest
from minishark.query.names import (
    NoNameError,
    arguments_name,
    call_name,
    function_digest,
    named,
)
from minishark.query.reuse import Reuse
from minishark.query.run import working_folder
from minishark.session.engine import Engine
from minishark.session.tasks.functions import Function
from minishark.session.tasks.kept import Naming
from minishark.worker.protocol import (
    FileSlice,
    KeptOutput,
    PythonOutcome,
    TaskOutcome,
    Value,
)
from minishark.worker.store import Store


def kept_calls(engine: Engine) -> CallOutputs | None:
    """Where the sessions of an engine keep what calls return; None if they keep nothing."""
    if engine.reuse is None:
        return None
    return CallOutputs(reuse=engine.reuse, store=engine.cluster.store, warn=engine.warn)


@dataclass(slots=True)
class _Reading:
    """A file with a result that somebody is to read."""

    output: KeptOutput
    readers: int
    is_spare: bool = False  # the result of an equal call is kept instead


@dataclass(slots=True, kw_only=True)
class CallOutputs:
    """Outputs of calls; safe to use from several threads.

    Attributes:
        reuse: the session's outputs.
        store: gives its view of stored files.
        warn: takes a sentence for the user.
    """

    reuse: Reuse
    store: Callable[[], Store]
    warn: Callable[[str], None]
    _reading: dict[str, _Reading] = field(default_factory=dict)  # by file
    _digests: WeakKeyDictionary[Function, Digest] = field(default_factory=WeakKeyDictionary)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def folder(self) -> str:
        """Where nodes keep large results."""
        return self.reuse.folder

    def naming(self, function: Function) -> Naming:
        """How calls of a function are named; a warning says why one has no name."""
        label = function.label
        try:
            if function.value.files:
                raise NoNameError(  # noqa: TRY301 - said as what else has no name
                    f"the function {label} holds much data: pass that as an argument"
                )
            common = call_name(self._digest(function), working_folder())
        except NoNameError as error:
            self.not_kept(label, str(error))
            return lambda _args, _kwargs: ""

        def name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
            try:
                return named(common, arguments_name(label, (args, kwargs)))
            except NoNameError as error:
                self.not_kept(label, str(error))
                return ""

        return name

    def _digest(self, function: Function) -> Digest:
        """The digest of a function, taken once where its pickle has all that may change.

        A function that is another one than at the last call is another `Function`, too.
        """
        digest = self._digests.get(function)
        if digest is None:
            digest = function_digest(function.label, function.value.pickled)
            if not digest.reach.may_change:
                self._digests[function] = digest
        return digest

    def not_kept(self, label: str, why: str) -> None:
        """Say that what a function returns is not kept."""
        self.warn(f"What {label} returns is not kept: {why}.")

    def take(self, names: Sequence[str]) -> Mapping[str, tuple[PythonOutcome, str]]:
        """The outcomes of those calls that were made, each with its node."""
        taken = {}
        for name, output in self.reuse.take(tuple(dict.fromkeys(names))).items():
            value = _value(output)
            if value.stream is not None and not self.store().may_have(value.stream):
                self.reuse.give((name,))
                self.lost(value.files)
                continue
            taken[name] = (PythonOutcome(value), output.node)
            reading = _Reading(output, names.count(name))
            if value.stream is None or not self._reads(value.stream.file, reading):
                self.reuse.give((name,))
        return taken

    def _reads(self, file: str, reading: _Reading) -> bool:
        """A file is to be read; whether nobody was to do so before, so that it was not held."""
        with self._lock:
            before = self._reading.get(file)
            if before is None:
                self._reading[file] = reading
                return True
            before.readers += reading.readers
            return False

    def keep(self, name: str, value: Value, node: str, run_s: float) -> None:
        """A call has returned."""
        if value.stream is None:
            outcome = TaskOutcome(figures=TaskFigures(), inline=value.pickled)
        else:
            outcome = TaskOutcome(
                figures=TaskFigures(bytes=value.stream_bytes),
                file=value.stream.file,
            )
        output = KeptOutput(
            outcome=outcome, node=node, identity=name, made_s=time.time(), run_s=run_s
        )
        # Of equal calls at the same time, the others' results may be read later than this.
        is_spare = bool(self.reuse.look((name,)))
        if value.stream is not None:
            self._reads(value.stream.file, _Reading(output, 1, is_spare))
            if self.reuse.shared is not None:
                self.reuse.shared.hold(output)
            if not is_spare:
                self.reuse.hold((name,))
        if not is_spare:
            self.reuse.keep({name: output})

    def lost(self, items: Iterable[FileSlice]) -> None:
        """Files of results are gone, or damaged: they are not given any more."""
        self.reuse.lost(frozenset(item.file for item in items))

    def release(self, items: Iterable[FileSlice]) -> Sequence[FileSlice]:
        """Files of results were read, or are not wanted; those that nobody is to read any more."""
        items, done = tuple(items), list[_Reading]()
        with self._lock:
            for item in items:
                reading = self._reading.get(item.file)
                if reading is None:  # of a call without a name
                    self.reuse.remove([(item.file, node) for node in item.locations])
                    continue
                reading.readers -= 1
                if not reading.readers:
                    done.append(self._reading.pop(item.file))
        self.reuse.give([reading.output.identity for reading in done if not reading.is_spare])
        if spare := [reading.output for reading in done if reading.is_spare]:
            if self.reuse.shared is not None:
                self.reuse.shared.release(spare)
            self.reuse.remove([(output.outcome.file or "", output.node) for output in spare])
        files = {reading.output.outcome.file for reading in done}
        return [item for item in items if item.file in files]


def _value(output: KeptOutput) -> Value:
    """The value in an output of a call."""
    outcome = output.outcome
    if outcome.file is None:
        assert outcome.inline is not None, "an output is inline or in a file"
        return Value(outcome.inline)
    return Value(b"", FileSlice(outcome.file, (output.node,)))
