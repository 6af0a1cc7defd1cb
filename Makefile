# Two doors: `make test` and `make reproduce`. Each makes its own environment in .venv.
# A second call finds the environment in place and installs nothing.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.ready-docs

.DEFAULT_GOAL := help
.PHONY: help test reproduce bench docs lint clean

help:
	@echo "make test       run the test suite"
	@echo "make reproduce  every figure and claim of the paper, in minutes"
	@echo "make bench      compare with rivals on this machine (writes benchmarks/RESULTS.md)"
	@echo "make docs       the documentation as a web site, in docs/_build/html"
	@echo "make lint       ruff and mypy"
	@echo "make clean      remove the environment and caches"

$(READY): EXTRAS := test,lint
$(DOCS_READY): EXTRAS := docs
$(READY) $(DOCS_READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("flatmin needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=$(abspath constraints.txt) $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]'
	@touch $@

test: $(READY)
	$(BIN)/python -m pytest

reproduce: $(READY)
	$(BIN)/flatmin reproduce --out reproduction

bench: $(READY)
	@mkdir -p benchmarks
	$(BIN)/flatmin bench --results benchmarks/RESULTS.md

docs: $(DOCS_READY)
	$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs docs/_build/html
	@echo "Documentation: $(abspath docs/_build/html/index.html)"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis reproduction docs/_build
