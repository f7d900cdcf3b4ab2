# Every target does its own set-up: on a fresh machine with Python 3.11, make and a C++ compiler, `make search` is enough.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Exact files: beside NVIDIA's GPUs those on which GPU figures were measured, beside V100s torch for CUDA 12.6.
# Others, in a fresh .venv: make setup LOCK=requirements-v100.lock; without Linux on x86-64: LOCK=constraints.txt
HOST_GPUS := $(shell nvidia-smi -L 2>/dev/null)
LOCK ?= requirements$(if $(findstring V100,$(HOST_GPUS)),-v100,$(if $(filter GPU,$(HOST_GPUS)),-cuda)).lock

# What to search and with which options: make search SPACE=gpt2 OPTIONS='--max-trials 4'
SPACE ?= bloom7b
OPTIONS ?=
# Whose results MLflow shows, and where: make mlflow STUDIES=/data/studies PORT=5001
STUDIES ?= studies
PORT ?= 5000
# What to test: make test TESTS=tests/search_spaces
TESTS ?=
# Tests run in two processes: one of them runs all that start Ray (see conftest.py).
PYTEST = $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
GPU_VERSIONS := .venv-gpu-versions
QUICK := not (contract or heavy or mirror or ray or search or slow)

.PHONY: help setup search mlflow test test-quick test-faults test-gpu-versions check format docs package clean

help: ## what there is
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(STAMP) ## the environment in .venv, exact files by the hashes of requirements.lock or, with GPUs, requirements-cuda.lock or requirements-v100.lock

$(STAMP): $(LOCK) pyproject.toml scripts/install.sh scripts/install_pth.py
	@echo "Setting up $(VENV); the first time this takes some minutes."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	scripts/install.sh $(BIN)/python $(LOCK) train dev fp8 server
	$(BIN)/python scripts/install_pth.py
	touch $@

search: $(STAMP) ## measure which layout trains bloom7b fastest here
	$(BIN)/python -m platform.search $(SPACE) $(OPTIONS)

mlflow: $(STAMP) ## MLflow's pages of what was measured, at http://127.0.0.1:5000
	$(BIN)/python -m platform.tracking.serve --studies '$(STUDIES)' --port $(PORT)

test: $(STAMP) ## all tests but the heaviest
	$(PYTEST) $(TESTS)

test-quick: $(STAMP) ## what needs no Ray, no training processes, no MLflow and no compiler: below two minutes on two cores
	$(PYTEST) -m '$(QUICK)' $(TESTS)

test-faults: $(STAMP) ## what goes wrong, each for real: the heaviest tests too
	$(BIN)/python -m pytest -m '' tests/faults

test-gpu-versions: ## tests/contract on the torch and transformers of the GPU figures, without GPUs
	test -x $(GPU_VERSIONS)/bin/python || $(PYTHON) -m venv $(GPU_VERSIONS)
	grep -vE '^(setuptools|nvidia-|cuda-|triton==)' constraints-cuda.txt > $(GPU_VERSIONS)/constraints.txt
	$(GPU_VERSIONS)/bin/python -m pip --disable-pip-version-check install --quiet -c $(GPU_VERSIONS)/constraints.txt \
		$$(sed -nE 's/^(torch==[0-9.]+).*/\1/p' constraints-cuda.txt) -e '.[train,dev,fp8]'
	$(GPU_VERSIONS)/bin/python scripts/install_pth.py
	$(GPU_VERSIONS)/bin/python -m pytest -n 2 --dist loadfile -m 'not heavy' tests/contract

check: $(STAMP) ## lint, imports, format, types, spelling
	$(BIN)/ruff check
	$(BIN)/python -m scripts.lint_imports
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/codespell $$(git ls-files)

format: $(STAMP) ## mend format and what lint can mend
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(STAMP) ## write the pages of docs/reference from parsers, declarations and committed files
	$(BIN)/python -m scripts.reference

package: $(STAMP) ## the wheel of layout-search, in dist/
	$(BIN)/python -m scripts.package

clean: ## remove the environment and caches; studies stay
	rm -rf $(VENV) .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
