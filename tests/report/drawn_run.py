"""A run directory as a long training run leaves it, in seconds: no model, no engine, every kind of record."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.batch import Scores
from agentrl_jax.batch_files import save_batch
from agentrl_jax.controller.admission import Admission
from agentrl_jax.controller.config import RolloutConfig
from agentrl_jax.controller.ledger import Ledger
from agentrl_jax.controller.ports import StepRecord, StepTimings
from agentrl_jax.packing import PackingConfig, build_batch
from agentrl_jax.report.progress import step_record, throughput
from agentrl_jax.runlog import RunLog
from agentrl_jax.testing.tokenizers import toy_tokenizer, write_toy_tokenizer
from agentrl_jax.types import Completion, EpisodeEnd, Group, Segment, Task, Trajectory, Turn, VersionSpan, as_ids

TOKENIZER = toy_tokenizer("chatml")
PACKING = PackingConfig(row_tokens=(512, 1024), rows_per_micro_batch=8)
_ENDS = (EpisodeEnd.COMPLETED, EpisodeEnd.MAX_TURNS, EpisodeEnd.INVALID_ACTION, EpisodeEnd.ENV_ERROR)


def draw_run(
    folder: Path, *, num_steps: int = 4, num_groups: int = 4, size: int = 4, said: str = "", seed: int = 0
) -> Path:
    """Write a run of two envs whose success rises. said: what agents, environments and errors say besides."""
    rng = np.random.default_rng(seed)
    with RunLog(folder) as log:
        log.write_config({"max_steps": num_steps, "run_dir": str(folder), "loss": {"name": "grpo"}})
        log.log_metrics("start", {"time": "2026-01-02T03:04:05+00:00", "machine": "test", "command": ["train", said]})
        log.log_metrics("start", {"time": "2026-01-02T05:06:07+00:00", "changes": {"max_steps": "3 → 4"}})
        log.log_metrics("warm_up", {"phase": "sft", "step": 1, "loss": 2.0})
        _evaluate(log, "before", 0, 0.25)
        for step in range(1, num_steps + 1):
            groups = [
                draw_group(rng, step * num_groups + number, step, size, step / num_steps, said)
                for number in range(num_groups)
            ]
            log_step(log, step, groups, rng)
        log.log_metrics("warning", {"step": num_steps, "name": "mismatch", "env": "", "text": f"careful {said}"})
        _evaluate(log, "after", num_steps, 0.75)
    write_toy_tokenizer(folder / "model", "chatml")
    return folder


def draw_group(rng: np.random.Generator, group_id: int, step: int, size: int, skill: float, said: str) -> Group:
    """A group of the env and task that follow from its id; members succeed with probability `skill`."""
    task = Task(env=("kg", "house")[group_id % 2], split="train", index=group_id, seed=0)
    members = []
    for member in range(size):
        end = EpisodeEnd.COMPLETED if rng.random() < 0.8 else _ENDS[int(rng.integers(len(_ENDS)))]
        reward = float(rng.random() < skill) if end is EpisodeEnd.COMPLETED else -0.2
        members.append(
            Trajectory(
                task=task,
                group_id=group_id,
                member=member,
                end=end,
                reward=None if end.is_infrastructure else reward,
                env_reward=max(reward, 0.0),
                segments=(_segment(rng, step - 1, said),),
                wall_s=float(rng.gamma(2.0)),
                env_s=0.1,
                engine_s=0.5,
                error=f"the env broke {said}" if end.is_infrastructure else "",
            )
        )
    return Group(group_id=group_id, task=task, start_version=max(0, step - 2), trajectories=tuple(members))


def log_step(log: RunLog, step: int, groups: Sequence[Group], rng: np.random.Generator) -> None:
    """Its batch, its episodes and its record."""
    packed = build_batch(groups, advantages=AdvantageConfig(), packing=PACKING, learner_version=step - 1)
    scores = [
        Scores(logprobs=(m.behavior_logprobs + m.loss_mask * rng.normal(0, 0.05, m.ids.shape)).astype(np.float32))
        for m in packed.micro_batches
    ]
    save_batch(log.batch_path(step), packed, scores)
    for group in groups:
        for trajectory in group.trajectories:
            log.log_episode(step, trajectory, TOKENIZER.decode)
    record = StepRecord(
        step=step - 1,
        version=step - 1,
        is_finite=True,
        is_applied=True,
        groups=tuple(groups),
        ages=tuple(0 for _ in groups),
        dropped=(),
        cancelled=(),
        num_no_signal=0,
        ends=Counter(t.end for group in groups for t in group.trajectories),
        metrics={
            **packed.stats,
            "loss": 0.1,
            "entropy": 1.0 / step,
            "ratio_p01": 0.9,
            "ratio_p50": 1.0,
            "ratio_p99": 1.1,
        },
        timings=StepTimings(collect_s=1.0, learn_s=2.0, publish_s=0.25, straggler_wait_s={}),
        open_tasks=(),
        tasks={},
        warnings=(),
        ledger=Ledger(RolloutConfig(group_size=2, min_groups_per_batch=4)).statistics(),
        admission=Admission(8).statistics(),
    )
    log.log_metrics(
        "step", {**step_record(record), "step_s": 3.5, "rl_s": 3.5 * step, "throughput": throughput(record, 3.5)}
    )


def _segment(rng: np.random.Generator, version: int, said: str) -> Segment:
    turns = []
    for number in range(int(rng.integers(1, 4))):
        context = f"<|im_start|>user\n{said} observation {number}<|im_end|>\n<|im_start|>assistant\n"
        sampled = f"{said} go {int(rng.integers(1000))}€<|im_end|>"
        ids = as_ids(TOKENIZER.encode(sampled))
        counts = np.arange(len(ids)) != 1
        older = max(0, version - 1)
        turns.append(
            Turn(
                context_ids=as_ids(TOKENIZER.encode(context)),
                completion=Completion(
                    ids=ids,
                    logprobs=(-rng.gamma(0.5, size=len(ids)) * counts).astype(np.float32),
                    version_spans=(
                        VersionSpan(version=older, start=0, end=2),
                        VersionSpan(version=version, start=2, end=len(ids)),
                    ),
                    finish_reason="stop",
                    engine="lagging-0" if number else "current-0",
                    pool="lagging" if number else "current",
                    loss_mask=counts,
                ),
                num_calls=1,
            )
        )
    return Segment(turns=tuple(turns))


def _evaluate(log: RunLog, when: str, step: int, rate: float) -> None:
    for env in ("kg", "house"):
        for mode in ("sampled", "greedy"):
            counts = {"num_valid": 100.0, "num_episodes": 100.0, "success_rate": rate}
            bounds = {"success_low": rate - 0.1, "success_high": rate + 0.1}
            log.log_metrics("evaluation", {"when": when, "step": step, "env": env, "mode": mode, **counts, **bounds})
