# The two commands of the README, and what they stand on. Nothing here needs root.
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	command -v $$name >/dev/null && $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$name && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
# More than there are processors: tests wait for sandboxes and for their own timeouts most of their time.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 2 + 1)

.PHONY: demo test lint types unit integration external chaos format bench size clean
.DEFAULT_GOAL := help

help:
	@echo "make demo   a complete experiment on this machine, with nothing to set up"
	@echo "make test   lint, types, unit tests and integration tests"
	@echo "make unit   the unit tests alone"
	@echo "make external  the tests with large programs: container engines, agents, clusters, cloud clients, a browser"
	@echo "make bench  the measurements of benchmarks/, as tables"
	@echo "make chaos  an hour of faults against real runs; SECONDS=600 for ten minutes of it"
	@echo "make size   lines and files by package, and of a pair's way"
	@echo "make format put the code into shape"

demo: $(VENV)/.core
	$(BIN)/cooperbench demo

test: lint types unit integration

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(BIN)/pytest -n $(JOBS) --dist loadgroup tests/unit

integration: $(VENV)/.dev
	$(BIN)/pytest -n $(JOBS) --dist loadgroup tests/integration

external: $(VENV)/.dev
	$(BIN)/pytest -n $(JOBS) --dist loadgroup tests/external

chaos: $(VENV)/.dev
	$(BIN)/python -m tests.external.chaos --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED))

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	for file in benchmarks/[a-z]*.py; do $(BIN)/python $$file || exit 1; done

size: $(VENV)/.dev
	$(BIN)/python benchmarks/size.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "CooperBench needs Python 3.11 or newer; set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.core
