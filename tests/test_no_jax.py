"""What plays episodes starts without jax: workers and controllers run where there is none."""

import subprocess
import sys

import pytest

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(getattr(package, "__path__", []), package.__name__ + "."):
    importlib.import_module(module.name)
print(sorted({name.partition(".")[0] for name in sys.modules} & {"jax", "jaxlib", "flax", "optax", "orbax"}))
"""


def numeric_modules(name: str) -> str:
    command = [sys.executable, "-c", IMPORT_ALL, name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    "name", ["agentrl_jax.types", "agentrl_jax.controller", "agentrl_jax.rendering", "envs", "agentrl_jax.batch"]
)
def test_no_module_reaches_jax(name: str) -> None:
    assert numeric_modules(name) == "[]"


def test_the_check_would_see_it() -> None:
    assert "jax" in numeric_modules("agentrl_jax.algo.losses")
