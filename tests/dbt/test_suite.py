"""dbt-tests-adapter's suites, class by class, in a session of the process and on a server.

They are no part of the default run, as dbt's requirements are not among those of development. In
an environment with dbt-core and dbt-tests-adapter: `python -m pytest tests/dbt`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dbt.tests.adapter", reason="needs dbt-core and dbt-tests-adapter")

import dbt.tests.adapter as suites
from dbt.tests.adapter.basic import expected_catalog as expected
from dbt.tests.adapter.incremental import test_incremental_microbatch as microbatches
from dbt.tests.adapter.simple_seed import fixtures, seeds
from dbt.tests.adapter.utils import fixture_date_spine, fixture_get_intervals_between
from dbt.tests.util import run_dbt
from dbt_common.contracts.metadata import CatalogTable, ColumnMetadata, TableMetadata

pytestmark = pytest.mark.filterwarnings("ignore")  # of dbt's own code

SUITES = (
    "basic",
    "caching",
    "concurrency",
    "empty",
    "ephemeral",
    "incremental",
    "persist_docs",
    "simple_seed",
    "simple_snapshot",
    "utils",
)
# What is not run, and why.
SKIPPED = {
    "TestArrayUtils": "has no tests of its own: those of array functions are made of it",
    "TestCachingTest": "has no models of its own: others are made of it",
    "TestCurrentTimestampNaive": "is for databases whose current time has no time zone",
    "TestEscapeSingleQuotesBackslash": "is for databases that escape quotes by a backslash",
    "TestTestEmptySeedFlag": "dbt-core 1.11 has no `seed --empty`",
    "TestEphemeralMulti": "compares the text of Postgres's CREATE VIEW",
    "TestEphemeralNested": "compares the text of Postgres's CREATE VIEW",
}


TYPES = {"id_type": "BIGINT", "text_type": "VARCHAR", "time_type": "TIMESTAMP"}
KINDS = {"view_type": "VIEW", "table_type": "BASE TABLE"}


def _column(type_: str, index: int, name: str) -> ColumnMetadata:
    return ColumnMetadata(type=type_, index=index, name=name)


def _relation(project: Any, kind: str, name: str, columns: dict[str, str]) -> CatalogTable:
    return CatalogTable(
        metadata=TableMetadata(
            type=kind, schema=project.test_schema, name=name, database=project.database
        ),
        columns={
            column: _column(type_, index, column)
            for index, (column, type_) in enumerate(columns.items(), 1)
        },
        stats={},
    )


class Docs:
    """The types of the documentation."""

    @pytest.fixture(scope="class")
    def expected_catalog(self, project: Any) -> Any:
        return expected.base_expected_catalog(
            project, role=None, **TYPES, **KINDS, model_stats=expected.no_stats()
        )


class References:
    """The types of the documentation."""

    @pytest.fixture(scope="class")
    def expected_catalog(self, project: Any) -> Any:
        return expected.expected_references_catalog(
            project,
            role=None,
            bigint_type="BIGINT",
            **TYPES,
            **KINDS,
            model_stats=expected.no_stats(),
        )


class OneRelation:
    """What is said of one table, and of one view."""

    @pytest.fixture(scope="class")
    def expected_catalog_my_seed(self, project: Any) -> CatalogTable:
        names = ("first_name", "email", "ip_address")
        columns = {"id": "BIGINT"} | dict.fromkeys(names, "VARCHAR") | {"updated_at": "TIMESTAMP"}
        return _relation(project, "BASE TABLE", "my_seed", columns)

    @pytest.fixture(scope="class")
    def expected_catalog_my_view_model(self, project: Any) -> CatalogTable:
        names = ("first_name", "email", "ip_address")
        columns = {"id": "BIGINT"} | dict.fromkeys(names, "VARCHAR") | {"updated_at": "TIMESTAMP"}
        return _relation(project, "VIEW", "my_view_model", columns)


class Seeds:
    """The types of seeds."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        text = fixtures.properties__schema_yml
        for theirs, ours in {
            "text": "VARCHAR",
            "integer": "BIGINT",
            "boolean": "BOOLEAN",
            "date": "DATE",
            "timestamp without time zone": "TIMESTAMP",
        }.items():
            text = text.replace(f"type: {theirs}\n", f"type: {ours}\n")
        return {"schema.yml": text}


class Literals:
    """DuckDB takes no text for a date in a sum: as for Postgres, the suite is to cast."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        text = fixture_date_spine.models__test_date_spine_sql
        return {
            "test_date_spine.yml": fixture_date_spine.models__test_date_spine_yml,
            "test_date_spine.sql": text.replace("'postgres'", "'minishark'"),
        }


class Intervals:
    """As above; and DuckDB writes dates as ISO 8601 does."""

    @pytest.fixture(scope="class")
    def models(self) -> dict[str, str]:
        text = fixture_get_intervals_between.models__test_get_intervals_between_sql
        for theirs, ours in {
            "'postgres'": "'minishark'",
            "09/01/2023": "2023-09-01",
            "09/12/2023": "2023-09-12",
        }.items():
            text = text.replace(theirs, ours)
        return {
            "test_get_intervals_between.yml": (
                fixture_get_intervals_between.models__test_get_intervals_between_yml
            ),
            "test_get_intervals_between.sql": text,
        }


class Times:
    """The types of times, and how the adapter writes the current one."""

    @pytest.fixture(scope="class")
    def expected_schema(self) -> dict[str, str]:
        return {
            "current_timestamp": "TIMESTAMP WITH TIME ZONE",
            "current_timestamp_in_utc_backcompat": "TIMESTAMP",
            "current_timestamp_backcompat": "TIMESTAMP",
        }


class Microbatches:
    """DuckDB's literals of TIMESTAMP have no time zone."""

    @pytest.fixture(scope="class")
    def input_model_sql(self) -> str:
        return str(microbatches._input_model_sql).replace(":00-0'", ":00'")

    @pytest.fixture(scope="class")
    def insert_two_rows_sql(self, project: Any) -> str:
        target = project.adapter.Relation.create(
            database=project.database, schema=project.test_schema, identifier="input_model"
        )
        return (
            f"insert into {target} (id, event_time) values "
            "(4, TIMESTAMP '2020-01-04 00:00:00'), (5, TIMESTAMP '2020-01-05 00:00:00')"
        )


class ByteOrderMark:
    """The file is beside the suite."""

    @pytest.fixture(scope="class", autouse=True)
    def setUp(self, project: Any) -> None:
        project.run_sql(seeds.seeds__expected_sql)
        file = Path(seeds.__file__).with_name("seed_bom.csv")
        shutil.copy(file, Path(project.project_root) / "seeds" / "seed_bom.csv")


class LeftViews:
    """DuckDB's DROP TABLE ... CASCADE leaves the views that read the table."""

    def test_simple_seed_full_refresh_flag(self, project: Any) -> None:
        self._seeded_again(project, ["seed", "--full-refresh"])

    def test_simple_seed_full_refresh_config(self, project: Any) -> None:
        self._seeded_again(project, ["seed"])

    def _seeded_again(self, project: Any, command: list[str]) -> None:
        self._build_relations_for_test(project)
        self._check_relation_end_state(run_result=run_dbt(command), project=project, exists=True)


class LeftViewsByFlag(LeftViews):
    """The first of the two."""

    test_simple_seed_full_refresh_config = None


class LeftViewsByConfiguration(LeftViews):
    """The second of the two."""

    test_simple_seed_full_refresh_flag = None


# What differs for minishark.
OWN: dict[str, type] = {
    "TestBasicSeedTests": LeftViewsByFlag,
    "TestCurrentTimestamps": Times,
    "TestDateSpine": Literals,
    "TestGetIntervalsBetween": Intervals,
    "TestMicrobatch": Microbatches,
    "TestSeedConfigFullRefreshOn": LeftViewsByConfiguration,
    "TestDocsGenerate": Docs,
    "TestDocsGenReferences": References,
    "TestGetCatalogForSingleRelation": OneRelation,
    "TestSimpleSeedColumnOverride": Seeds,
    "TestSimpleSeedWithBOM": ByteOrderMark,
}


def _classes() -> dict[str, type]:
    """The classes of the suites with tests, by their names here."""
    found: dict[str, type] = {}
    for suite in SUITES:
        folder = importlib.import_module(f"{suites.__name__}.{suite}")
        for module in pkgutil.walk_packages(folder.__path__, f"{folder.__name__}."):
            for name, base in inspect.getmembers(
                importlib.import_module(module.name), inspect.isclass
            ):
                if base.__module__ == module.name and name.startswith("Base"):
                    test = f"Test{name.removeprefix('Base')}"
                    found[test if test not in found else f"{test}_{suite}"] = base
    return found


for _name, _base in _classes().items():
    if _name not in SKIPPED:
        _bases = (OWN[_name], _base) if _name in OWN else (_base,)
        globals()[_name] = type(_name, _bases, {"__module__": __name__})
