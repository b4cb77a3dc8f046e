"""What a run needs before its first learner step: demonstrations, a policy, and the sizes that follow from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.sessions import RemotelyPlayed
from agentrl_jax.env import EnvFamily, Message, Tool, tools_for
from agentrl_jax.errors import ConfigError, TemplateError
from agentrl_jax.models.params import num_params
from agentrl_jax.policy import Policy, create_policy, open_policy
from agentrl_jax.rendering.config import RenderingConfig
from agentrl_jax.rendering.tokenizer import ChatTokenizer
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.row_sizes import MOST_CONTEXT_UNASKED
from agentrl_jax.seeding import derive_seed
from agentrl_jax.sft import Demonstration
from agentrl_jax.types import Ids, as_ids

_NUM_FOR_SIZES = 256
"""Demonstrations that a run without warm-up plays, to know how long episodes are."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """config: with every derived size filled in. copy_ids: what a copying warm-up draws from; empty: no copying."""

    config: TrainConfig
    policy: Policy
    demonstrations: tuple[Demonstration, ...]
    copy_ids: Ids


def prepare(
    config: TrainConfig, families: Sequence[EnvFamily], model_folder: Path, say: Callable[[str], None]
) -> Prepared:
    """Play demonstrations; open the policy, or create it and save its tokenizer to `model_folder`.

    Raises ConfigError if the policy cannot be opened, or if max_context_tokens is more than the model has positions
    or too small for any demonstration of a warm-up.
    """
    experts = [family for family in families if not isinstance(family, RemotelyPlayed)]
    count = config.warm_up.demonstrations if config.has_warm_up else _NUM_FOR_SIZES
    count = count if experts else 0
    conversations = play_demonstrations(
        experts, count, noise=config.warm_up.noise, seed=config.seed, limit=config.limit
    )
    if config.model is None:
        words = sorted({word for family in families for word in family.vocabulary()})
        policy = create_policy(
            conversations, model_folder, network=config.network, keep_whole=words, seed=derive_seed(config.seed, "init")
        )
    else:
        policy = open_policy(config.model)
    rendering = settle_rendering(policy, config.rendering, say)
    config, policy = replace(config, rendering=rendering), replace(policy, rendering=rendering)
    render = {
        family.name: TemplateRenderer(policy.tokenizer, tools=family.tools, config=rendering) for family in families
    }
    names = [experts[number % len(experts)].name for number in range(count)]
    rendered = [
        segment
        for name, conversation in zip(names, conversations, strict=True)
        for segment in render[name].demonstration_segments(*conversation)
    ]
    longest = max((len(ids) for ids, _ in rendered), default=0)
    sized = _with_sizes(config, policy, longest)
    kept = tuple(r for r in rendered if len(r[0]) <= sized.packing.row_tokens[-1])
    if config.has_warm_up and not kept:
        raise ConfigError(
            f"none of the {count} demonstrations fits {sized.max_context_tokens} tokens, the shortest has "
            f"{min(len(ids) for ids, _ in rendered)}: set a larger --max-context-tokens"
        )
    _describe(families, policy, longest, len(rendered) - len(kept), len(kept), sized, say)
    return Prepared(
        config=sized,
        policy=policy,
        demonstrations=kept,
        copy_ids=_content_ids(policy) if config.model is None else as_ids(()),
    )


def reopen(config: TrainConfig, model_folder: Path) -> Prepared:
    """What a run that has a checkpoint goes on with: its own policy folder, and the sizes that it began with."""
    assert config.max_context_tokens is not None
    return Prepared(
        config=config.with_context(config.max_context_tokens),
        policy=open_policy(model_folder),
        demonstrations=(),
        copy_ids=as_ids(()),
    )


def settle_rendering(policy: Policy, asked: RenderingConfig, say: Callable[[str], None]) -> RenderingConfig:
    """What is asked for, what the policy's folder remembers and what its template needs, in this order.

    Says so if the policy meets other prompts than it was trained with. Raises ConfigError if its template cannot be
    used as it is asked for.
    """
    return settle_rendering_of(policy.tokenizer, policy.tokenizer_folder, policy.rendering, asked, say)


def settle_rendering_of(
    tokenizer: ChatTokenizer,
    folder: Path,
    recorded: RenderingConfig | None,
    asked: RenderingConfig,
    say: Callable[[str], None],
) -> RenderingConfig:
    """`settle_rendering` for a policy of which no more is here than its tokenizer's folder."""
    if recorded is not None:
        asked = asked.completed_by(recorded)
        for change in asked.changes_from(recorded):
            say(f"warning: {change}")
    try:
        return TemplateRenderer(tokenizer, config=asked).config
    except TemplateError as error:
        raise ConfigError(f"the policy in {folder}: {error}") from error


def _with_sizes(config: TrainConfig, policy: Policy, longest: int) -> TrainConfig:
    sized = config.with_context(config.max_context_tokens or min(longest * 5 // 4, MOST_CONTEXT_UNASKED))
    if sized.packing.row_tokens[-1] > policy.model.max_positions:
        raise ConfigError(
            f"episodes of up to {sized.max_context_tokens} tokens do not fit the model's "
            f"{policy.model.max_positions} positions; set --max-context-tokens"
        )
    return sized


def _content_ids(policy: Policy) -> Ids:
    special = list(policy.tokenizer.special_tokens.values())
    return as_ids(np.setdiff1d(np.arange(policy.tokenizer.vocab_size), special))


def _describe(
    families: Sequence[EnvFamily],
    policy: Policy,
    longest: int,
    num_too_long: int,
    num_kept: int,
    config: TrainConfig,
    say: Callable[[str], None],
) -> None:
    for family in families:
        num_train, num_eval = family.num_tasks("train"), family.num_tasks("eval")
        used = "" if config.limit is None else f", of which at most {config.limit:,} are used"
        say(f"{family.name}: {num_train:,} training tasks{used}, {num_eval:,} held out")
    say(
        f"policy: {num_params(policy.model) / 1e6:.2f} M parameters, {policy.model.vocab_size} ids; "
        + (f"longest demonstration {longest} tokens, " if longest else "")
        + f"context {config.max_context_tokens}"
    )
    if num_too_long:
        count = num_too_long + num_kept
        say(
            f"warning: {num_too_long} of {count} demonstrations are longer than {config.max_context_tokens} tokens and "
            f"left out; episodes that long end as context_limit (--max-context-tokens {longest} would take them all)"
        )


def play_demonstrations(
    families: Sequence[EnvFamily], count: int, *, noise: float, seed: int, limit: int | None = None
) -> list[tuple[tuple[Message, ...], tuple[Tool, ...]]]:
    """`count` episodes of the scripted experts on training tasks, the families taking turns.

    limit: use at most the first so many tasks of each family. Raises ConfigError for a family without training tasks.
    """
    benchmarks = [family.name for family in families if not family.num_tasks("train")]
    if benchmarks:
        raise ConfigError(f"{', '.join(benchmarks)} can only be evaluated on: it has no training tasks")
    played = []
    for number in range(count):
        family = families[number % len(families)]
        num_tasks = family.num_tasks("train") if limit is None else min(limit, family.num_tasks("train"))
        index = (number // len(families)) % num_tasks
        rng = Random(derive_seed(seed, "demonstration", family.name, number))
        task = family.task("train", index)
        played.append((family.demonstrate(task, rng, noise=noise), tools_for(family, task)))
    return played
