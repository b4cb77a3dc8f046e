"""`launch.gpu_check` on a machine without a GPU: its arithmetic, what it would notice, and a whole run."""

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from agentrl_jax.learner import LearnerConfig
from agentrl_jax.models.attention_xla import attend_xla
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import init_params, num_params
from agentrl_jax.packing import PackingConfig
from agentrl_jax.sharding import make_mesh, parse_mesh
from launch import gpu_check
from launch.estimates import peak_flops, step_bytes, step_flops
from launch.gpu_check import main
from launch.gpu_parts import Failed, Line, Machine, largest_error
from launch.gpu_step import SHAPE_OF_3B
from tests.learner.small import SFT, Learner

SMALL = ModelConfig(
    vocab_size=10, width=4, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=2, mlp_width=6, tie_embeddings=False
)


def test_the_3b_shape_is_that_of_qwen() -> None:
    assert num_params(SHAPE_OF_3B) == 3_085_938_688  # as published


def test_operations_by_hand() -> None:
    lookup = 10 * 4
    attention = 6 * 2 * 2 * 2 * 8  # 6 · layers · heads · head_dim · length
    assert step_flops(SMALL, num_tokens=3, length=8) == 3 * (6 * (num_params(SMALL) - lookup) + attention)


def test_bytes_by_hand() -> None:
    need = step_bytes(SMALL, rows=2, row_tokens=8, logprob_chunk=4, shards=4, tensor=2, itemsize=2)
    params = num_params(SMALL)
    assert need.state == 12 * params // 4
    assert need.gradients == 8 * params // 4
    assert need.logits == 3 * 4 * 2 * 4 * 10 // 2
    assert need.activations == 2 * 16 * 4 * 2 + 16 * 2 * (6 * 4 + (2 * 8 + 4 * 6) // 2) + 2 * 10 * 4 * 2 // 2
    assert need.total == sum(need)


@pytest.mark.parametrize(
    ("kind", "rate"),
    [("NVIDIA H800", 989e12), ("NVIDIA H200", 989e12), ("NVIDIA H20", 148e12), ("NVIDIA A100-SXM4-80GB", 312e12),
     ("cpu", None)],
)  # fmt: skip
def test_peaks(kind: str, rate: float | None) -> None:
    assert peak_flops(kind) == rate


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["1", "fsdp=4", "fsdp=2,tensor=2"])
def test_the_estimate_of_memory_is_near_what_xla_plans(mesh: str) -> None:
    model = ModelConfig(
        vocab_size=8192, width=256, num_layers=4, num_heads=8, num_kv_heads=2, head_dim=32, mlp_width=1024
    )
    settings = LearnerConfig(logprob_chunk=64)
    learner = Learner(model, settings, SFT, make_mesh(parse_mesh(mesh)), init_params(model, 0))
    shape = learner.mesh.shape
    rows = 2
    packing = PackingConfig(row_tokens=(512,), rows_per_micro_batch=rows * shape["data"] * shape["fsdp"])
    planned = learner.compile_ahead(packing).peak
    estimate = step_bytes(
        model, rows=rows, row_tokens=512, logprob_chunk=64, shards=shape["fsdp"] * shape["tensor"],
        tensor=shape["tensor"], itemsize=4,
    )  # fmt: skip
    assert 0.6 < estimate.total / planned < 1.6, (estimate, planned)


def test_a_wrong_kernel_is_noticed() -> None:
    f32 = jnp.dtype(jnp.float32)
    assert largest_error(attend_xla, f32, length=32, head_dim=16) == 0.0

    def blind_to_segments(q, k, v, segment_ids, positions):  # type: ignore[no-untyped-def]
        columns = jnp.broadcast_to(jnp.arange(q.shape[1]), positions.shape)
        return attend_xla(q, k, v, jnp.ones_like(segment_ids), columns)

    def broken(q, k, v, segment_ids, positions):  # type: ignore[no-untyped-def]
        return attend_xla(q, k, v, segment_ids, positions) * jnp.nan

    assert largest_error(blind_to_segments, f32, length=32, head_dim=16) > 0.1
    assert largest_error(broken, f32, length=32, head_dim=16) == float("inf")


def test_a_failure_is_named_and_ends_in_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(machine: Machine, error: Exception) -> Iterator[Line]:
        yield Line("ok", "first", "fine")
        raise error

    monkeypatch.setattr(gpu_check, "check_attention", partial(fails, error=Failed("expected 1, got 2")))
    monkeypatch.setattr(gpu_check, "check_step", partial(fails, error=jax.errors.JaxRuntimeError("out\nof memory")))
    monkeypatch.setattr(gpu_check, "check_engine", lambda machine: iter([Line("FAILED", "engine", "slow")]))
    assert main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "FAILED  attention  Failed: expected 1, got 2" in lines
    assert "FAILED  step       JaxRuntimeError: out" in lines
    assert lines[-1].startswith("3 checks failed")


def test_an_unexpected_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(machine: Machine) -> Iterator[Line]:
        raise KeyError("a bug")

    monkeypatch.setattr(gpu_check, "check_attention", breaks)
    with pytest.raises(KeyError):
        main([])


@pytest.mark.parametrize("flags", [["--mesh=0"], ["--memory-fraction=0.5"], ["--mesh=99"]])
def test_wrong_settings_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(flags)
    assert caught.value.code == 2
    assert "launch.gpu_check: " in capsys.readouterr().err


@pytest.mark.slow
def test_a_machine_without_a_gpu_is_told_what_was_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    for reason in ("cudnn needs an NVIDIA GPU", "the shape of Qwen2.5-3B needs a GPU; the same code with 2 layers"):
        assert reason in out
    for part in ("pallas, interpreted, is within", "tokens/s decoded", "and served", "planned by XLA"):
        assert part in out
    assert "FAILED" not in out


def test_the_shape_is_cut_to_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    from launch.gpu_step import _Sizes

    def layers(gigabytes: float) -> int:
        device = SimpleNamespace(
            platform="gpu", device_kind="NVIDIA H800", memory_stats=lambda: {"bytes_limit": gigabytes * 1e9}
        )
        mesh = SimpleNamespace(shape={"data": 1, "fsdp": 1, "tensor": 1}, size=1, local_devices=[device])
        return _Sizes(Machine(mesh)).model.num_layers  # type: ignore[arg-type]

    assert layers(80) == layers(140) == 8
    assert 1 <= layers(16) < 8
    with pytest.raises(Failed, match="not even one layer fits into 3 GB"):
        layers(4)
