"""The engine in simulation: answers are the model's, nothing hangs, nothing is left behind."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from machine_kit.addresses import Address, address
from machine_kit.machine import Envelope, Machine, Message
from minishark_lab.simulation.experiment import Simulate, simulate, verdict
from minishark_lab.simulation.fibers import Fibers, SimulatedClock
from minishark_lab.simulation.history import Outcome, run_history
from minishark_lab.simulation.script import script_of
from minishark_lab.simulation.shrink import fewest, shrink
from minishark_lab.simulator.world import World
from tests.simulation.mutations import MUTATIONS, dropped_tables_keep_their_files

ROOT = Path(__file__).parents[2]
STATEMENTS, FAULTS = 40, 16


def history(seed: int, statements: int = STATEMENTS, faults: int = FAULTS) -> Outcome:
    """The history of a seed."""
    return run_history(script_of(seed, statements, faults))


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(500, 503))
def test_histories(seed: int) -> None:
    """Some hundred queries and writes under faults."""
    outcome = history(seed)
    assert outcome.complaints == []
    assert outcome.queries > STATEMENTS / 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_queries() -> None:
    """Many more of them."""
    queries, seed, failing = 0, 1000, []
    while queries < 10_000:
        outcome = history(seed, 80, 12)
        queries, seed = queries + outcome.queries, seed + 1
        failing += [(outcome.script.seed, outcome.complaints[0])] if outcome.complaints else []
    assert failing == []


def digest(seed: int) -> str:
    """A hash of all that is delivered in a history, and when."""
    found = hashlib.sha256()

    def trace(now: float, to: Address, msg: Message) -> None:
        found.update(f"{now!r} {to} {type(msg).__name__}\n".encode())

    outcome = run_history(script_of(seed, 12, 8), trace)
    assert outcome.complaints == []
    return f"{outcome.events} {found.hexdigest()}"


@pytest.mark.slow
def test_seed_repeats_to_the_last_event() -> None:
    """In other processes, too, where strings have other hashes, and after other histories."""
    seed = 7  # it reuses outputs
    code = f"from tests.simulation.test_simulation import digest; print(digest({seed}))"
    found = {digest(seed)}
    history(seed + 2)
    found.add(digest(seed))
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        run = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(run.stdout.strip())
    assert len(found) == 1
    assert digest(seed + 1) not in found


@pytest.mark.parametrize("plant", MUTATIONS, ids=lambda plant: plant.__name__)
def test_planted_bugs_replace_what_there_is(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they name may have moved: a fast test says so before the slow ones run."""
    with monkeypatch.context() as patch:
        plant(patch)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("plant", MUTATIONS, ids=lambda plant: plant.__name__)
def test_planted_bugs_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in recovery or replication shows in one of a few histories, which is right without."""
    with monkeypatch.context() as patch:
        plant(patch)
        seed = next((s for s in range(100, 500) if history(s).complaints), None)
    assert seed is not None
    assert history(seed).complaints == []


@pytest.mark.slow
def test_failing_history_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left fails in the same way, and the command that is told repeats it."""
    dropped_tables_keep_their_files(monkeypatch)
    seed = next(s for s in range(100, 250) if history(s).complaints)
    script = script_of(seed, STATEMENTS, FAULTS)
    shrunk = shrink(run_history(script), script, runs_max=60)
    assert len(shrunk.faults) < max(1, len(script.faults))
    assert len(shrunk.statements) < script.statements
    parameters = Simulate(
        histories=1,
        statements=STATEMENTS,
        faults=FAULTS,
        faults_kept=shrunk.faults,
        statements_kept=shrunk.statements,
    )
    told = verdict(simulate(parameters, seed, lambda _: None))
    assert not told.passed
    assert shrunk.outcome.complaints[0] in told.text
    assert f"--seed {seed} " in shrunk.command(statements=STATEMENTS, faults=FAULTS)


def test_fewest() -> None:
    """What is not needed goes; what fails only together stays."""
    assert fewest(range(20), lambda kept: {3, 11} <= set(kept)) == (3, 11)
    assert fewest(range(5), lambda _: True) == ()


def test_fibers_wait_in_simulated_time() -> None:
    """Sleeping, queues with a timeout, locks, pools, and processes that are stopped."""
    world = World(1)
    fibers = Fibers(world)
    clock = SimulatedClock(fibers, "front")
    events, lock = clock.events(), clock.lock()
    said: list[str] = []

    def say(text: str) -> None:
        said.append(f"{clock.now_s():.2f} {text}")

    def waits() -> None:
        try:
            events.get(timeout=0.5)
        except Exception as error:  # noqa: BLE001
            say(type(error).__name__)
        say(events.get(timeout=5.0))
        with lock:
            say("has the lock")
        clock.each(lambda n: clock.sleep(n / 10), [1, 1, 1, 1], 2)
        say("all ended")

    def holds() -> None:
        with lock, lock:
            clock.sleep(1.0)
            events.put("put")
            clock.sleep(1.0)

    fibers.start("front", waits)
    fibers.start("front", holds)
    world.call(2.05, lambda: world.freeze("front", 3.0))
    world.run(10.0)
    assert said == ["0.50 Empty", "1.00 put", "2.00 has the lock", "3.10 all ended"]


def test_fiber_that_ends_does_not_wake_who_started_it() -> None:
    """Who has started one waits as long as if there were none."""
    world = World(1)
    fibers = Fibers(world)
    clock = SimulatedClock(fibers, "front")
    woken: list[float] = []

    def starts() -> None:
        fibers.start("front", lambda: clock.sleep(0.1))
        clock.sleep(1.0)
        woken.append(clock.now_s())

    fibers.start("front", starts)
    world.run(10.0)
    assert woken == [1.0]


def test_messages_of_a_process_that_is_killed_while_stopped() -> None:
    """They are lost with it: the process that takes its place does not read them."""
    world = World(1)
    at, heard = address("n0", "machine"), list[float]()

    class Listens(Machine[Message]):
        inputs = Message

        def on_message(self, msg: Message, now: float) -> list[Envelope]:
            heard.append(now)
            return []

    world.host(at, Listens())
    world.freeze("n0", 2.0)
    world.call(0.5, lambda: world.post(at, Message()))
    world.call(1.0, lambda: world.kill("n0"))
    world.call(1.5, lambda: world.host(at, Listens()) and world.post(at, Message()))
    world.run(10.0)
    assert heard == [1.5]


def test_drifting_clocks_do_not_jump() -> None:
    """A host's clock goes faster for a while, and then as before."""
    world = World(1)
    read: list[float] = []
    world.call(1.0, lambda: world.drift("n0", 1.5))
    world.call(3.0, lambda: world.drift("n0", 1.0))
    for at_s in (0.5, 1.0, 2.0, 3.0, 4.0):
        world.call(at_s, lambda: read.append(world.clock_s("n0-e1")))
    world.run(5.0)
    assert read == pytest.approx([0.5, 1.0, 2.5, 4.0, 5.0])
