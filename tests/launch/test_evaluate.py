"""`launch.evaluate`, whole: the expert, two models of different tokenizers mixed, a kill, and what is refused."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl_jax.models.params import init_params
from agentrl_jax.models.save import save_pretrained
from agentrl_jax.runlog import read_records
from agentrl_jax.testing.tokenizers import TemplateKind, write_toy_tokenizer
from launch.evaluate import main
from launch.evaluate_sources import find_sources
from tests.launch.engine_process import MODEL

SMALL = ("--num-tasks=3", "--max-turns=2", "--max-context-tokens=1024", "--episode.max-new-tokens=8")
ENGINE = ("--local.num-slots=4", "--max-concurrent=4")


def model(folder: Path, kind: TemplateKind, seed: int) -> Path:
    write_toy_tokenizer(folder / "tokenizer", kind)
    path = folder / kind
    save_pretrained(init_params(MODEL, seed), MODEL, path, dtype="float32", source=folder / "tokenizer")
    return path


def results(out: Path) -> Any:
    return json.loads((out / "results.json").read_text())


def test_the_expert_solves_everything_and_nothing_is_played_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--expert", "--tasks=kg,alfworld", f"--out={tmp_path / 'out'}"]
    assert main([*command, "--num-tasks=3"]) == 0
    said = capsys.readouterr().out
    assert "kg        expert   3      3         100.0 %" in said
    episodes = read_records(tmp_path / "out" / "episodes.jsonl")
    assert len(episodes) == 6
    assert main([*command, "--num-tasks=4", "--samples=2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [(found["env"], found["num_tasks"], found["num_successes"]) for found in answer["scores"]] == [
        ("kg", 4, 8),
        ("alfworld", 4, 8),
    ]
    assert answer["scores"][0]["pass_at_k"] == {"1": 1.0, "2": 1.0}
    again = read_records(tmp_path / "out" / "episodes.jsonl")
    assert again[:6] == episodes
    assert len(again) == 16
    assert len((tmp_path / "out" / "agentrl" / "results.jsonl").read_text().splitlines()) == 16
    assert main([*command, "--num-tasks=2"]) == 0
    assert "all 4 episodes are there already" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*command, "--num-tasks=2", "--seed=5"])
    assert "holds another evaluation (seed = 0, now 5)" in capsys.readouterr().err


def test_models_of_two_tokenizers_alone_and_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = model(tmp_path / "a", "qwen2_5", 0), model(tmp_path / "b", "llama3", 1)
    out = tmp_path / "out"
    command = [f"--model={first}", f"--model={second}", "--mix", "single", "turn", "episode", "--samples=2"]
    assert main([*command, *SMALL, *ENGINE, f"--out={out}"]) == 0, capsys.readouterr().out
    found = results(out)["scores"]
    names = ["qwen2_5", "llama3", "turn:qwen2_5+llama3", "episode:qwen2_5+llama3"]
    assert [score["mixture"] for score in found] == names
    assert [score["num_episodes"] for score in found] == [6] * 4
    assert [score["num_broken"] for score in found] == [0] * 4
    assert all(list(score["pass_at_k"]) == ["1", "2"] for score in found)
    assert (out / "pass_at_k.png").is_file()
    assert found[0]["policy_turns"].keys() == {"qwen2_5"}
    assert found[3]["policy_turns"].keys() == {"qwen2_5", "llama3"}
    assert {gain["mixture"] for gain in results(out)["gains"]} == set(names[1:])
    assert results(out)["settings"]["policies"]["llama3"]["folder"] == str(second)


def test_the_weights_that_were_evaluated_must_still_be_there(tmp_path: Path) -> None:
    path = model(tmp_path, "qwen2_5", 0)
    before = find_sources([path], [], False, [])[0].to_json()
    assert find_sources([path], [], False, [])[0].to_json() == before
    os.utime(path / "model.safetensors", ns=(1, 1))
    assert find_sources([path], [], False, [])[0].to_json() != before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "name at least one policy to evaluate: --model, --engine or --expert"),
        (["--expert", "--mix", "turn"], "needs at least two policies, got expert alone"),
        (["--expert", "--num-tasks=0"], "--num-tasks must be >= 1, got 0"),
        (["--expert", "--num-tasks=999999999"], "kg has only"),
        (["--expert", "--temperature=0"], "--temperature must be > 0 and finite, got 0.0; --greedy"),
        (["--expert", "--greedy", "--samples=2"], "--samples has no effect with --greedy"),
        (["--expert", "--tasks=nowhere"], "unknown environment 'nowhere'"),
        (["--expert", "--name", "a", "b"], "--name must name each of the 1 policies, got 2 names"),
        (["--expert", "--name", "a b"], "expected a name without spaces"),
        (["--model=/nowhere"], "--model /nowhere: expected config.json, weights and tokenizer"),
        (["--engine=local"], "--engine: expected sglang:http://host:port or openai:http://host:port/v1, got 'local'"),
        (["--engine=openai:http://127.0.0.1:9/v1"], "which model? Add #MODEL to it, or set OPENAI_MODEL"),
        (["--engine=sglang:http://127.0.0.1:9"], "--engine sglang:http://127.0.0.1:9 cannot be used: cannot reach"),
        (["--expert", "--eval-set", "alfworld", "std"], "--eval-set names alfworld, but --tasks is kg"),
        (["--expert", "--data=/nowhere"], "--data /nowhere: expected a folder of task data"),
        (["--expert", "--max-failures=0"], "--max-failures must be >= 1, got 0"),
        (["--expert", "--endpoint.max-attempts=0"], "--endpoint.max-attempts must be >= 1, got 0"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_in_words(
    flags: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_MODEL", raising=False)
    with pytest.raises(SystemExit) as exit_:
        main([*flags, f"--out={tmp_path / 'out'}"])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_evaluation_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-u", "-m", "launch.evaluate", "--expert", f"--out={out}", "--num-tasks=200"]
    command += ["--tasks=alfworld", "--max-concurrent=2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.lstrip().startswith("20/200"):
                process.send_signal(number)
                break
        rest = process.stdout.read()
    if number is signal.SIGINT:
        assert process.returncode == 130
        assert "the same command with --out" in rest
    kept = (out / "episodes.jsonl").read_text().splitlines()
    assert 20 <= len(kept) < 200
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert " of 200 episodes are there already" in done.stdout
    episodes = read_records(out / "episodes.jsonl")
    assert len({(episode["index"], episode["sample"]) for episode in episodes}) == len(episodes) == 200
