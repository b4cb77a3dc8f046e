"""Shared by all tests: sixteen host devices, the real task data, deterministic Hypothesis runs."""

import os
import subprocess
from pathlib import Path

import jax
import pytest
from hypothesis import settings

# Before any backend exists: meshes of up to sixteen devices on any machine.
jax.config.update("jax_num_cpu_devices", 16)
jax.devices()

settings.register_profile("project", deadline=None, max_examples=25, derandomize=True, database=None)
settings.load_profile("project")

REPOSITORY = Path(__file__).resolve().parents[1]
SERVICES = ("sglang", "agentrl", "docker", "mariadb", "bubblewrap", "bfcl", "chromium")


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of one service share a worker, which starts its servers once; they begin first, for they wait longest.

    Soaks run only where `-m` speaks of them: another expression replaces the default one, which leaves them out.
    """
    if "soak" not in config.option.markexpr:
        soaks = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=soaks)
        items[:] = [item for item in items if item not in soaks]

    def place(item: pytest.Item) -> int:
        names = [name for name in SERVICES if item.get_closest_marker(name)]
        if names:
            item.add_marker(pytest.mark.xdist_group(names[0]))
        return SERVICES.index(names[0]) if names else len(SERVICES)

    items.sort(key=place)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser, or a skip. In CI its absence is a failure."""
    install = REPOSITORY / "tools" / "install_chromium.sh"
    done = subprocess.run([install], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return "chromium"
    if os.environ.get("CI"):
        pytest.fail(f"tools/install_chromium.sh: {done.stderr}")
    pytest.skip(f"no chromium: {done.stderr[-300:]}")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The real task data, or a skip. In CI its absence is a failure."""
    folder = Path(os.environ.get("AGENTRL_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if folder.is_dir():
        return folder
    if os.environ.get("CI"):
        pytest.fail(f"the real task data must be there in CI, but {folder} is no folder")
    pytest.skip(f"no real task data at {folder}; set AGENTRL_TEST_DATA to a folder that holds it")
