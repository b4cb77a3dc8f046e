"""Attention on GPUs, as far as a machine without one can tell: what is chosen, refused, and lowered to CUDA."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax._src.cudnn import fused_attention_stablehlo

from agentrl_jax.errors import ConfigError
from agentrl_jax.models import attention_cudnn
from agentrl_jax.models.attention import BACKENDS, plan_attention
from agentrl_jax.models.attention_cudnn import segment_bounds
from tests.models import cudnn_stand_in
from tests.models.attention_cases import by_loops, make_rows

BF16, F32 = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)
CPU = jax.devices("cpu")[0]


def gpu(capability: str = "9.0", kind: str = "NVIDIA H800"):
    return SimpleNamespace(platform="gpu", compute_capability=capability, device_kind=kind)


@pytest.fixture
def cudnn(monkeypatch):
    monkeypatch.setattr(attention_cudnn, "cudnn_version", lambda: 91_000)


def test_auto_takes_the_kernel_where_it_runs_and_says_why_not_elsewhere():
    assert plan_attention("auto", CPU, head_dim=64, dtype=F32) == (
        "xla",
        "pallas needs an NVIDIA GPU, but the mesh is of cpu devices",
    )
    assert plan_attention("auto", gpu(), head_dim=128, dtype=BF16) == ("pallas", "flash attention on NVIDIA H800")
    assert plan_attention("auto", gpu("7.5", "Tesla T4"), head_dim=128, dtype=BF16) == (
        "xla",
        "pallas needs compute capability 8.0, but Tesla T4 has 7.5",
    )
    assert plan_attention("auto", gpu(), head_dim=512, dtype=BF16).backend == "xla"
    assert plan_attention("auto", gpu(), head_dim=128, dtype=F32).backend == "xla"
    amd = gpu("gfx942", "AMD Instinct MI300X")
    assert plan_attention("auto", amd, head_dim=128, dtype=BF16).backend == "xla"


def test_what_is_asked_for_is_taken(cudnn):
    for choice in ("xla", "pallas", "cudnn"):
        plan = plan_attention(choice, gpu(), head_dim=128, dtype=BF16)
        assert plan == (choice, "asked for")
        assert plan.attend is BACKENDS[choice]


@pytest.mark.parametrize(
    ("choice", "device", "head_dim", "dtype", "message"),
    [
        (
            "cudnn",
            CPU,
            64,
            F32,
            "--learner.attention cudnn needs an NVIDIA GPU, but .* cpu devices; choose auto or xla",
        ),
        ("pallas", CPU, 64, BF16, "--learner.attention pallas needs an NVIDIA GPU, but .* cpu devices"),
        ("pallas", gpu(), 264, BF16, "heads of at most 256 numbers, but the model's have 264"),
        ("pallas", gpu(), 64, F32, "bfloat16 or float16, but the compute dtype is float32"),
        ("cudnn", gpu("8.0", "NVIDIA A100"), 256, BF16, "at most 128 numbers here, but the model's have 256"),
        ("cudnn", gpu(), 100, BF16, "multiple of 8, at most 256 numbers here, but the model's have 100"),
    ],
)
def test_what_cannot_run_is_refused(cudnn, choice, device, head_dim, dtype, message):
    with pytest.raises(ConfigError, match=message):
        plan_attention(choice, device, head_dim=head_dim, dtype=dtype)


def test_cudnn_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(attention_cudnn, "cudnn_version", lambda: None)
    with pytest.raises(ConfigError, match="needs cuDNN, which this installation of JAX does not find"):
        plan_attention("cudnn", gpu(), head_dim=128, dtype=BF16)


@pytest.mark.parametrize(
    ("version", "capability", "expected"),
    [
        (90_600, "9.0", True),
        (90_599, "9.0", False),
        (91_000, "8.9", False),
        (None, "9.0", False),
        (91_100, "10.0", True),
    ],
)
def test_the_packed_layout_needs_a_new_cudnn_and_hopper(monkeypatch, version, capability, expected):
    monkeypatch.setattr(attention_cudnn, "cudnn_version", lambda: version)
    monkeypatch.setattr(attention_cudnn.jax, "local_devices", lambda backend: [gpu(capability)])
    assert attention_cudnn.has_packed_layout() is expected


def test_segments_are_told_by_starts_and_lengths():
    segment_ids = np.array([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1], [0] * 6, [1, 2, 3, 0, 0, 0]], np.int32)
    starts, lengths = segment_bounds(segment_ids, 3)
    assert starts.tolist() == [[0, 2, -1, -1], [0, -1, -1, -1], [-1] * 4, [0, 1, 2, -1]]
    assert lengths.tolist() == [[2, 3, -1], [6, -1, -1], [-1] * 3, [1, 1, 1]]


@pytest.mark.parametrize("is_packed", [True, False])
def test_rows_of_too_many_segments_go_to_pallas(monkeypatch, is_packed):
    calls = []

    def count(name, function, *args, **kwargs):
        jax.debug.callback(lambda: calls.append(name))
        return function(*args, **kwargs)

    def padded(q, k, v, segment_ids):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)  # what is right of a token never matters

    pallas = partial(attention_cudnn.flash_attention, interpret=True)
    monkeypatch.setattr(attention_cudnn, "has_packed_layout", lambda: is_packed)
    monkeypatch.setattr(attention_cudnn, "flash_attention", partial(count, "pallas", pallas))
    monkeypatch.setattr(attention_cudnn, "_padded", partial(count, "cudnn", padded))
    packed = partial(count, "cudnn", cudnn_stand_in.dot_product_attention)
    monkeypatch.setattr(fused_attention_stablehlo, "dot_product_attention", packed)
    attend = jax.jit(lambda *rows: attention_cudnn.attend_cudnn(*rows))  # its own: what is patched is traced anew
    few = ((16,), (8, 8)) if is_packed else ((16,), (9,))
    for lengths, expected in ((few, "cudnn"), (((2, 3, 4), (16,)), "pallas")):
        rows = make_rows(16, lengths)
        np.testing.assert_allclose(attend(*rows), by_loops(*rows), atol=3e-6)
        jax.effects_barrier()
        assert calls == [expected]
        calls.clear()


lowers_without_a_gpu = pytest.mark.skipif(
    jax.__version_info__ >= (0, 11), reason="newer versions of jax lower Triton kernels only where there is a GPU"
)


def lowered_to_cuda(attend, length=256, heads=4, kv_heads=2, head_dim=128):
    q, kv = (jax.ShapeDtypeStruct((2, length, h, head_dim), BF16) for h in (heads, kv_heads))
    ids = jax.ShapeDtypeStruct((2, length), jnp.int32)

    def total(q, k, v, segment_ids, positions):
        return attend(q, k, v, segment_ids, positions).astype(jnp.float32).sum()

    step = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    return export.export(step, platforms=["cuda"], disabled_checks=CHECKS)(q, kv, kv, ids, ids).mlir_module()


CHECKS = [export.DisabledSafetyCheck.custom_call(name) for name in (
    "__gpu$xla.gpu.triton", "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"
)]  # fmt: skip


@lowers_without_a_gpu
@pytest.mark.parametrize(("length", "head_dim"), [(256, 128), (200, 64), (96, 80), (130, 256)])
def test_pallas_lowers_to_triton_forward_and_backward(length, head_dim):
    text = lowered_to_cuda(BACKENDS["pallas"], length=length, head_dim=head_dim)
    for kernel in ("mha_forward", "mha_preprocess_backward", "mha_backward"):
        assert kernel in text
    assert f"x{length}x{length}x" not in text  # no map of all scores


@lowers_without_a_gpu
@pytest.mark.parametrize("is_packed", [True, False])
def test_cudnn_lowers_to_its_fused_kernels_without_a_mask(monkeypatch, is_packed):
    monkeypatch.setattr(attention_cudnn, "has_packed_layout", lambda: is_packed)
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91_000)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda version: True)
    monkeypatch.setattr(fused_attention_stablehlo, "is_cuda_compute_capability_equal", lambda version: False)
    text = lowered_to_cuda(BACKENDS["cudnn"])
    assert "@__cudnn$fmhaSoftmax(" in text
    assert "@__cudnn$fmhaSoftmaxBackward(" in text
    assert "PADDING_CAUSAL" in text
    assert "ScaleBias" not in text
    assert "x256x256x" not in text
