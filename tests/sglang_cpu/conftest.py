"""Servers that every test here shares: a start takes 15 to 60 s, so tests put back what they change."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sglang_cpu.models import write_chat_policy, write_ids_policy
from tests.sglang_cpu.servers import PYTHON, SGLangServer, running_server


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    """SGLang must be there in CI; elsewhere its absence is a skip."""
    if (PYTHON.parents[1] / ".installed").is_file():
        return
    if os.environ.get("CI"):
        pytest.fail("SGLang must be installed in CI: run tools/install_sglang.sh")
    pytest.skip("SGLang is not installed; tools/install_sglang.sh does it")


@pytest.fixture(scope="session")
def ids_server(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangServer]:
    """Serves models.IDS_MODEL (seed 0), without a tokenizer."""
    folder = write_ids_policy(tmp_path_factory.mktemp("ids"), 0)
    with running_server(folder, core=0, flags=["--skip-tokenizer-init"]) as server:
        yield server


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """models.CHAT_MODEL (seed 0) with its tokenizer."""
    return write_chat_policy(tmp_path_factory.mktemp("chat"), 0)


@pytest.fixture(scope="session")
def chat_server(installed: None, chat_folder: Path) -> Iterator[SGLangServer]:
    with running_server(chat_folder, core=0) as server:
        yield server


@pytest.fixture(scope="session")
def second_chat_server(installed: None, chat_folder: Path) -> Iterator[SGLangServer]:
    """The same model on the other core."""
    with running_server(chat_folder, core=1) as server:
        yield server
