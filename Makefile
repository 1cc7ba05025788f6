# fieldwatch, from a fresh clone: `make demo`. What else there is: `make help`.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

EXTRAS ?= dev
WORKERS ?= 2
N ?= 200
SOAK ?= 600
# The tests are the same on every machine: those that need a GPU are run by `make test-gpu`.
HIDDEN := CUDA_VISIBLE_DEVICES=
STAMP := .venv/.installed-$(EXTRAS)

# One thread per process: the tests run $(WORKERS) processes, and results must not depend on the number of cores.
test quick slow: export OMP_NUM_THREADS := 1
test quick slow: export MKL_NUM_THREADS := 1
# Compiled modules are kept, whatever the environment says: the tests start a hundred processes that read them again.
test quick slow: export PYTHONDONTWRITEBYTECODE :=
# Many tests wait: for a browser, for Ray, for processes that are to be noticed dead. A third process works meanwhile.
test slow: WORKERS = 3

.PHONY: help env demo test test-gpu quick slow check format bench identical soak torture mutants wheel docs pin clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(STAMP) ## make .venv with every pinned package (EXTRAS=dev,wandb,mlflow,clip for more; PYTHON=... for another Python)
	@:

$(STAMP): pyproject.toml constraints.txt scripts/env.sh
	@scripts/env.sh $(EXTRAS)
	@touch $@

demo: env ## train a neural video on the built-in clip, to see what a run leaves behind
	@.venv/bin/fieldwatch train video --preset demo

test: env ## run the tests, those of marker machine alone at the end (WORKERS=4 for more processes; ARGS='-k journal' to choose)
	@$(HIDDEN) .venv/bin/python -m pytest -n $(WORKERS) --dist worksteal -m "not machine" $(ARGS)
	@$(HIDDEN) .venv/bin/python -m pytest -q -m machine $(ARGS) $$(grep -rl 'mark\.machine' tests --include='test_*.py') || [ $$? -eq 5 ]

test-gpu: env ## run the tests of the pretended GPU, and short trainings, on this machine's GPU; writes gpu-report.json
	@.venv/bin/python benchmarks/gpu_report.py --out gpu-report.json

quick: env ## what to run before a commit, in 90 seconds on two cores: lint, imports, changed types, tests that are not slow
	@scripts/quick.sh $(WORKERS) $(ARGS)

slow: env ## run all tests, and rewrite the list of those that `make quick` leaves out (tests/slow.txt)
	@.venv/bin/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not machine" --junitxml=.pytest_cache/durations.xml
	@.venv/bin/python scripts/slow.py .pytest_cache/durations.xml

check: env ## lint, formatting, types, import contracts
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/pyright
	@.venv/bin/lint-imports --no-logo
	@.venv/bin/python docs/generate.py --check

format: env ## let ruff rewrite what it can
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

bench: env ## run the benchmarks and rewrite docs/benchmarks.md
	@.venv/bin/python benchmarks/all.py

identical: env ## train eight tiny runs, and compare what they leave with benchmarks/identical_runs.json, bit for bit
	@.venv/bin/python benchmarks/identical_runs.py --check benchmarks/identical_runs.json

soak: env ## 30,000 steps of a tiny normals scene with faults planted, beside an undisturbed twin (nightly)
	@.venv/bin/python benchmarks/soak_normals.py

torture: env ## try to break every promise about a run, and rewrite the table of docs/reliability.md (N=1000 for more kills)
	@.venv/bin/python benchmarks/torture --count $(N) --soak-seconds $(SOAK)

mutants: env ## plant breaks in copies of the source, one by one: the rows of the torture must notice (WORDS=hash,lock for some)
	@.venv/bin/python benchmarks/torture --mutants $(WORDS)

wheel: env ## build dist/*.whl with native kernels for Linux and macOS, for users without a C compiler (EXTRAS=dev,wheel)
	@.venv/bin/python scripts/prebuild.py
	@.venv/bin/pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

docs: env ## rewrite the generated pages, and build the site of docs/ into site/
	@.venv/bin/python docs/generate.py
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict
	@echo "site/index.html"

pin: env ## rewrite constraints.txt (UPGRADE=1 for the newest of everything)
	@scripts/pin.sh

clean: ## remove .venv and all caches; runs/ stays
	@rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist site
