"""The stock AgentRL packages, in processes of their own."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def stock_python() -> Path:
    """The interpreter that has them, or a skip. In CI their absence is a failure."""
    done = subprocess.run([ROOT / "tools" / "install_agentrl.sh"], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ROOT / ".venv-agentrl" / "bin" / "python"
    if os.environ.get("CI"):
        pytest.fail(f"tools/install_agentrl.sh: {done.stderr}")
    pytest.skip(f"no stock AgentRL packages: {done.stderr[-300:]}")
