"""A training run on two real SGLang servers."""

from pathlib import Path

import pytest

from tests.launch.served_run import check, train
from tests.sglang_cpu.servers import SGLangServer

pytestmark = pytest.mark.sglang


def test_five_steps_with_cross_policy_sampling(
    chat_server: SGLangServer, second_chat_server: SGLangServer, chat_folder: Path, tmp_path: Path
) -> None:
    run = train(chat_folder, tmp_path / "run", chat_server.url, second_chat_server.url, "--publish.verify-every=2")
    check(run)
    publishing = run.steps[-1]["publish"]
    assert all(engine["last_bytes_verified"] > 0 for engine in publishing.values() if engine["version"] % 2 == 0)
