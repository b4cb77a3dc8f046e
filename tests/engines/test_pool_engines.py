"""Two embedded engines side by side: shared programs, two caches, missed turns, and exact log-probabilities."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup
from agentrl_jax.controller.group import AdmittedGroup, run_group
from agentrl_jax.engines.local.engine import LocalEngine
from agentrl_jax.engines.local.runner import compile_programs
from agentrl_jax.engines.pool import EnginePool, PoolConfig
from agentrl_jax.packing import PackingConfig, build_batch
from agentrl_jax.testing.envs import EnvScript, SessionLog, scripted_sessions
from agentrl_jax.testing.renderer import VOCABULARY_SIZE, FakeRenderer
from agentrl_jax.types import Group, Ids, Task, as_ids
from tests.engines.tiny_engine import CONFIG as TINY_CONFIG
from tests.engines.tiny_engine import MODEL as TINY_MODEL
from tests.engines.tiny_engine import open_tiny, params, random_weights, reference_logprobs

MODEL = replace(TINY_MODEL, vocab_size=VOCABULARY_SIZE)
CONFIG = replace(TINY_CONFIG, cache_tokens=250)
WEIGHTS = {version: random_weights(version, MODEL) for version in range(4)}
ENGINE: dict[str, Any] = {"model": MODEL, "config": CONFIG, "weights": WEIGHTS[0]}
TEMPERATURE = 0.7


class TerseRenderer(FakeRenderer):
    """A fifth of all ids end a turn, so that a policy that was never trained takes several."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return tuple(range(0, VOCABULARY_SIZE, 5))


@asynccontextmanager
async def open_pool(sampling: PoolConfig) -> AsyncIterator[tuple[EnginePool, LocalEngine, LocalEngine]]:
    async with (
        open_tiny(name="engine-0", **ENGINE) as current,
        open_tiny(name="lagging-0", pool="lagging", **ENGINE) as lagging,
    ):
        yield EnginePool([current], [lagging], sampling, run_seed=0), current, lagging


def num_bytes() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())  # type: ignore[no-untyped-call]


async def test_the_second_engine_compiles_nothing_and_adds_its_weights_and_one_cache() -> None:
    async with open_tiny(**ENGINE) as first:
        await first.generate(as_ids([1, 2, 3]), params(), session="s")
        programs = compile_programs(MODEL, CONFIG, jax.devices()[0])
        before = num_bytes()
        compiled: list[str] = []

        def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
            if "compile" in event:
                compiled.append(event)

        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            async with open_tiny(name="lagging-0", pool="lagging", **ENGINE) as second:
                await second.generate(as_ids([1, 2, 3]), params(), session="s")
                added = num_bytes() - before
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
        assert compiled == []
        assert compile_programs(MODEL, CONFIG, jax.devices()[0]) is programs
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(WEIGHTS[0]))
    cache = 2 * MODEL.num_layers * MODEL.num_kv_heads * MODEL.head_dim * CONFIG.num_slots * CONFIG.cache_tokens * 4
    assert added == weights + cache


async def test_missed_turns_are_prefilled_with_the_next_one_and_the_held_prefix_is_kept() -> None:
    random = np.random.default_rng(0)
    plan = "ABBAABABBBA"
    async with open_pool(PoolConfig()) as (_, current, lagging):
        engines = {"A": current, "B": lagging}
        held = {"A": 0, "B": 0}
        prompt = as_ids([1, 2])
        for turn, which in enumerate(plan):
            calls = engines[which].statistics().num_requests
            completion = await engines[which].generate(prompt, params(max_new_tokens=2, seed=turn), session="s")
            assert completion.cached_tokens == held[which]  # everything after it came with this one request
            assert engines[which].statistics().num_requests == calls + 1
            ids = np.concatenate([prompt, completion.ids])
            held[which] = len(ids) - 1  # its last sampled id was never fed
            table = reference_logprobs(WEIGHTS[0], ids[:-1], 1.0, MODEL)[len(prompt) - 1 :]
            np.testing.assert_allclose(completion.logprobs, np.diag(table[:, completion.ids]), atol=1e-4)
            prompt = as_ids([*ids, *random.integers(0, MODEL.vocab_size, turn % 3)])
        assert len(prompt) > 30
        for which, engine in engines.items():
            statistics = engine.statistics()
            assert statistics.num_requests == plan.count(which)
            # Each id is computed once by each engine that needs it, and never again.
            assert statistics.prompt_tokens - statistics.cached_tokens + statistics.sampled_tokens <= held[which] + len(
                plan
            )


async def play_mixed(num_groups: int) -> tuple[list[Group], list[dict[str, int]]]:
    """Groups of two episodes, published to after each: the lagging policy is up to two versions behind."""
    groups: list[Group] = []
    served: list[dict[str, int]] = []
    async with open_pool(PoolConfig(lagging_prob=0.5, lagging_period=3)) as (pool, _, _):
        setup = EpisodeSetup(
            sessions=scripted_sessions(EnvScript(rewards=(0.0,) * 4 + (1.0,)), SessionLog()),
            tools=(),
            renderer=TerseRenderer(),
            choose_engine=pool,
            config=EpisodeConfig(max_turns=5, max_new_tokens=20, max_context_tokens=250, temperature=TEMPERATURE),
            run_seed=1,
        )
        for number in range(num_groups):
            admitted = AdmittedGroup(
                group_id=number, task=Task(env="kg", split="train", index=number, seed=0), start_version=number
            )
            groups.append(await run_group(admitted, group_size=2, setup=setup))
            if number + 1 < num_groups:
                served.append(dict(await pool.publish(WEIGHTS[number + 1], number + 1)))
    return groups, served


def chosen_logprobs(version: int, ids: Ids) -> Any:
    """float64 [T]: log-probability of each id after all before it; the first is NaN."""
    table = reference_logprobs(WEIGHTS[version], ids[:-1], TEMPERATURE, MODEL)
    return np.concatenate([[np.nan], table[np.arange(len(ids) - 1), ids[1:]]])


async def test_every_token_of_a_mixed_episode_is_its_own_policys() -> None:
    groups, served = await play_mixed(4)
    assert served == [
        {"engine-0": 1, "lagging-0": 0},
        {"engine-0": 2, "lagging-0": 0},
        {"engine-0": 3, "lagging-0": 3},
    ]
    num_mixed = 0
    for number, group in enumerate(groups):
        for trajectory in group.trajectories:
            (segment,) = trajectory.segments
            behind = 0 if number == 3 else number
            versions = {"current": number, "lagging": number - behind}
            for turn in trajectory.turns:
                assert {versions[turn.completion.pool]} == set(turn.completion.versions)
            mask = segment.loss_mask
            by_version = {v: chosen_logprobs(v, segment.ids)[mask] for v in versions.values()}
            behavior, sampled_by = segment.behavior_logprobs[mask], segment.versions[mask]
            own = np.array([by_version[v][i] for i, v in enumerate(sampled_by)])
            np.testing.assert_allclose(behavior, own, atol=1e-4)
            if len(set(sampled_by)) == 2:
                num_mixed += 1
                swapped = {number: number - behind, number - behind: number}
                other = np.array([by_version[swapped[v]][i] for i, v in enumerate(sampled_by)])
                assert (np.abs(behavior - other) > 0.05).mean() > 0.8
    assert num_mixed >= 3


async def test_a_packed_batch_keeps_each_tokens_own_logprob_and_lag() -> None:
    groups, _ = await play_mixed(3)
    last = [replace(group, trajectories=scored(group)) for group in groups[2:]]
    packing = PackingConfig(row_tokens=(250, 500), rows_per_micro_batch=1)
    batch = build_batch(last, advantages=AdvantageConfig(), packing=packing, learner_version=2)
    assert batch.stats["token_staleness_max"] == 2.0
    checked = {0: 0, 2: 0}
    for rows in batch.micro_batches:
        for segment in range(1, int(rows.segment_ids.max()) + 1):
            is_own = rows.segment_ids == segment
            ids, mask, lags = rows.ids[is_own], rows.loss_mask[is_own], rows.version_lag[is_own]
            for lag in checked:
                chosen = mask & (lags == lag)
                ratio = np.exp(chosen_logprobs(2 - lag, ids)[chosen] - rows.behavior_logprobs[is_own][chosen])
                np.testing.assert_allclose(ratio, 1.0, atol=2e-4)
                checked[lag] += int(chosen.sum())
    assert min(checked.values()) > 5
    assert sum(checked.values()) == batch.num_loss_tokens


def scored(group: Group) -> Any:
    """The group's trajectories with rewards that differ, so that they have advantages."""
    return tuple(
        replace(trajectory, reward=float(trajectory.member), env_reward=float(trajectory.member))
        for trajectory in group.trajectories
    )
