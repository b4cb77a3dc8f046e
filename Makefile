# One command on a bare machine suffices: every target creates and reuses .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements/dev.txt
STAMP := $(VENV)/.installed
# Process-level parallelism suits these tests best: one XLA thread pool per worker would fight over the cores.
PYTEST := JAX_PLATFORMS=cpu $(BIN)/python -m pytest
WORKERS ?= 2
SERVED := sglang or mariadb or docker or bubblewrap or chromium
FAST := not slow and not soak and not torch and not agentrl and not bfcl and not ($(SERVED))

.PHONY: install install-servers check test test-services test-servers soak quickstart gpu-check clean

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

# Tests of one service share a worker, which starts its servers once; most of them wait more than they compute.
GROUPED := $(PYTEST) -n $(WORKERS) --dist loadgroup

test-services: $(STAMP) $(TORCH)
	set -e; for service in pretrained bfcl agentrl; do tools/install_$$service.sh; done
	JAX_PLATFORMS=cpu .venv-services/bin/python -m pytest -m "torch"
	JAX_PLATFORMS=cpu .venv-services/bin/python -m pytest tests/report/test_sinks.py
	$(GROUPED) -m "(slow or agentrl or bfcl) and not soak and not torch and not ($(SERVED))"
	tools/second_interpreter.sh

# Real servers, databases, sandboxes and browsers. The system's package manager installs some of them, as root.
SANDBOXED := tests/envs/test_sandbox_contract.py tests/envs/test_sandbox_deaths.py $(wildcard tests/envs/test_os_*.py) tests/faults/test_env_os.py

install-servers: $(STAMP)
	set -e; for service in bubblewrap mariadb docker chromium bfcl agentrl sglang; do tools/install_$$service.sh; done

test-servers: install-servers
	AGENTRL_SERVERS=1 $(PYTEST) -n $(WORKERS) -m "$(FAST)" $(SANDBOXED)
	AGENTRL_SERVERS=1 $(GROUPED) -m "(agentrl or $(SERVED)) and not soak"

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
	rm -rf $(VENV) .venv-services .venv-newest .venv-sglang .venv-agentrl .venv-bfcl .venv-textworld .mypy_cache .ruff_cache .import_linter_cache .hypothesis
