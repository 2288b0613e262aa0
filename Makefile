# Everything a contributor types. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PY := build/venv/bin/python
export PYTHONPATH := operator:tests

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: setup
setup: build/venv/.done ## Install the Python environment into build/venv

build/venv/.done: requirements-dev.lock tests/lab/setup.sh
	@bash tests/lab/setup.sh
	@touch $@

.PHONY: lock
lock: setup ## Resolve the Python requirements anew
	build/venv/bin/uv pip compile pyproject.toml --generate-hashes --no-emit-index-url --no-annotate --no-header -q --python-version 3.11 -o requirements.lock
	build/venv/bin/uv pip compile pyproject.toml --group dev --generate-hashes --no-emit-index-url --no-annotate --no-header -q --python-version 3.11 -o requirements-dev.lock

.PHONY: fmt
fmt: setup ## Format the code
	build/venv/bin/ruff format operator tests
	build/venv/bin/ruff check --fix-only -q operator tests

.PHONY: check
check: setup ## Format, lint, types, import contracts, generated files
	build/venv/bin/ruff format --check operator tests
	build/venv/bin/ruff check operator tests
	build/venv/bin/mypy
	build/venv/bin/lint-imports
