"""Small changes of a large table in memory, beside DuckDB's own table in memory.

    python benchmarks/writes.py --rows 6000000 --repetitions 10 --json writes.json
    python benchmarks/writes.py --key

Each statement is followed by a SELECT, and both are timed together: what a user waits until the
change is seen. Runs of minishark and DuckDB alternate. CPU time is that of all processes. The last
line tells how long many one-row INSERTs take that follow one another. Counts and sums are compared
after each statement, and the exit status is 1 if they differ. With `--key`, the first column is the
PRIMARY KEY of both tables.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import duckdb

import minishark
from minishark_lab.harness.clocks import CpuClock, timed
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import Options, run_script

_ROWS = (
    "SELECT i AS k, i // 4 AS o, (i % 10000)::DECIMAL(15, 2) AS price, 'flag' || (i % 7) AS flag, "
    "DATE '2020-01-01' + (i % 365)::INTEGER AS day, 'comment ' || i AS comment "
    "FROM range({count}) r(i)"
)
_CHECK = "SELECT count(*), sum(price), max(k) FROM t"
_STATEMENTS = {
    "INSERT one row": "INSERT INTO t VALUES ({new}, {n}, 1.5, 'new', '2020-02-02', 'inserted')",
    "INSERT 1,000 rows": "INSERT INTO t SELECT {new} + i, i, 2, 'many', '2020-02-02', 'x' "
    "FROM range(1000) r(i)",
    "INSERT between others": "INSERT INTO t VALUES (9e9 - {new}, {n}, 1, 'x', NULL, NULL)",
    "UPDATE one row": "UPDATE t SET price = price + 1 WHERE k = {n}",
    "DELETE one row": "DELETE FROM t WHERE k = {n}",
    "MERGE two rows": "MERGE INTO t USING (VALUES ({n} + 7), ({new} + 5000)) AS s(k) ON t.k = s.k "
    "WHEN MATCHED THEN UPDATE SET flag = 'merged' "
    "WHEN NOT MATCHED THEN INSERT VALUES (s.k, 0, 3, 'merged', NULL, NULL)",
    "UPDATE 1 % of the rows": "UPDATE t SET price = price + 1 WHERE k % 100 = {n} % 100",
}


@dataclass(frozen=True, kw_only=True)
class WritesOptions(Options):
    rows: Count = 6_000_000
    repetitions: Count = 10
    inserts: Count = 1000
    key: bool = False


def main(options: WritesOptions) -> int:
    wrong = False
    with minishark.connect() as session, duckdb.connect() as native:
        native.execute(f"SET threads = {session.total_slots}")
        native.execute(f"CREATE TABLE t AS {_ROWS.format(count=options.rows)}")
        if options.key:
            _with_key(session, native)
        else:
            session.create_table("t", native.table("t"), partition_by="o", replicas=2)
        sides: dict[str, Callable[[str], list[Any]]] = {
            "minishark": lambda sql: [tuple(row) for row in session.sql(sql).collect()],
            "duckdb": lambda sql: native.execute(sql).fetchall(),
        }
        clock = CpuClock()
        found = []
        for title, template in _STATEMENTS.items():
            wall: dict[str, list[float]] = {name: [] for name in sides}
            cpu: dict[str, list[float]] = {name: [] for name in sides}
            for i in range(options.repetitions + 2):
                new = options.rows + 10_000 * (len(found) * (options.repetitions + 2) + i)
                sql = template.format(new=new, n=1_000 * i + len(found))
                answers = []
                for name, ask in sides.items():
                    began = clock.now_s()
                    wall[name].append(timed(lambda ask=ask, sql=sql: (ask(sql), ask(_CHECK))))
                    cpu[name].append(clock.now_s() - began)
                    answers.append(ask(_CHECK))
                wrong |= answers[0] != answers[1]
            row = {"statement": title}
            for name in sides:  # the first two runs plan, and prepare what comes again
                row[f"{name}_ms"] = 1e3 * statistics.median(wall[name][2:])
                row[f"{name}_cpu_ms"] = 1e3 * statistics.median(cpu[name][2:])
            found.append(row)
            print(_line(row), flush=True)
        for name, ask in sides.items():
            began = clock.now_s()
            insert = "INSERT INTO t VALUES ({}, 1, 1.5, 'new', '2020-02-02', 'one of many')"
            first = 10 * options.rows
            statements = [insert.format(first + i) for i in range(options.inserts)]
            elapsed_s = timed(lambda ask=ask, some=statements: [ask(each) for each in some])
            found.append({"inserts": options.inserts, "of": name, "s": elapsed_s})
            cpu_s = clock.now_s() - began
            print(f"{options.inserts:,} INSERTs, {name}: {elapsed_s:.2f} s, CPU {cpu_s:.2f} s")
        wrong |= sides["minishark"](_CHECK) != sides["duckdb"](_CHECK)
    options.write({"rows": options.rows, "runs": found})
    print("Answers differ!" if wrong else "Answers are equal.")
    return int(wrong)


def _with_key(session: minishark.Session, native: duckdb.DuckDBPyConnection) -> None:
    """The same table in both, with a PRIMARY KEY."""
    native.execute("ALTER TABLE t ADD PRIMARY KEY (k)")
    ((create,),) = native.execute("SELECT sql FROM duckdb_tables()").fetchall()
    rows = session.create_dataframe(native.table("t").to_arrow_table())
    session.sql(create)
    rows.write.insert_into("t")


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['statement']:24} and SELECT: minishark {row['minishark_ms']:7.1f} ms "
        f"(CPU {row['minishark_cpu_ms']:7.1f}), DuckDB {row['duckdb_ms']:7.1f} ms "
        f"(CPU {row['duckdb_cpu_ms']:7.1f})"
    )


if __name__ == "__main__":
    run_script(main, quick={"rows": 5000, "repetitions": 1, "inserts": 5})
