"""What minishark is made of and what it needs; the tools' settings are in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

PACKAGES = (
    "minishark",
    "sparrow_core",
    "canary_core",
    "machine_kit",
    "minishark_platforms",
    "minishark_lab",
)

# Top-level folders that travel inside the package, so that an installed wheel needs no checkout.
RESOURCES = {
    "minishark._resources.queries": "queries",
    "minishark._resources.sample": "data/sample",
}

# Where dbt looks for adapters.
PLUGINS = {"dbt.adapters.minishark": "minishark/adapters/dbt/plugin"}

TPCH = ["tpchgen-cli>=4"]
LAB = ["matplotlib>=3.8"]
NOTEBOOK = ["ipython>=8"]
IBIS = ["ibis-framework>=12"]
SPARK = ["sqlframe>=4.10", "sqlglot>=30"]
JOBLIB = ["joblib>=1.5"]
RAY = ["ray[data]>=2.50"]  # the first with label selectors, by which nodes avoid each other
DASK = ["distributed>=2024.8"]
OTEL = ["opentelemetry-sdk>=1.25"]
FLIGHT = ["protobuf>=5"]  # the messages of Flight SQL; pyarrow has the rest
ICEBERG = ["pyiceberg[sql-sqlite]>=0.10"]  # the warehouse too, whose catalog is SQLite
DELTA = ["deltalake>=1.2"]
OBJECTS = ["obstore>=0.8"]
SQLALCHEMY = ["sqlalchemy>=2.0.40"]
DBT = ["dbt-adapters>=1.16", "dbt-common>=1.20", "dbt-core>=1.10"]
XML = ["lxml>=5"]
CRYPTO = ["cryptography>=42"]
POSTGRES = ["adbc-driver-postgresql>=1.5"]
DOCS = ["furo>=2025.7", "myst-parser>=4", "sphinx>=8", "sphinx-copybutton>=0.5"]
TEST = [
    *TPCH,
    *LAB,
    *NOTEBOOK,
    *IBIS,
    *SPARK,
    *JOBLIB,
    *OTEL,
    *FLIGHT,
    "adbc-driver-flightsql>=1.8",
    "adbc-driver-manager>=1.8",
    *ICEBERG,
    *DELTA,
    *OBJECTS,
    *POSTGRES,
    *SQLALCHEMY,
    *XML,
    *CRYPTO,
    "altair>=5",
    "flask-cors>=4",  # with flask and moto, an S3 server
    "flask>=3",
    "hypothesis>=6.100",
    "ipykernel>=6",
    "jupysql>=0.11",
    "moto[s3]>=5",
    "nbclient>=0.10",
    "pandas>=2",
    "playwright>=1.49",
    "polars>=1",
    "prometheus-client>=0.20",
    "pyiceberg-core>=0.10",  # by which pyiceberg writes bucket and truncate partitions
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.5",
]

setup(
    name="minishark",
    version="0.2.0",
    description="Distributed SQL and DataFrames on DuckDB executors and a Sparrow scheduler",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: Database :: Database Engines/Servers",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    packages=[
        *find_packages(
            include=[f"{package}{inside}" for package in PACKAGES for inside in ("", ".*")]
        ),
        *RESOURCES,
        *PLUGINS,
    ],
    package_dir=RESOURCES | PLUGINS,
    package_data={
        "minishark": ["py.typed"],
        "minishark.adapters.dbt": ["include/minishark/*.yml", "include/minishark/macros/*.sql"],
        "minishark.session.page": ["static/*"],
        "sparrow_core": ["py.typed"],
        "canary_core": ["py.typed"],
        "machine_kit": ["py.typed"],
        "minishark_lab.clickbench": ["*.sql"],
        "minishark_lab.models": ["*.c"],
        "minishark_lab.sparrow": ["*.json"],
        "minishark._resources.queries": ["*.sql"],
        "minishark._resources.sample": ["*.parquet"],
    },
    install_requires=[
        # The minor version is pinned: serialized plans are internals of DuckDB.
        "duckdb>=2.0,<2.1",
        "pyarrow>=20",
        "pyzmq>=26",
        "cloudpickle>=3",
        "greenlet>=3.1",
        "msgspec>=0.19",
        "numpy>=1.26",
        "click>=8",
        "rich>=13",
        "psutil>=6",
        "prompt_toolkit>=3.0.40",
        "pygments>=2.17",
        "xxhash>=3.5",
    ],
    extras_require={
        "tpch": TPCH,
        "lab": LAB,
        "bench": LAB,  # its former name
        "notebook": NOTEBOOK,
        "ibis": IBIS,
        "spark": SPARK,
        "joblib": JOBLIB,
        "ray": RAY,
        "dask": DASK,
        "otel": OTEL,
        "flight": FLIGHT,
        "iceberg": ICEBERG,
        "delta": DELTA,
        "objects": OBJECTS,
        "postgres": POSTGRES,
        "sqlalchemy": SQLALCHEMY,
        "dbt": DBT,
        "xml": XML,
        "crypto": CRYPTO,
        "pandas": ["pandas>=2"],
        "polars": ["polars>=1"],
        "test": TEST,
        "docs": DOCS,
        "dev": [*TEST, *DOCS, "mypy>=1.10", "ruff>=0.6"],
    },
    entry_points={
        "console_scripts": ["minishark = minishark.cli:main", "sparrow = sparrow_core.cli:main"],
        "minishark.commands": [
            "bench = minishark_lab.command:bench",
            "tpch = minishark_lab.tpch.command:tpch",
        ],
        "minishark.datasets": ["ray = minishark_platforms.targets:ray_datasets"],
        "minishark.platforms": [
            "dask = minishark_platforms.targets:on_dask",
            "distributed = minishark_platforms.targets:on_dask",  # Clients of Dask's
            "ray = minishark_platforms.targets:on_ray",
        ],
        "minishark.servers": ["flight = minishark.adapters.flight.server:serve"],
        "ibis.backends": ["minishark = minishark.adapters.ibis"],
        "sqlalchemy.dialects": [
            "minishark = minishark.adapters.sqlalchemy:MinisharkDialect",
            "minishark.flight = minishark.adapters.sqlalchemy:FlightDialect",
            "minishark.session = minishark.adapters.sqlalchemy:MinisharkDialect",
        ],
        "sparrow_core.placements": [
            "batch = minishark_lab.early_binding:BatchPlacement",
            "batch_filling = minishark_lab.early_binding:BatchFillingPlacement",
            "per_task = minishark_lab.early_binding:PerTaskPlacement",
            "round_robin = minishark_lab.early_binding:RoundRobinPlacement",
            "adaptive = minishark_lab.remembering:AdaptiveRatio",
            "dodoor = minishark_lab.remembering:Dodoor",
            "eagle = minishark_lab.remembering:Eagle",
            "known_idle = minishark_lab.remembering:KnownIdle",
            "prequal = minishark_lab.remembering:Prequal",
        ],
    },
)
