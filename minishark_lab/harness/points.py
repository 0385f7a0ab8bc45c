"""Points of an experiment that are written as they are measured: an interrupted run continues."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from minishark_lab.harness.rows import Point, Response, Row

_KINDS: Final[dict[str, type[Row]]] = {"Point": Point, "Response": Response}


class Points:
    """The rows of cases of one experiment, in a file of a line each, until it is reported."""

    def __init__(self, file: Path, made_with: Any) -> None:
        """Those of the file count if they were `made_with` the same: parameters, code."""
        self._file = file
        self._made_with = json.dumps(made_with)
        self._seed = 0
        self._rows: dict[str, list[Row]] = {}
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        if lines and lines[0] == self._made_with:
            for line in lines[1:]:
                try:
                    key, rows = json.loads(line)
                except ValueError:
                    continue  # the run ended while it was written
                self._rows[key] = [_KINDS[kind](**values) for kind, values in rows]
        else:
            file.unlink(missing_ok=True)

    def begin(self, seed: int) -> None:
        """What follows is of the run with this seed."""
        self._seed = seed

    def rows(self, case: Sequence[object]) -> Sequence[Row] | None:
        """Those of a case, if it was measured before."""
        return self._rows.get(self._key(case))

    def keep(self, case: Sequence[object], rows: Sequence[Row]) -> None:
        """Write the rows of a case."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps([self._key(case), [[type(row).__name__, vars(row)] for row in rows]])
        head = "" if self._file.exists() else f"{self._made_with}\n"
        with self._file.open("a", encoding="utf-8") as out:
            out.write(f"{head}{line}\n")

    def drop(self) -> None:
        """The run is over, and reported."""
        self._file.unlink(missing_ok=True)

    def _key(self, case: Sequence[object]) -> str:
        return json.dumps([self._seed, *map(str, case)])


# Those of the running experiment. Live ones have none: what they measure belongs together in time.
KEPT: Final[ContextVar[Points | None]] = ContextVar("KEPT", default=None)
