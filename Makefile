# One command on a bare machine suffices: every target creates and reuses .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements/dev.txt
STAMP := $(VENV)/.installed
# Process-level parallelism suits these tests best: one XLA thread pool per worker would fight over the cores.
PYTEST := JAX_PLATFORMS=cpu $(BIN)/python -m pytest
WORKERS ?= 2
SERVICE_WORKERS ?= 3
SERVED := sglang or mariadb or docker or bubblewrap or chromium
FAST := not slow and not soak and not torch and not agentrl and not bfcl and not ($(SERVED))

.PHONY: install check test test-services soak quickstart gpu-check clean

install: $(STAMP)

$(STAMP): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "agentrl_jax needs Python >= 3.11, but $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot create virtual environments; on Debian and Ubuntu: apt-get install python3-venv"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(LOCK)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

# Format, lint, layers, types: everything but the tests.
check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

test: check
	$(PYTEST) -n $(WORKERS) -m "$(FAST)"

# What needs more than the base installation or more than seconds: torch, the stock AgentRL packages, real training runs.
TORCH := .venv-services/.installed

$(TORCH): requirements/services.txt $(STAMP)
	test -x .venv-services/bin/python || $(PYTHON) -m venv .venv-services
	.venv-services/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	.venv-services/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/services.txt -r $(LOCK)
	.venv-services/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

# What else the tests talk to. Those of SYSTEM come from Debian's packages, as root: SYSTEM= leaves them out, and their
# tests then skip where they miss something.
SYSTEM ?= bubblewrap mariadb docker chromium
FETCHED := $(addprefix fetch-,pretrained bfcl agentrl kubernetes sglang)
.PHONY: $(FETCHED) fetch-system install-services

$(FETCHED): fetch-%: $(STAMP)
	tools/install_$*.sh

# One after the other: the package manager has one lock.
fetch-system:
	set -e; for name in $(SYSTEM); do tools/install_$$name.sh; done

install-services: $(TORCH) $(FETCHED) fetch-system

# Tests of one service share a worker, which starts its servers once; most of them wait more than they compute.
SERVICE_PYTEST := AGENTRL_SERVERS=$(if $(SYSTEM),1) $(PYTEST) -n $(SERVICE_WORKERS) --dist loadgroup
# Fast, and in `make test` already where there is bubblewrap.
SANDBOXED := tests/envs/test_sandbox_contract.py tests/envs/test_sandbox_deaths.py $(wildcard tests/envs/test_os_*.py) tests/faults/test_env_os.py

test-services: $(STAMP)
	$(MAKE) -j 8 install-services
	JAX_PLATFORMS=cpu .venv-services/bin/python -m pytest -m "torch"
	JAX_PLATFORMS=cpu .venv-services/bin/python -m pytest tests/report/test_sinks.py
	$(if $(SYSTEM),$(SERVICE_PYTEST) -m "$(FAST)" $(SANDBOXED))
	$(SERVICE_PYTEST) -m "(slow or agentrl or bfcl or $(SERVED)) and not soak and not torch"
	tools/second_interpreter.sh

# The claims of the README, in full. Takes a quarter of an hour.
soak: $(STAMP)
	$(PYTEST) -m soak -s

# A small agent learns to use tools in five environments, from nothing, on a laptop. Arguments: make quickstart ARGS=…
quickstart: $(STAMP)
	$(BIN)/python -m launch.train --recipe=quickstart $(ARGS)

# Kernels, a learner step, memory, decode rate and a publish on this machine's devices; says what it skips and why.
gpu-check: $(STAMP)
	$(BIN)/python -m launch.gpu_check $(ARGS)

clean:
	rm -rf $(VENV) .venv-services .venv-newest .venv-sglang .venv-agentrl .venv-bfcl .venv-kubernetes .venv-textworld .mypy_cache .ruff_cache .import_linter_cache .hypothesis
