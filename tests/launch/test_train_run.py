"""Whole runs at the smallest sizes: what they print, what they leave behind, how they go on."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.batch import TokenBatch, map_tokens
from agentrl_jax.batch_files import load_batch
from agentrl_jax.learner import Learner, LearnerConfig
from agentrl_jax.policy import open_policy
from agentrl_jax.sharding import make_mesh, parse_mesh
from launch.train import main
from tests.launch.tiny_run import tiny, tiny_from

SECRET = "c0rrect-h0rse-battery"
ROOT = Path(__file__).resolve().parents[2]
RL = LearnerConfig(temperature=0.8)


def records(run_dir: Path, name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run_dir / name).read_text(encoding="ascii").split("\n") if line]


def kinds(run_dir: Path) -> list[str]:
    return [str(record["kind"]) for record in records(run_dir, "metrics.jsonl")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("run") / "a run"  # a path with a space
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", SECRET)
        assert main(tiny(run_dir)) == 0
    return run_dir


def test_a_run_leaves_a_complete_directory(finished: Path) -> None:
    config = json.loads((finished / "config.json").read_text())
    assert config["max_context_tokens"] == config["episode"]["max_context_tokens"] == config["engine"]["cache_tokens"]
    assert config["learner"]["temperature"] == config["episode"]["temperature"] == config["temperature"] == 0.8
    assert kinds(finished).count("step") == 2
    assert kinds(finished).count("evaluation") == 4  # sampled and greedy, before and after
    assert kinds(finished).count("gain") == 2
    steps = [record for record in records(finished, "metrics.jsonl") if record["kind"] == "step"]
    assert [step["step"] for step in steps] == [1, 2]
    episodes = records(finished, "episodes.jsonl")
    assert len(episodes) == sum(2 * int(str(step["num_groups"])) for step in steps)
    assert {turn["pool"] for e in episodes for turn in e["turns"]} == {"current", "lagging"}  # type: ignore[attr-defined]
    assert all(turn["versions"] for e in episodes for turn in e["turns"])  # type: ignore[attr-defined]
    assert sorted(path.name for path in (finished / "batches").iterdir()) == ["step-000001.npz", "step-000002.npz"]
    assert (finished / "model" / "model.safetensors").is_file()


def test_the_report_is_written_and_no_file_holds_the_environment(finished: Path) -> None:
    assert (finished / "report.html").is_file()
    files = [path for path in finished.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_the_schema_in_the_docs_is_that_of_a_run(finished: Path) -> None:
    """Every name of the tables and lists of docs/run-directory.md is in the files of this very run."""
    text = (ROOT / "docs" / "run-directory.md").read_text(encoding="utf-8")
    intro, metrics, episodes, batches = text.split("\n## ")
    for path in re.findall(r"^\| `([^`]+)`", intro, re.MULTILINE):
        if not path.startswith(("profile", "batches", "checkpoints")):
            assert (finished / path).exists(), path
    found: dict[str, set[str]] = {}
    for record in records(finished, "metrics.jsonl"):
        found.setdefault(str(record["kind"]), set()).update(record)
    for kind, _, holds in re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", metrics, re.MULTILINE):
        names = set(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)|: `gain.*", "", holds)))
        assert names, kind
        if kind not in ("resume", "warning"):  # not of this run
            assert names <= found[kind], kind
    episode = records(finished, "episodes.jsonl")[0]
    names = set(re.findall(r"`(\w+)`", episodes.split("A turn has")[0]))
    assert names <= set(episode)
    turn = episode["turns"][0]  # type: ignore[index]
    assert set(re.findall(r"`(\w+)`", episodes.split("A turn has")[1].split("\n\n")[0])) <= set(turn)
    with np.load(finished / "batches" / "step-000001.npz") as batch:
        columns = re.findall(r"`(\w+)`", batches.split("`[micro")[1].split(";")[0])
        assert {f"tokens/{name}" for name in columns} <= set(batch)
        assert ("scores/logprobs" in batch) == (batch["loss_weight"] > 0)


def test_met_11_evaluations_stand_at_the_step_whose_policy_they_are_of(finished: Path) -> None:
    found = {str(r["when"]): r for r in records(finished, "metrics.jsonl") if r["kind"] == "evaluation"}
    last = [record for record in records(finished, "metrics.jsonl") if record["kind"] == "step"][-1]
    version = int(str(last["version"])) + bool(last["is_applied"])
    assert (found["before"]["step"], found["before"]["versions"]) == (0, [0, 0])
    assert (found["after"]["step"], found["after"]["versions"]) == (last["step"], [version, version])


def test_behaviour_logprobs_of_a_batch_are_the_learners_own(finished: Path) -> None:
    # A run ends with other params than its first batch was sampled from; the same run of no steps ends with those.
    batch = load_batch(finished / "batches" / "step-000001.npz")
    assert all((micro.version_lag == 0).all() for micro in batch.micro_batches)
    warm = finished.parent / "warm"
    assert main(tiny(warm, "--max-steps=0")) == 0
    policy = open_policy(warm / "model")
    learner = Learner(policy.model, RL, make_loss(LossConfig()), make_mesh(parse_mesh("1")), policy.load_params(None))
    for micro in batch.micro_batches:
        difference = np.abs(learner.logprobs(micro) - micro.behavior_logprobs)[micro.loss_mask]
        assert difference.max() < 1e-4


def test_the_loss_of_a_recorded_batch_does_not_depend_on_the_mesh(finished: Path) -> None:
    policy = open_policy(finished / "model")
    recorded = load_batch(finished / "batches" / "step-000002.npz")
    losses = []
    for mesh in ("1", "16", "data=4,fsdp=2,tensor=2"):
        shape = parse_mesh(mesh)
        micro_batches = tuple(with_a_signal(micro, shape.num_row_shards) for micro in recorded.micro_batches)
        batch = replace(recorded, micro_batches=micro_batches, loss_weight=float(recorded.num_loss_tokens))
        learner = Learner(policy.model, RL, make_loss(LossConfig()), make_mesh(shape), policy.load_params(None))
        losses.append(learner.step(batch).loss)
    assert abs(losses[0]) > 1e-3
    np.testing.assert_allclose(losses, losses[0], rtol=0, atol=1e-5)


def with_a_signal(micro: TokenBatch, num_row_shards: int) -> TokenBatch:
    """Good and bad episodes by turns (the policy of a tiny run knows nothing), in rows that the mesh can split."""

    def pad(array: np.ndarray) -> np.ndarray:
        missing = -array.shape[0] % num_row_shards
        return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])

    advantages = np.where(micro.loss_mask, np.where(micro.segment_ids % 2, 1.0, -0.5), 0.0).astype(np.float32)
    return map_tokens(pad, micro._replace(advantages=advantages, has_signal=micro.loss_mask))


def test_a_run_that_is_refused_late_leaves_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(tiny(tmp_path / "run", "--network.vocab-size=100"))
    assert caught.value.code == 2
    assert "vocab_size must be above" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_from_the_weights_of_another(finished: Path, tmp_path: Path) -> None:
    assert main(tiny_from(finished / "model", tmp_path / "next", "--max-steps=1")) == 0
    assert "warm_up" not in kinds(tmp_path / "next")
    assert kinds(tmp_path / "next").count("step") == 1
    tokenizers = [(folder / "model" / "tokenizer.json").read_bytes() for folder in (finished, tmp_path / "next")]
    assert tokenizers[0] == tokenizers[1]


def test_a_mesh_of_sixteen_devices_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tiny(tmp_path / "run", "--mesh=16", "--rows-per-device=1", "--evaluation.num-tasks=0")) == 0
    assert "16 host devices on this machine's CPU" in capsys.readouterr().out
    assert kinds(tmp_path / "run").count("step") == 2


@pytest.mark.data
@pytest.mark.slow
def test_two_steps_over_the_real_freebase_slice(data_folder: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert main(tiny(run_dir, f"--data={data_folder}", "--network.vocab-size=800")) == 0
    assert kinds(run_dir).count("step") == 2
    assert "warm_up" in kinds(run_dir)
    assert any("/" in str(episode["turns"]) for episode in records(run_dir, "episodes.jsonl"))


def interrupt_at(arguments: list[str], line_start: str) -> str:
    """Start a run, send SIGINT once it prints a line that starts so, and return all that it printed."""
    command = [sys.executable, "-u", "-m", "launch.train", *arguments]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            printed.append(line)
            if line.startswith(line_start):
                process.send_signal(signal.SIGINT)
                break
        printed += process.stdout.readlines()
    output = "".join(printed)
    assert process.returncode == 0, output
    assert "stopping: finishing the running step" in output
    return output


def test_an_interrupted_warm_up_is_begun_anew(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    for arguments in (tiny(run_dir, "--warm-up.steps=100000"), [f"--resume={run_dir}"]):
        output = interrupt_at(arguments, "warm-up  sft")
        assert "stopped in the warm-up: --resume begins it anew" in output
        assert list((run_dir / "checkpoints").iterdir()) == []
    first_phases = [r["phase"] for r in records(run_dir, "metrics.jsonl") if r["kind"] == "warm_up" and r["step"] == 1]
    assert first_phases == ["copy", "sft", "copy", "sft"]


def test_interrupt_finishes_the_step_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    output = interrupt_at(tiny(run_dir, "--max-steps=100000"), "step ")
    assert f"go on with --resume {run_dir}" in output
    assert kinds(run_dir).count("step") >= 1
    assert open_policy(run_dir / "model").load_params(None)
