"""What `minishark bench scale` predicts, beside hosts of a narrow network on this machine.

    python benchmarks/scale_hosts.py [--hosts 1 2 3 4] [--rate 200mbit] [--scale 0.5]

Hosts are namespaces of this machine (`tests/hosts/bed.py`): root, iproute2 and nftables are needed.
Each has an executor with one thread, and the session runs on the first one. All share this
machine's cores: with more hosts than cores, only what the network takes is to be compared, so
choose a rate at which that is most of the time.

Run it on a quiet machine, as it goes by the clock. Printed are the sums over the 22 queries, and by
how much the predictions are off; the times of all queries with `--json`.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from minishark.errors import OptionError
from minishark_lab.harness.parameters import Count, Positive
from minishark_lab.harness.script import TpchOptions, described, run_script

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from minishark_lab.sparrow.scale_model import Machines, ScaleModel, shipped_recordings
from minishark_lab.sparrow.scale_out import predict
from minishark_lab.tpch.data import tpch_folder
from tests.hosts.bed import hosts

_MBIT = re.compile(r"(\d+)mbit")

_QUERIES = """
import json, sys, minishark
from pathlib import Path
from minishark_lab.cluster.scale import as_recorded, best_times
from minishark.cli.tpch.queries import QUERY_COUNT, load_queries

address, folder, tasks, repetitions = sys.argv[1:]
texts = load_queries(range(1, QUERY_COUNT + 1))
with minishark.connect(address, **as_recorded(int(tasks))) as session:
    best = best_times(session, Path(folder), texts, int(tasks), int(repetitions))
print(json.dumps(best))
"""


def measure(count: int, rate: str, folder: Path, repetitions: int) -> dict[str, float]:
    """The best time of each query over so many hosts, in seconds."""
    with hosts(count, rate=rate) as bed:
        bed.start_nodes("--memory-limit=2GiB")
        arguments = (bed.address(0), str(folder), str(count), str(repetitions))
        found = json.loads(bed.run(0, _QUERIES, *arguments, timeout_s=800))
    return {f"q{number}": seconds for number, seconds in found.items()}


@dataclass(frozen=True, kw_only=True)
class ScaleHostsOptions(TpchOptions):
    scale: Annotated[Positive, described("TPC-H's scale factor")] = 0.5
    repetitions: Count = 2
    hosts: tuple[Count, ...] = (1, 2, 3, 4)
    rate: Annotated[str, described("of each host's link, in Mbit/s")] = "200mbit"


def main(options: ScaleHostsOptions) -> None:
    """Run all."""
    match = _MBIT.fullmatch(options.rate)
    if match is None:
        raise OptionError("--rate is like 200mbit.")
    folder = tpch_folder(options.scale, str(options.data))
    model = ScaleModel(shipped_recordings())
    rows = []
    for count in options.hosts:
        machines = Machines(nodes=count, slots=1, gbit_s=int(match[1]) / 1000, rtt_ms=0.2)
        predicted = predict(model, options.scale, machines, 1, tasks=count)
        measured = measure(count, options.rate, folder, options.repetitions)
        took_s, expected_s = sum(measured.values()), sum(predicted[name] for name in measured)
        figures = f"{took_s:.2f} s; predicted {expected_s:.2f} s ({expected_s / took_s - 1:+.0%})"
        print(f"{count} host(s) at {options.rate}: {figures}", flush=True)
        rows.append({"hosts": count, "measured_s": measured, "predicted_s": predicted})
    options.write({"rate": options.rate, "scale": options.scale, "rows": rows})


if __name__ == "__main__":
    run_script(main, quick={"scale": 0.01, "hosts": [1], "repetitions": 1})
