"""What is too slow for each change, one after the other; the results go to docs/nightly.md.

    python benchmarks/nightly.py                          # all: some hours; `make nightly`
    python benchmarks/nightly.py --only simulation        # one of them

Nothing is left out where something fails, and the exit status is 1 then. What the commands print is
in `nightly/`, a file for each.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from minishark_lab.harness.parameters import check_names
from minishark_lab.harness.script import Options, described, run_script

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "nightly.md"
LOGS = ROOT / "nightly"
_BIN = os.path.relpath(Path(sys.executable).parent, ROOT)
# Other histories every night; the page has the seed.
_SEED = datetime.now(UTC).toordinal() * 10_000


@dataclass(frozen=True)
class Job:
    """Commands, of which each needs the one before, and a pattern for counts in what they print."""

    name: str
    commands: tuple[str, ...]
    counts: str


JOBS = (
    Job(
        "all tests",
        # The quick ones, too: they try more examples than in a run of their own.
        (f"{_BIN}/python -m pytest -n auto --dist worksteal -m 'slow or not slow'",),
        r"^=+ (.*(?:passed|failed|error).*) in [\d.:hms ()]+=+$",
    ),
    Job(
        "TPC-DS",
        ("make .tpcds", f"{_BIN}/python benchmarks/tpcds.py .tpcds/data --repetitions 0"),
        r"^(\d+ of \d+ correct)",
    ),
    Job(
        "simulation",
        (f"{_BIN}/minishark bench simulate --seed {_SEED} --set seconds=3600 --out {LOGS.name}",),
        r"^(histories|queries|faults|wrong|hangs|leaks|misplaced replicas|unexpected errors)"
        r" +([\d,]+)$",
    ),
    Job(
        "ratchet",
        (f"{_BIN}/python benchmarks/ratchet.py",),
        r"^\| ((?!figure)\w[^|]*) \|[^|]*\|[^|]*\| ([\d.]+) \|",
    ),
)


@dataclass(frozen=True)
class Result:
    """How a job ended; `status` is that of the last command that ran."""

    job: Job
    status: int
    counts: str
    seconds: float

    @property
    def row(self) -> str:
        """A row of the page's table."""
        commands = "<br>".join(f"`{command}`" for command in self.job.commands)
        result = "failed" if self.status else "passed"
        return (
            f"| {self.job.name} | {result} | {self.counts} | {self.seconds / 60:.0f} | {commands} |"
        )


def run(job: Job, logs: Path) -> Result:
    """Run the commands of a job up to the first that fails."""
    log, began_s, status = logs / f"{job.name.replace(' ', '-')}.log", time.monotonic(), 0
    with log.open("w") as out:
        for command in job.commands:
            status = subprocess.run(
                shlex.split(command), cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, check=False
            ).returncode
            if status:
                break
    found = re.finditer(job.counts, log.read_text(errors="replace"), re.MULTILINE)
    counts = ", ".join(" ".join(each.groups()) for each in found)
    return Result(job, status, counts or f"none: see {log.name}", time.monotonic() - began_s)


def page(results: Sequence[Result], commit: str) -> str:
    """The page about these results."""
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    python = f"Python {platform.python_version()}, {len(os.sched_getaffinity(0))} cores"
    rows = "\n".join(each.row for each in results)
    return f"""# The last night

What is too slow for each change: `make nightly` runs it and writes this page, and
`.github/workflows/nightly.yml` calls it every night, where the page is the run's summary.

Begun at commit {commit}, ended {now}; {python}.

| what | result | counts | minutes | command |
|---|---|---|---|---|
{rows}

The ratchet's counts are ratios to the last release; above 1 is slower.
"""


def commit_of(folder: Path) -> str:
    """The commit that is checked out, and whether files differ from it."""

    def git(*words: str) -> str:
        told = subprocess.check_output(["git", *words], cwd=folder, text=True)  # noqa: S607 - PATH's
        return told.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short=10", "HEAD") + (" with changes" if changed else "")


@dataclass(frozen=True, kw_only=True)
class NightlyOptions(Options):
    only: Annotated[tuple[str, ...], described("all, if none")] = ()
    logs: Path = LOGS


def main(options: NightlyOptions, jobs: Sequence[Job] = JOBS, out: Path = PAGE) -> int:
    """Run the jobs and write the page; 1 if one has failed."""
    check_names("--only", options.only, [job.name for job in jobs])
    options.logs.mkdir(parents=True, exist_ok=True)
    commit, results = commit_of(ROOT), []
    for job in jobs:
        if job.name in (options.only or [job.name]):
            results.append(run(job, options.logs))
            print(results[-1].row, flush=True)
            # After each: what has run stands there even if the rest is cut off.
            out.write_text(page(results, commit))
    return int(any(each.status for each in results))


if __name__ == "__main__":
    run_script(main)
