"""The wheel holds what a user needs, no more, and works from any folder."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.launch.tiny_run import tiny

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_ships_the_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"agentrl_jax", "envs", "launch"}
    assert "agentrl_jax/py.typed" in names
    assert not [name for name in names if "__pycache__" in name]
    missing = [
        str(path.relative_to(REPOSITORY))
        for package in ("agentrl_jax", "envs", "launch")
        for path in (REPOSITORY / package).rglob("*.py")
        if str(path.relative_to(REPOSITORY)) not in names
    ]
    assert missing == []


@pytest.mark.slow
def test_an_installed_wheel_trains_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    elsewhere = tmp_path / "somewhere else"
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site), "JAX_PLATFORMS": "cpu"}
    where = [sys.executable, "-c", "import launch.train, envs, agentrl_jax; print(agentrl_jax.__file__)"]
    run = subprocess.run(where, cwd=elsewhere, env=environment, check=True, capture_output=True, text=True, timeout=60)
    assert run.stdout.strip().startswith(str(site))
    train = [sys.executable, "-m", "launch.train", *tiny(elsewhere / "run")]
    subprocess.run(train, cwd=elsewhere, env=environment, check=True, capture_output=True, timeout=300)
    assert (elsewhere / "run" / "model" / "model.safetensors").is_file()
