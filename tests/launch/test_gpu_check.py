"""`launch.gpu_check` on a machine without a GPU: its arithmetic, what it would notice, and a whole run."""

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from agentrl_jax.models.attention_xla import attend_xla
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import num_params
from launch import gpu_check
from launch.estimates import device_kind, step_flops
from launch.gpu_check import main
from launch.gpu_parts import Failed, Line, Machine, largest_error
from launch.gpu_step import SHAPE_OF_3B

SMALL = ModelConfig(
    vocab_size=10, width=4, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=2, mlp_width=6, tie_embeddings=False
)


def test_the_3b_shape_is_that_of_qwen() -> None:
    assert num_params(SHAPE_OF_3B) == 3_085_938_688  # as published


def test_operations_by_hand() -> None:
    lookup = 10 * 4
    attention = 6 * 2 * 2 * 2 * 8  # 6 · layers · heads · head_dim · length
    assert step_flops(SMALL, num_tokens=3, length=8) == 3 * (6 * (num_params(SMALL) - lookup) + attention)


@pytest.mark.parametrize(
    ("kind", "rate"),
    [("NVIDIA H800", 989e12), ("NVIDIA H200", 989e12), ("NVIDIA H20", 148e12), ("NVIDIA A100-SXM4-80GB", 312e12),
     ("cpu", None)],
)  # fmt: skip
def test_peaks(kind: str, rate: float | None) -> None:
    known = device_kind(kind)
    assert (known and known.flops) == rate


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
