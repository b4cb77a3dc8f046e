"""Wrong settings: exit code 2, one clear message on stderr, no traceback, and nothing started or written.

{policy}, {no_tools} and {port} stand for a folder with a model, one whose chat template knows no tools, and a port that
something listens on.
"""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl_jax.policy import NetworkConfig, create_policy
from launch.train import main

REFUSALS = {
    "--mesh=0": "mesh must be a number of devices",
    "--mesh=data=3,foo=2": "data=3,foo=2",
    "--mesh=": "mesh must be",
    "--mesh=17": "needs 17 devices, but JAX sees 16 (cpu); name a smaller --mesh",
    "--no-such-flag": "no-such-flag",
    "--max-step=3": "unknown flag --max-step=3: did you mean --max-steps?",  # no abbreviations
    "--group-size=3": "unknown flag --group-size=3: did you mean --rollout.group-size?",
    "--lr=1": "unknown flag --lr=1: --help lists them all",
    "quickstart": "unexpected argument 'quickstart': settings are named",
    "--top-p=0.9": "there is no --top-p: training samples from the policy's whole distribution",
    "--episode.top-k 5": "there is no --episode.top-k: training samples from",
    "--data=/no/such/folder": "/no/such/folder",
    "--tasks=alfworld --data={policy}": "alfworld",
    "--model={no_tools}": "the chat template loses the declared tools",
    "--tasks=remote:x --model={policy} --max-context-tokens=256 --remote.listen.port={port}": (
        "cannot listen on 127.0.0.1:{port}"
    ),
    "--loss.correction=none": "asynchronous training with no correction (--rollout.max-staleness, --pool.lagging-prob",
    "--recipe=paper-7b": "--recipe paper-7b needs the folder of Qwen/Qwen2.5-7B-Instruct",
    "--recipe=paper-7b --data={policy}": "needs the folder of Qwen/Qwen2.5-7B-Instruct, or of a model like it",
    "--model={policy} --engines sglang:http://a:1 --pool.lagging-prob 0 --engine.decode-block 2": (
        "--engine.decode-block: of no effect on servers"
    ),
    "--model=/no/such/folder": "/no/such/folder: expected config.json, weights and tokenizer",
    "--model=/no/such/folder --network.width=48": "--network.* has no effect with --model",
    "--max-steps=-1": "--max-steps must be >= 0, got -1",
    "--max-minutes=0": "--max-minutes must be > 0, got 0",
    "--tasks=nope": "unknown environment 'nope': known ones are",
    "--tasks=kg,kg": "twice",
    "--tasks=": "at least one environment",
    "--temperature=0": "--temperature must be > 0",
    "--temperature=nan": "--temperature must be > 0",
    "--recipe=nope": "unknown recipe 'nope': known ones are single-kg,",
    "--recipe=quickstrt": "unknown recipe 'quickstrt' (did you mean quickstart?)",
    "--save-every=0": "--save-every must be >= 1",
    "--seed=-1": "--seed must be >= 0",
    "--level=0": "level",
    "--rollout.task-max-staleness nope 3": "--rollout.task-max-staleness names nope",
    "--task-session-kind nope process": "--task-session-kind names nope",
    "--session-kind=nope": "session-kind",
    "--episode.queue-deadline-s=3": "queue-deadline-s",  # no session kind of this command has a queue
    "--evaluation.num-tasks=2001": "kg has only 2000 held-out tasks",
    "--with-warm-up False --warm-up.steps=3": "--warm-up.* has no effect without a warm-up",
    "--rows-per-device=0": "--rows-per-device must be >= 1",
    "--rollout.group-size=1": "group_size must be at least 2",
    "--rollout.task-weights nope 3": "task_weights must name every environment, got nope for kg",
    "--rollout.task-weights kg 0": "the weight of 'kg' must be positive and finite, got 0.0",
    "--rollout.curriculum.low=2": "a curriculum needs 0 <= low <= high <= 1",
    "--rollout.curriculum.min-trials=9": "have no effect while the band is [0, 1]",
    "--rollout.max-no-signal-groups=9": "has no effect without dynamic_sampling",
    "--limit=0": "--limit must be >= 1, got 0",
    "--rollout.max-staleness=-1": "max_staleness must be at least 0",
    "--max-turns=0": "--max-turns must be >= 1",
    "--episode.temperature=0.5": "episode.temperature",  # there is one temperature
    "--loss.clip-low=2": "clip_low must be in (0, 1)",
    "--loss.name=nope": "nope",
    "--learner.learning-rate=0": "learning_rate must be finite and > 0",
    "--warm-up.noise=1": "noise must be in [0, 1)",
    "--warm-up.demonstrations=0": "demonstrations must be >= 1",
    "--evaluation.num-tasks=-1": "num_tasks must be >= 0",
    "--network.num-heads=5": "multiple of num_heads",
    "--advantages.estimator=reinforce_pp_baseline": "set task_normalisation=off, got signal",
    "--advantages.credit=turn": "defined for estimator rloo and dr_grpo, got grpo",
    "--rollout.dynamic-sampling --advantages.credit=turn --advantages.estimator=rloo": "choose one of them",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    policy, no_tools = tmp_path_factory.mktemp("policy"), tmp_path_factory.mktemp("no_tools")
    network = NetworkConfig(vocab_size=280, width=16, num_layers=1, num_heads=2, num_kv_heads=1, mlp_width=16)
    for folder in (policy, no_tools):
        made = create_policy([], folder, network=network, keep_whole=(), seed=0)
        made.save(made.load_params(None), folder)
    words = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
    (no_tools / "chat_template.jinja").write_text(words, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {"policy": policy, "no_tools": no_tools, "port": server.getsockname()[1]}


@pytest.mark.parametrize(("flag", "message"), REFUSALS.items())
def test_a_wrong_setting_is_refused_before_anything_starts(
    flag: str, message: str, places: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [argument.format(**places) for argument in flag.split(" ")]
    with pytest.raises(SystemExit) as caught:
        main([*given, f"--run-dir={tmp_path / 'run'}"])
    printed = capsys.readouterr()
    assert caught.value.code == 2
    assert message.format(**places) in " ".join(printed.err.replace("│", " ").split())
    assert printed.out == ""
    assert not (tmp_path / "run").exists()
    if printed.err.startswith("launch.train:"):  # else it is about a value that tyro cannot read
        assert printed.err.count("\n") == 1


def test_a_used_run_directory_is_refused_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text("precious")
    with pytest.raises(SystemExit) as caught:
        main([f"--run-dir={tmp_path}"])
    assert caught.value.code == 2
    assert "is not empty" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("metrics.jsonl", "precious")]


def test_a_model_folder_without_a_tokenizer_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(SystemExit) as caught:
        main([f"--model={tmp_path / 'model'}", f"--run-dir={tmp_path / 'run'}"])
    assert caught.value.code == 2
    assert "missing: tokenizer.json, model.safetensors or its index" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_process_exits_with_two_and_shows_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "launch.train", "--temperature=0", f"--run-dir={tmp_path / 'run'}"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 2
    assert "--temperature must be > 0" in process.stderr
    assert "Traceback" not in process.stderr
