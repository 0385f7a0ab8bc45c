"""The compiled simulator: `express` for placements that it has, in C, a hundred times as fast.

It is an independent implementation (compiled.c), with random numbers of its own: results are those
of `express` in distribution, which tests compare, not job by job. It has no faults, constraints,
plug-ins or users, and needs a C compiler, `cc`.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from minishark_lab.models.traffic import NOTE_BYTES
from minishark_lab.simulator.network import Network
from sparrow_core.protocol.errors import SparrowError

PLACEMENTS: Final = ("central", "sparrow", "random", "adaptive", "known_idle", "jiq", "eagle")
POLICIES: Final = ("fifo", "srpt")
PATHS: Final = {"jiq": "minishark_lab.remembering:JoinIdleQueue"}
"""What other simulators call the placements that no installed package names."""
SIMULATORS: Final = ("compiled", "express")
"""What experiments may choose from: this for what it has, the other for the rest; or the other."""
# What is counted, in the order of compiled.c; "noted" are nodes that notes are about.
_SENT: Final = ("reserve", "ask", "answer", "cancel", "idle", "notes", "noted", "heartbeat")
_NOTED_BYTES: Final = 17  # in notes: a name as "n1234", a stamp, a level
_SOURCE = Path(__file__).with_name("compiled.c")


@functools.cache
def _program() -> tuple[Path, Any]:
    """The compiled program, and its folder, which is deleted with the object."""
    folder = tempfile.TemporaryDirectory(prefix="minishark-compiled-")
    program = Path(folder.name) / "compiled"
    built = subprocess.run(  # the compiler's own path
        ["cc", "-O2", "-o", program, _SOURCE, "-lm"],  # noqa: S607
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    if built.returncode:
        raise SparrowError(f"the C compiler failed: {built.stderr[:500]}")
    return program, folder


def response_times_s(
    at_s: Sequence[float],
    times_s: Iterable[NDArray[np.float64]],
    *,
    estimates_s: Sequence[float] | None = None,
    placement: str,
    policy: str = "fifo",
    nodes: int,
    slots: int = 1,
    schedulers: int = 1,
    probe_ratio: float = 2.0,
    seed: int = 1,
    network: Network | None = None,  # loss and jitter are ignored
    heartbeat_s: float | None = None,
) -> tuple[list[float], Counter[str]]:
    """Simulate jobs; returns their response times, and how many messages of each kind were sent.

    Args:
        at_s: when jobs are submitted, in order.
        times_s: of the tasks of each job.
        estimates_s: of the task times of each job, for `eagle` and `srpt`; none without.
        placement: one of PLACEMENTS.
        policy: one of POLICIES.
        nodes: of `slots` slots each.
        slots: of each node.
        schedulers: among which jobs are dealt in turn.
        probe_ratio: of placements that do not choose it themselves.
        seed: of whatever is random.
        network: its delays.
        heartbeat_s: how often nodes report to schedulers.
    """
    network = network or Network()
    if shutil.which("cc") is None:
        text = 'there is no C compiler, cc: install one, or set simulator to "express"'
        raise SparrowError(text)
    program, _folder = _program()
    jobs = len(at_s)
    arguments = (
        placement, policy, nodes, slots, schedulers, probe_ratio, seed, network.delay_s,
        network.local_delay_s, heartbeat_s or 0.0, jobs,
    )  # fmt: skip
    tasks = list(times_s)
    parts = (at_s, estimates_s or np.zeros(jobs), [len(each) for each in tasks], *tasks)
    given = np.concatenate([np.asarray(part, float) for part in parts])
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, input=given.data.cast("B"), capture_output=True, check=False)
    if done.returncode:
        raise SparrowError(f"the compiled simulator failed: {done.stderr.decode()[:500]}")
    found = np.frombuffer(done.stdout)
    sent = Counter(dict(zip(_SENT, map(int, found[jobs:]), strict=True)))
    sent[NOTE_BYTES] = _NOTED_BYTES * sent.pop("noted")
    return found[:jobs].tolist(), sent
