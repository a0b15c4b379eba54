PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup test lint e2e bench figures

help:     ## this list
	@grep -hE '^[a-z0-9]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9]+):.*## /  make \1\t/' | expand -t 18

setup: $(BIN)/.ready    ## everything that the other verbs need, into .venv

$(BIN)/.ready: requirements/dev.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

test: setup    ## lint, types and all tests that need no cluster and no root
	@$(MAKE) --no-print-directory lint
	$(BIN)/pytest -q

lint: setup    ## ruff, mypy and the contracts between the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports

e2e: setup    ## the stories on a real Kubernetes on this machine (root; builds it once, about 10 minutes)
	$(BIN)/pytest -q --e2e tests/e2e

bench: setup    ## timings of the scheduler service, as ratios
	ONLY=scheduler $(BIN)/python -m benchmarks.figures

figures: setup    ## every figure that we claim, measured now (JSON=1, ONLY=a.b, ALL=1)
	@$(BIN)/python -m benchmarks.figures
