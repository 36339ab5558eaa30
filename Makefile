# Every target sets up what it needs in .venv; repeated, the set-up costs nothing.

PYTHON ?= python3
BIN := .venv/bin
PEERS := .venv-peers/bin
WMR := $(BIN)/wmr
RUN := runs/digits-trades-a2-s0
# one thread per test process: they share the cores
TEST_ENV := OMP_NUM_THREADS=1

.PHONY: demo test test-slow test-data test-browser test-gpu test-peers lint docs clean

demo: .venv/.installed  ## train, evaluate and report on the embedded data
	$(WMR) train --resume
	$(WMR) evaluate $(RUN) --resume
	$(WMR) report $(RUN)

test: .venv/.installed-dev  ## the test suite
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 -m "not slow and not gpu and not browser"

test-slow: .venv/.installed-dev  ## training over several seeds, kills at random moments, many processes
	$(BIN)/python -m pytest -m slow

test-data: .venv/.installed-dev  ## real data sets and published checkpoints, from WMR_DATA_DIR and WMR_TEST_CHECKPOINTS
	$(BIN)/python -m pytest -m data -rs

test-browser: .venv/.installed-browser  ## the page of a report in Chromium, where it is installed; WMR_CHROMIUM may name one
	$(TEST_ENV) $(BIN)/python -m pytest -m browser -rs

test-gpu: .venv/.installed-dev  ## the main tests on this machine's accelerator
	$(BIN)/python -m pytest -m gpu -rs

test-peers: .venv-peers/.installed  ## attacks and measures beside those of other libraries, in an environment of their own
	$(TEST_ENV) $(PEERS)/python -m pytest -m peers -rP

lint: .venv/.installed-dev  ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/.installed-docs  ## the site, in site/
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## everything that can be made again; runs are kept
	rm -rf .venv .venv-peers site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 4))' || { echo "wmr needs Python 3.11.4 or newer: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

.venv/.installed-browser: .venv/.installed-dev
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser]'
	touch $@

.venv/.installed-docs: .venv/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

# torch first: the peers ask for others, and the constraints keep it; hypothesis lets pytest read every test
.venv-peers/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-peers
	$(PEERS)/pip install --quiet --disable-pip-version-check -c constraints.txt torch torchvision
	$(PEERS)/pip install --quiet --disable-pip-version-check -c constraints.txt torchattacks foolbox pyautoattack cvxpy
	$(PEERS)/pip install --quiet --disable-pip-version-check -c constraints.txt -e . pytest hypothesis
	touch $@
