"""Metrics in the text format of Prometheus, on request.

A machine hosted beside the others of a process. A tap on the driver counts messages for it; gauges
of the other machines are read when metrics are requested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from machine_kit.addresses import Address, name_of
from machine_kit.machine import Envelope, Figure, Machine, Message
from sparrow_core.protocol.messages import GetMetrics, MetricsText


class Metrics(Machine[GetMetrics]):
    """Counters and gauges of a process."""

    inputs: ClassVar[Any] = GetMetrics

    def __init__(
        self,
        source: str,
        machines: Mapping[str, Machine[Any]],
        counters: Callable[[], Mapping[str, int]],
        figures: Callable[[], Iterable[Figure]] = tuple,
    ) -> None:
        """Make metrics of the process `source` from its driver's machines and counters."""
        self._source = source
        self._machines = machines
        self._counters = counters
        self._figures = figures
        self._messages: Counter[tuple[str, str, str]] = Counter()

    def tap(self, at: Address, msg: Message, out: Sequence[Envelope], now: float) -> None:
        name = name_of(at)
        self._messages[name, "in", type(msg).__name__] += 1
        for envelope in out:
            self._messages[name, "out", type(envelope.msg).__name__] += 1

    def on_message(self, msg: GetMetrics, now: float) -> list[Envelope]:
        return [Envelope(msg.asker, MetricsText(self._source, self.text()))]

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield "# TYPE sparrow_messages_total counter"
        for (machine, direction, kind), count in sorted(self._messages.items()):
            labels = {"machine": machine, "direction": direction, "type": kind}
            yield _line("sparrow_messages_total", labels, count)
        for name, count in self._counters().items():
            yield f"# TYPE sparrow_{name}_total counter"
            yield _line(f"sparrow_{name}_total", {"process": self._source}, count)
        gauges = [
            Figure(name, {"machine": machine}, value)
            for machine, measured in self._machines.items()
            for name, value in measured.gauges().items()
        ]
        before = ""
        figures = [*gauges, *self._figures()]
        for figure in sorted(
            figures, key=lambda figure: (figure.name, list(figure.labels.values()))
        ):
            if figure.name != before:
                yield f"# TYPE sparrow_{figure.name} {figure.kind}"
                before = figure.name
            yield _line(f"sparrow_{figure.name}", figure.labels, figure.value)


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{inner}}} {value:g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
