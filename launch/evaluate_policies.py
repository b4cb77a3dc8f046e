"""Opens the policies that `launch.evaluate` plays: loads models, looks at servers, before anything is played."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import jax
import trio
from jax.sharding import Mesh

from agentrl_jax.algo.losses import make_loss
from agentrl_jax.checkpoint_reading import CheckpointReader
from agentrl_jax.config import TrainConfig
from agentrl_jax.engines.http import open_http_client
from agentrl_jax.engines.local.engine import open_local_engine
from agentrl_jax.engines.local.placement import tensor_mesh
from agentrl_jax.engines.protocol import Engine
from agentrl_jax.engines.sglang import open_sglang_engine
from agentrl_jax.engines.sglang_weights import ServerWeights
from agentrl_jax.engines.weight_folder import tensor_shapes
from agentrl_jax.env import EnvFamily, Message
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.learning import resume_learning
from agentrl_jax.models.load import has_safetensors
from agentrl_jax.playing.endpoint import EndpointOptions, EndpointPolicy
from agentrl_jax.playing.policies import PlayingPolicy
from agentrl_jax.playing.rendered import RenderedPolicy
from agentrl_jax.playing.scripted import ScriptedPolicy
from agentrl_jax.policy import Policy, open_policy
from agentrl_jax.preparation import settle_rendering, settle_rendering_of
from agentrl_jax.rendering.config import RenderingConfig, read_rendering
from agentrl_jax.rendering.tokenizer import ChatTokenizer, load_tokenizer
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.row_sizes import rounded
from agentrl_jax.saved_config import read_config
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Task
from launch.evaluate_config import EvaluateConfig
from launch.evaluate_sources import Source, checkpoint_run, secret

Say = Callable[[str], None]

_ANSWER_S = 20.0


@asynccontextmanager
async def open_policies(
    sources: Sequence[Source], families: Sequence[EnvFamily], config: EvaluateConfig, mesh: Mesh, say: Say
) -> AsyncIterator[dict[str, PlayingPolicy]]:
    """The policies by name, for the length of the block.

    Raises ConfigError for one that cannot be used, before any is played.
    """
    async with AsyncExitStack() as stack:
        policies: dict[str, PlayingPolicy] = {}
        for source in sources:
            if source.kind == "expert":
                policies[source.name] = _expert(families, config.seed)
            elif source.kind == "openai":
                policies[source.name] = await _endpoint(source, config, stack)
            elif source.kind == "sglang":
                policies[source.name] = await _sglang(source, families, config, stack, say)
            else:
                policies[source.name] = await _local(source, families, config, mesh, stack, say)
        yield policies


def _expert(families: Sequence[EnvFamily], seed: int) -> PlayingPolicy:
    by_name = {family.name: family for family in families}

    def demonstrate(task: Task) -> tuple[Message, ...]:
        return by_name[task.env].demonstrate(task, Random(derive_seed(seed, "expert", task.key)), noise=0.0)

    return ScriptedPolicy(demonstrate)


async def _endpoint(source: Source, config: EvaluateConfig, stack: AsyncExitStack) -> PlayingPolicy:
    endpoint = config.endpoint
    model = source.detail or secret(endpoint.model_variable)
    if not model:
        raise ConfigError(
            f"--engine openai:{source.url}: which model? Add #MODEL to it, or set {endpoint.model_variable}"
        )
    client = await stack.enter_async_context(open_http_client(source.url, token=secret(endpoint.key_variable)))
    options = EndpointOptions(model=model, max_attempts=endpoint.max_attempts, sends_seed=endpoint.send_seed)
    return EndpointPolicy(source.name, client, options)


async def _sglang(
    source: Source, families: Sequence[EnvFamily], config: EvaluateConfig, stack: AsyncExitStack, say: Say
) -> PlayingPolicy:
    token = secret(config.token_variable)
    try:
        with trio.fail_after(_ANSWER_S):
            async with open_http_client(source.url, token=token) as client:
                weights = ServerWeights(client, source.name)
                served, facts = await weights.model_facts(), await weights.server_facts()
    except (EngineError, trio.TooSlowError) as error:
        problem = str(error) or f"it said nothing for {_ANSWER_S:g} s"
        raise ConfigError(f"--engine sglang:{source.url} cannot be used: {problem}") from error
    folder = Path(source.detail or served.model_path)
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(
            f"--engine sglang:{source.url} serves {served.model_path}, which is no folder with a tokenizer here: add "
            "#FOLDER to its address"
        )
    say(f"{source.name}: {served.model_path} at {source.url}")
    tokenizer = load_tokenizer(folder)
    say_of = partial(_say_of, source.name, say)
    rendering = settle_rendering_of(tokenizer, folder, read_rendering(folder), config.rendering, say_of)
    shapes = tensor_shapes(folder) if has_safetensors(folder) else {}
    opening = open_sglang_engine(source.url, tensors=shapes, name=source.name, token=token)
    engine = await stack.enter_async_context(opening)
    room = facts.max_req_input_len
    return _rendered(source, engine, tokenizer, rendering, families, None if room is None else room + 1)


async def _local(
    source: Source,
    families: Sequence[EnvFamily],
    config: EvaluateConfig,
    mesh: Mesh,
    stack: AsyncExitStack,
    say: Say,
) -> PlayingPolicy:
    assert source.folder is not None
    run = checkpoint_run(source.folder)
    folder = source.folder if run is None else run / "model"
    policy = await trio.to_thread.run_sync(open_policy, folder)
    rendering = settle_rendering(policy, config.rendering, partial(_say_of, source.name, say))
    size = min(rounded(config.max_context_tokens), policy.model.max_positions)
    sized = replace(config.local, cache_tokens=size)
    sized.check_model(policy.model)
    say(f"{source.name}: loading {source.folder}")
    load = partial(policy.load_params, None) if run is None else partial(_checkpoint_params, run, source.folder, policy)
    weights: Any = await trio.to_thread.run_sync(load)
    place = jax.devices()[0] if mesh.size == 1 else tensor_mesh(list(mesh.devices.flat))
    opening = open_local_engine(
        model=policy.model, config=sized, weights=weights, version=0, name=source.name, place=place
    )
    engine = await stack.enter_async_context(opening)
    return _rendered(source, engine, policy.tokenizer, rendering, families, size)


def _checkpoint_params(run: Path, checkpoint: Path, policy: Policy) -> Any:
    """The params that a checkpoint of the run in `run` holds."""
    config = read_config(TrainConfig, run, flag="--model ")
    mesh = tensor_mesh(jax.devices()[:1])
    params = policy.load_params(mesh)
    learner = resume_learning(config, policy.model, make_loss(config.loss), mesh, params, run)
    step = int(checkpoint.absolute().name.removeprefix("step-"))
    learner.restore(CheckpointReader(checkpoint.absolute().parent).restore(step, learner.abstract_state()).state)
    return learner.params


def _rendered(
    source: Source,
    engine: Engine,
    tokenizer: ChatTokenizer,
    rendering: RenderingConfig,
    families: Sequence[EnvFamily],
    context_tokens: int | None,
) -> PlayingPolicy:
    renderers: Mapping[str, TemplateRenderer] = {
        family.name: TemplateRenderer(tokenizer, tools=family.tools, config=rendering) for family in families
    }
    return RenderedPolicy(source.name, engine, renderers, lambda ids: tokenizer.decode(ids.tolist()), context_tokens)


def _say_of(name: str, say: Say, line: str) -> None:
    say(f"{name}: {line}")
