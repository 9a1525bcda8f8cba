# The front door. `make` lists what there is.
.DEFAULT_GOAL := help
SHELL := bash
PYTHON := .venv/bin/python

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Make .venv from the locked packages (nothing to do when up to date)
	@scripts/setup.sh

.PHONY: lint
lint: setup ## Formatting, lint, strict types, the arrows between packages, drift of generated files
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache

.PHONY: format
format: setup ## Format and mend what can be mended
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

.PHONY: lock
lock: ## Resolve the packages anew: requirements/{cpu,gpu}.lock
	@scripts/lock.sh
