"""SFT, then RL, of a GLM-4 model, whose turns end with the header of whatever comes next."""

import json
from pathlib import Path

import pytest

from agentrl_jax.batch_files import load_batch
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.models.params import init_params
from agentrl_jax.models.save import save_pretrained
from agentrl_jax.policy import open_policy
from agentrl_jax.testing.tokenizers import toy_tokenizer, write_toy_tokenizer
from launch.sft import main as sft
from launch.train import main as train
from tests.learner.small import same_bits

MODEL = ModelConfig(
    family="glm4", vocab_size=264, width=64, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=16, mlp_width=128,
    rope_theta=1e4, rotary_frac=0.5, tie_embeddings=False,
)  # fmt: skip
END, SYSTEM, USER, ASSISTANT, TOOL = toy_tokenizer("glm").encode(
    "<|endoftext|><|system|><|user|><|assistant|><|observation|>"
)
HEADERS = {SYSTEM, USER, ASSISTANT, TOOL}
SFT = (
    "--from-experts=kg",
    "--expert.conversations=96",
    "--expert.noise=0",
    "--batch-size=8",
    "--max-steps=45",
    "--constant-rate",
    "--learner.learning-rate=1e-2",
    "--evaluate-every=1000",
)
RL = (
    "--tasks=kg",
    "--rollout.group-size=4",
    "--rollout.min-groups-per-batch=2",
    "--max-steps=2",
    "--evaluation.num-tasks=0",
    "--engine.num-slots=8",
    *("--engine.prefill-shapes", "8", "256"),
    "--row-buckets=1",
    "--episode.max-new-tokens=64",
    "--pool.lagging-prob=0",
    # How a policy that knows nothing fails must make a difference for it to learn anything.
    *("--episode.penalties", "TURN_TRUNCATED", "-0.8", "CONTEXT_LIMIT", "-0.5"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy, what SFT made of it (sft), and what RL made of that (rl)."""
    root = tmp_path_factory.mktemp("glm")
    tokenizer = write_toy_tokenizer(root / "tokenizer", "glm")
    save_pretrained(init_params(MODEL, 0), MODEL, root / "policy", dtype="float32", source=tokenizer)
    assert sft([f"--model={root / 'policy'}", f"--run-dir={root / 'sft'}", *SFT]) == 0
    assert train([f"--model={root / 'sft' / 'model'}", f"--run-dir={root / 'rl'}", *RL]) == 0
    return root


@pytest.mark.slow
def test_a_glm_policy_ends_its_turns_with_the_next_header(folder: Path) -> None:
    lines = (folder / "rl" / "episodes.jsonl").read_text(encoding="ascii").splitlines()
    turns = [turn for line in lines for turn in json.loads(line)["turns"]]
    ended = [turn for turn in turns if turn["finish_reason"] == "stop"]
    assert len(ended) > len(turns) / 2, "SFT teaches a model to end its turns"
    closings = ("<|observation|>", "<|user|>", "<|endoftext|>")
    assert {turn["sampled"].endswith(closings) for turn in ended} == {True}
    assert any(turn["sampled"].startswith("query\n") and turn["sampled"].endswith(closings[0]) for turn in turns)


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2])
def test_a_header_that_was_sampled_is_in_its_segment_once_and_counts(folder: Path, step: int) -> None:
    batch = load_batch(folder / "rl" / "batches" / f"step-{step:06d}.npz")
    num_sampled_headers = 0
    for part in batch.micro_batches:
        for ids, segments, mask in zip(part.ids, part.segment_ids, part.loss_mask, strict=True):
            for segment in range(1, segments.max() + 1):
                own = segments == segment
                num_sampled_headers += check_segment(ids[own].tolist(), mask[own].tolist())
    assert num_sampled_headers > 0


def check_segment(ids: list[int], is_sampled: list[bool]) -> int:
    """Check one segment, and return how many turns in it end with a header that the policy sampled.

    Tokens are sampled from <|assistant|>, which is not, up to the end of the turn, which is. A result of tools goes
    on behind the <|observation|> that the policy said; a user's message has a header of its own.
    """
    num_headers = 0
    for before, now, was_sampled, sampled in zip(ids, ids[1:], is_sampled, is_sampled[1:], strict=False):
        if sampled and not was_sampled:
            assert before == ASSISTANT
        if was_sampled and not sampled:
            assert before in {END, USER, TOOL}
            # Either the header that was sampled is the next message's own, or the next message has another one.
            assert now == ord("\n") if now not in HEADERS else now != before
            num_headers += before in HEADERS
        if was_sampled and sampled:
            assert before not in {END, USER, TOOL}
    assert is_sampled[-1]
    return num_headers


@pytest.mark.slow
def test_what_rl_left_opens_again_as_the_same_family(folder: Path) -> None:
    policy = open_policy(folder / "rl" / "model")
    assert policy.model == MODEL
    assert set(policy.tokenizer.eos_tokens) == {"<|endoftext|>", "<|user|>", "<|observation|>"}
    assert not same_bits(load_pretrained(folder / "rl" / "model")[1], load_pretrained(folder / "sft" / "model")[1])
