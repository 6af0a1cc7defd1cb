# Doors: `make install`, `make test`, `make reproduce`. Each makes its own environment in .venv.
# A second call finds the environment in place and installs nothing.
PYTHON ?= python3
VENV ?= .venv
PROBES_VENV ?= $(VENV)-probes
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.ready-docs
LAB_READY := $(VENV)/.ready-lab
ATTACK_READY := $(VENV)/.ready-attack
BROWSER_READY := $(VENV)/.ready-browser
GENERATED := docs/_generated
# A process a core, each with whole files of tests, in the order of tests/conftest.py.
SIDE_BY_SIDE := -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help install test test-browser test-probes test-processors attack reproduce lab bench docs lint clean

help:
	@echo "make install          the command, in $(BIN)"
	@echo "make test             run the test suite"
	@echo "make test-browser     the lab's page in a real browser, and its server under fire"
	@echo "make test-probes      those that need PyTorch, in an environment of their own"
	@echo "make test-processors  the same as on other processors; SETTINGS=old runs one setting"
	@echo "make attack           try to break it: 20,000 cases in about 20 minutes; CASES, SEED, ONLY"
	@echo "make reproduce        every figure and claim of the paper, in minutes"
	@echo "make lab              runs in your browser, as they happen"
	@echo "make bench            compare with rivals on this machine (writes benchmarks/RESULTS.md)"
	@echo "make docs             the documentation as a web site, in docs/_build/html"
	@echo "make lint             ruff and mypy"
	@echo "make clean            remove the environment and caches"

$(READY): EXTRAS := test,lint
$(DOCS_READY): EXTRAS := docs
$(LAB_READY): EXTRAS := lab
$(BROWSER_READY): EXTRAS := browser
$(READY) $(DOCS_READY) $(LAB_READY) $(BROWSER_READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("flatmin needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=$(abspath constraints.txt) $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'
	@touch $@

install: $(READY)
	@echo "The command is $(BIN)/flatmin; to call it flatmin in this shell: source $(BIN)/activate"

# BLAS threads only get in each other's way on matrices as small as these.
test: $(READY)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/compile_ahead.py
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest $(SIDE_BY_SIDE)

# PyTorch first, so that nothing pulls another.
$(PROBES_VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(PROBES_VENV)
	$(PROBES_VENV)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	PIP_CONSTRAINT=$(abspath constraints.txt) $(PROBES_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[probes]'
	@touch $@

test-probes: $(PROBES_VENV)/.ready
	OMP_NUM_THREADS=1 $(PROBES_VENV)/bin/python -m pytest -o addopts="--doctest-modules --import-mode=importlib -q" tests/probes src/flatmin/probes

test-browser: $(BROWSER_READY)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/compile_ahead.py
	CHROMIUM="$$($(BIN)/python scripts/find_chromium.py)" && export CHROMIUM && \
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest tests/browser -n 2 --dist loadfile --override-ini addopts="--import-mode=importlib -q"

test-processors: $(READY)
	PYTEST_ADDOPTS="$(SIDE_BY_SIDE)" $(BIN)/python scripts/test_processors.py $(SETTINGS)

# atheris is not to be had everywhere; without it the readers are left to the other grammars.
$(ATTACK_READY): $(READY)
	-PIP_CONSTRAINT=$(abspath constraints.txt) $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[attack]'
	@touch $@

attack: $(ATTACK_READY)
	OPENBLAS_NUM_THREADS=1 $(BIN)/python tests/compile_ahead.py
	$(BIN)/python -m tests.adversary $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

reproduce: $(READY)
	$(BIN)/flatmin reproduce --out reproduction

lab: $(LAB_READY)
	$(BIN)/flatmin lab

bench: $(READY)
	@mkdir -p benchmarks
	$(BIN)/flatmin bench --results benchmarks/RESULTS.md

# Pictures and tables of the theory's pages: about a minute, and only after the sources changed.
$(GENERATED)/.made: docs/ledger.py $(shell find src/flatmin -name '*.py') | $(DOCS_READY)
	$(BIN)/python docs/ledger.py $(GENERATED)
	@touch $@

docs: $(DOCS_READY) $(GENERATED)/.made
	$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs docs/_build/html
	@echo "Documentation: $(abspath docs/_build/html/index.html)"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) $(PROBES_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis reproduction docs/_build $(GENERATED)
