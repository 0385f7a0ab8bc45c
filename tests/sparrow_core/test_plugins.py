"""Policies that are not ours: one file, by "module:factory", in every place that takes a name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest
from harness import Submitted, configs, task

import minishark
from machine_kit.addresses import address
from minishark.errors import OptionError
from minishark_lab.models.express import ExpressCluster
from minishark_lab.remembering import Eagle
from minishark_lab.simulator.cluster import SimulatedCluster
from minishark_lab.simulator.workload import Workload, make_jobs, run_jobs
from minishark_lab.simulator.world import World
from sparrow_core import (
    BoundPlacer,
    Discipline,
    InProcessCluster,
    InvalidJob,
    JobFailed,
    JobId,
    JobSpec,
    NodeName,
    PlacedJob,
    Placement,
    Placer,
    TaskSpec,
    make_placement,
)
from sparrow_core.policy.disciplines import make_discipline
from sparrow_core.policy.placement import PLACEMENTS, Placements
from sparrow_core.policy.placer import Reservations
from sparrow_core.protocol.errors import ConfigError, SparrowError
from sparrow_core.protocol.events import JobFinished
from sparrow_core.protocol.messages import StartJob
from sparrow_core.runtime.config import read_config
from sparrow_core.runtime.daemon import run_scheduler

ROOT = Path(__file__).resolve().parents[2]
ITSELF = __name__
EXAMPLE = "power_of_d:PowerOfD"
NODES = [NodeName("n0"), NodeName("n1")]


class Seen(Placement):
    """Binds tasks to nodes in turn, over all jobs of the scheduler, and notes what it is told."""

    all: ClassVar[list[Seen]] = []

    def __init__(self) -> None:
        self.turn = 0
        self.heard: dict[str, int] = {}
        self.all.append(self)

    def note(self, what: str) -> None:
        self.heard[what] = self.heard.get(what, 0) + 1

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        return InTurn(rng, self)

    def on_job(self, job: PlacedJob, now: float) -> None:
        self.note("job")

    def on_reserved(self, job: PlacedJob, reservations: Reservations, now: float) -> None:
        self.note("reserved")

    def on_load(self, node: NodeName, load: int, now: float) -> None:
        self.note("load")

    def on_asked(
        self, node: NodeName, job: PlacedJob, tasks: Sequence[TaskSpec], now: float
    ) -> None:
        self.note("asked")

    def on_finished(self, node: NodeName, job: PlacedJob, took_s: float, now: float) -> None:
        assert 0 < took_s < 1
        self.note("finished")

    def on_heartbeat(
        self, node: NodeName, load: int, running: Mapping[JobId, float], now: float
    ) -> None:
        self.note("heartbeat")

    def on_node_lost(self, node: NodeName, now: float) -> None:
        self.note("node_lost")


class InTurn(BoundPlacer):
    """Probes a node, but does not wait for its answer."""

    waits_for_loads = False

    def __init__(self, rng: Random, memory: Seen) -> None:
        super().__init__(rng, 1.0)
        self.memory = memory

    def probes(self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName]) -> Sequence[NodeName]:
        return nodes[:1]

    def choose(self, task: TaskSpec, candidates: Sequence[NodeName]) -> NodeName:
        self.memory.turn += 1
        return sorted(candidates)[self.memory.turn % len(candidates)]


class Newest(Discipline):
    """Last in, first out."""


class Broken(Placement):
    """Fails where the test says."""

    where = ""

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        if self.where == "placer":
            raise KeyError("oops")
        return BrokenPlacer(rng, 1.0)

    def on_heartbeat(
        self, node: NodeName, load: int, running: Mapping[JobId, float], now: float
    ) -> None:
        if self.where == "on_heartbeat":
            raise KeyError("oops")

    def notes(self, peers: int, now: float) -> bytes:
        return "no bytes" if self.where == "notes" else b"note"  # type: ignore[return-value]

    def on_notes(self, notes: bytes, now: float) -> None:
        if self.where == "on_notes":
            raise KeyError("oops")


class BrokenPlacer(BoundPlacer):
    """See `Broken`."""

    def choose(self, task: TaskSpec, candidates: Sequence[NodeName]) -> NodeName:
        if Broken.where == "choose":
            raise KeyError("oops")
        return NodeName("nowhere") if Broken.where == "nowhere" else candidates[0]

    def take(self, node: NodeName, count: int) -> list[TaskSpec]:
        if Broken.where == "take":
            raise KeyError("oops")
        return super().take(node, count)


@pytest.mark.parametrize("where", ["notes", "on_notes", ""])
def test_notes_of_a_broken_plug_in_are_fenced(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it tells, or does with what it is told: its jobs fail, and nothing else."""
    placements = Placements()
    job = StartJob(job_id=JobId("j"), user="u", tasks=(task(0, "echo"),))
    name = f"{ITSELF}:Broken"
    placements.placer(name, job, Random(1))
    monkeypatch.setattr(Broken, "where", where)
    fenced = placements.noting[name]
    assert (b"" if where == "notes" else b"note") == fenced.notes(1, 0.0)
    fenced.on_notes(b"?", 0.0)
    if where:
        with pytest.raises(InvalidJob, match=r"failed before|no bytes"):
            fenced.placer(job, Random(1))


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of examples is on the path."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


@pytest.fixture
def two_nodes() -> Iterator[InProcessCluster]:
    with InProcessCluster(configs(2, slots=2)) as cluster:
        yield cluster


def test_a_placement_is_told_what_its_scheduler_sees() -> None:
    """One object per scheduler, whose memory lasts from job to job."""
    Seen.all.clear()
    world = World(1, checked=True)
    cluster = SimulatedCluster(world, nodes=2, slots=2, schedulers=1)
    work = Workload(load=0.5, jobs=20, tasks=3, placement=f"{ITSELF}:Seen")
    run_jobs(cluster, make_jobs(work, cluster.nodes, 2, Random(1)))
    cluster.kill_node(cluster.nodes[0])
    world.run(world.now + 10.0)
    (seen,) = Seen.all
    assert 60 == seen.turn
    assert seen.heard["heartbeat"] > 2
    told = {what: seen.heard[what] for what in ("job", "load", "finished", "node_lost")}
    assert {"job": 20, "load": 20, "finished": 60, "node_lost": 1} == told
    assert 20 <= seen.heard["reserved"] <= seen.heard["asked"] <= 60


def test_it_is_told_the_same_on_the_express_simulator() -> None:
    """But for heartbeats and deaths, of which there are none."""
    Seen.all.clear()
    cluster = ExpressCluster(nodes=2, slots=2)
    work = Workload(load=0.5, jobs=20, tasks=3, placement=f"{ITSELF}:Seen")
    cluster.run(make_jobs(work, NODES, 2, Random(1)))
    (seen,) = Seen.all
    told = {what: seen.heard[what] for what in ("job", "load", "finished")}
    assert {"job": 20, "load": 20, "finished": 60} == told
    assert 20 <= seen.heard["reserved"] <= seen.heard["asked"] <= 60


@pytest.mark.slow
@pytest.mark.usefixtures("example")
def test_the_example_runs_in_simulation_and_live(two_nodes: InProcessCluster) -> None:
    """One file, no other change."""
    work = Workload(load=0.7, jobs=100, placement=EXAMPLE)
    world = World(1, checked=True)
    cluster = SimulatedCluster(world, nodes=10, slots=2, schedulers=2)
    assert 100 == len(run_jobs(cluster, make_jobs(work, cluster.nodes, 2, Random(1))))
    for _ in range(3):
        job = Submitted(two_nodes, JobSpec(tasks=(task(0, "echo"), task(1, "echo")),
                                           placement=EXAMPLE))  # fmt: skip
        assert isinstance(job.wait()[-1], JobFinished)
    with minishark.connect(in_process=True, nodes=2, placement=EXAMPLE) as session:
        assert [(3,)] == [tuple(row) for row in session.sql("SELECT 1 + 2").collect()]


@pytest.mark.slow
@pytest.mark.usefixtures("example")
def test_the_commands_take_it(tmp_path: Path) -> None:
    """The simulator's command prints a line for it."""
    done = subprocess.run(
        [sys.executable, "-m", "minishark_lab.simulator", "--placement", EXAMPLE, "--jobs", "20",
         "--nodes", "5"],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}"}, cwd=tmp_path,
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert EXAMPLE == done.stdout.splitlines()[-1].split()[0]


@pytest.mark.parametrize("where", ["placer", "choose", "nowhere", "take", "on_heartbeat"])
def test_a_broken_plug_in_fails_its_jobs_only(
    two_nodes: InProcessCluster, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job fails as invalid, with its name; the scheduler and others go on."""
    monkeypatch.setattr(Broken, "where", where)
    broken = JobSpec(tasks=(task(0, "echo"),), placement=f"{ITSELF}:Broken")
    last = Submitted(two_nodes, broken).wait()[-1]
    if where == "on_heartbeat":  # the first job is placed before it has failed
        while isinstance(last, JobFinished):
            last = Submitted(two_nodes, broken).wait()[-1]
    assert isinstance(last, JobFailed)
    assert "invalid" == last.kind
    assert f"'{ITSELF}:Broken'" in last.message
    sound = JobSpec(tasks=(task(0, "echo"),))
    assert isinstance(Submitted(two_nodes, sound).wait()[-1], JobFinished)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no.such.module:Policy", "No module named 'no'"),
        (f"{ITSELF}:NoSuch", "NoSuch"),
        (f"{ITSELF}:NODES", "is not callable"),
        (f"{ITSELF}:InTurn", "cannot make"),
        (f"{ITSELF}:Newest", "it must make a sparrow_core.policy.placer.Placement"),
        ("best", "is none of sparrow, random"),
        ("a b:c", "no module:factory"),
    ],
)
def test_what_is_no_placement_is_said(path: str, words: str) -> None:
    """By the scheduler, and by connect before anything starts."""
    with pytest.raises(InvalidJob, match=words):
        make_placement(path)
    with pytest.raises(OptionError):
        minishark.connect(in_process=True, nodes=1, placement=path)


def test_a_scheduler_takes_the_plug_ins_of_its_configuration(tmp_path: Path) -> None:
    """A client can't have it import whatever it names."""
    job = StartJob(job_id=JobId("j"), user="u", tasks=(TaskSpec(0, b""),))
    listed = Placements((f"{ITSELF}:Seen",))
    assert listed.placer(f"{ITSELF}:Seen", job, Random(1)) is not None
    with pytest.raises(InvalidJob, match="configuration does not list"):
        listed.placer(f"{ITSELF}:Broken", job, Random(1))
    file = tmp_path / "cluster.toml"
    listen = f"ipc://{tmp_path}/s.sock"
    file.write_text(
        f'schedulers = ["{listen}"]\n[scheduler]\nlisten = "{listen}"\nplacements = ["no:such"]\n'
    )
    with pytest.raises(ConfigError, match="placements: cannot load placement 'no:such'"):
        run_scheduler(read_config(file))


def test_a_discipline_may_be_a_plug_in_too() -> None:
    """By the same kind of name."""
    assert isinstance(make_discipline(f"{ITSELF}:Newest"), Newest)
    with pytest.raises(SparrowError, match="it must make a sparrow_core"):
        make_discipline(f"{ITSELF}:Seen")


def test_addresses_of_nodes_are_not_plug_ins() -> None:
    """The form of a name is checked before anything is imported."""
    with pytest.raises(InvalidJob):
        make_placement(str(address("ipc:///tmp/x.sock", "scheduler")))


def test_names_of_installed_packages_need_no_list() -> None:
    """What an entry point names is as trusted as Sparrow's own, and not fenced in."""
    job = StartJob(job_id=JobId("j"), user="u", tasks=(TaskSpec(0, b""),))
    placements = Placements(())
    placements.placer("eagle", job, Random(1))
    assert type(placements.of("eagle")) is Eagle
    assert "eagle" not in PLACEMENTS
    with pytest.raises(InvalidJob, match=r"sparrow, random, adaptive, .*, and no module:factory"):
        make_placement("hawk")
