# make demo   install into .venv, freeze and thaw the sample sessions
# make quick  in a minute: ruff and fast tests of what changed since main, the nearest first
# make test   the same .venv with the test tools: ruff, mypy --strict, every test
# make weekly the same, and tests that run only where their files changed: emulated kernels, sanitizers, wheels
# make planted  each planted bug, one by one: whether its tests catch it
# make wheels dist/: the wheel of pltz, and pltz-base, the bundle base as a distribution of its own
# make sbom   dist/pltz.cdx.json: versions and licences of everything that pltz ships and needs
# make docs   site/: the documentation
#
# PYTHON=python3.12 picks the interpreter (3.11 or newer), JOBS=8 the test processes.

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
BASE := distributions/base
# Python compiles a module when it is first imported, and must keep what it compiled: the tests start many processes.
# Most modules that are installed never are imported.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# uv takes a third of pip's time. It reads none of pip's settings: it is told those of the environment. Where a file of
# pip's settings names an index, and where uv does not find all or is not there, pip installs.
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt --index-strategy unsafe-best-match \
	$(addprefix --find-links ,$(PIP_FIND_LINKS)) $(addprefix --default-index ,$(PIP_INDEX_URL)) \
	$(addprefix --index ,$(PIP_EXTRA_INDEX_URL))
OWN_INDEX := $(BIN)/python -m pip config list | grep -q '^[a-z]*\.index-url='
INSTALL := install() { ! { $(OWN_INDEX); } && $(UV) "$$@" || $(PIP) "$$@"; }; install

.PHONY: help demo quick test weekly planted lint types pytest wheels base sbom docs clean

help:
	@sed -n '1,10s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.runtime
	$(BIN)/pltz demo

quick: $(VENV)/.tests
	$(BIN)/python -m tests.quick $(JOBS)

# Types beside the tests: cheap ones of every room come first, and end the run where one is red (tests/cheap.py). The
# last line is pytest's summary.
test: $(VENV)/.tests
	$(BIN)/ruff check .
	@$(MAKE) --no-print-directory -j2 types pytest

# Each file of tests runs in one process, which makes its fixtures once.
pytest: $(VENV)/.tests
	$(BIN)/python -m pytest -p tests.cheap -m "slow or not slow" -n $(JOBS) --dist loadfile --no-loadscope-reorder

# PLTZ_ALL: tests/seldom.py.
weekly:
	PLTZ_ALL=1 $(MAKE) test

# What was caught before is caught after (tests/planted/README.md).
planted: $(VENV)/.tests
	$(BIN)/python -m tests.planted

types: $(VENV)/.tests
	$(BIN)/mypy

lint: types
	$(BIN)/ruff check .

wheels: base
	rm -rf build
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	rm -rf build

# A build folder that was left would put files into the wheel that are no longer there.
base: $(VENV)/.runtime
	rm -rf $(BASE)/build
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist ./$(BASE)
	rm -rf $(BASE)/build $(BASE)/*.egg-info

sbom: $(VENV)/.runtime
	$(INSTALL) -e '.[release]'
	$(BIN)/python distributions/sbom.py dist/pltz.cdx.json

docs: $(VENV)/.runtime
	$(INSTALL) -e '.[docs]'
	$(BIN)/python -m mkdocs build --quiet

clean:
	rm -rf $(VENV) build dist site *.egg-info plt_codec/engines/native/_native*.so coding/log/compiled_* kv/engines/_ans*.so kv/pool/_attend*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Each stamp is as new as the last install it stands for: an unchanged checkout installs nothing again.
INSTALLED_FROM := pyproject.toml constraints.txt $(wildcard setup.py coding/log/*.py plt_codec/engines/native/*.[ch] plt_codec/*.c archive/format/*.[ch] coding/*.c serving/eviction/*.c kv/*/*.[ch])

$(VENV)/.runtime: $(INSTALLED_FROM) | $(BIN)/python
	$(INSTALL) -e '.[all]'
	touch $@

$(VENV)/.tests: $(INSTALLED_FROM) | $(BIN)/python
	$(INSTALL) -e '.[bench,test]'
	touch $(VENV)/.runtime $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "pltz needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): torch alone has some hundred megabytes; this happens once"
	-$(PIP) --upgrade pip uv  # the pip of Python 3.11 takes three times as long to find the versions
