# Two commands matter: `make audit` (the main job on the embedded example) and `make test`.
# Either makes .venv and installs on its first run; a second run installs nothing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CORES := $(shell $(PYTHON) -c "import os; print(os.cpu_count() or 1)")

# One thread a worker: several torch processes with several threads each stand in each other's way.
# Compiled modules are kept also where the environment forbids it: each worker imports all of them.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(CORES)

.PHONY: audit test test-fast test-kernels lint labs debts docs mutants clean help

audit: $(READY)  ## audit a small network trained on scikit-learn's digits
	$(BIN)/torchtheory audit

test: $(READY)  ## the whole suite in parallel, doctests included
	$(PYTEST) --durations=25

test-fast: $(READY)  ## the suite without what is marked slow
	$(PYTEST) -m "not slow"

test-kernels: $(READY)  ## doctests and a sample of the tests with the kernels of other processors
	PYTHONDONTWRITEBYTECODE= $(BIN)/python .ci/kernels

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

labs: $(READY)  ## every lab in its quick preset, with a page over all of them
	$(BIN)/torchtheory lab run --all --jobs $(CORES)

docs: $(VENV)/.docs  ## the site, into build/site; it shows the finished runs in RUNS
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 TORCHTHEORY_RUNS=$(or $(RUNS),torchtheory-runs) \
		$(BIN)/mkdocs build --strict

debts: $(READY)  ## the weak checks that labs still owe, by room (PRUNE=1: without what was paid)
	OMP_NUM_THREADS=1 $(BIN)/python -m torchtheory.labs.engine.debts \
		$(if $(PRUNE),--prune --jobs $(CORES))

mutants: $(READY)  ## make library functions wrong one at a time (ROOM=nets: of one room)
	OMP_NUM_THREADS=1 $(BIN)/python -m torchtheory.labs.engine.mutants --jobs $(CORES) \
		$(if $(ROOM),--room $(ROOM)) $(if $(SAMPLE),--sample $(SAMPLE))

clean:  ## remove what make and the tools made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf torchtheory-runs torchtheory-audit torchtheory-comparison torchtheory-mutants
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/'

# Where the machine's Python cannot put pip into a new environment (Debian without python3-venv),
# the machine's own pip installs into it from outside.
INSTALL = if $(BIN)/python -m pip --version >/dev/null 2>&1; then pip="$(BIN)/python -m pip"; \
	else pip="$(PYTHON) -m pip --python $(BIN)/python"; fi; \
	$$pip install --quiet --constraint constraints.txt --editable

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) 2>/dev/null \
		|| $(PYTHON) -m venv --clear --without-pip $(VENV)
	@echo "installing into $(VENV)"
	@$(INSTALL) ".[dev]"
	@touch $(READY)

$(VENV)/.docs: $(READY)
	@echo "installing what builds the site"
	@$(INSTALL) ".[docs]"
	@touch $@
