"""Digests that other copies of the driver tell, compared with those of the copy here."""

from __future__ import annotations

from canary_core.machines.replica import Replica
from canary_core.stages import UNTOLD


class DigestCheck:
    """What is known of other copies, for stages that the copy here has yet to record, too."""

    def __init__(self) -> None:
        self._expected: dict[int, int] = {}  # by stage

    def differs(self, replica: Replica, stage: int, digest: int) -> bool:
        """Whether another copy has taken a different way by this stage.

        False if that is not known: not yet, then `recorded` finds it, or not any more.
        """
        if digest == UNTOLD:
            return False
        if stage < replica.end:
            return replica.digest_of(stage) not in {digest, None}
        if not replica.returned:
            self._expected[stage] = digest
        return replica.returned

    def recorded(self, replica: Replica, first: int) -> list[int]:
        """After the driver has gone on: the stages from `first` on at which another differs."""
        if not self._expected:
            return []
        return [
            stage
            for stage in range(first, replica.end)
            if self.differs(replica, stage, self._expected.pop(stage, UNTOLD))
        ]

    def forget(self, floor: int) -> None:
        """Stages before this one are over everywhere."""
        for stage in [stage for stage in self._expected if stage < floor]:
            del self._expected[stage]
