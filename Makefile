# The entry point of this repository: `make` lists the targets.
.DEFAULT_GOAL := help
SHELL := bash
# Not PYTHON: a user may set that one to name the interpreter that .venv is made with.
VENV_PYTHON := .venv/bin/python
PYTEST := $(VENV_PYTHON) -m pytest
# A fresh clone checks types again only where they changed.
export MYPY_CACHE_DIR ?= $(or $(LORARL_CACHE),$(HOME)/.cache/lorarl)/mypy
# Several processes share these tiers. The tests of a file stay together: some continue another.
# So do files that share a platform (tests/support/one_platform.py).
TIERS := unit storage apiserver trainer run
BY_FILE := --dist loadfile --no-loadscope-reorder
SHARED = $(if $(filter $(TIERS),$(T)),-n 2 $(BY_FILE))
# The node's tools need helpers of tests/support.
TOOLS := PYTHONPATH=tools:tests $(VENV_PYTHON) -m

##@ General

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "; print "Usage: make TARGET [NAME=value]"} \
	  /^##@ / {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Make .venv from the locked packages, unless it is up to date (GPU=1: for a GPU)
	@GPU=$(GPU) scripts/setup.sh

.PHONY: tools
tools: ## Build the tests' servers into ~/.cache/lorarl; as root, also the node's
	@scripts/tools.sh servers long $(if $(filter 0,$(shell id -u)),node)

.PHONY: hooks
hooks: setup ## Install the git hooks of .pre-commit-config.yaml
	.venv/bin/pre-commit install

##@ Development

.PHONY: check
check: setup ## Check format, lint, types and unit tests, in a minute
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	$(PYTEST) -q -n auto --maxprocesses 8 --dist worksteal -m "not long and not slow" tests/unit

.PHONY: lint
lint: setup ## Check format, lint, types, the imports between packages, and generated files
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache
	$(VENV_PYTHON) -m lorarl_api.generate --check
	$(VENV_PYTHON) -m lorarl_operator.pages --check
	$(VENV_PYTHON) scripts/version.py --check
	$(VENV_PYTHON) scripts/generate_chart.py --check
	$(VENV_PYTHON) scripts/pod_schema.py --check
	$(VENV_PYTHON) scripts/licences.py --check

.PHONY: format
format: setup ## Format the code and fix what ruff can fix
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

.PHONY: generate
generate: setup ## Write the CRD, the reference, tables of reasons, the chart's files, licences
	$(VENV_PYTHON) scripts/version.py
	$(VENV_PYTHON) -m lorarl_api.generate
	$(VENV_PYTHON) -m lorarl_operator.pages
	$(VENV_PYTHON) scripts/generate_chart.py
	$(VENV_PYTHON) scripts/pod_schema.py
	$(VENV_PYTHON) scripts/licences.py

.PHONY: lock
lock: ## Resolve the packages again into requirements/*.lock
	@scripts/lock.sh

.PHONY: dist
dist: ## Build the wheel into dist/, with locked tools: docs/releasing.md
	@scripts/dist.sh

##@ Tests

.PHONY: test
test: setup $(if $(T),,lint) ## Run all that CI checks (T=trainer: one tier; T=unit/docs: a part)
	@# Thousands of processes follow. With PYTHONDONTWRITEBYTECODE, each would compile it again.
	@$(VENV_PYTHON) -m compileall -q crds trainer_image operator tests/support
ifdef T
	$(if $(filter unit storage apiserver run,$(T)),@scripts/tools.sh $(T))
	$(PYTEST) $(strip $(SHARED) $(foreach part,$(T),$(or $(wildcard tests/$(part)),$(part))))
else
	$(PYTEST) tests/gpu
	$(PYTEST) -n 2 $(BY_FILE) tests/trainer
	@scripts/tools.sh servers
	$(PYTEST) -n 4 $(BY_FILE) tests/apiserver tests/storage tests/unit
	$(PYTEST) -n 2 $(BY_FILE) tests/run
	@if $(TOOLS) node check; then scripts/tools.sh node && $(PYTEST) tests/cluster/test_mission.py; \
	  else echo "skipped for these reasons: tests/cluster/test_mission.py"; fi
endif

.PHONY: test-long
test-long: setup tools ## Run what is slow: kills, chaos, full disks, skew, the second backend
	$(PYTEST) -m long $(addprefix tests/,trainer run apiserver storage chaos unit/distribution)

.PHONY: test-cluster
test-cluster: setup tools ## Run the tests in a real cluster: the node below, or KUBECONFIG=...
	LORARL_TEST_KUBECONFIG="$(KUBECONFIG)" $(PYTEST) -m "long or not long" tests/cluster

.PHONY: nightly
nightly: setup tools ## Run every tier, also after a failure, and print one table (hours; as root)
	$(VENV_PYTHON) scripts/nightly.py

##@ A Kubernetes node on this machine (docs/cluster.md)

.PHONY: cluster
cluster: setup tools ## Start a one-node Kubernetes, as root
	@$(TOOLS) node up

.PHONY: cluster-down
cluster-down: ## Remove every trace of that node (ALL=1: also its images and build cache)
	@$(TOOLS) node down $(if $(ALL),--all)

.PHONY: images
images: setup tools ## Build the images into that node's store, as root (elsewhere: docs/images.md)
	@$(TOOLS) node.builds

.PHONY: gpu-node
gpu-node: setup tools ## Pack a node for an offline GPU machine, as root: docs/gpu-cluster.md
	@scripts/tools.sh gpu
	@$(TOOLS) gpu_node pack

##@ Demos and benchmarks

DEMO_OPTIONS = $(if $(SEED),--seed $(SEED)) $(if $(BACKEND),--backend $(BACKEND))

.PHONY: demo
demo: setup ## Teach a real language model sums on the CPU, measured by other code
	$(VENV_PYTHON) scripts/demo.py $(DEMO_OPTIONS)

.PHONY: demo-toy
demo-toy: setup ## The same with a tiny model that is made on the spot, in exact bytes
	$(VENV_PYTHON) scripts/demo.py --toy $(DEMO_OPTIONS)

.PHONY: demo-gpu
demo-gpu: setup ## The same on a GPU; writes the learning curve into docs/images/
	$(VENV_PYTHON) scripts/demo_gpu.py --picture docs/images/arithmetic-gpu.svg

.PHONY: bench-operator
bench-operator: setup tools ## Measure the operator against its targets, into benchmarks/results/
	$(VENV_PYTHON) benchmarks/bench_operator.py

.PHONY: bench-gpu
bench-gpu: setup ## Compare lorarl with TRL on this machine's GPU, into docs/performance.md
ifdef WORK
	$(VENV_PYTHON) benchmarks/bench_gpu.py --gpus $(or $(GPUS),1) --work $(WORK) \
	  --out benchmarks/results/gpu-$$(date +%F)-$(WORK).json
else
	$(VENV_PYTHON) benchmarks/bench_gpu.py --gpus $(or $(GPUS),1)
	$(VENV_PYTHON) benchmarks/bench_gpu.py --render benchmarks/results/gpu-$$(date +%F).json
endif

.PHONY: bench-scaling
bench-scaling: setup ## Measure steps on 1, 2, 4 and 8 GPUs of this machine; continues after a break
	$(VENV_PYTHON) benchmarks/bench_scaling.py

.PHONY: bench-recipes
bench-recipes: setup ## Teach small tasks, beside TRL, into docs/recipes.md
	$(VENV_PYTHON) benchmarks/bench_recipes.py --gpus $(or $(GPUS),1)
	$(VENV_PYTHON) benchmarks/bench_recipes.py --render

.PHONY: recipes
recipes: setup ## Teach the toy model with every algorithm, into docs/algorithms.md
	$(VENV_PYTHON) benchmarks/bench_algorithms.py
	$(VENV_PYTHON) benchmarks/bench_off_policy.py
	$(VENV_PYTHON) benchmarks/bench_dpo.py
	$(VENV_PYTHON) benchmarks/bench_curriculum.py

.PHONY: bench-gpu-cluster
bench-gpu-cluster: setup ## Measure the cost of Kubernetes: JOB=job.yaml, KUBECONFIG=...
	$(VENV_PYTHON) benchmarks/bench_gpu_cluster.py --job $(JOB)
	$(VENV_PYTHON) benchmarks/bench_gpu_cluster.py \
	  --render benchmarks/results/gpu-cluster-$$(date +%F).json
