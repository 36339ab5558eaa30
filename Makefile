# Every target first installs what it needs, unless that has been done.
# `make help` lists the targets.

PYTHON ?= python3
BIN := .venv/bin
PEERS := .venv-peers/bin
PLUGINS := .venv-plugins/bin
RELEASE := .venv-release/bin
TRACKERS := .venv-trackers/bin
WMR := $(BIN)/wmr
RUN := demo
# one thread per test process, because the processes share the cores
TEST_ENV := OMP_NUM_THREADS=1

.PHONY: demo help check lint test coverage test-slow test-data test-browser test-gpu test-emulated test-peers \
  test-plugins test-release test-slurm test-trackers bench reproduction docs clean

demo: .venv/.installed  ## train, evaluate and report on the embedded digits
	$(WMR) train --out $(RUN) --resume
	$(WMR) evaluate $(RUN) --resume
	$(WMR) report $(RUN)

# tests that need nothing but this environment, and little time
FAST := not slow and not gpu and not browser and not emulated and not slurm and not trackers

# fast tests: no commands or figures
UNIT_TESTS := tests/builtins tests/core tests/measures tests/paper tests/reporting/tables \
  tests/storage tests/sweeps tests/config tests/test_reading.py tests/test_registry.py \
  tests/test_spec.py
# the contracts of all built-ins, and the pages that are generated from them
UNIT_TESTS += tests/testing/test_registered_components.py tests/docs/test_generated_pages.py
# trains networks of timm
UNIT_TESTS += --ignore tests/builtins/test_timm_runs.py

check: lint  ## lint, unit tests, contracts of all built-ins, in less than 90 seconds
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 -q -m "$(FAST)" $(UNIT_TESTS)

test: .venv/.installed-dev  ## the test suite without slow tests, in less than 5 minutes
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 -m "$(FAST)"

coverage: .venv/.installed-dev  ## covered lines of `make test`, and those of src that are not
	$(BIN)/coverage erase
	$(TEST_ENV) $(BIN)/coverage run -m pytest -n 2 -q -m "$(FAST)"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered

test-slow: .venv/.installed-dev  ## several seeds, the commands of the docs, killed processes, two ranks
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist loadscope -m slow

test-data: .venv/.installed-dev  ## tests on real datasets (WMR_DATA_DIR) and checkpoints (WMR_TEST_CHECKPOINTS)
	$(BIN)/python -m pytest -m data -rs

test-browser: .venv/.installed-browser  ## HTML reports in Chromium; WMR_CHROMIUM sets its path
	$(TEST_ENV) $(BIN)/python -m pytest -m browser -rs

test-gpu: .venv/.installed-dev  ## the tests of the accelerator of this machine, with a summary for an issue
	$(BIN)/python -m pytest -m gpu -rs

# in processes of their own: the device changes the global state of torch
test-emulated: .venv/.installed-dev  ## every component on an emulated accelerator, with budgets of its work
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 -m emulated tests/emulated

test-slurm: .venv/.installed-dev  ## runs and sweeps on a real Slurm of one node; installs it with apt-get as root
	if [ -z "$$(PATH=$$PATH:/usr/sbin; command -v slurmctld)" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  { apt-get update --quiet --quiet && apt-get install --quiet --quiet --yes --no-install-recommends slurm-wlm munge; } >/dev/null 2>&1 \
	    || echo "Slurm cannot be installed here: its tests are skipped"; \
	fi
	$(TEST_ENV) PATH="$$PATH:/usr/sbin" $(BIN)/python -m pytest -m slurm -rs tests/slurm

test-peers: .venv-peers/.installed  ## compare attacks and measures with other libraries
	$(TEST_ENV) $(PEERS)/python -m pytest -m peers -rP

test-trackers: .venv-trackers/.installed  ## logs of wandb, mlflow and trackio, read by these tools
	$(TEST_ENV) $(TRACKERS)/python -m pytest -m trackers -rs tests/trackers

test-plugins: .venv-plugins/.installed  ## the packages in plugins/, with the built wheel of wmr
	for package in plugins/*/; do \
	  if [ -f $$package/Makefile ]; then $(MAKE) -C $$package test || exit 1; continue; fi; \
	  (cd $$package && $(TEST_ENV) $(abspath $(PLUGINS))/python -m pytest -q -rs -p no:cacheprovider -c /dev/null --rootdir . tests) || exit 1; \
	done

test-release: .venv-release/.installed  ## wheel and sdist in an empty environment; only torch is constrained
	$(RELEASE)/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps dist/*.whl
	tests/smoke.sh $(abspath $(RELEASE))
	$(RELEASE)/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps dist/*.tar.gz
	tests/smoke.sh $(abspath $(RELEASE))

bench: .venv-peers/.installed  ## speed relative to other libraries; QUICK=1 takes two minutes
	$(PEERS)/python -m benchmarks $(if $(QUICK),--quick) $(BENCH)

lint: .venv/.installed-dev  ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	for package in plugins/*/; do \
	  MYPYPATH=src:$${package}src $(BIN)/mypy $${package}src $${package}tests || exit 1; \
	done
	$(BIN)/lint-imports

reproduction: .venv/.installed  ## rebuild docs/reproduction.md from studies/records
	$(BIN)/python docs/reproduce.py

docs: .venv/.installed-docs  ## generated pages, then the site in site/
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## remove everything that can be rebuilt; keep runs
	rm -rf .venv .venv-peers .venv-plugins .venv-release .venv-trackers site dist build plugins/*/.venv .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 4))' || { echo "wmr needs Python 3.11.4 or newer: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

# older versions of pip do not read dependency groups
.venv/.installed-pip: .venv/bin/python constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'pip>=25.1'
	touch $@

.venv/.installed-browser: .venv/.installed-dev
.venv/.installed-dev .venv/.installed-browser .venv/.installed-docs: .venv/.installed-%: .venv/.installed .venv/.installed-pip
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --group $*
	touch $@

# torch first: the peers require other versions, and the constraints keep this one.
# hypothesis: pytest imports every test module.
.venv-peers/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-peers
	$(PEERS)/pip install --quiet --disable-pip-version-check -c constraints.txt torch torchvision
	$(PEERS)/pip install --quiet --disable-pip-version-check -c constraints.txt torchattacks foolbox adversarial-robustness-toolbox pyautoattack cvxpy
	$(PEERS)/pip install --quiet --disable-pip-version-check -c constraints.txt -e . pytest hypothesis
	touch $@

# These packages beside those of .venv. Without them their tests are skipped with a message.
# trackio needs an older pillow than the constraints.
.venv-trackers/.installed: .venv/.installed-dev
	$(BIN)/python -m venv .venv-trackers
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
	  > "$$($(TRACKERS)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/dev.pth"
	grep -v '^pillow==' constraints.txt > .venv-trackers/constraints.txt
	if $(TRACKERS)/pip install --quiet --disable-pip-version-check -c .venv-trackers/constraints.txt wandb mlflow-skinny alembic sqlalchemy trackio; then touch $@; \
	else echo "wandb, mlflow and trackio cannot be installed here: their tests are skipped"; fi

dist/.built: .venv/.installed-dev README.md $(shell find src -type f -not -name '*.pyc')
	rm -rf dist
	$(BIN)/python -m hatchling build
	touch $@

.venv-release/.installed: dist/.built
	$(PYTHON) -m venv --clear .venv-release
	grep '^torch==' constraints.txt > .venv-release/constraints.txt
	$(RELEASE)/pip install --quiet --disable-pip-version-check -c .venv-release/constraints.txt dist/*.whl
	touch $@

# Install the wheels of this project and of each package in plugins/, as users do.
# A package whose dependencies conflict with the constraints lists them in no-deps.txt.
# A package with a Makefile has its own environment.
.venv-plugins/.installed: dist/.built $(shell find plugins -type f -not -path '*/tests/*' -not -path '*/.venv/*' -not -name '*.pyc')
	$(PYTHON) -m venv .venv-plugins
	$(PLUGINS)/pip install --quiet --disable-pip-version-check -c constraints.txt torch torchvision hatchling pytest
	$(PLUGINS)/pip install --quiet --disable-pip-version-check -c constraints.txt --force-reinstall --no-deps dist/*.whl
	$(PLUGINS)/pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	for package in plugins/*/; do \
	  [ ! -f $$package/Makefile ] || continue; \
	  set -- -c constraints.txt; [ ! -f $$package/no-deps.txt ] || set -- --no-deps -r $$package/no-deps.txt; \
	  $(PLUGINS)/pip install --quiet --disable-pip-version-check --no-build-isolation "$$@" ./$$package || exit 1; \
	done
	touch $@
