"""The parts of `launch.gpu_check` that run a model in the shape of Qwen2.5-3B; on a CPU a toy one."""

import time
from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.batch import map_tokens
from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.local.runner import Runner
from agentrl_jax.engines.local.steps import DecodeStep, Draws, Truncations
from agentrl_jax.learner import Learner, LearnerConfig
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import Params, build_tree, num_params
from agentrl_jax.models.specs import ParamSpec
from agentrl_jax.packing import PackedBatch, PackingConfig, pack_demonstrations
from agentrl_jax.sharding import MeshShape, local_rows, named_sharding
from launch.estimates import StepBytes, device_kind, step_bytes, step_flops
from launch.gpu_parts import Failed, Line, Machine

SHAPE_OF_3B = ModelConfig(
    vocab_size=151_936, width=2048, num_layers=36, num_heads=16, num_kv_heads=2, head_dim=128, mlp_width=11_008
)
TOY = ModelConfig(vocab_size=256, width=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, mlp_width=128)
MAX_LAYERS = 8
"""More of the same layers say nothing new, and take long to compile in the engine."""

_GIGA = 1e9


class _Sizes:
    """What a machine is given to do."""

    def __init__(self, machine: Machine) -> None:
        self.shape = MeshShape(**machine.mesh.shape)
        self.rows, self.row_tokens, self.num_steps = (4, 2048, 5) if machine.is_gpu else (2, 64, 2)
        self.learner = LearnerConfig(learning_rate=1e-5, logprob_chunk=256 if machine.is_gpu else 16)
        self.engine = LocalEngineConfig(
            num_slots=64 if machine.is_gpu else 4,
            cache_tokens=1024 if machine.is_gpu else 64,
            prefill_shapes=((4, 128),) if machine.is_gpu else ((1, 16),),
            decode_block=16 if machine.is_gpu else 4,
            dtype="bfloat16" if machine.is_gpu else "float32",
        )
        self._itemsize = machine.dtype.itemsize
        self.model = TOY
        if machine.is_gpu:
            room = 0.85 * (machine.memory_bytes or 16 * _GIGA)
            layers = [n for n in range(1, MAX_LAYERS + 1) if self.peak(replace(SHAPE_OF_3B, num_layers=n)) <= room]
            if not layers:
                raise Failed(f"not even one layer fits into {room / _GIGA:.0f} GB: expected a GPU of 16 GB or more")
            self.model = replace(SHAPE_OF_3B, num_layers=layers[-1])

    def estimate(self, model: ModelConfig) -> StepBytes:
        return step_bytes(
            model,
            mesh=self.shape,
            rows=self.rows,
            row_tokens=self.row_tokens,
            logprob_chunk=self.learner.logprob_chunk,
            itemsize=self._itemsize,
        )

    def peak(self, model: ModelConfig) -> int:
        return self.estimate(model).peak

    @property
    def scale(self) -> str:
        return (
            f"{self.model.num_layers} layers of width {self.model.width}, vocabulary {self.model.vocab_size} "
            f"({num_params(self.model) / _GIGA:.3g}G params)"
        )


def check_step(machine: Machine) -> Iterator[Line]:
    """Learner steps: finite, how fast, with how much memory against the estimate."""
    sizes = _Sizes(machine)
    if machine.is_gpu:
        yield Line("ok", "step", f"the shape of Qwen2.5-3B with {sizes.scale} of its 36 layers")
    else:
        yield Line("skipped", "step", f"the shape of Qwen2.5-3B needs a GPU; the same code with {sizes.scale}")
    params = _fresh_params(sizes.model, machine)
    learner = Learner(sizes.model, sizes.learner, make_loss(LossConfig(name="sft")), machine.mesh, params)
    del params
    packed, packing = _batch(machine, sizes)
    planned = learner.compile_ahead(packing).peak
    times = []
    for _ in range(sizes.num_steps):
        begun = time.perf_counter()
        metrics = learner.step(packed)
        times.append(time.perf_counter() - begun)
        if not metrics.is_applied:
            raise Failed(f"expected a finite loss and gradient, got {metrics.loss} and {metrics.grad_norm}")
    yield Line("ok", "step", _speed(machine, sizes, packed, float(np.median(times[1:]))))
    yield _memory(machine, sizes.estimate(sizes.model), planned)


def _speed(machine: Machine, sizes: _Sizes, packed: PackedBatch, step_s: float) -> str:
    length = sizes.row_tokens * 5 // 8  # half of the tokens are in whole rows, half in quarters
    flops = step_flops(sizes.model, num_tokens=packed.num_tokens, length=length)
    rate = flops / step_s / machine.mesh.size
    kind = device_kind(machine.device.device_kind)
    mfu = f"{rate / kind.flops:.1%} MFU" if kind else f"no MFU: the peak of {machine.device.device_kind} is not known"
    return (
        f"{step_s:.3f} s for {packed.num_tokens} tokens in rows of {sizes.row_tokens}: "
        f"{packed.num_tokens / step_s:,.0f} tokens/s, {rate / 1e12:.3g} TFLOP/s per device, {mfu}"
    )


def _memory(machine: Machine, estimate: StepBytes, planned: int) -> Line:
    parts = ", ".join(f"{name} {size / _GIGA:.3g}" for name, size in estimate._asdict().items())
    text = f"GB per device: {estimate.peak / _GIGA:.3g} estimated ({parts}), {planned / _GIGA:.3g} planned by XLA"
    used = (machine.device.memory_stats() or {}).get("peak_bytes_in_use")
    if used is None:
        return Line("ok", "memory", f"{text}; what was used is not known on {machine.device.device_kind}")
    return Line("ok", "memory", f"{text}, {used / _GIGA:.3g} used")


def check_engine(machine: Machine) -> Iterator[Line]:
    """The embedded engine's decode rate, and a publish that takes effect."""
    if jax.process_count() > 1:
        yield Line("skipped", "engine", f"it runs in one process, and this is one of {jax.process_count()}")
        return
    sizes = _Sizes(machine)
    config, model = sizes.engine, sizes.model
    if not machine.is_gpu:
        yield Line("skipped", "engine", f"the shape of Qwen2.5-3B needs a GPU; the same code with {sizes.scale}")
    params = _fresh_params(model, machine)
    runner = Runner(model, config, params, machine.device)
    num_blocks = config.cache_tokens // config.decode_block - 1
    _decode(runner, 0)
    begun = time.perf_counter()
    for block in range(num_blocks):
        _decode(runner, block)
    spent = time.perf_counter() - begun
    num_tokens = num_blocks * config.decode_block * config.num_slots
    yield Line(
        "ok",
        "engine",
        f"{num_tokens / spent:,.0f} tokens/s decoded in {config.num_slots} slots with a cache of {config.cache_tokens} "
        f"({1e3 * spent / num_blocks / config.decode_block:.2f} ms a step, {config.dtype})",
    )
    # Under weights of nothing but zeros every id is as likely as another: that tells whether they are the ones served.
    zeros = jax.tree.map(jnp.zeros_like, params)
    begun = time.perf_counter()
    staged = jax.block_until_ready(runner.stage(zeros))  # type: ignore[no-untyped-call]
    spent = time.perf_counter() - begun
    runner.swap(staged)
    served, uniform = float(_decode(runner, 0).mean()), -float(np.log(model.vocab_size))
    if not abs(served - uniform) < 1e-2:
        raise Failed(f"after a publish of zeros: expected log-probabilities of {uniform:.3f}, got {served:.3f}")
    size = num_params(model) * jnp.dtype(config.dtype).itemsize
    yield Line("ok", "publish", f"{size / _GIGA:.3g} GB in {spent:.3f} s ({size / spent / _GIGA:.3g} GB/s), and served")


def _decode(runner: Runner, block: int) -> np.ndarray:
    slots = runner.config.num_slots
    whole = Truncations(np.zeros(slots, np.int32), np.ones(slots, np.float32), np.zeros(slots, np.float32))
    step = DecodeStep(
        slots=tuple(range(slots)),
        tokens=np.ones(slots, np.int32),
        starts=np.full(slots, block * runner.config.decode_block, np.int32),
        draws=Draws(np.ones((slots, 2), np.uint32), np.zeros(slots, np.int32), np.ones(slots, np.float32), whole),
    )
    ids, logprobs = runner.decode(step)
    if not (np.isfinite(logprobs).all() and (logprobs <= 0).all() and (ids >= 0).all()):
        raise Failed(f"expected finite log-probabilities up to 0, got {logprobs.min()} to {logprobs.max()}")
    return logprobs


def _fresh_params(model: ModelConfig, machine: Machine) -> Params:
    """Random params, drawn where they lie."""

    def draw(spec: ParamSpec) -> jax.Array:
        sharding = named_sharding(machine.mesh, spec.axes, spec.shape)
        if spec.initial != "normal":
            value = float(spec.initial == "ones")
            constant: jax.Array = jax.jit(lambda: jnp.full(spec.shape, value), out_shardings=sharding)()
            return constant
        scale = spec.fan_in**-0.5
        key = jax.random.key(len(spec.hf_name))
        drawn: jax.Array = jax.jit(lambda: scale * jax.random.normal(key, spec.shape), out_shardings=sharding)()
        return drawn

    return build_tree(model, draw)


def _batch(machine: Machine, sizes: _Sizes) -> tuple[PackedBatch, PackingConfig]:
    """Two micro-batches of full rows, every other one of four segments; this process's rows of them."""
    rng = np.random.default_rng(0)
    rows = sizes.rows * sizes.shape.num_row_shards
    whole, quarter = sizes.row_tokens, sizes.row_tokens // 4
    lengths = [length for row in range(2 * rows) for length in ([whole] if row % 2 else [quarter] * 4)]
    demonstrations = [
        (rng.integers(0, sizes.model.vocab_size, length).astype(np.int32), np.arange(length) > 0) for length in lengths
    ]
    packing = PackingConfig(row_tokens=(whole,), rows_per_micro_batch=rows)
    packed = pack_demonstrations(demonstrations, packing)
    own = local_rows(machine.mesh, rows)
    return (
        replace(
            packed,
            micro_batches=tuple(map_tokens(lambda array: array[own], batch) for batch in packed.micro_batches),
        ),
        packing,
    )
