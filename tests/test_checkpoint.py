"""Checkpoints: whole or not at all, onto any mesh, and never the last one lost."""

import json
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from agentrl_jax.checkpoint import CheckpointError, CheckpointStore
from agentrl_jax.checkpoint_reading import CheckpointReader
from agentrl_jax.errors import ConfigError
from agentrl_jax.sharding import make_mesh, parse_mesh

WIDTH = 64


class State(NamedTuple):
    step: Any
    params: Any
    opt_state: Any


def make_state(step: int, width: int = WIDTH) -> State:
    weights = jnp.arange(8 * width, dtype=jnp.float32).reshape(8, width)
    return State(
        step=jnp.int32(step),
        params={"w": weights + step, "b": jnp.full((3,), step, jnp.bfloat16)},
        opt_state=({"mu": -weights * step}, ()),
    )


def abstract(tree: Any, mesh: str = "1") -> Any:
    """Shapes of `tree`, the leading axis of matrices split over all devices of `mesh`."""
    devices = make_mesh(parse_mesh(mesh))

    def leaf(array: Any) -> jax.ShapeDtypeStruct:
        spec = PartitionSpec(devices.axis_names) if array.ndim == 2 else PartitionSpec()
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=jax.NamedSharding(devices, spec))

    return jax.tree.map(leaf, tree)


def same(first: Any, second: Any) -> bool:
    equal = jax.tree.map(lambda a, b: a.dtype == b.dtype and np.array_equal(a, b), first, second)
    return bool(jax.tree.all(equal))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CheckpointStore]:
    with CheckpointStore(tmp_path / "checkpoints") as opened:
        yield opened


def save(store: CheckpointStore, *steps: int) -> None:
    for step in steps:
        store.save(step, make_state(step), {"version": step})
    store.wait()


def test_what_was_saved_comes_back(store: CheckpointStore) -> None:
    loop_state = {"version": 3, "sampler": {"seed": 2**62 + 1, "text": "\u2028"}, "credit": "-1/3"}
    lagging = {"w": jnp.full((8, 4), 0.25)}
    assert store.latest() is None
    store.save(7, make_state(7), loop_state, lagging=lagging)
    store.wait()
    assert store.latest() == 7
    assert store.loop_state(7) == loop_state
    restored = store.restore(7, abstract(make_state(0)), abstract(lagging))
    assert isinstance(restored.state, State)
    assert same(restored.state, make_state(7))
    assert same(restored.lagging, lagging)
    assert restored.loop_state == loop_state


def test_lagging_weights_are_read_only_if_asked_for(store: CheckpointStore) -> None:
    store.save(1, make_state(1), {}, lagging={"w": jnp.ones((8, 4))})
    store.save(2, make_state(2), {})
    store.wait()
    assert store.restore(1, abstract(make_state(0))).lagging is None
    assert store.restore(2, abstract(make_state(0)), abstract({"w": jnp.ones((8, 4))})).lagging is None


@pytest.mark.parametrize("mesh", ["1", "2", "fsdp=4,tensor=2"])
def test_a_checkpoint_moves_to_another_mesh(mesh: str, store: CheckpointStore) -> None:
    start = jax.tree.map(
        lambda leaf, like: jax.device_put(leaf, like.sharding), make_state(5), abstract(make_state(0), "4")
    )
    store.save(5, start, {})
    store.wait()
    wanted = abstract(make_state(0), mesh)
    restored = store.restore(5, wanted).state
    assert same(restored, make_state(5))
    assert jax.tree.all(jax.tree.map(lambda leaf, like: leaf.sharding == like.sharding, restored, wanted))


def test_the_next_step_may_take_the_buffers_at_once(store: CheckpointStore) -> None:
    advance = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0)
    state = jax.block_until_ready(make_state(1, width=100_000))
    expected = jax.tree.map(np.array, state)
    store.save(1, state, {})
    for _ in range(3):
        state = advance(state)
    jax.block_until_ready(state)
    store.wait()
    assert same(store.restore(1, abstract(expected)).state, expected)


def test_the_newest_stay(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    with CheckpointStore(tmp_path, keep=2, on_durable=lambda *durable: told.append(durable)) as store:
        save(store, 1, 2, 10, 11)
        assert store.steps() == (10, 11)
    assert told == [(1, 1), (2, 1), (10, 2), (11, 10)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010", "step-00000011"]


def test_all_is_on_the_disk_before_a_checkpoint_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    named_after: list[set[Path]] = []
    flush, rename = os.fsync, Path.rename

    def noted_flush(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        flush(descriptor)

    def noted_rename(self: Path, target: Path) -> Path:
        if target.name == "step-00000007":
            files = {path.relative_to(self) for path in self.rglob("*")}
            named_after.append({self / path for path in files} - set(flushed))
            flushed.clear()
        return rename(self, target)

    with CheckpointStore(tmp_path) as store:
        monkeypatch.setattr(os, "fsync", noted_flush)
        monkeypatch.setattr(Path, "rename", noted_rename)
        save(store, 7)
    assert named_after == [set()]  # nothing was left in memory
    assert flushed == [tmp_path]  # nor is the name


def test_leaving_the_store_waits_for_the_last_save(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        store.save(3, make_state(3), {})
    with CheckpointStore(tmp_path) as store:
        assert store.latest() == 3


def test_a_restart_forgets_what_came_after_its_checkpoint(store: CheckpointStore) -> None:
    save(store, 4, 6)
    with pytest.raises(CheckpointError, match="exists"):
        store.save(6, make_state(6), {})
    store.forget_after(4)
    assert store.steps() == (4,)
    save(store, 5, 6)
    assert store.steps() == (5, 6)


def test_an_exception_of_the_callback_is_raised(tmp_path: Path) -> None:
    def on_durable(step: int, oldest: int) -> None:
        raise ZeroDivisionError(step)

    store = CheckpointStore(tmp_path, on_durable=on_durable)
    store.save(1, make_state(1), {})
    with pytest.raises(ZeroDivisionError, match="1"):
        store.wait()
    store.wait()
    with pytest.raises(ZeroDivisionError, match="2"), CheckpointStore(tmp_path, on_durable=on_durable) as left:
        left.save(2, make_state(2), {})


@pytest.mark.parametrize("loop_state", [{"x": object()}, {"x": float("nan")}])
def test_a_loop_state_that_is_no_json_is_refused(loop_state: dict[str, Any], store: CheckpointStore) -> None:
    with pytest.raises((TypeError, ValueError)):
        store.save(1, make_state(1), loop_state)
    assert store.latest() is None


def test_keep_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep = 0"):
        CheckpointStore(tmp_path, keep=0)


def largest_file(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def test_anything_but_a_whole_checkpoint_is_refused_by_name(store: CheckpointStore) -> None:
    save(store, 1, 2)
    with pytest.raises(ConfigError, match=r"step-00000003.*there are \[1, 2\]"):
        store.restore(3, abstract(make_state(0)))
    (store.folder / "step-00000009").mkdir()
    with pytest.raises(ConfigError, match="step-00000009"):
        store.restore(9, abstract(make_state(0)))
    os.truncate(largest_file(store.path(2)), 5)
    with pytest.raises(ConfigError, match=r"step-00000002.*but has 5"):
        store.restore(2, abstract(make_state(0)))
    record = store.path(1) / "checkpoint.json"
    record.write_text(record.read_text()[:-9])
    with pytest.raises(ConfigError, match="step-00000001"):
        store.loop_state(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "is of format 99, but this version of agentrl_jax reads up to format 1"),
        ({"format": 0}, "is of format 0 and step 1"),
        ({"format": "x"}, "is of format x and step 1"),
        ({"step": 4}, "is of format 1 and step 4"),
    ],
)
def test_a_foreign_record_is_refused(change: dict[str, Any], message: str, store: CheckpointStore) -> None:
    save(store, 1)
    record = store.path(1) / "checkpoint.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | change))
    with pytest.raises(ConfigError, match=message):
        store.loop_state(1)


def test_a_run_that_goes_on_can_be_read_beside_it(store: CheckpointStore, tmp_path: Path) -> None:
    save(store, 1)
    under_way = store.folder / "step-00000002.partial"
    under_way.mkdir()
    reader = CheckpointReader(store.folder)
    assert reader.steps() == (1,)
    assert same(reader.restore(1, abstract(make_state(0))).state, make_state(1))
    assert under_way.is_dir()
    assert CheckpointReader(tmp_path / "none").steps() == ()


def test_damaged_arrays_are_refused_by_name(store: CheckpointStore) -> None:
    save(store, 1)
    for path in (store.path(1) / "arrays" / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(ConfigError, match=r"step-00000001 cannot be read.*older one"):
        store.restore(1, abstract(make_state(0)))


def test_another_model_is_refused_by_array(store: CheckpointStore) -> None:
    save(store, 1)
    with pytest.raises(ConfigError, match=r"another model.*'mu'.*\(8, 32\).*\(8, 64\)"):
        store.restore(1, abstract(make_state(0, width=32)))


def test_a_full_disk_is_seen_beforehand(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, 1)
    monkeypatch.setattr("shutil.disk_usage", lambda path: _Usage(100))
    with pytest.raises(CheckpointError, match=r"no room .* steps \[1\] are untouched"):
        store.save(2, make_state(2), {})
    assert store.steps() == (1,)


class _Usage(NamedTuple):
    free: int


def test_a_disk_that_fills_up_while_saving_costs_only_that_save(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, keep=1) as store:
        save(store, 1)
        rng = np.random.default_rng(0)
        big = State(step=jnp.int32(2), params={"w": jnp.asarray(rng.normal(size=(64, 1024)))}, opt_state=())
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limit[1]))
        try:
            store.save(2, big, {})
            with pytest.raises(CheckpointError, match=r"File too large.*steps \[1\] are untouched"):
                store.wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            signal.signal(signal.SIGXFSZ, handler)
        assert same(store.restore(1, abstract(make_state(0))).state, make_state(1))
        save(store, 2)
        assert store.steps() == (2,)
