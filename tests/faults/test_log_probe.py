"""LOG-05: before a run begins, servers give the log-probabilities that the learner gives, or it does not begin."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import trio

from agentrl_jax.config import TrainConfig
from agentrl_jax.engines.probe import Score
from agentrl_jax.engines.publish_config import PublishConfig
from agentrl_jax.errors import EngineError
from agentrl_jax.models.export import export_buckets
from agentrl_jax.models.params import init_params
from agentrl_jax.policy import open_policy
from agentrl_jax.run_engines import Weights, open_served_engines
from agentrl_jax.types import Floats, Ids
from tests.engines.tiny_engine import reference_logprobs
from tests.faults.served_policy import serving
from tests.launch.engine_process import MODEL, write_policy

LEARNED = init_params(MODEL, 1)


async def right(ids: Ids, temperature: float) -> Floats:
    """What a learner that holds LEARNED says."""
    await trio.lowlevel.checkpoint()
    table = reference_logprobs(LEARNED, ids[:-1], temperature, MODEL)
    return table[np.arange(len(ids) - 1), ids[1:]].astype(np.float32)


async def raw(ids: Ids, temperature: float) -> Floats:
    """What a learner says that forgets the temperature."""
    return await right(ids, 1.0)


async def begin(folder: Path, score: Score) -> list[str]:
    """Begin a run at temperature 0.7 on a server; return what is said."""
    said: list[str] = []
    async with serving(folder / "policy") as url:
        config = TrainConfig(
            model=folder / "policy",
            engines=(f"sglang:{url}",),
            pool=replace(TrainConfig().pool, lagging_prob=0.0),
            max_context_tokens=64,
            temperature=0.7,
            publish=PublishConfig(folder=folder / "exports"),
        )
        take = partial(export_buckets, LEARNED, MODEL, dtype="float32", bucket_bytes=20_000)
        opening = open_served_engines(
            config,
            open_policy(folder / "policy"),
            folder,
            current=Weights(take=take, version=1),
            lagging=None,
            score=score,
            say=said.append,
        )
        async with opening as engines:
            assert {name: found.version for name, found in engines.statistics().items()} == {"current-0": 1}
    return said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_policy(tmp_path / "policy", tmp_path / "tokenizer")
    return tmp_path


async def test_log_05_a_run_begins_on_servers_that_agree_with_its_learner(folder: Path) -> None:
    said = await begin(folder, right)
    assert any(line.startswith("engines hold version 1, and agree with the learner's") for line in said)


async def test_log_05_a_run_does_not_begin_on_servers_that_disagree(folder: Path) -> None:
    with pytest.RaisesGroup(
        pytest.RaisesExc(EngineError, match=r"expected log-probabilities within .* at temperature 0\.7"),
        flatten_subgroups=True,
        allow_unwrapped=True,
    ):
        await begin(folder, raw)
