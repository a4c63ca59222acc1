# Two commands: `make demo` shows what Coterie does, `make test` proves it. Both set themselves up.
# Three lanes of tests: `quick` while working, `test` before every merge, `full` before anything is called done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests run side by side, each worker with one PyTorch thread.
JOBS ?= 2
# Tests that start several processes themselves form a group, which one worker runs alone.
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

.PHONY: setup demo quick test full lint types numerics bench docs clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: setup
	$(BIN)/python examples/demo.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

quick: lint
	$(PYTEST) -m "not (thorough or processes or ray or real or slow)"

test: lint types
	$(PYTEST) -m "not slow"

full: test numerics
	$(PYTEST) -m slow

numerics: setup
	$(BIN)/python tools/numerics.py

bench: setup
	$(BIN)/python -m benchmarks

docs: setup
	$(BIN)/python -m tools.website

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build runs src/*.egg-info
