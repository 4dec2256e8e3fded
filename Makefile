# Everything on a machine that has git, make and Python 3.11 or later with venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt

.PHONY: demo test coverage lint format bench figures clean

demo: $(VENV)/.installed
	$(BIN)/sourdine demo
	@echo "To use the command itself: source $(VENV)/bin/activate"

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 -q

# The same, half as slow again: what tests do not reach.
coverage: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 -q --cov --cov-report=term:skip-covered --cov-fail-under=90

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-bench
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/accounting/run.py
	$(BIN)/python benchmarks/ledger/run.py
	$(BIN)/python benchmarks/query/run.py

figures: $(VENV)/.installed
	$(BIN)/sourdine figures --out docs/figures

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) torch==2.13.0
	$(PIP) -e ".[text]"
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e ".[dev]"
	touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-dev
	$(PIP) -e ".[bench]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
