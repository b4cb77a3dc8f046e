"""Exports: what lies in the file, what is refused, and who may write where."""

import errno
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from agentrl_jax.engines.exports import open_exports
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.models.buckets import HostBucket
from tests.engines.weight_fakes import SHAPES, exports_in, in_buckets, random_arrays


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 5), max_size=6),
    order=st.permutations(list(SHAPES)),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_a_file_holds_the_bits_of_every_tensor_however_they_come(
    tmp_path: Path, sizes: list[int], order: list[str], dtype: Any
) -> None:
    arrays = random_arrays(1, dtype)
    with exports_in(tmp_path / "exports", dtype) as exports:
        export = exports.write(3, in_buckets({name: arrays[name] for name in order}, sizes))
        found = load_file(export.file)
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name].view(np.uint8), array.view(np.uint8))
            np.testing.assert_array_equal(export.read(name).view(np.uint8), array.view(np.uint8))
        assert json.loads((export.folder / "config.json").read_text()) == {"model_type": "toy"}
        assert export.num_bytes == sum(array.nbytes for array in arrays.values())
        export.check()


def test_a_bucket_is_gathered_while_the_one_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for_second = threading.Event()
    write = os.pwritev

    def slow_write(handle: int, buffers: Any, offset: int) -> int:
        if offset:  # not the header
            assert asked_for_second.wait(10.0)
        return write(handle, buffers, offset)

    def buckets() -> Iterator[HostBucket]:
        first, second = in_buckets(random_arrays(0), [4])
        yield first
        asked_for_second.set()
        yield second

    monkeypatch.setattr(os, "pwritev", slow_write)
    with exports_in(tmp_path / "e") as exports:
        exports.write(0, buckets()).check()


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in random_arrays(0).items() if key != name}


WRONG = {
    "1 tensors are missing, first model.norm.weight": lambda: in_buckets(without("model.norm.weight")),
    "unknown tensor model.extra": lambda: in_buckets({**random_arrays(0), "model.extra": np.zeros(2, np.float32)}),
    "twice the tensor model.norm.weight": lambda: [
        *in_buckets(random_arrays(0)),
        *in_buckets({"model.norm.weight": np.zeros(8, np.float32)}),
    ],
    r"model.norm.weight must be float32 of shape \(8,\), got float32 of shape \(2, 4\)": lambda: in_buckets(
        {**random_arrays(0), "model.norm.weight": np.zeros((2, 4), np.float32)}
    ),
    r"got float64 of shape \(8,\)": lambda: in_buckets({**random_arrays(0), "model.norm.weight": np.zeros(8)}),
}


@pytest.mark.parametrize("message", WRONG)
def test_weights_that_are_not_exactly_the_models_are_refused_and_leave_nothing(tmp_path: Path, message: str) -> None:
    with exports_in(tmp_path / "e") as exports:
        with pytest.raises(EngineError, match=message):
            exports.write(1, WRONG[message]())
        assert sorted(path.name for path in (tmp_path / "e").iterdir()) == [".gate", ".lock"]
        exports.write(1, in_buckets(random_arrays(0))).check()


def test_a_full_file_system_is_an_engine_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with exports_in(tmp_path / "e") as exports:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwritev", full)
            with pytest.raises(EngineError, match=r"cannot write version 1 to .*No space left"):
                exports.write(1, in_buckets(random_arrays(0)))
        assert sorted(path.name for path in (tmp_path / "e").iterdir()) == [".gate", ".lock"]


def test_a_write_that_is_cut_short_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwritev

    def short(handle: int, buffers: Any, offset: int) -> int:
        return write(handle, [memoryview(buffers[0])[:7]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    arrays = random_arrays(5)
    with exports_in(tmp_path / "e") as exports:
        found = load_file(exports.write(1, in_buckets(arrays, [3, 5])).file)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def test_damage_is_found(tmp_path: Path) -> None:
    with exports_in(tmp_path / "e") as exports:
        export = exports.write(1, in_buckets(random_arrays(0)))
        with export.file.open("r+b") as file:
            file.seek(export.places["model.norm.weight"].offset + 5)
            file.write(b"\x00\xff")
        with pytest.raises(EngineError, match=r"is damaged: model\.norm.weight must have checksum"):
            export.check()


def test_only_what_is_kept_stays_and_nothing_stays_in_the_end(tmp_path: Path) -> None:
    with exports_in(tmp_path / "e") as exports:
        for version in (1, 2, 5):
            exports.write(version, in_buckets(random_arrays(version)))
        exports.keep([5, 1, 9])
        assert sorted(path.name[:3] for path in (tmp_path / "e").glob("v*")) == ["v1-", "v5-"]
    assert not (tmp_path / "e").exists()


def test_a_file_system_that_is_too_small_is_refused(tmp_path: Path) -> None:
    huge = {"w": (10**9, 10**7)}
    with (
        pytest.raises(ConfigError, match=r"needs room for two exports of the weights, 8e\+07 GB"),
        open_exports(tmp_path / "e", huge, dtype="float32", config={}),
    ):
        pass
