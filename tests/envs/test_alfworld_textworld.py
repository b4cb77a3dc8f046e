"""The native executor against TextWorld itself, step by step."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.data
@pytest.mark.soak
def test_at_least_999_of_1000_steps_are_textworlds(data_folder):
    """Installs TextWorld, which builds a planner, and plays some 75 games: a quarter of an hour on two cores."""
    installed = subprocess.run([ROOT / "tools" / "install_textworld.sh"], capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    command = [ROOT / ".venv-textworld" / "bin" / "python", "-m", "tools.textworld_parity"]
    command += ["--data", data_folder, "--games", "76"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    print(done.stdout)
