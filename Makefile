# On a fresh machine `make demo` and `make test` do it all; everything is installed into .venv, nothing outside.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CODE := core tools plugins pipeline bench examples tests hatch_build.py
# Some images of containers set it. Then each of the many processes that tests start would compile all of its modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help kernel demo quick test night test-install check mutants bench bench-full bench-spark longlife docs man changes fuzz sanitize clean

help:
	@echo "make kernel  build the compiled kernel beside its sources, if they or its tools have changed"
	@echo "make demo   install what it needs, then store, find, count with Spark, crash and recover"
	@echo "make quick  the inner loop, under 45 s: tidy, unit and property tests without the slow ones"
	@echo "make test   install what it needs, then run the tests: the gate that every change passes"
	@echo "make night  kills, brokers, explorations and more, MINUTES (60) of them, with ONLY=part,part"
	@echo "make test-install  install into bare environments of PYTHONS, with each extra alone and with the lowest versions"
	@echo "make check  ruff, mypy --strict, and known vulnerabilities of dependencies"
	@echo "make bench  figures beside RocketMQ, SQLite, LMDB, RocksDB and redis, and the goals; BEFORE=COMMIT compares with it"
	@echo "make bench-full  the same with every size and 10 million keys, kept in the history, plots and page made anew"
	@echo "make bench-spark  figures of the Spark pipeline beside Parquet and plain processes, and its goals"
	@echo "make fuzz   every reader under atheris, SECONDS=60 each"
	@echo "make sanitize  the kernel under sanitizers for addresses and undefined behaviour, in the tests of TESTS"
	@echo "make mutants  mutation testing: change the code in COUNT=150 small ways, and list the changes that no test notices"
	@echo "make longlife  half an hour under load, watching memory, descriptors and maps"
	@echo "make docs   build the documentation into build/docs"
	@echo "make man    make the manual page docs/penstock.1 from what the commands say of themselves"
	@echo "make changes  show the change notes of the next release as they will stand in CHANGELOG.md"
	@echo "make clean  remove what make made"

$(VENV)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Penstock needs Python 3.11 or later; set PYTHON=/path/to/one"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

# What the build needs is in the environment itself, so that Cython's version is one for all, and zig (101 MB) is fetched once.
# So Penstock is installed without an environment of its own for the build; others, such as pyspark, need theirs: a step apart.
INSTALL := $(BIN)/python -m pip install --quiet
$(VENV)/tools: $(VENV)/python pyproject.toml hatch_build.py
	$(INSTALL) 'hatchling>=1.27' editables
	$(BIN)/python hatch_build.py --requires | xargs -d '\n' $(INSTALL)
	@touch $@

# Run each time: the hook looks at digests, not at times, and builds nothing (in 0.2 s) where nothing has changed.
kernel: $(VENV)/tools
	@$(BIN)/python hatch_build.py

$(VENV)/demo: $(VENV)/tools pyproject.toml | kernel
	$(INSTALL) --no-build-isolation --no-deps -e .
	$(INSTALL) 'penstock[cli,spark]'
	@touch $@

$(VENV)/dev: $(VENV)/tools pyproject.toml | kernel
	$(INSTALL) --no-build-isolation --no-deps -e .
	$(INSTALL) 'penstock[dev]'
	@touch $@ $(VENV)/demo

demo: $(VENV)/demo
	$(BIN)/penstock demo

# One more than there are processors: tests wait for JVMs, disks and each other.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min((os.cpu_count() or 1) + 1, 5))')
# Files of tests are in memory where that has room to spare, so that a sync costs nothing; TEST_TMPDIR=/tmp puts them on a disk.
memory_with_gib = $(shell [ -w /dev/shm ] && [ $$(df -k --output=avail /dev/shm | tail -1) -gt $$(($(1) << 20)) ] && echo /dev/shm || echo $${TMPDIR:-/tmp})
# A worker for each processor: it waits for nothing.
QUICK_WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() or 1, 8))')
quick: $(VENV)/dev
	HYPOTHESIS_PROFILE=quick TMPDIR=$(or $(TEST_TMPDIR),$(call memory_with_gib,1)) $(BIN)/python -m pytest -m "not slow" --numprocesses $(QUICK_WORKERS) --dist loadfile tests/tidy tests/unit tests/property

# More options for pytest, as `.ci/run` gives them. Not by PYTEST_ADDOPTS, which reaches every pytest that a test starts.
PYTEST_OPTIONS ?=
# In a new checkout each worker would compile all tests for itself, at the same time as the others.
COLLECT := $(BIN)/python -m pytest --collect-only -qq
test: $(VENV)/dev
	@[ -d tests/spark/__pycache__ ] || { $(COLLECT) tests/unit >/dev/null & $(COLLECT) --ignore tests/unit tests >/dev/null; wait; }
	TMPDIR=$(or $(TEST_TMPDIR),$(call memory_with_gib,4)) $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(PYTEST_OPTIONS)

MINUTES ?= 60
ONLY ?=
night: $(VENV)/dev
	TMPDIR=$(or $(TEST_TMPDIR),$(call memory_with_gib,4)) $(BIN)/python -m tests.night --minutes $(MINUTES) $(if $(ONLY),--only $(ONLY))

# By default every python3.11 to python3.14 that is found.
PYTHONS ?=
test-install: $(VENV)/dev
	$(BIN)/python -m tests.packaging.installs --extras --lowest $(PYTHONS)

check: $(VENV)/dev
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/python -m tests.audit

COUNT ?= 150
mutants: $(VENV)/dev
	TMPDIR=$(or $(TEST_TMPDIR),$(call memory_with_gib,4)) $(BIN)/python -m tests.mutants --count $(COUNT)

bench: $(VENV)/dev
	$(BIN)/python -m bench $(if $(BEFORE),--before $(BEFORE))

bench-full: $(VENV)/dev
	mkdir -p build
	$(BIN)/python -m bench --full --keep --json build/bench.json
	$(BIN)/python -m bench.page build/bench.json

bench-spark: $(VENV)/dev
	$(BIN)/python -m bench.spark

SECONDS ?= 60
fuzz: $(VENV)/dev
	$(INSTALL) 'penstock[fuzz]'
	$(BIN)/python -m tests.fuzz all --seconds $(SECONDS)

# The interpreter itself is built without them, so the library that finds wrong addresses is loaded before it.
TESTS ?= tests/unit tests/property
CHECKS := PENSTOCK_SANITIZE=address,undefined
sanitize: $(VENV)/dev
	$(CHECKS) $(BIN)/python hatch_build.py
	@rm -f build/sanitize/found.*
	$(CHECKS) LD_PRELOAD="$$($${CC:-cc} -print-file-name=libasan.so)" PYTHONMALLOC=malloc \
	  ASAN_OPTIONS=detect_leaks=0:log_path=$(CURDIR)/build/sanitize/found \
	  UBSAN_OPTIONS=print_stacktrace=1:log_path=$(CURDIR)/build/sanitize/found \
	  $(BIN)/python -m pytest -q --numprocesses $(WORKERS) --dist loadfile $(TESTS) \
	  || { cat build/sanitize/found.* 2>/dev/null; exit 1; }

longlife: $(VENV)/dev
	$(BIN)/python -m bench.longlife

docs: $(VENV)/dev
	$(BIN)/sphinx-build -W --keep-going -q docs build/docs

man: $(VENV)/dev
	$(BIN)/python -m tests.docs.man_page > docs/penstock.1.new && mv docs/penstock.1.new docs/penstock.1

changes: $(VENV)/dev
	$(BIN)/towncrier build --draft --version Unreleased

clean:
	rm -rf core/penstock/_kernel.*.so $(VENV) build demo-data .mypy_cache .pytest_cache .ruff_cache .hypothesis .cache
