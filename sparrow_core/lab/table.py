"""All experiments that need no SQL, by name.

A new one is a module with its parameters, a function from these to rows, and an entry in the
module's EXPERIMENTS; and the module here.
"""

from __future__ import annotations

from sparrow_core.lab import beyond, emulated, on_paper, past, placements, policies, replay, scale
from sparrow_core.lab.experiment import AnyExperiment

EXPERIMENTS: dict[str, AnyExperiment] = {
    experiment.name: experiment
    for module in (on_paper, placements, policies, beyond, past, replay, emulated, scale)
    for experiment in module.EXPERIMENTS
}
