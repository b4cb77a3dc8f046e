"""What `launch.gpu_check` says, what it checks it on, and its first part: attention kernels against the reference."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.attention import BACKENDS, Attend, Backend, plan_attention
from agentrl_jax.models.attention_pallas import attend_pallas
from agentrl_jax.models.attention_xla import attend_xla

Verdict: TypeAlias = Literal["ok", "skipped", "FAILED"]

_HALF_TOLERANCE, _WHOLE_TOLERANCE = 2e-2, 1e-5
"""Of the largest difference over the largest number: bfloat16 has 8 bits, and sums of it a few less."""


class Line(NamedTuple):
    verdict: Verdict
    part: str
    text: str


class Failed(Exception):
    """A part of the check found something wrong; the message says what was expected and what came."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What is checked: the devices of a mesh, as one process sees them."""

    mesh: Mesh

    @property
    def device(self) -> jax.Device:
        return self.mesh.local_devices[0]

    @property
    def kind(self) -> str:
        return f"{self.mesh.size} of {self.device.device_kind}"

    @property
    def is_gpu(self) -> bool:
        return bool(self.device.platform == "gpu")

    @property
    def dtype(self) -> Any:
        return jnp.dtype(jnp.bfloat16 if self.is_gpu else jnp.float32)

    @property
    def memory_bytes(self) -> int | None:
        """What JAX may use of the device's memory; None where it does not say."""
        limit: int | None = (self.device.memory_stats() or {}).get("bytes_limit")
        return limit


def seconds(function: Callable[[], Any], *, repeats: int) -> float:
    """Return the median time of a call whose result is waited for, after one that compiles."""
    jax.block_until_ready(function())  # type: ignore[no-untyped-call]
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(function())  # type: ignore[no-untyped-call]
        times.append(time.perf_counter() - begun)
    return float(np.median(times))


def check_attention(machine: Machine) -> Iterator[Line]:
    """Each kernel against the float32 reference, forward and backward; and what `auto` takes."""
    head_dim = 128
    plan = plan_attention("auto", machine.device, head_dim=head_dim, dtype=machine.dtype)
    yield Line("ok", "attention", f"auto takes {plan.backend}: {plan.reason}")
    kernels: tuple[Backend, ...] = ("pallas", "cudnn")
    for backend in kernels:
        try:
            plan_attention(backend, machine.device, head_dim=head_dim, dtype=machine.dtype)
        except ConfigError as error:
            yield Line("skipped", "attention", str(error).removeprefix("--learner.attention ").split(";")[0])
        else:
            error_frac = largest_error(BACKENDS[backend], machine.dtype, length=1024, head_dim=head_dim)
            yield _verdict(backend, error_frac, _HALF_TOLERANCE, f", {_speed(BACKENDS[backend])}")
    if not machine.is_gpu:
        error_frac = largest_error(partial(attend_pallas, interpret=True), machine.dtype, length=32, head_dim=16)
        yield _verdict("pallas, interpreted,", error_frac, _WHOLE_TOLERANCE, "")


def _verdict(name: str, error_frac: float, tolerance: float, more: str) -> Line:
    text = f"{name} is within {error_frac:.1e} of the reference, forward and backward{more}"
    if error_frac <= tolerance:
        return Line("ok", "attention", text)
    return Line("FAILED", "attention", f"{name} is off by {error_frac:.1e}, expected at most {tolerance:.0e}")


def largest_error(attend: Attend, dtype: Any, *, length: int, head_dim: int) -> float:
    """Return the largest difference to the float32 reference of output and gradients, as a fraction of the largest
    number there; NaN counts as infinite."""
    rows = _packed_rows(length, heads=4, kv_heads=2, head_dim=head_dim)
    low = [jnp.asarray(array, dtype) for array in rows[:3]]
    high = [array.astype(jnp.float32) for array in low]
    errors = []
    for ours, theirs in zip(_run(attend, low, rows[3:]), _run(attend_xla, high, rows[3:]), strict=True):
        difference = jnp.abs(ours.astype(jnp.float32) - theirs).max() / jnp.abs(theirs).max()
        errors.append(float("inf") if jnp.isnan(difference) else float(difference))
    return max(errors)


def _run(attend: Attend, qkv: list[jax.Array], where: Any) -> list[jax.Array]:
    def total(*qkv: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = attend(*qkv, *where)
        return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

    (_, out), gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))(*qkv)
    return [out, *gradients]


def _speed(attend: Attend) -> str:
    length, heads, head_dim = 8192, 16, 128
    rows = _packed_rows(length, heads=heads, kv_heads=2, head_dim=head_dim, num_segments=1)
    qkv = [jnp.asarray(array, jnp.bfloat16) for array in rows[:3]]
    total = jax.jit(jax.grad(lambda *qkv: attend(*qkv, *rows[3:]).astype(jnp.float32).sum(), argnums=(0, 1, 2)))
    spent = seconds(lambda: total(*qkv), repeats=5)
    # Two products forward and five backward, half of each left out by causality.
    operations = 7 * 2 * len(rows[0]) * heads * head_dim * length**2 / 2
    return f"{1e3 * spent:.1f} ms ({operations / spent / 1e12:.0f} TFLOP/s) for {len(rows[0])} rows of {length} tokens"


def _packed_rows(length: int, *, heads: int, kv_heads: int, head_dim: int, num_segments: int = 3) -> tuple[Any, ...]:
    """Two rows: one of so many segments and padding, one of a single segment. (q, k, v, segment ids, positions)."""
    rng = np.random.default_rng(0)
    size = length // num_segments - (num_segments > 1)
    columns = np.arange(length, dtype=np.int32)
    is_token = columns < num_segments * size
    segment_ids = np.stack([np.where(is_token, columns // size + 1, 0), np.ones_like(columns)]).astype(np.int32)
    positions = np.stack([np.where(is_token, columns % size, 0), columns]).astype(np.int32)
    q = rng.standard_normal((2, length, heads, head_dim), np.float32)
    k, v = rng.standard_normal((2, 2, length, kv_heads, head_dim), np.float32)
    return q, k, v, segment_ids, positions
