# Everything on a machine that has git, make and Python 3.11 or later with venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt

.PHONY: demo test test-newest resolve coverage lint format bench figures clean

demo: $(VENV)/.installed
	$(BIN)/sourdine demo
	@echo "To use the command itself: source $(VENV)/bin/activate"

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 -q

# The command line's tests, on the newest typer, click and rich instead of the pinned ones.
test-newest: $(VENV)/.installed-dev
	rm -rf $(VENV)/newest
	$(BIN)/python -m pip --disable-pip-version-check install -q --target $(VENV)/newest typer click rich
	PYTHONPATH=$(VENV)/newest $(BIN)/python -m pytest -n 2 -q tests/cli tests/attacks/test_extract_verb.py

# Does every extra resolve for each system and Python, from the public index alone? Installs only uv.
resolve: $(VENV)/.installed-uv
	$(BIN)/python benchmarks/install/resolve.py

# The same as make test, half as slow again: what tests do not reach.
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
	$(PIP) -e ".[text]"
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e ".[dev]"
	touch $@

$(VENV)/.installed-uv: $(VENV)/bin/python
	$(BIN)/python -m pip --disable-pip-version-check install -q uv packaging
	touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-dev
	$(PIP) -e ".[bench]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
