"""The tests' own options, and what holds for a run as a whole: it is quick and leaves nothing."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import psutil
import pytest

from minishark.cluster.contract import Cluster
from minishark.cluster.folders import SHARED_MEMORY
from minishark.cluster.machine import RUNNER
from minishark.compiler.physical.costs import REFERENCE
from minishark.compiler.physical.options import PlannerOptions
from minishark.query import calibration
from minishark.session import connect
from minishark_lab.chaos.leftovers import abandoned_folders
from sparrow_core.runtime.transport.spawning import IGNORED, Template

ROOT = Path(__file__).resolve().parents[1]
# Clusters end a moment after the test that closed or killed them.
_GONE_S = 10.0
# Of a slow test: many take half a minute on an idle machine, and minutes beside other work.
_SLOW_LIMIT_S = 480.0
_PREFIX = "ms-run-"
_QUICK = "not slow"  # the marks that pyproject.toml asks for
_own_folder = pytest.StashKey[Path]()
_abandoned_before = pytest.StashKey[frozenset[Path]]()
_left = pytest.StashKey[list[Path]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite` makes the golden files say what the compiler does now; read the diff."""
    parser.addoption("--rewrite", action="store_true", help="write the golden files anew")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker for each processor: each more would collect all tests first, which takes 10 s."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2


def pytest_configure(config: pytest.Config) -> None:
    """Set up what workers and all processes of tests inherit.

    Bytecode is written even if the environment says otherwise: each of several hundred processes
    would compile the packages anew. Temporary files go to a folder of the run's own, which must be
    empty at its end; only pytest keeps its `tmp_path`s where they can be looked at. Hypothesis has
    no deadlines: nothing is asserted of time, and the machine may be busy. It tries fewer examples
    than by default, as each run tries others; where slow tests run, too, it tries more. What tests
    say of examples is a part of that, such as `settings.default.max_examples // 4`. numpy's threads
    would only cost time in programs that tests start.
    """
    # A shell that runs the tests in the background lets them ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    quick = config.getoption("markexpr") == _QUICK
    hypothesis.settings.register_profile("tests", deadline=None, max_examples=16 if quick else 200)
    hypothesis.settings.load_profile("tests")
    sys.dont_write_bytecode = False
    gc.disable()  # until all tests are collected: next to nothing of that is garbage
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        _remove_killed_runs()
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        config.stash[_own_folder] = folder
        config.stash[_abandoned_before] = frozenset(abandoned_folders(SHARED_MEMORY))
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


@pytest.fixture(scope="session")
def script() -> Callable[[str], ModuleType]:
    """Loads a script of `benchmarks/` as a module, by its name."""

    @cache
    def load(name: str) -> ModuleType:
        file = ROOT / "benchmarks" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # where dataclasses look for their annotations
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session", autouse=True)
def _a_task_for_each_partition() -> Iterator[None]:
    """Sessions that run everything in stages do so however small the data, as tests' data are.

    Tests of what is saved for few rows switch it on again.
    """
    planned = connect.planner_options

    def eager(cluster: Cluster, **options: Any) -> PlannerOptions:
        if not options["single_task_rows"]:
            options["disabled"] = frozenset(options["disabled"]) | {"coalesced_tasks"}
        return planned(cluster, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connect, "planner_options", eager)
        yield


@pytest.fixture(scope="session", autouse=True)
def _the_same_costs_on_all_machines() -> Iterator[None]:
    """Plans do not depend on the machine, and nothing is measured or kept in the user's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "machine_costs", lambda: REFERENCE)
        yield


@pytest.fixture(scope="session", autouse=True)
def _a_template_that_stays() -> Iterator[None]:
    """Clusters of several nodes find one that has imported all: it ends with the run."""
    IGNORED.add("PYTEST_CURRENT_TEST")
    template = Template.held((RUNNER.partition(":")[0],))
    yield
    if template is not None:
        template.release()


def _remove_killed_runs() -> None:
    """Remove what runs have left that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow, and sorts the rest
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let `sample(n)` mark a test's quick cases as slow, but for the first of each n.

    What is slow has a longer limit than pyproject.toml's, if not one of its own.
    """
    cases: Counter[str] = Counter()
    for item in items:
        sample = item.get_closest_marker("sample")
        if sample is not None and item.get_closest_marker("slow") is None:
            name = item.nodeid.partition("[")[0]
            if cases[name] % sample.args[0]:
                item.add_marker(pytest.mark.slow)
            cases[name] += 1
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SLOW_LIMIT_S))


def pytest_collection_finish() -> None:
    """The modules stay: the garbage collector need not look at them again and again.

    It runs more seldom than in a program: what tests leave is freed by its reference counts.
    """
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


def _leftovers(config: pytest.Config) -> list[Path]:
    """What the run has left in its own folder, and unowned folders in shared memory."""
    abandoned = frozenset(abandoned_folders(SHARED_MEMORY)) - config.stash[_abandoned_before]
    own = config.stash[_own_folder]
    return [*(own.iterdir() if own.exists() else ()), *sorted(abandoned)]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that leaves files behind; it is over when xdist's workers have ended."""
    config = session.config
    if _own_folder not in config.stash:
        return  # a worker
    deadline = time.monotonic() + _GONE_S
    while (left := _leftovers(config)) and time.monotonic() < deadline:
        time.sleep(0.05)
    config.stash[_left] = left
    if left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say what is left."""
    left = config.stash.get(_left, [])
    if left:
        terminalreporter.section("left behind by the tests", red=True)
        for path in left:
            inside = sorted(each.name for each in path.iterdir()) if path.is_dir() else []
            terminalreporter.line(f"{path} {' '.join(inside)}", red=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the run's own folder, and let the interpreter's end find what it is to collect.

    DuckDB's bindings complain of each of their objects that is still there after it. Before, pytest
    collects twice.
    """
    atexit.register(gc.unfreeze)
    if _own_folder in config.stash:
        shutil.rmtree(config.stash[_own_folder], ignore_errors=True)
