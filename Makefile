# `make help` lists the commands.

PYTHON ?= python3
WORKERS ?= auto
ARGS ?=

VENV := .venv
RUN = $(VENV)/bin/python

# A stamp says that an environment has these packages, and for which checkout and Python: a virtual environment cannot
# be moved, so a stamp with another content means that it must be made again. A report needs less than the tests.
REPORT := $(VENV)/.report
STAMP := $(VENV)/.ready
ECOSYSTEM := .venv-ecosystem/.ready
PACKAGES-$(REPORT) := '.[all]'
PACKAGES-$(STAMP) := '.[dev]'
PACKAGES-$(ECOSYSTEM) := '.[all,ecosystem]' hypothesis pytest pytest-xdist
STAMPS := $(REPORT) $(STAMP) $(ECOSYSTEM)
ORIGIN := $(CURDIR) $(PYTHON)
STALE := $(shell for each in $(STAMPS); do \
    { test -x $${each%/*}/bin/python && test "$$(cat $$each 2>/dev/null)" = "$(ORIGIN)"; } || echo $$each; done)

.DEFAULT_GOAL := help
.PHONY: help setup report test test-quick test-all test-sample test-real test-dist test-lowest test-ecosystem pictures check lint types layers docs bench format clean FORCE

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "ARGS='...' is passed on to report, test and bench; PYTHON=... chooses the interpreter of set-up."

setup: $(STAMP)  ## make the environment in .venv (the other commands call it)

ifneq ($(STALE),)
$(STALE): FORCE
endif

# torch goes first, by its pin alone: resolved together with the rest, pip may fetch gigabytes of
# other builds before it settles. An install that stopped halfway is never trusted again.
# Nothing is compiled to bytecode beforehand: a quarter of a minute of torch's modules that nobody imports.
PIP = $(@D)/bin/python -m pip install --no-compile --constraint constraints.txt
$(STAMPS): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "abbe needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1 | head -n 1): try 'make setup PYTHON=python3.12'" >&2; \
	    exit 1; }
	@version='import pip, sys; print(sys.version)'; \
	if [ -e $(@D)/.unfinished ] \
	    || { [ -e $@ ] && [ "$$(cat $@)" != "$(ORIGIN)" ]; } \
	    || [ "$$($(@D)/bin/python -c "$$version" 2>/dev/null)" != "$$($(PYTHON) -c 'import sys; print(sys.version)')" ]; \
	then \
	    echo "Making $(@D) with $$($(PYTHON) --version)"; \
	    $(PYTHON) -m venv --clear $(@D); \
	fi
	@rm -f $@ && touch $(@D)/.unfinished
	$(PIP) pip
	$(PIP) torch
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation --editable $(PACKAGES-$@)
	@rm -f $(@D)/.unfinished && echo "$(ORIGIN)" > $@
# What the tests need includes what a report needs.
	@if [ $@ = $(STAMP) ]; then cp $@ $(REPORT); fi

report: $(REPORT)  ## measure a model and write the page; the last line is its path
	@$(VENV)/bin/abbe report $(ARGS)

# Many workers with many threads each would fight for the cores: one thread per worker.
# A file goes to one worker, in order: what its tests share (a browser, a measured model) is made once.
PYTEST = OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(RUN) -m pytest --numprocesses $(WORKERS) --maxprocesses 8 \
    --dist loadfile --no-loadscope-reorder

test: $(STAMP)  ## run the checks and the quick tests (5 to 8 minutes on 2 cores)
	@$(MAKE) --no-print-directory --jobs 2 check test-quick

test-quick: $(STAMP)
	$(PYTEST) -m "not real and not slow" $(ARGS)

# Kernels are compiled for the processor that numba is told: the host's, one with 256-bit vectors, one with 128-bit vectors.
# A name alone leaves the host's features, 512-bit vectors among them.
test-all: export ABBE_TESTS = all
test-all: check  ## run all tests, on the host's vector width and on two narrower ones
	$(PYTEST) -m "not real" $(ARGS)
	NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx,+avx2,+fma $(PYTEST) -m "not real" $(ARGS)
	NUMBA_CPU_NAME=generic $(PYTEST) -m "not real" $(ARGS)

# PERCENT of the slow tests, chosen by SEED.
PERCENT ?= 5
SEED ?= 0
test-sample: $(STAMP)  ## run a sample of the slow tests (PERCENT=5 SEED=0)
	$(PYTEST) -m "slow and not real" --sample $(PERCENT):$(SEED) $(ARGS)

# Without a network the pull fails, says so, and the tests that need the model skip with a reason.
test-real: $(STAMP)  ## pull smollm2, then run the tests on real models and texts
	$(VENV)/bin/abbe pull smollm2 || echo "smollm2 could not be pulled, see above: the tests that need it skip"
	$(PYTEST) -m real $(ARGS)

# Beside packages of others, which no other command needs; a package that is missing is an error.
test-ecosystem: VENV := .venv-ecosystem
test-ecosystem: $(ECOSYSTEM)  ## run the tests with peft, kvpress, Lightning, mlflow and others, in .venv-ecosystem
	$(PYTEST) -m "not real" tests/ecosystem $(ARGS)

check: lint types layers  ## lint, types and layers

lint: $(STAMP)
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check

types: $(STAMP)
	$(RUN) -m mypy

layers: $(STAMP)
	$(VENV)/bin/lint-imports --no-logo

test-dist: $(STAMP)  ## build wheel and source archive, use them in new environments
	$(RUN) scripts/check_dist.py $(ARGS)

# Offline: nothing is fetched, and a page fetches nothing. A broken link or anchor is an error.
docs: $(STAMP)  ## build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build $(ARGS)
	@echo "site/index.html"

# TORCH=torch==2.6.0 tests its lower bound, too: old builds for CPUs are not on the package index, those for CUDA are.
TORCH ?=
test-lowest: $(STAMP)  ## run the quick tests with the oldest versions that pyproject.toml accepts
	$(RUN) scripts/check_lowest.py $(if $(TORCH),--torch $(TORCH)) $(ARGS)

pictures: $(STAMP)  ## make the pictures of README and docs from measured runs (ARGS=--list shows what they cost)
	$(RUN) scripts/pictures.py $(ARGS)

bench: $(STAMP)  ## measure the speed
	$(RUN) benchmarks/bench.py $(ARGS)

format: $(STAMP)  ## repair the format and what lint can repair itself
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format

clean:  ## remove the environments, caches and built files
	rm -rf $(VENV) .venv-ecosystem build dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
