"""What plays episodes starts without jax: workers and controllers run where there is none."""

import subprocess
import sys

IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", []), name + "."):
        importlib.import_module(module.name)
    print(name, *sorted({module.partition(".")[0] for module in sys.modules} & {"jax", "jaxlib", "flax", "optax"}))
"""


def numeric_modules(*names: str) -> list[str]:
    """After each name, what it and those before it have brought in."""
    command = [sys.executable, "-c", IMPORT_ALL, *names]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_no_module_reaches_jax() -> None:
    names = ["agentrl_jax.types", "agentrl_jax.batch", "agentrl_jax.controller", "agentrl_jax.rendering", "envs"]
    names.append("launch.worker")
    assert numeric_modules(*names) == names


def test_the_check_would_see_it() -> None:
    assert numeric_modules("agentrl_jax.algo.kl") == ["agentrl_jax.algo.kl jax jaxlib"]
