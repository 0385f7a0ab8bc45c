"""The wheel holds what it needs, and works from any folder."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "minishark",
    "sparrow_core",
    "canary_core",
    "machine_kit",
    "minishark_platforms",
    "minishark_lab",
)
SAMPLE_BYTES_MAX = 500_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built by this environment's own setuptools without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    # The sources are copied: a build leaves its traces where it runs.
    sources = folder / "sources"
    for name in (*PACKAGES, "queries", "data/sample"):
        shutil.copytree(ROOT / name, sources / name)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
               "--no-index", "--wheel-dir", str(folder), str(sources)]  # fmt: skip
    subprocess.run(command, check=True, env=_clean_environment())
    (built,) = folder.glob("minishark-*.whl")
    return built


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_the_bill_of_materials() -> None:
    """It lists what a plain installation needs, in the locked versions."""
    bill = runpy.run_path(str(ROOT / "docs" / "sbom.py"))["bill"]()
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    locked = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lines}
    found = {each["name"]: each["version"] for each in bill["components"]}
    assert {"duckdb", "pyarrow", "pyzmq", "msgspec"} <= found.keys()
    assert "pytest" not in found
    assert found == {name: locked[name] for name in found}
    known = {each["bom-ref"] for each in (*bill["components"], bill["metadata"]["component"])}
    edges = bill["dependencies"]
    assert known == {edge["ref"] for edge in edges}
    assert known >= {need for edge in edges for need in edge["dependsOn"]}


@pytest.mark.slow
def test_the_wheel_carries_every_module_query_and_sample(wheel: Path) -> None:
    """Modules, py.typed, the 22 queries and the eight sample tables travel in it."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = [
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
    ]
    queries = [f"minishark/_resources/queries/{file.name}" for file in ROOT.glob("queries/*.sql")]
    samples = [
        f"minishark/_resources/sample/{file.name}" for file in ROOT.glob("data/sample/*.parquet")
    ]
    assert 8 == len(samples)
    queries += [str(file.relative_to(ROOT)) for file in ROOT.glob("minishark_lab/*/*.sql")]
    assert [] == [name for name in (*modules, *queries, *samples) if name not in names]
    assert {"minishark/py.typed"} <= names
    assert [] == [name for name in names if name.startswith(("tests", "queries", "data", "bench"))]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_installed_wheel_works_from_any_folder(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own, in another folder, the command answers over its own sample."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    (packages,) = environment.glob("lib/python*/site-packages")
    # The dependencies are this environment's; only minishark is installed anew.
    (packages / "dependencies.pth").write_text(_path_of_dependencies() + "\n")
    install = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"),
               "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed",
               str(wheel)]  # fmt: skip
    subprocess.run(install, check=True, env=_clean_environment())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = [str(environment / "bin" / "minishark"), "sql", "SELECT count(*) AS n FROM lineitem"]
    done = subprocess.run(
        command,
        cwd=elsewhere,
        env=_clean_environment() | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "" == "\n".join(line for line in done.stderr.splitlines() if "Error" in line)
    assert 0 == done.returncode
    assert "6005" in done.stdout
    assert [] == list(elsewhere.iterdir())


def _path_of_dependencies() -> str:
    import duckdb

    return str(Path(duckdb.__file__).parents[1])


def test_the_sample_stays_tiny() -> None:
    """The bundled sample is below half a megabyte."""
    sizes = [file.stat().st_size for file in (ROOT / "data" / "sample").glob("*.parquet")]
    assert SAMPLE_BYTES_MAX > sum(sizes) > 0


def test_the_lock_pins_exact_versions_and_nothing_else() -> None:
    """Each line of requirements.lock is a name and a version: no path, address or index."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [] == [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][\w.]*", pin)]


# Of extras that are not installed for `make test`.
_UNTESTED = (
    "pandas",
    "distributed",
    "adbc-driver-manager",
    "dbt-adapters",
    "dbt-common",
    "dbt-core",
)


def test_the_lock_pins_every_direct_dependency() -> None:
    """What setup.py asks for, the extras of tests and TPC-H among it, is locked."""
    locked = {
        re.sub(r"[-_.]+", "-", line.split("==")[0]).lower()
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if "==" in line
    }
    setup = (ROOT / "setup.py").read_text()
    asked = re.findall(r'"([a-z-]+)>=', setup)
    assert [] == [name for name in asked if name not in locked and name not in _UNTESTED]
