# Set up, run, test. `make setup` builds the locked environment in .venv; everything else needs it.
PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
# A user's own Python or pip settings must not leak into the locked environment.
unexport PYTHONPATH PYTHONHOME

.PHONY: setup demo test lint lock clean

setup: .venv/.ready

.venv/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "coldbench needs Python 3.11 or newer; set PYTHON=/path/to/python3" >&2; exit 1; }
	@command -v $${CC:-cc} >/dev/null && command -v $${CXX:-c++} >/dev/null || \
	  { echo "coldbench needs a C and a C++ compiler; install the package build-essential" >&2; exit 1; }
	@command -v git >/dev/null || { echo "coldbench needs git; install the package git" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "coldbench needs Python's venv; install the package python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: setup
	snakemake --cores all

test: setup
	python -m pytest

lint: setup
	ruff check . && ruff format --check .
	mypy
	lint-imports
	snakefmt --check Snakefile workflow

# After an edit of pyproject.toml's dependencies.
lock: setup
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --extra dev \
	  --custom-compile-command "make lock" pyproject.toml --output-file requirements.lock

clean:
	rm -rf .venv .snakemake results
