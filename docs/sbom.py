"""Prints the bill of materials of the wheel: CycloneDX 1.6, as JSON.

    python docs/sbom.py > dist/minishark-X.Y.Z.cdx.json

Listed is what `pip install minishark` installs, in the versions of requirements.lock that the
environment has: every version that the tests ran with. Optional extras are left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = "minishark"


def required(found: Distribution) -> Iterator[str]:
    """The names of what a distribution needs here, without its extras."""
    for text in found.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def closure() -> dict[str, Distribution]:
    """Minishark and all that it needs, by name."""
    found: dict[str, Distribution] = {}
    waiting = [ROOT]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = distribution(name)
            waiting += required(found[name])
    return dict(sorted(found.items()))


def reference(name: str, found: Distribution) -> str:
    """The package URL."""
    return f"pkg:pypi/{name}@{found.version}"


def component(name: str, found: Distribution) -> dict[str, Any]:
    """A distribution, with its licence as it states that itself."""
    facts = found.metadata
    stated = facts.get("License-Expression") or facts.get("License") or ""
    said: dict[str, Any] = {
        "type": "library",
        "bom-ref": reference(name, found),
        "name": name,
        "version": found.version,
        "purl": reference(name, found),
    }
    if facts.get("License-Expression"):
        said["licenses"] = [{"expression": stated}]
    elif stated and "\n" not in stated:  # some state the whole text
        said["licenses"] = [{"license": {"name": stated}}]
    return said


def bill() -> dict[str, Any]:
    """The document."""
    found = closure()
    names = {name: reference(name, each) for name, each in found.items()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**component(ROOT, found[ROOT]), "type": "application"}},
        "components": [component(name, each) for name, each in found.items() if name != ROOT],
        "dependencies": [
            {"ref": names[name], "dependsOn": sorted({names[need] for need in required(each)})}
            for name, each in found.items()
        ],
    }


if __name__ == "__main__":
    try:
        json.dump(bill(), sys.stdout, indent=2)
    except PackageNotFoundError as error:
        sys.exit(f"{error} is not installed here: run it with .venv/bin/python.")
    sys.stdout.write("\n")
