"""Makes a failing history smaller: fewer faults, then fewer statements, as long as it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from minishark_lab.simulation.history import Outcome, run_history
from minishark_lab.simulation.script import Script


@dataclass(slots=True)
class Shrunk:
    """What is left of a history, by number, and how that fails."""

    faults: tuple[int, ...]
    statements: tuple[int, ...]
    outcome: Outcome

    def command(self, **drawn: int) -> str:
        """What repeats it, given the parameters with which it was drawn."""
        parameters = " ".join(f"--set {name}={value}" for name, value in drawn.items())
        return (
            f"minishark bench simulate --seed {self.outcome.script.seed} "
            f"--set histories=1 {parameters} "
            f"--set faults_kept={[*self.faults]} --set statements_kept={[*self.statements]}"
        )


@dataclass(slots=True)
class _Search:
    script: Script
    kind: str  # of the first complaint, which has to stay
    runs_left: int
    found: Outcome = field(init=False)

    def fails(self, faults: Sequence[int], statements: Sequence[int]) -> bool:
        """Whether the history with only these still fails in the same way."""
        if self.runs_left <= 0:
            return False
        self.runs_left -= 1
        outcome = run_history(self.script.kept(faults, statements))
        if not any(each.startswith(self.kind) for each in outcome.complaints):
            return False
        self.found = outcome
        return True


def shrink(outcome: Outcome, script: Script, runs_max: int = 150) -> Shrunk:
    """A smaller history that fails like this one, found in at most so many runs."""
    search = _Search(script, outcome.complaints[0].partition(":")[0], runs_max)
    search.found = outcome
    statements = tuple(range(script.statements))
    faults = fewest(range(len(script.faults)), lambda kept: search.fails(kept, statements))
    statements = fewest(statements, lambda kept: search.fails(faults, kept))
    return Shrunk(faults, statements, search.found)


def fewest(items: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> tuple[int, ...]:
    """Few of the items that still fail together (Zeller and Hildebrandt's ddmin, TSE 2002)."""
    kept, size = list(items), len(items)
    while size:
        first = 0
        while first < len(kept):
            fewer = kept[:first] + kept[first + size :]
            if fails(fewer):
                kept = fewer
            else:
                first += size
        size //= 2
    return tuple(kept)
