# Everything a newcomer needs: `make demo` and `make test` each do all the set-up themselves, on a
# machine that has only make and Python 3.11 or newer (PYTHON=python3.12 make test picks another).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := runs/demo

# The environment is rebuilt when any of these changes: the lock, the project file, the Python, or
# the directory (an editable installation and the scripts in .venv/bin hold its path).
KEY := $(shell { cat requirements/dev.lock pyproject.toml; $(PYTHON) -VV; pwd; } 2>&1 | cksum | tr ' ' -)
INSTALLED := $(VENV)/installed-$(KEY)
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help install test quick lint types demo docs package mutate bench lock clean

help:
	@echo "make demo     train a private agent on CartPole, print its certificate, write a report"
	@echo "make test     run lint, types and all tests"
	@echo "make quick    run the tests except the long ones of tests/slow.txt (five minutes on two cores)"
	@echo "make lint     check lint and format (ruff)"
	@echo "make types    check types (mypy, strict)"
	@echo "make docs     build the documentation site into site/, without network"
	@echo "make package  build wheel and sdist, and try them in bare environments (network)"
	@echo "make mutate   plant small mistakes in the core of the vault: does a test notice each?"
	@echo "make bench    compare with other libraries: docs/benchmarks.md (installs PyTorch, which is large)"
	@echo "make install  install everything into $(VENV)"
	@echo "make lock     update the versions in requirements/*.lock (needs uv)"
	@echo "make clean    remove the environment, caches and the demo"

install: $(INSTALLED)

$(INSTALLED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "sotto needs Python 3.11 or newer: name one, as in PYTHON=python3.12 make $(MAKECMDGOALS)" >&2; \
	  exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --quiet --require-hashes --requirement requirements/dev.lock
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# One worker per core, and not more than 8: each holds its own compiled programs.
PYTEST := $(BIN)/pytest --numprocesses logical --maxprocesses 8 --dist worksteal

test: lint types
	$(PYTEST)

quick: $(INSTALLED)
	$(PYTEST) -m "not slow"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

demo: $(INSTALLED)
	rm -rf $(DEMO)
	$(BIN)/sotto train dppg --env-id CartPole-v1 --target-epsilon 1.3 --delta 1e-5 --seed 0 --out $(DEMO)
	$(BIN)/sotto certificate $(DEMO)
	$(BIN)/sotto certificate $(DEMO) --verify
	$(BIN)/sotto report $(DEMO)
	@echo "The report: $(CURDIR)/$(DEMO)/report.html"

# The site loads nothing from other hosts, and a dead link is an error.
docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

package: $(INSTALLED)
	$(BIN)/python tools/package.py

# `make mutate ARGUMENTS="--sample 100"` takes a part of it.
mutate: $(INSTALLED)
	$(BIN)/python tests/mutation $(ARGUMENTS)

# The peers are installed beside the rest and stay until the environment is rebuilt. The other files
# in benchmarks/ say themselves how they are run.
bench: $(INSTALLED)
	$(PIP) install --quiet --require-hashes --requirement requirements/benchmarks.lock
	$(BIN)/python benchmarks/peers.py $(ARGUMENTS)

# The universal resolution holds for every platform and for Python 3.11 and newer.
COMPILE := UV_CUSTOM_COMPILE_COMMAND="make lock" uv pip compile --quiet --universal \
	--python-version 3.11 --fork-strategy fewest --generate-hashes --no-annotate pyproject.toml

lock:
	@command -v uv >/dev/null || { echo "make lock needs uv: pip install uv" >&2; exit 1; }
	$(COMPILE) --upgrade --extra dev --output-file requirements/dev.lock
	$(COMPILE) --upgrade --extra benchmarks --constraint requirements/dev.lock \
	  --output-file requirements/benchmarks.lock

clean:
	rm -rf $(VENV) $(DEMO) site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .jax_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
