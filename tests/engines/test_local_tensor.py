"""A model that is split over devices samples what it samples on one."""

import jax
import numpy as np
import pytest
import trio

from agentrl_jax.config import TrainConfig
from agentrl_jax.engines.local.placement import engine_place, tensor_mesh
from agentrl_jax.engines.local.weights import split_layers, stage_weights
from agentrl_jax.errors import ConfigError
from agentrl_jax.models.params import build_tree
from agentrl_jax.sharding import make_mesh, named_sharding, parse_mesh
from agentrl_jax.types import Completion, as_ids
from tests.engines.tiny_engine import MODEL, check_logprobs, open_tiny, params, random_weights

PROMPT = as_ids([3, 1, 4, 1, 5, 2, 6, 5, 3, 5, 8, 2, 7])


async def sampled(place: jax.Device | jax.sharding.Mesh) -> dict[int, Completion]:
    """Two turns each of a group, the second after a publish."""
    found: dict[int, Completion] = {}
    async with open_tiny(place=place) as engine:

        async def ask(number: int) -> None:
            sampling = params(seed=number, temperature=0.5 * number)
            found[number] = await engine.generate(PROMPT, sampling, session=f"s{number % 3}")

        for version in (0, 1):
            async with trio.open_nursery() as nursery:
                for number in range(3):
                    nursery.start_soon(ask, 3 * version + number)
            await engine.publish(random_weights(version + 1), version + 1)
        assert engine.statistics().shared_tokens == 2 * 2 * (len(PROMPT) - 1)
    return found


async def test_two_devices_sample_what_one_does() -> None:
    one, two = await sampled(jax.devices()[0]), await sampled(tensor_mesh(jax.devices()[1:3]))
    weights = {version: random_weights(version) for version in range(2)}
    for number, completion in one.items():
        assert two[number].ids.tolist() == completion.ids.tolist()
        np.testing.assert_allclose(two[number].logprobs, completion.logprobs, atol=1e-5)
        check_logprobs(weights, PROMPT, two[number], 0.5 * number)


@pytest.mark.parametrize("source", ["tensor=2", "2", "data=2"])
def test_weights_staged_on_the_learners_own_devices_outlive_its_buffers(source: str) -> None:
    mesh = make_mesh(parse_mesh(source))
    sharded = build_tree(MODEL, lambda spec: named_sharding(mesh, spec.axes, spec.shape))
    weights = jax.tree.map(jax.device_put, random_weights(0), sharded)
    staged = stage_weights(MODEL, weights, "float32", tensor_mesh(list(mesh.devices.flat)))
    for leaf in jax.tree.leaves(weights):
        leaf.delete()
    jax.tree.map(np.testing.assert_array_equal, staged, split_layers(random_weights(0)))
    heads = staged["layers"][1]["attention"]["q"]["kernel"]
    assert heads.addressable_shards[0].data.shape[1] == MODEL.num_heads // 2


def test_the_place_is_the_first_device_unless_devices_are_named() -> None:
    learner = make_mesh(parse_mesh("2"))
    assert engine_place(None, learner) == jax.devices()[0]
    assert dict(engine_place(2, learner).shape) == {"data": 1, "fsdp": 1, "tensor": 2}
    with pytest.raises(ConfigError, match="--engine-devices 99: there are"):
        engine_place(99, learner)


def test_no_device_is_no_place() -> None:
    with pytest.raises(ConfigError, match="--engine-devices must be >= 1, got 0"):
        TrainConfig(engine_devices=0)
