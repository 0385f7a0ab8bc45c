"""ClickBench: each query first and again, minishark and DuckDB in turn, and all rows compared."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa

import minishark
from minishark.errors import DataError, MinisharkError, OptionError
from minishark_lab.clickbench.hits import make_hits, view_of_hits
from minishark_lab.clickbench.ties import differences_but_for_ties
from minishark_lab.harness.clocks import CpuClock
from minishark_lab.harness.experiment import Advance, Chart, Experiment, Verdict
from minishark_lab.harness.findings import Finding, Reading
from minishark_lab.harness.parameters import Count, Natural
from minishark_lab.harness.rows import Point, Row

_QUERIES = Path(__file__).with_name("queries.sql")
_OURS, _THEIRS = "minishark", "DuckDB"
_FIRST, _WARM, _CPU = "first run (ms)", "again (ms)", "again, CPU time (ms)"
_ANSWERED, _WRONG = "rows of answers", "wrong answers"
_TIMES = (_FIRST, _WARM, _CPU)
Ask = Callable[[str], pa.Table]


@dataclass(frozen=True, kw_only=True)
class ClickBench:
    """A run."""

    rows: Count = 1_000_000  # that are made
    data: str = ""  # instead: Parquet files as ClickBench's, a path or glob
    sql: str = ""  # a file of queries over the view `hits`; "" for ours
    queries: tuple[int, ...] = ()  # numbers; none for all
    again: Natural = 2  # runs after the first, of which the best counts
    nodes: Count = 2


def clickbench(parameters: ClickBench, seed: int, advance: Advance) -> Sequence[Row]:
    queries = _queries(parameters)
    with ExitStack() as stack:
        files = parameters.data
        if not files:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clickbench-")))
            make_hits(folder / "hits.parquet", parameters.rows, seed)
            files = str(folder / "hits.parquet")
        session = stack.enter_context(minishark.connect(nodes=parameters.nodes, reuse="off"))
        native = stack.enter_context(duckdb.connect(config={"threads": session.total_slots}))
        native.execute("SET parquet_metadata_cache = true")  # as ClickBench sets it for DuckDB
        session.sql(view_of_hits(files))
        native.execute(view_of_hits(files))
        session.sql("SELECT 1").to_arrow()  # so that the first query doesn't wait for executors
        clock, rows = CpuClock(), list[Row]()
        sides: dict[str, Ask] = {
            _THEIRS: lambda text: native.sql(text).to_arrow_table(),
            _OURS: lambda text: session.sql(text).to_arrow(),
        }
        for number, text in queries.items():
            compare = partial(differences_but_for_ties, native, text)
            try:
                rows += _measured(number, text, sides, parameters.again, clock, compare)
            except MinisharkError as error:
                rows.append(_point(_WRONG, f"{type(error).__name__}: {error}", number, 1))
            advance(1 / len(queries))
    return rows


def _queries(parameters: ClickBench) -> dict[int, str]:
    """The texts by number."""
    file = Path(parameters.sql) if parameters.sql else _QUERIES
    try:
        statements = duckdb.extract_statements(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"Can't read {file} ({error.strerror}).") from error
    except duckdb.Error as error:
        raise OptionError(f"{file} is no SQL: {error}") from error
    texts = {number: each.query for number, each in enumerate(statements, 1)}
    for number in parameters.queries:
        if number not in texts:
            raise OptionError(f"There is no query {number}: choose from 1 to {len(texts)}.")
    return {number: texts[number] for number in parameters.queries or texts}


def _measured(
    number: int,
    text: str,
    sides: dict[str, Ask],
    again: int,
    clock: CpuClock,
    compare: Callable[[pa.Table, pa.Table], list[str]],
) -> Iterator[Row]:
    """Times of one query on all sides, and what is wrong with any of our answers."""
    wall: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    answers: dict[str, pa.Table] = {}
    wrong: list[str] = []
    for _ in range(1 + again):
        for name, ask in sides.items():
            began_s, started = clock.now_s(), time.perf_counter()
            answers[name] = ask(text)
            wall[name].append(1e3 * (time.perf_counter() - started))
            cpu[name].append(1e3 * (clock.now_s() - began_s))
        wrong = wrong or compare(answers[_THEIRS], answers[_OURS])
    for name in sides:
        yield _point(_FIRST, name, number, wall[name][0])
        if again:
            yield _point(_WARM, name, number, min(wall[name][1:]))
            yield _point(_CPU, name, number, min(cpu[name][1:]))
    yield _point(_ANSWERED, _THEIRS, number, answers[_THEIRS].num_rows)
    yield from (_point(_WRONG, text, number, 1) for text in wrong)


def _point(panel: str, series: str, number: int, y: float) -> Point:
    return Point(panel=panel, series=series, x=float(number), y=y)


def _ratios(rows: Sequence[Row], panel: str) -> dict[int, float]:
    """Our time over DuckDB's, by query."""
    ours, theirs = (
        {int(row.x): row.y for row in rows
         if isinstance(row, Point) and (row.panel, row.series) == (panel, name)}
        for name in (_OURS, _THEIRS)
    )  # fmt: skip
    return {number: ours[number] / theirs[number] for number in ours}


def _mean(panel: str) -> Reading:
    def read(rows: Sequence[Row]) -> float:
        ratios = _ratios(rows, panel)
        if not ratios:
            raise LookupError(f"no times of {panel}")
        return statistics.geometric_mean(ratios.values())

    return read


def verdict(rows: Sequence[Row]) -> Verdict:
    """A line for each query, the geometric means of the ratios, and which answers were wrong."""
    points = [row for row in rows if isinstance(row, Point)]
    found = {(row.panel, row.series, int(row.x)): row.y for row in points}
    shown = [panel for panel in _TIMES if _ratios(rows, panel)]
    ratios = {panel: _ratios(rows, panel) for panel in shown}
    heads = "".join(f"{panel:>29}" for panel in shown)
    sides = f"{_OURS:>12}{_THEIRS:>10}{'ratio':>7}" * len(shown)
    lines = [f"{'':5}{heads}", f"{'query':5}{sides}"]
    for number in dict.fromkeys(int(row.x) for row in points if row.panel == _ANSWERED):
        cells = (
            f"{found[panel, _OURS, number]:12,.1f}{found[panel, _THEIRS, number]:10,.1f}"
            f"{ratios[panel][number]:7.2f}"
            for panel in shown
        )
        lines.append(f"{number:5}" + "".join(cells))
    for panel in shown:
        worst = max(ratios[panel], key=ratios[panel].__getitem__)
        lines.append(
            f"{panel.removesuffix(' (ms)')}: {_mean(panel)(rows):.2f} times "
            f"{_THEIRS}'s in the geometric mean, at most {ratios[panel][worst]:.2f} (query {worst})"
        )
    wrong = [row for row in points if row.panel == _WRONG]
    lines += [f"query {row.x:g}: {row.series}" for row in wrong]
    lines.append(f"{'Some' if wrong else 'No'} answers differ from {_THEIRS}'s.")
    return Verdict("\n".join(lines), passed=not wrong)


EXPERIMENTS = (
    Experiment(
        name="clickbench",
        title="ClickBench's 43 queries over {rows:,} rows, beside DuckDB",
        source="ClickBench, on rows of our own, beside DuckDB on the same files",
        kind="live",
        parameters=ClickBench(),
        quick=ClickBench(rows=5_000, queries=(1, 13, 29, 43), again=1),
        run=clickbench,
        chart=Chart(x="Query", y="", same_y=False, log_y=True, style="lines",
                    figures=(_ANSWERED, _WRONG)),
        findings=tuple(
            Finding(f"{panel} over {_THEIRS}'s, geometric mean", "", _mean(panel), "{:.2f}")
            for panel in _TIMES
        ),
        verdict=verdict,
    ),
)  # fmt: skip
