# `make demo` and `make test` need nothing but make and Python >= 3.10; the rest is installed into .venv.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test bench results docs lint format clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with the pinned development environment

# The build backend is installed first and used without isolation, so that the pins hold for it as well.
$(READY): pyproject.toml paper/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "askew needs Python >= 3.10. Choose one with: make PYTHON=/path/to/python3 setup" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt hatchling editables
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e '.[dev]' -e paper
	@touch $@

demo: setup ## walking times in hilly country: compare, save, search, two pages to look at
	$(BIN)/askew demo -o askew-out

# Each worker computes on one thread; more would fight over the cores.
test: lint ## check style and types, then run all tests and doctests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

bench: setup ## time the divergences
	$(BIN)/python benchmarks/core.py

# The page of the site is Markdown; the HTML one is for those who have no site.
results: setup ## write docs/results.md and docs/results/ from the rows in paper/results/
	rm -rf build/report docs/results
	$(BIN)/askew-paper report paper/results -o build/report
	cp -r build/report/results.md build/report/results docs/

# The variable hides a notice of the theme about its own future.
docs: setup ## build the pages into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: setup ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv, caches and build results
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests paper -name __pycache__ -type d -prune -exec rm -rf {} +
