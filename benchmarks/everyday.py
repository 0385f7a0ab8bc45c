"""Everyday statements beside TPC-H: changes large and small, definitions, files, plain queries.

    python benchmarks/everyday.py --rows 6000000 --json everyday.json
    python benchmarks/everyday.py --only DELETE UPDATE

Beside DuckDB with a table of its own in memory and as many threads. Each statement has a set-up,
which is not timed and runs again before each repetition where the statement changes something;
then minishark and DuckDB take turns. Afterwards a check is asked of both (or their answers are
compared), and the exit status is 1 if they differ. Wall time is the best of the repetitions, CPU
time their mean, of all processes for minishark. The lines at the end have the geometric mean of the
ratios, and the worst. `--rows` scales everything.
"""

from __future__ import annotations

import csv
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import duckdb
import pyarrow as pa

import minishark
from minishark_lab.harness.clocks import CpuClock, timed
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import Options, command, described, run_script

_ROWS = (
    "SELECT i AS k, (i * 7919 % 1000)::INTEGER AS g, 'text ' || (i * 31 % 1000) AS s, "
    "(i % 10007) / 4.0::DOUBLE AS x FROM range({first}, {last}) r(i)"
)
_SUMS = "SELECT count(*), sum(k), sum(g), sum(x), count(DISTINCT s), min(s) FROM {}"
# The query lets statistics be made, and files be mapped.
_COPY = ("CREATE OR REPLACE TABLE w AS FROM t", _SUMS.format("w"))
_FILES, _TINY, _TINY_JOINED = 1_500, 200, 20
_SETTLING_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One line of the table."""

    title: str
    sql: str
    before: tuple[str, ...] = ()  # run before each repetition, on both sides
    check: str = ""  # asked after each repetition; empty if the answers are compared
    once: tuple[str, ...] = ()  # run once before


def statements(rows: int) -> list[Statement]:
    """All statements; `{n}` is the number of the repetition, `{folder}` a folder of the side's."""
    more = _ROWS.format(first=rows, last=rows * 3 // 2)
    keyed = "CREATE OR REPLACE TABLE p (k BIGINT PRIMARY KEY, g INTEGER, s VARCHAR, x DOUBLE)"
    million, some = max(1, rows // 6), max(1, rows // 600)
    empty = (keyed, "SELECT count(*) FROM p")
    filled = (keyed, f"INSERT INTO p {_ROWS.format(first=0, last=million)}", _SUMS.format("p"))
    upsert = _ROWS.format(first=million - some // 2, last=million + some // 2)
    w, p = _SUMS.format("w"), _SUMS.format("p")
    tiny = ", ".join(f"tiny{i}" for i in range(_TINY_JOINED))
    add = "ALTER TABLE w ADD COLUMN y INTEGER DEFAULT 42"

    def changed(title: str, sql: str, check: str = w) -> Statement:
        return Statement(title=title, sql=sql, before=_COPY, check=check)

    def asked(title: str, sql: str, *once: str) -> Statement:
        return Statement(title=title, sql=sql, once=once)

    return [
        asked("GROUP BY a Parquet file", "SELECT g, sum(x) FROM '{shared}/t.parquet' GROUP BY g"),
        asked("many small CSV files", "SELECT count(*), sum(b) FROM '{shared}/many/*.csv'"),
        asked("LIMIT 10 of a Parquet file", "SELECT * FROM '{shared}/t.parquet' LIMIT 10"),
        Statement(title="CREATE TABLE AS", sql="CREATE OR REPLACE TABLE w AS FROM t", check=w),
        changed("INSERT ... SELECT", f"INSERT INTO w {more}"),
        changed("DELETE half", "DELETE FROM w WHERE k % 2 = 0"),
        changed("DELETE a range", "DELETE FROM w WHERE k BETWEEN {rows} // 4 AND {rows} // 2"),
        changed("DELETE one row", "DELETE FROM w WHERE k = {rows} // 3 + {n}"),
        changed("UPDATE one row", "UPDATE w SET x = x + 1 WHERE k = {rows} // 3 + {n}"),
        changed("UPDATE 10 %", "UPDATE w SET x = x + 1 WHERE k % 10 = 3"),
        changed("UPDATE all", "UPDATE w SET x = x + 1"),
        changed(
            "MERGE 1 %",
            "MERGE INTO w USING (SELECT i * 100 AS k, i AS v FROM range({rows} // 100) r(i)) AS s "
            "ON w.k = s.k WHEN MATCHED THEN UPDATE SET x = s.v "
            "WHEN NOT MATCHED THEN INSERT VALUES (s.k, 0, 'new', 0)",
        ),
        changed("ALTER TABLE ADD COLUMN", add, "SELECT count(*), sum(y), sum(x) FROM w"),
        Statement(title="CREATE TABLE with a key", sql=keyed, check="SELECT count(*) FROM p"),
        Statement(
            title="INSERT into a table with a key", sql=filled[1], before=empty, check=p
        ),
        Statement(
            title="upsert",
            sql=f"INSERT INTO p {upsert} ON CONFLICT DO UPDATE SET x = excluded.x + 1",
            before=filled,
            check=p,
        ),
        asked("point query by key", "SELECT * FROM p WHERE k = {rows} // 12 + {n}", *filled),
        Statement(title="COPY to CSV", sql="COPY t TO '{folder}/t.csv'"),
        asked("count(DISTINCT) of two columns", "SELECT count(DISTINCT (g, s)) FROM t"),
        asked("median by key", "SELECT g, median(x) FROM t GROUP BY g"),
        asked(
            "string_agg",
            "SELECT g, length(string_agg(s, ',')) FROM t WHERE k < {rows} // 30 GROUP BY g",
        ),
        asked("top 100", "SELECT k, x FROM t ORDER BY x DESC, k LIMIT 100"),
        asked("LIKE", "SELECT count(*) FROM t WHERE s LIKE '%99%'"),
        asked("regexp_matches", "SELECT count(*) FROM t WHERE regexp_matches(s, '9[0-9]$')"),
        asked("self join", "SELECT count(*), sum(a.x) FROM t a JOIN t b ON a.k = b.k + 1"),
        asked(
            "join by an inequality",
            "SELECT count(*) FROM (FROM t WHERE k < {rows} // 300) a "
            "JOIN (FROM t WHERE k < {rows} // 3000) b ON a.x < b.x",
        ),
        asked(
            "unnest",
            "SELECT count(*), sum(u) FROM "
            "(SELECT unnest([k, g, k, g, k]) AS u FROM t WHERE k < {rows} // 6)",
        ),
        asked("rollup", "SELECT g % 10, s, sum(x), count(*) FROM t GROUP BY ROLLUP (g % 10, s)"),
        asked("lag over all", "SELECT sum(d) FROM (SELECT k - lag(k) OVER (ORDER BY k) d FROM t)"),
        asked("ORDER BY with all columns", "FROM t ORDER BY x, k"),
        asked("product of tiny tables", f"SELECT count(*) FROM {tiny}"),
    ]  # fmt: skip


Ask = Callable[[str], list[tuple[Any, ...]]]


@dataclass(frozen=True, kw_only=True)
class EverydayOptions(Options):
    rows: Count = 6_000_000
    repetitions: Count = 3
    only: Annotated[tuple[str, ...] | None, described("parts of titles")] = None
    nodes: Count = 2


def main(options: EverydayOptions) -> int:
    with ExitStack() as stack:
        session = stack.enter_context(minishark.connect(nodes=options.nodes))
        native = stack.enter_context(duckdb.connect(config={"threads": session.total_slots}))
        shared = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides: dict[str, Ask] = {
            "minishark": lambda sql: [tuple(row) for row in _rows(session.sql(sql).to_arrow())],
            "duckdb": lambda sql: _rows(native.sql(sql)),
        }
        found, wrong = [_tiny(session, native, options.only)], False
        _prepare(options.rows, shared, sides, native)
        clock = CpuClock()
        for each in statements(options.rows):
            if options.only and not any(part in each.title for part in options.only):
                continue
            measured, same = _measured(each, options, shared, sides, clock)
            found.append(measured)
            wrong |= not same
            print(_line(measured), flush=True)
    _report([row for row in found if row], options)
    print("Answers differ!" if wrong else "Answers are equal.")
    return int(wrong)


def _rows(answer: Any) -> list[tuple[Any, ...]]:
    """An answer as Arrow data, as rows if they are few: to make Python objects is not measured."""
    if answer is None:
        return []
    table = answer if isinstance(answer, pa.Table) else answer.to_arrow_table()
    if table.num_rows > 1_000:
        return [(table.num_rows,)]
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _prepare(
    rows: int, shared: Path, sides: dict[str, Ask], native: duckdb.DuckDBPyConnection
) -> None:
    native.execute(f"CREATE TABLE t AS {_ROWS.format(first=0, last=rows)}")
    native.execute(f"COPY t TO '{shared}/t.parquet'")
    sides["minishark"](f"CREATE TABLE t AS FROM '{shared}/t.parquet'")
    (shared / "many").mkdir()
    for i in range(_FILES):
        with (shared / "many" / f"{i}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("a", "b"), *((j, i + j) for j in range(10))])
    for name in sides:
        (shared / name).mkdir()


def _tiny(
    session: minishark.Session, native: duckdb.DuckDBPyConnection, only: Sequence[str] | None
) -> dict[str, Any]:
    """Many tables of one row; the first of them are for a query."""
    title = "200 tables of one row"
    count = _TINY if not only or any(part in title for part in only) else _TINY_JOINED
    one = pa.table({"a": [1], "b": ["x"]})
    native.register("one", one)
    took_s = {"minishark": 0.0, "duckdb": 0.0}
    cpu_s = dict(took_s)
    clock = CpuClock()
    for name in took_s:
        began = clock.now_s()
        for i in range(count):
            if name == "minishark":
                took_s[name] += timed(lambda i=i: session.create_table(f"tiny{i}", one))
            else:
                took_s[name] += timed(
                    lambda i=i: native.execute(f"CREATE TABLE tiny{i} AS FROM one")
                )
        cpu_s[name] = clock.now_s() - began
    row = _row(title, {k: [v] for k, v in took_s.items()}, {k: [v] for k, v in cpu_s.items()})
    print(_line(row), flush=True)
    return row if count == _TINY else {}


def _measured(
    statement: Statement,
    options: EverydayOptions,
    shared: Path,
    sides: dict[str, Ask],
    clock: CpuClock,
) -> tuple[dict[str, Any], bool]:
    """A statement's figures, and whether both sides came to the same."""
    wall: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    same = True
    for n in range(options.repetitions):
        answers = []
        for name, ask in sides.items():
            values = {"rows": options.rows, "n": n, "folder": shared / name, "shared": shared}
            for each in (*(() if n else statement.once), *statement.before):
                ask(each.format(**values))
            time.sleep(_SETTLING_S)
            sql, got = statement.sql.format(**values), []
            began_s = clock.now_s()
            wall[name].append(timed(lambda ask=ask, sql=sql, got=got: got.append(ask(sql))))
            time.sleep(_SETTLING_S)  # what a statement leaves to be done is its own
            cpu[name].append(clock.now_s() - began_s)
            answers.append(ask(statement.check.format(**values)) if statement.check else got[0])
        same &= sorted(map(str, answers[0])) == sorted(map(str, answers[1]))
    if not same:
        print(f"{statement.title}: {answers[0][:3]} is not {answers[1][:3]}")
    return _row(statement.title, wall, cpu), same


def _row(title: str, wall: dict[str, list[float]], cpu: dict[str, list[float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"statement": title}
    for name, times_s in wall.items():
        row[f"{name}_ms"] = 1e3 * min(times_s)
        row[f"{name}_cpu_ms"] = 1e3 * statistics.mean(cpu[name])
    row["ratio"] = row["minishark_ms"] / row["duckdb_ms"]
    row["cpu_ratio"] = row["minishark_cpu_ms"] / row["duckdb_cpu_ms"]
    return row


def _line(row: dict[str, Any]) -> str:
    return (
        f"| {row['statement']:30} | {row['minishark_ms']:8.1f} | {row['duckdb_ms']:8.1f} | "
        f"{row['ratio']:6.2f} | {row['minishark_cpu_ms']:8.1f} | {row['duckdb_cpu_ms']:8.1f} | "
        f"{row['cpu_ratio']:6.2f} |"
    )


def _report(found: Sequence[dict[str, Any]], options: EverydayOptions) -> None:
    ratios = [row["ratio"] for row in found]
    worst = max(found, key=lambda row: row["ratio"])
    means = [
        statistics.geometric_mean(row[name] for row in found) for name in ("ratio", "cpu_ratio")
    ]
    print(f"\n    {command()}\n")
    print(f"Geometric mean {means[0]:.2f}, CPU {means[1]:.2f}; ", end="")
    print(f"worst {worst['ratio']:.1f} ({worst['statement']}).")
    totals = {"geometric_mean": means[0], "cpu_geometric_mean": means[1], "worst": max(ratios)}
    options.write({"rows": options.rows, "runs": found, **totals})


if __name__ == "__main__":
    run_script(main, quick={"rows": 5000, "repetitions": 1})
