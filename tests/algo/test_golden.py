"""A recorded batch through advantages, packing and loss, against the published formulas (golden/make_golden.py)."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algo.advantages import AdvantageConfig, compute_advantages
from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.algo.outcomes import outcomes_of
from agentrl_jax.batch import TokenBatch
from agentrl_jax.packing import PackedBatch, PackingConfig, build_batch, unpack
from agentrl_jax.types import Completion, EpisodeEnd, Group, Segment, Task, Trajectory, Turn, VersionSpan, as_ids
from tests.algo.golden.make_golden import FILE, golden

CASES = json.loads(FILE.read_text(encoding="utf-8"))
NAMES = ["random", "zero-variance", "infrastructure"]
PAPER = AdvantageConfig(task_normalisation="paper")


def groups_of(case: dict[str, Any]) -> list[Group]:
    groups = []
    for number, recorded in enumerate(case["groups"]):
        task = Task(env=recorded["env"], split="train", index=number, seed=0)
        members = [trajectory(task, number, i, m) for i, m in enumerate(recorded["members"])]
        groups.append(Group(group_id=number, task=task, start_version=0, trajectories=tuple(members)))
    return groups


def trajectory(task: Task, group_id: int, number: int, recorded: dict[str, Any]) -> Trajectory:
    logprobs = iter(recorded["behavior_logprobs"])
    turns = []
    for num_context, num_sampled in recorded["turns"]:
        completion = Completion(
            ids=as_ids(range(num_sampled)),
            logprobs=np.array([next(logprobs) for _ in range(num_sampled)], np.float32),
            version_spans=(VersionSpan(version=0, start=0, end=num_sampled),),
            finish_reason="stop",
            engine="e",
            pool="current",
        )
        turns.append(Turn(context_ids=as_ids(range(num_context)), completion=completion))
    return Trajectory(
        task=task,
        group_id=group_id,
        member=number,
        end=EpisodeEnd(recorded["end"]),
        reward=recorded["reward"],
        env_reward=recorded["reward"],
        segments=(Segment(turns=tuple(turns)),),
    )


def pack(case: dict[str, Any], config: AdvantageConfig, *, rows: int = 1) -> PackedBatch:
    packing = PackingConfig(row_tokens=(128,), rows_per_micro_batch=rows)
    return build_batch(groups_of(case), advantages=config, packing=packing, learner_version=0)


def by_token(case: dict[str, Any], name: str) -> np.ndarray:
    """One value a loss token, trajectory after trajectory, those that are left out skipped."""
    members = [m for group in case["groups"] for m in group["members"] if m["reward"] is not None]
    return np.concatenate([m[name] for m in members])


def scattered(batch: PackedBatch, values: np.ndarray) -> np.ndarray:
    """[rows, row_tokens]: `values`, one a loss token in the order of the batch's episodes, where these tokens stand."""
    _, columns = unpack(batch)
    source = np.zeros(len(columns["ids"]))
    source[columns["loss_mask"]] = values
    rows = np.concatenate([m.segment_ids for m in batch.micro_batches])
    flat = np.zeros(rows.shape)
    ends = np.cumsum(np.diff(np.append(np.flatnonzero(columns["positions"] == 0), len(source))))
    parts = np.split(source, ends[:-1])
    flat[rows > 0] = np.concatenate([parts[number] for number in batch.segment_order])
    return flat


def loss_and_gradient(case: dict[str, Any], batch: PackedBatch) -> tuple[float, np.ndarray]:
    """The published loss over micro-batches, and its gradient by loss token in the order of the batch's episodes."""
    loss = make_loss(LossConfig(kl_coefficient=1e-4, kl_estimator="k3"))
    logprobs = scattered(batch, by_token(case, "logprobs"))
    reference = scattered(batch, by_token(case, "reference_logprobs"))
    total, gradients, first = 0.0, [], 0
    for tokens in batch.micro_batches:
        rows = slice(first, first + len(tokens.ids))
        first = rows.stop

        def objective(x: jax.Array, tokens: TokenBatch = tokens, rows: slice = rows) -> jax.Array:
            return loss(x, tokens._replace(reference_logprobs=jnp.asarray(reference[rows]))).loss.total

        value, slope = jax.value_and_grad(objective)(jnp.asarray(logprobs[rows]))
        total += float(value) / batch.loss_weight
        gradients.append(np.asarray(slope) / batch.loss_weight)
    by_row = np.concatenate(gradients)
    marks = scattered(batch, np.arange(1, batch.num_loss_tokens + 1)).astype(int)
    return total, by_row[marks > 0][np.argsort(marks[marks > 0])]


def test_the_recorded_file_is_what_its_script_writes() -> None:
    made = json.loads(json.dumps(golden()))
    assert list(made) == list(CASES) == NAMES
    for name in NAMES:
        assert made[name]["groups"] == CASES[name]["groups"]
        assert made[name]["published"]["loss"] == pytest.approx(CASES[name]["published"]["loss"], rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_paper_equals_the_published_advantages(name: str) -> None:
    groups, published = groups_of(CASES[name]), CASES[name]["published"]
    trajectories = [t for group in groups for t in group.trajectories]
    outcomes = outcomes_of(groups, [t.is_valid for t in trajectories], sorted({t.task.env for t in trajectories}))
    first = np.cumsum(outcomes.num_turns) - outcomes.num_turns
    for config, key in ((AdvantageConfig(task_normalisation="off"), "in_group"), (PAPER, "advantages")):
        expected = np.array([0.0 if a is None else a for own in published[key] for a in own])
        found = compute_advantages(outcomes, config).advantages[first]
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_in_float32_every_token_has_the_published_advantage(name: str) -> None:
    case = CASES[name]
    lengths = [len(m["logprobs"]) for g in case["groups"] for m in g["members"] if m["reward"] is not None]
    values = [a for own in case["published"]["advantages"] for a in own if a is not None]
    _, columns = unpack(pack(case, PAPER))
    assert columns["advantages"].dtype == np.float32
    np.testing.assert_allclose(columns["advantages"][columns["loss_mask"]], np.repeat(values, lengths), rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_published_loss_and_its_gradient(name: str) -> None:
    case = CASES[name]
    expected = np.concatenate(case["published"]["gradient"])
    expected = expected[
        np.concatenate([[m["reward"] is not None] * len(m["logprobs"]) for g in case["groups"] for m in g["members"]])
    ]
    with jax.enable_x64(True):
        loss, gradient = loss_and_gradient(case, pack(case, PAPER, rows=2))
    # Advantages travel as float32.
    assert loss == pytest.approx(case["published"]["loss"], rel=1e-5, abs=1e-8)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-9)


def test_a_group_without_signal_gains_0_86_as_published_and_nothing_as_we_default() -> None:
    """adv_19: the success in 10 tokens, the failure in 90, the others in 50 tokens."""
    case = CASES["zero-variance"]
    values = {}
    for mode in ("paper", "signal"):
        batch = pack(case, AdvantageConfig(task_normalisation=mode))
        _, columns = unpack(batch)
        own = columns["advantages"][columns["loss_mask"]]
        values[mode] = [float(value) for value in own[[0, 10, 100, 149]]]
        assert batch.loss_weight == {"paper": 150, "signal": 100}[mode]
    assert values["paper"] == pytest.approx([2.4719, -0.7523, 0.8598, 0.8598], abs=5e-5)
    assert values["signal"] == pytest.approx([0.5**0.5, -(0.5**0.5), 0.0, 0.0], abs=5e-6)
    assert values["signal"][2:] == [0.0, 0.0]


def test_an_environment_that_failed_neither_votes_nor_teaches() -> None:
    """grp_09, adv_04: rewards 1, none, 0 and −0.2; the mean is over three."""
    batch = pack(CASES["infrastructure"], AdvantageConfig(estimator="dr_grpo", task_normalisation="off"))
    _, columns = unpack(batch)
    assert batch.num_loss_tokens == 15
    mean = (1.0 + 0.0 - 0.2) / 3
    np.testing.assert_allclose(
        columns["advantages"][columns["loss_mask"]][::5], [1 - mean, -mean, -0.2 - mean], rtol=1e-6
    )
