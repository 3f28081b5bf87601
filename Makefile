SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help install run run-kafka test check conformance bench lock clean

VENV := .venv
STAMP := $(VENV)/.installed
# The newest Python that is installed and runs, 3.11 or later; `make PYTHON=...` names another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$python" && break; done)
PIP := $(VENV)/bin/python -m pip --quiet --disable-pip-version-check
# The tests start hundreds of Python processes; without the compiled modules each of them would compile its own.
unexport PYTHONDONTWRITEBYTECODE

help: ## Print this help.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Set up .venv from the lock file (Python 3.11 or later).

$(STAMP): pyproject.toml requirements.lock
	@if [ -z "$(PYTHON)" ]; then \
		echo "make: no Python 3.11 or later was found; install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; fi
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "make: $(PYTHON) cannot create environments (no venv or ensurepip);" \
			"on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV) ..."
	@[ -x $(VENV)/bin/python ] || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

run: install ## Run the demo on the embedded ledger, then serve it (ONCE=1 ends after the demo).
	@$(VENV)/bin/turnledger demo $(if $(ONCE),--once)

run-kafka: install ## The same on a Kafka broker of its own and two service processes (ONCE=1 ends after it).
	@$(VENV)/bin/python -m broker run -- $(VENV)/bin/turnledger demo --kafka $(if $(ONCE),--once)

test: install ## Run all tests on two cores; they start real Kafka brokers.
	@$(VENV)/bin/python -m pytest --numprocesses 2 --dist worksteal $(ARGS)

check: install ## Lint, check the format and the types.
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

conformance: install ## Check all that the gateway sends against an OpenAPI document: SCHEMA=path.
	@[ -n "$(SCHEMA)" ] || { echo "make: name the OpenAPI document of the API: make conformance SCHEMA=path" >&2; exit 2; }
	@$(VENV)/bin/python -m tests.gateway.conformance $(SCHEMA)

bench: install ## Measure, and write docs/benchmarks.md.
	@$(VENV)/bin/python -m benchmarks $(ARGS)

lock: install ## Resolve requirements.lock anew from pyproject.toml.
	@$(VENV)/bin/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade \
		--generate-hashes --no-header --no-annotate --no-emit-index-url --quiet --output-file requirements.lock

clean: ## Remove the environment, caches and builds.
	@rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
