"""`launch.train --engines`: a run on two server processes of this package, and one of them killed in the middle."""

from pathlib import Path

import pytest
import trio

from launch.train import main
from tests.launch.engine_process import server, write_policy
from tests.launch.served_run import CONTEXT_TOKENS, check, train

SIZE = ("--max-context-tokens", str(CONTEXT_TOKENS), "--engine.num-slots", "8", "--engine.prefill-shapes", "4", "64")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy")
    write_policy(path, tmp_path_factory.mktemp("tokenizer"))
    return path


@pytest.mark.slow
async def test_five_steps_on_two_servers(folder: Path, tmp_path: Path) -> None:
    async with server(folder, 0, SIZE) as (_, current), server(folder, 0, SIZE) as (_, lagging):
        urls = [f"http://127.0.0.1:{port}" for port in (current, lagging)]
        run = await trio.to_thread.run_sync(train, folder, tmp_path / "run", *urls)
    check(run)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--engines", "http://127.0.0.1:1"], "expected sglang:http://host:port, got 'http://127.0.0.1:1'"),
        (["--engines", "local", "sglang:http://127.0.0.1:1"], "name no others"),
        (["--engines", "sglang:http://127.0.0.1:1"], "name at least one server for the lagging policy"),
        (["--engines", "sglang:http://a:1", "--lagging-engines", "sglang:http://a:1"], "is named twice"),
        (["--lagging-engines", "sglang:http://a:1"], "name no others"),
        (["--publish.mode", "abort"], "--publish.* has no effect with --engines local"),
        (["--publish.transport", "distributed"], "needs --publish.python"),
        (["--publish.python", "/bin/sh"], "has no use for --publish.python"),
        (["--publish.timeout-s", "0"], "--publish.timeout-s must be > 0"),
        (["--publish.probe-tolerance", "0"], "--publish.probe-tolerance must be > 0"),
        (["--engines", "sglang:http://127.0.0.1:1", "--pool.lagging-prob", "0"], "cannot reach http://127.0.0.1:1"),
    ],
)
def test_servers_that_cannot_be_used_are_refused_before_anything_starts(
    folder: Path, tmp_path: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([f"--model={folder}", f"--run-dir={tmp_path / 'run'}", "--evaluation.num-tasks=0", *flags])
    assert exit_.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_servers_need_a_model_that_they_were_started_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([f"--run-dir={tmp_path / 'run'}", "--engines", "sglang:http://a:1", "--pool.lagging-prob", "0"])
    assert "--engines needs --model" in capsys.readouterr().err
