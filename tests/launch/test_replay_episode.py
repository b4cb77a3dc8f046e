"""`python -m launch.replay_episode`: recorded episodes of real families, played again from the run directory alone."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio

from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode, single_engine
from agentrl_jax.controller.sessions import thread_sessions
from agentrl_jax.env import Action, StepResult
from agentrl_jax.policy import NetworkConfig, create_policy
from agentrl_jax.preparation import play_demonstrations
from agentrl_jax.rendering.tokenizer import load_tokenizer
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.runlog import RunLog, read_records
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.types import Ids, SamplingParams, Trajectory
from envs.knowledge_graph.env import KnowledgeGraphEnv
from launch.config import make_families
from launch.replay_episode import main
from launch.train import main as train
from tests.launch.tiny_run import tiny

NETWORK = NetworkConfig(width=16, num_layers=1, num_heads=2, num_kv_heads=1, mlp_width=16)


async def expert_episode(config: TrainConfig, model: Path, group_id: int) -> Trajectory:
    """The scripted expert's episode on the second task of the config's `group_id`-th family."""
    family = make_families(config)[group_id]
    task = family.task("train", 1)
    renderer = TemplateRenderer(load_tokenizer(model), tools=family.tools)
    said = [m for m in family.demonstrate(task, Random(0), noise=0.0) if m.role == "assistant"]
    turns = iter([renderer.encode_turn(message) for message in said])

    def script(prompt: Ids, sampling: SamplingParams) -> list[int]:
        return next(turns).tolist()

    setup = EpisodeSetup(
        sessions=thread_sessions(family.make, trio.CapacityLimiter(1)),
        tools=family.tools,
        renderer=renderer,
        choose_engine=single_engine(FakeEngine(script=script)),
        config=EpisodeConfig(max_turns=family.max_turns, max_new_tokens=256, max_context_tokens=8192),
        run_seed=0,
    )
    return await run_episode(task, group_id, 0, setup=setup)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay") / "run"
    config = TrainConfig(tasks="kg,alfworld", run_dir=folder, seed=5)
    conversations = play_demonstrations(make_families(config), 12, noise=0.1, seed=5)
    with RunLog(folder) as log:
        log.write_config(config.to_json())
        policy = create_policy(conversations, log.model_folder, network=NETWORK, keep_whole=(), seed=0)
        for group_id in (0, 1):
            trajectory = trio.run(partial(expert_episode, config, log.model_folder, group_id))
            log.log_episode(1, trajectory, policy.tokenizer.decode)
    return folder


@pytest.mark.parametrize(("episode", "env"), [("g0-m0", "kg"), ("g1-m0", "alfworld")])
def test_an_expert_episode_is_identical(
    episode: str, env: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run_dir), episode]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{episode}  {env}/train/1/")
    assert lines[0].endswith("completed, reward 1")
    assert lines[-1] == "identical"
    num_turns = len(read_records(run_dir / "episodes.jsonl")[int(episode[1])]["turns"])
    assert sum(line.startswith("── turn ") for line in lines) == num_turns > 1
    assert "   the environment ends the episode: completed" in lines
    assert any(line.strip().startswith("→ ") for line in lines)


def edited(run_dir: Path, folder: Path, *, seed: int | None = None, drop: str = "") -> Path:
    """A copy of what a replay reads, with another seed of the tasks, or without a field."""
    folder.mkdir()
    (folder / "model").symlink_to(run_dir / "model")
    config = json.loads((run_dir / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "seed": config["seed"] if seed is None else seed}))
    records = read_records(run_dir / "episodes.jsonl")
    for record in records:
        record["turns"] = [{k: v for k, v in turn.items() if k != drop} for turn in record["turns"]]
    lines = (json.dumps(record, separators=(",", ":")) for record in records)
    (folder / "episodes.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


def test_a_divergence_is_named_and_fails(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = KnowledgeGraphEnv.step
    calls = iter([False, True])

    def other_step(self: KnowledgeGraphEnv, action: Action) -> StepResult:
        result = step(self, action)
        return replace(result, messages=result.messages * (1 + next(calls, False)))

    monkeypatch.setattr(KnowledgeGraphEnv, "step", other_step)
    assert main([str(run_dir), "g0-m0"]) == 1
    printed = capsys.readouterr().out
    assert "diverges at turn 3: the ids before this turn differ from position" in printed.splitlines()[-1]
    assert "── recorded instead" in printed


@pytest.mark.parametrize(
    ("changes", "episode", "message"),
    [
        ({}, "g7-m1", "has no episode 'g7-m1' among its 2 (g<group>-m<member>). The nearest: "),
        ({"drop": "ids"}, "g0-m0", "recorded by an earlier version"),
        ({"seed": 6}, "g0-m0", "its data or its generator have changed"),
    ],
)
def test_what_cannot_be_played_is_refused(
    changes: dict[str, int],
    episode: str,
    message: str,
    run_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([str(edited(run_dir, tmp_path / "copy", **changes)), episode])
    assert caught.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path), "g0-m0"])
    assert caught.value.code == 2
    assert "expected the run directory of a training run" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_episodes_of_a_real_run_are_identical_and_have_spans(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    learns = ("--warm-up.copy-steps=30", "--warm-up.steps=120", "--episode.max-new-tokens=48")
    assert train(tiny(run_dir, "--tasks=kg,alfworld", "--telemetry", *learns)) == 0
    episodes = read_records(run_dir / "episodes.jsonl")
    spans = read_records(run_dir / "spans.jsonl")
    tops = {
        (s["attributes"]["agentrl.episode"], s["attributes"]["agentrl.env"]) for s in spans if s["name"] == "episode"
    }
    assert tops >= {(record["episode"], record["env"]) for record in episodes}  # one id across all logs
    assert {record["env"] for record in episodes} == {"kg", "alfworld"}
    for record in episodes:
        capsys.readouterr()
        assert main([str(run_dir), record["episode"]]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "identical"
