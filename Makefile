# make demo      set up, fetch the embedded model, run the main job on it
# make test      set up, run the tests that need no download
# make test-all  set up, fetch the embedded model, run every test
# make lint      ruff and mypy
#
# PYTHON=python3.12                                        the Python to build the environment with (3.11 or newer)
# TORCH_INDEX=https://download.pytorch.org/whl/cpu         where to take torch from (a CPU build, or a CUDA version)
# DEMO="--quick"                                           options of `relbench demo`

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo model test test-all lint clean

NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	"$$name" $(NEW_ENOUGH) 2>/dev/null && { echo "$$name"; break; }; done)
TORCH_INDEX ?=
DEMO ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check

help:
	@sed -n '/^$$/q;s/^# \{0,1\}//p' Makefile

# Built anew only when what is installed changes, so that a second call reuses it.
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@[ -n "$(PYTHON)" ] && "$(PYTHON)" $(NEW_ENOUGH) 2>/dev/null || { \
		echo "error: no Python 3.11 or newer found$(if $(PYTHON), as $(PYTHON)); give one with PYTHON=/path/to/python3" >&2; exit 2; }
	@[ ! -x $(BIN)/python ] || $(BIN)/python $(NEW_ENOUGH) 2>/dev/null || rm -rf $(VENV)
	@[ -x $(BIN)/python ] || "$(PYTHON)" -m venv $(VENV)
	$(if $(TORCH_INDEX),$(PIP) install --quiet --constraint constraints.txt --index-url "$(TORCH_INDEX)" --no-deps torch)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev,plots,derive]'
	@touch $(STAMP)

model: $(STAMP)
	@$(BIN)/relbench models pull smollm2-135m

demo: $(STAMP) model
	$(BIN)/relbench demo $(DEMO)

test: $(STAMP)
	$(BIN)/python -m pytest

test-all: $(STAMP) model
	$(BIN)/python -m pytest --all

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
