# Every target makes its own virtual environment first; nothing needs root, a GPU or a data download.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Named together with whatever needs it, so that the CPU build can serve; see constraints.txt.
TORCH ?= torch==2.13.0
# pip would refuse an older Python too, after minutes and in many lines.
CHECK_PYTHON = import sys; v = sys.version_info; v < (3, 11) and sys.exit( \
	"PYTHON must be 3.11 or newer, got %d.%d; run: make PYTHON=python3.12 setup" % v[:2])

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-gpu check lint format type docs bench clean

help:            ## list the targets
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-10s %s\n", $$1, $$2}'

setup: $(VENV)/.installed ## make the virtual environment and install hdet with all its tools

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c '$(CHECK_PYTHON)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt $(TORCH) -e '.[dev]'
	touch $@

demo: setup      ## train a small language model with HDET next to plain OneCycleLR (one minute)
	$(BIN)/hdet demo

test: setup      ## run all tests, and refuse less than 95 % coverage by branch
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q --durations=10
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=95

test-fast: setup ## run the tests that start no processes
	$(BIN)/python -m pytest -q -m 'not distributed and not slow and not gpu'

test-gpu: setup  ## run the tests that need a CUDA device
	$(BIN)/python -m pytest -q -m gpu

check: lint type docs ## lint, formatting, types, spelling and a strict build of the documentation

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs src tests benchmarks examples

format: setup    ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: setup
	$(BIN)/mypy

docs: setup      ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: setup     ## measure all and render docs/performance.md and docs/results.md (over an hour)
	$(BIN)/python -m pip install --quiet -c constraints.txt $(TORCH) -e '.[dev,bench]'
	$(BIN)/python -m benchmarks core
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks overhead
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks autolr
	$(BIN)/python -m benchmarks render

clean:           ## remove everything that the other targets made
	rm -rf $(VENV) build dist site .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
