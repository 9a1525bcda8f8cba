# The front door. `make` lists what there is.
.DEFAULT_GOAL := help
SHELL := bash
# Not PYTHON: that is the one to make .venv with, which a user may name.
VENV_PYTHON := .venv/bin/python

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Make .venv from the locked packages (GPU=1: those for a GPU); nothing to do when up to date
	@GPU=$(GPU) scripts/setup.sh

.PHONY: lint
lint: setup ## Formatting, lint, strict types, the arrows between packages, drift of generated files
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache
	$(VENV_PYTHON) -m lorarl_api.generate --check
	$(VENV_PYTHON) scripts/generate_chart.py --check

.PHONY: format
format: setup ## Format and mend what can be mended
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

.PHONY: lock
lock: ## Resolve the packages anew: requirements/{cpu,gpu,operator,trainer-cpu,build}.lock
	@scripts/lock.sh

.PHONY: generate
generate: setup ## Write the CRD and docs/reference.md from the models, and what the chart takes from elsewhere
	$(VENV_PYTHON) -m lorarl_api.generate
	$(VENV_PYTHON) scripts/generate_chart.py

.PHONY: demo
demo: setup ## The main job: make a tiny base model, train it with GRPO, measure the adapter independently
	$(VENV_PYTHON) scripts/demo.py

.PHONY: demo-gpu
demo-gpu: setup ## The same on a GPU: a small model made in a minute learns to carry and to borrow, and its curve goes into docs/images/
	$(VENV_PYTHON) scripts/demo_gpu.py --picture docs/images/arithmetic-gpu.svg

.PHONY: tools
tools: ## Build the tests' servers (Kubernetes, KubeRay, Kueue, kwok, helm, an S3 server; as root a node's too) into ~/.cache/lorarl
	@scripts/tools.sh servers $(if $(filter 0,$(shell id -u)),node)

.PHONY: cluster
cluster: setup tools ## Bring up a one-node Kubernetes on this machine, as root: docs/cluster.md
	@PYTHONPATH=tools:tests $(VENV_PYTHON) -m node up

.PHONY: cluster-down
cluster-down: ## Remove every trace of that node (ALL=1: its images and build cache, too)
	@PYTHONPATH=tools:tests $(VENV_PYTHON) -m node down $(if $(ALL),--all)

.PHONY: gpu-node
gpu-node: setup tools ## Pack a whole node, as root, into parts that travel to a GPU machine without a network: docs/gpu-cluster.md
	@scripts/tools.sh gpu
	@PYTHONPATH=tools:tests $(VENV_PYTHON) -m gpu_node pack

.PHONY: images
images: setup tools ## Build the images into that node's store, as root (elsewhere: docs/images.md)
	@PYTHONPATH=tools:tests $(VENV_PYTHON) -m node.builds

.PHONY: test-cluster
test-cluster: setup tools ## Tests in a real cluster: that node, or the cluster of KUBECONFIG=...
	LORARL_TEST_KUBECONFIG="$(KUBECONFIG)" $(VENV_PYTHON) -m pytest -m "long or not long" tests/cluster

.PHONY: test
test: setup lint ## All that CI checks, with the real parts
	@scripts/tools.sh servers
	$(VENV_PYTHON) -m pytest tests/unit tests/storage tests/apiserver tests/gpu
	$(VENV_PYTHON) -m pytest tests/trainer
	$(VENV_PYTHON) -m pytest tests/run
	@! PYTHONPATH=tools:tests $(VENV_PYTHON) -m node check || scripts/tools.sh node
	$(VENV_PYTHON) -m pytest tests/cluster/test_mission.py

.PHONY: test-long
test-long: setup tools ## The kill, chaos and full-disk suites
	$(VENV_PYTHON) -m pytest -m long tests/run tests/chaos

.PHONY: bench-operator
bench-operator: setup tools ## The operator's figures against their targets, into benchmarks/results/
	$(VENV_PYTHON) benchmarks/bench_operator.py

.PHONY: bench-gpu
bench-gpu: setup ## lorarl and TRL side by side on this machine's GPU: raw figures into benchmarks/results/, table and plot into docs/performance.md
	$(VENV_PYTHON) benchmarks/bench_gpu.py --gpus $(or $(GPUS),1)
	$(VENV_PYTHON) benchmarks/bench_gpu.py --render benchmarks/results/gpu-$$(date +%F).json

.PHONY: bench-gpu-cluster
bench-gpu-cluster: setup ## What Kubernetes costs a step, and where a start's seconds go: JOB=job.yaml runs on the node of KUBECONFIG=...
	$(VENV_PYTHON) benchmarks/bench_gpu_cluster.py --job $(JOB)
	$(VENV_PYTHON) benchmarks/bench_gpu_cluster.py --render benchmarks/results/gpu-cluster-$$(date +%F).json
