# `make tpch` and `make test` do all the set-up themselves, in .venv, from pinned dependencies.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
SCALE ?= 0.1
# Each of the tests' many processes would compile the packages anew.
export PYTHONDONTWRITEBYTECODE :=
SOURCES := minishark sparrow_core canary_core machine_kit minishark_platforms minishark_lab tests benchmarks docs examples setup.py

.PHONY: help tpch test test-all simulate style format types docs check nightly bench ratchet ratchet-quick wheel sbom lock clean

help:
	@echo "make tpch      make TPC-H data, run the 22 queries, compare each answer with DuckDB's"
	@echo "make test      run the tests (make test-all: the slow ones too)"
	@echo "make simulate  some 420 queries under faults in deterministic simulation"
	@echo "make style     ruff: lint and format check (make format: apply)"
	@echo "make types     mypy --strict"
	@echo "make docs      build the documentation as a site in site/, and check its links"
	@echo "make check     style, types, docs, simulate, test-all"
	@echo "make nightly   all tests, TPC-DS, longer simulation, ratchet: hours; writes docs/nightly.md"
	@echo "make bench     the 22 queries beside DuckDB (SCALE=1 make bench)"
	@echo "make ratchet   compare CPU time with the last release (AGAINST=commit make ratchet)"
	@echo "make ratchet-quick  the same in two minutes, as CI does"
	@echo "make wheel     build dist/*.whl"
	@echo "make sbom      list what the wheel installs: dist/minishark.cdx.json"
	@echo "make lock      make requirements.lock again, from setup.py's ranges"
	@echo "make clean     remove what these commands made, but for the TPC-H data"

# The lock is installed first, without minishark's own ranges having a say in it.
$(READY): requirements.lock setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "minishark needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1);" \
			"name another one: make PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --requirement requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

tpch: $(READY)
	@$(BIN)/minishark tpch --scale $(SCALE)

test: $(READY)
	@$(BIN)/python -m pytest -n auto --dist worksteal

test-all: $(READY)
	@$(BIN)/python -m pytest -m "slow or not slow"

# The same histories each time.
simulate: $(READY)
	@folder=$$(mktemp -d) && $(BIN)/minishark bench simulate --set histories=4 --set seconds=600 \
		--out $$folder; status=$$?; rm -r $$folder; exit $$status

style: $(READY)
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)

format: $(READY)
	@$(BIN)/ruff check --fix $(SOURCES)
	@$(BIN)/ruff format $(SOURCES)

types: $(READY)
	@$(BIN)/mypy

# Whatever a page links to must be there, its sections too.
docs: $(READY)
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --conf-dir docs . site

check: style types docs simulate test-all

nightly: $(READY)
	@$(BIN)/python benchmarks/nightly.py

# DuckDB's generator on PyPI is for another version of DuckDB than minishark's.
.tpcds: benchmarks/tpcds_data.py
	@rm -rf $@
	@$(PYTHON) -m venv $@
	@$@/bin/python -m pip --quiet install duckdb==1.5.5 duckdb-extension-tpcds
	@$@/bin/python benchmarks/tpcds_data.py $@/data --scale 0.1
	@touch $@

bench: $(READY)
	@$(BIN)/python benchmarks/tpch.py --scale $(SCALE)

# With AGAINST=../other or a commit, that instead of the last release.
ratchet ratchet-quick: $(READY)
	@$(BIN)/python benchmarks/ratchet.py $(if $(AGAINST),--against $(AGAINST)) $(if $(findstring quick,$@),--quick)

wheel: $(READY)
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .

sbom: $(READY)
	@mkdir -p dist
	@$(BIN)/python docs/sbom.py > dist/minishark.cdx.json

lock:
	@rm -rf $(VENV)-lock
	@$(PYTHON) -m venv $(VENV)-lock
	@$(VENV)-lock/bin/python -m pip install --quiet --upgrade '.[dev]' setuptools
	@{ sed -n '/^#/p' requirements.lock; \
		$(VENV)-lock/bin/python -m pip freeze --all --exclude minishark --exclude pip; \
	} > requirements.lock.new
	@mv requirements.lock.new requirements.lock
	@rm -rf $(VENV)-lock

clean:
	@rm -rf $(VENV) .tpcds nightly site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
