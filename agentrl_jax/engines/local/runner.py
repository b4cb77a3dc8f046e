"""The device side of the embedded engine: weights, caches, and the compiled programs that use them.

Everything is compiled ahead of time: a program refuses other shapes instead of compiling anew, so nothing is
compiled once a `Runner` exists. Engines of one model and configuration at one place share their programs.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from agentrl_jax.engines.local.cache import clear_slots, copy_prefixes, init_caches
from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.local.forward import Params, decode_block, prefill_chunk
from agentrl_jax.engines.local.placement import Place, caches_placement, everywhere, first_device, params_placement
from agentrl_jax.engines.local.steps import ClearStep, CopyStep, DecodeStep, Draws, PrefillStep, Truncations
from agentrl_jax.engines.local.weights import layer_sharding, split_layers, stage_weights
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import build_tree
from agentrl_jax.types import Floats, Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Compiled functions. Each consumes the caches it is given and returns the new ones first."""

    prefill: Mapping[tuple[int, int], Any]
    decode: Any
    clear: Any
    copy: Any


Say = Callable[[str], object]

_compile_lock = Lock()
_compiled: dict[tuple[ModelConfig, LocalEngineConfig, Place], Programs] = {}


def compile_programs(
    model: ModelConfig, config: LocalEngineConfig, place: Place, say: Say = lambda line: None
) -> Programs:
    """Return the programs of this model, configuration and place, compiled at most once per process.

    say: told of every program that has been compiled, in the caller's thread.
    """
    key = (model, config.on_platform(first_device(place).platform), place)
    with _compile_lock:  # two engines that start together must not compile twice
        if key not in _compiled:
            _compiled[key] = _compile(*key, say)
        return _compiled[key]


def _compile(model: ModelConfig, config: LocalEngineConfig, place: Place, say: Say) -> Programs:
    whole, by_head = everywhere(place), caches_placement(model, place)

    def spec(dtype: Any, *shape: int, sharding: Any = whole) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)  # type: ignore[no-untyped-call]

    def draws(rows: int) -> Draws:
        floats, ints = spec(jnp.float32, rows), spec(jnp.int32, rows)
        return Draws(spec(jnp.uint32, rows, 2), ints, floats, Truncations(ints, floats, floats))

    dtype, slots = jnp.dtype(config.dtype), config.num_slots
    shapes = build_tree(model, lambda leaf: spec(dtype, *leaf.shape))
    stacks = jax.tree.map(lambda x, to: spec(dtype, *x.shape, sharding=to), shapes, params_placement(model, place))

    def layers(stack: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
        one = spec(dtype, *stack.shape[1:], sharding=layer_sharding(stack.sharding))
        return (one,) * model.num_layers

    params = split_layers(stacks, layers)
    empty = jax.eval_shape(lambda: init_caches(model, slots, config.cache_tokens, dtype))
    caches = jax.tree.map(lambda x, to: spec(x.dtype, *x.shape, sharding=to), empty, by_head)
    sampled: dict[str, Any] = {"donate_argnums": 1, "out_shardings": (by_head, whole, whole)}
    moved: dict[str, Any] = {"donate_argnums": 0, "out_shardings": by_head}
    prefill = jax.jit(partial(prefill_chunk, model=model, banned_ids=config.banned_ids), **sampled)
    decode = jax.jit(
        partial(decode_block, model=model, banned_ids=config.banned_ids, num_steps=config.decode_block),
        **sampled,
    )
    block = spec(jnp.int32, slots)
    lowered = {
        f"prefill of {rows} x {tokens} tokens": partial(
            prefill.lower, params, caches, spec(jnp.int32, rows, tokens), *[spec(jnp.int32, rows)] * 3, draws(rows)
        )
        for rows, tokens in config.prefill_shapes
    }
    lowered["decode"] = partial(decode.lower, params, caches, block, block, draws(slots))
    lowered["clear"] = partial(jax.jit(clear_slots, **moved).lower, caches, spec(jnp.bool_, slots))
    lowered["copy"] = partial(jax.jit(copy_prefixes, **moved).lower, caches, block, block)
    *prefills, decoding, clearing, copying = _compile_each(lowered, say)
    prefill_programs = dict(zip(config.prefill_shapes, prefills, strict=True))
    return Programs(prefill=prefill_programs, decode=decoding, clear=clearing, copy=copying)


def _compile_each(lowered: Mapping[str, Callable[[], Any]], say: Say) -> Iterator[Any]:
    for number, (name, lower) in enumerate(lowered.items(), 1):
        begun = monotonic()
        yield lower().compile()
        say(f"engine: {name} compiled in {monotonic() - begun:.1f} s ({number} of {len(lowered)} programs)")


class Runner:
    """Weights, caches and programs at one place: a device, or a mesh over whose devices the model is split.

    Used by one thread at a time; every call waits for its result.
    """

    def __init__(
        self,
        model: ModelConfig,
        config: LocalEngineConfig,
        weights: Any,
        place: Place,
        say: Say = lambda line: None,
    ) -> None:
        """Compile and allocate everything. Raises ConfigError or EngineError if the parts do not fit.

        say: see `compile_programs`.
        """
        config.check_model(model)
        config = config.on_platform(first_device(place).platform)
        self.model, self.config, self.place = model, config, place
        self._params: Params = self.stage(weights)
        self._programs = compile_programs(model, config, place, say)
        with jax.default_device(first_device(place)):
            caches = init_caches(model, config.num_slots, config.cache_tokens, config.dtype)
        self._caches = jax.device_put(caches, caches_placement(model, place))

    def stage(self, weights: Any) -> Params:
        """Return a checked copy of `weights` at the place. May run beside the other methods, in another thread."""
        return stage_weights(self.model, weights, self.config.dtype, self.place)

    def swap(self, params: Params) -> None:
        """Use staged weights from the next call on."""
        self._params = params

    def prefill(self, step: PrefillStep) -> tuple[Ids, Floats]:
        """Run the chunk; return ids and log-probabilities [P]."""
        arguments = (step.ids, step.slots, step.starts, step.counts, step.draws)
        program = self._programs.prefill[step.ids.shape]
        self._caches, tokens, logprobs = program(self._params, self._caches, *arguments)
        return _to_host(tokens), _to_host(logprobs)

    def decode(self, step: DecodeStep) -> tuple[Ids, Floats]:
        """Run the block; return ids and log-probabilities [N, S]."""
        arguments = (step.tokens, step.starts, step.draws)
        self._caches, tokens, logprobs = self._programs.decode(self._params, self._caches, *arguments)
        return _to_host(tokens), _to_host(logprobs)

    def clear(self, step: ClearStep) -> None:
        """Zero the slots that `step` does not keep."""
        self._caches = self._programs.clear(self._caches, step.keep)

    def copy(self, step: CopyStep) -> None:
        """Copy prefixes from slot to slot."""
        self._caches = self._programs.copy(self._caches, step.sources, step.counts)


def _to_host(array: jax.Array) -> npt.NDArray[Any]:
    return np.asarray(array)
