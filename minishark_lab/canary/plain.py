"""The applications without workers: what the others are compared with.

NumPy over all data at once, and (with a third argument) the drivers in canary_core's sequential
runner, which makes the same sums in the same order as any distributed run.
"""

from __future__ import annotations

import os
import sys

import numpy as np

from canary_core import run_sequentially
from minishark_lab.canary.cases import Case, Measured, sequential
from minishark_lab.canary.own import array_of, driver_of
from minishark_lab.canary.peer import serve


def in_turn(case: Case) -> Measured:
    """The driver's result, one partition after the other."""
    driver = driver_of(case, os.getpid())
    result, began, ended = run_sequentially(driver, partitions=case.partitions)
    values = np.ravel(array_of(case, result)).tolist()
    return Measured(ended[0] - began[0], ended[1] - began[1], values)


if __name__ == "__main__":
    serve(in_turn if len(sys.argv) > 3 else sequential)
