# The two commands of the README, and what they stand on. Nothing here needs root.
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	command -v $$name >/dev/null && $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$name && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
# More than there are processors: tests wait for sandboxes and for their own timeouts most of their time.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 2 + 1)

PYTEST = $(BIN)/pytest -n $(JOBS) --dist loadgroup

.PHONY: help install demo test lint types unit integration external chaos coverage docs doctest pictures messages package format bench size clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      a complete experiment on this machine, with nothing to set up"
	@echo "make test      lint, types, unit tests and integration tests"
	@echo "make unit      only the unit tests: no sandboxes, no services"
	@echo "make external  the tests with container engines, npm agents, clusters, cloud clients, a browser and many agents"
	@echo "make docs      the documentation as a site, in build/site"
	@echo "make doctest   the tests of docs/ and examples/"
	@echo "make pictures  the pictures of docs/ that show a run of the demo; needs chromium"
	@echo "make messages  all help pages and messages for mistakes, in build/messages.txt, for a reader"
	@echo "make coverage  the lines of each package that unit and integration tests run"
	@echo "make package   build the package, install its wheel in a clean environment and run the demo from it"
	@echo "make bench     the measurements of benchmarks/, as tables"
	@echo "make chaos     an hour of faults against real runs; SECONDS=600 for ten minutes of it"
	@echo "make size      lines and files of each package, and what makes the code hard to read"
	@echo "make format    put the code into shape"
	@echo "make clean     remove the environment and all caches"

install: $(VENV)/.dev

demo: $(VENV)/.core
	$(BIN)/cooperbench demo

# One call for both tiers, so that the table of skipped tests is at the end.
test: lint types
	$(PYTEST) tests/unit tests/integration

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.dev
	$(BIN)/mypy

# Unit tests hardly ever wait, and each process spends seconds on imports.
unit: $(VENV)/.dev
	$(PYTEST) -n $(shell getconf _NPROCESSORS_ONLN) tests/unit

integration external: $(VENV)/.dev
	$(PYTEST) tests/$@

chaos: $(VENV)/.dev
	$(BIN)/python -m tests.external.chaos --seconds $(or $(SECONDS),3600) $(if $(SEED),--seed $(SEED))

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

doctest: $(VENV)/.dev
	$(PYTEST) tests/external/docs

pictures: $(VENV)/.dev
	$(BIN)/python -m docs.pictures.make

messages: $(VENV)/.dev
	mkdir -p build
	$(BIN)/python -m tests.external.docs.messages >build/messages.txt

coverage: $(VENV)/.dev
	$(PYTEST) --cov --cov-report=json:build/coverage.json tests/unit tests/integration
	$(BIN)/python .ci/coverage_by_package.py build/coverage.json

package: $(VENV)/.dev
	rm -rf dist build/clean
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/clean
	build/clean/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	cd build/clean && COOPERBENCH_CACHE_DIR=$$PWD/cache bin/cooperbench demo

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev
	for file in benchmarks/[a-z]*.py; do $(BIN)/python $$file || exit 1; done

size:
	$(PYTHON) benchmarks/size.py

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
