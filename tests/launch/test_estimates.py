"""Memory and operations from shapes alone: by hand, and against what XLA plans for compiled steps."""

import pytest

from agentrl_jax.engines.local.cache import init_caches
from agentrl_jax.learner import LearnerConfig, LoraConfig
from agentrl_jax.learner.lora import init_adapters
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.params import init_params, num_params
from agentrl_jax.packing import PackingConfig
from agentrl_jax.sharding import MeshShape, make_mesh, parse_mesh
from launch.estimates import engine_bytes, held_numbers, step_bytes
from tests.learner.small import SFT, Learner

SMALL = ModelConfig(
    vocab_size=12, width=4, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=2, mlp_width=6, tie_embeddings=False
)
WIDE = ModelConfig(vocab_size=8192, width=256, num_layers=4, num_heads=8, num_kv_heads=2, head_dim=32, mlp_width=1024)
DEEP = ModelConfig(
    vocab_size=2048, width=384, num_layers=6, num_heads=6, num_kv_heads=6, head_dim=64, mlp_width=1536,
    tie_embeddings=False,
)  # fmt: skip


def test_bytes_by_hand() -> None:
    need = step_bytes(
        SMALL, mesh=MeshShape(tensor=2), rows=2, row_tokens=8, logprob_chunk=4, itemsize=2, has_reference=True
    )
    q, k, v, o, mlp, norms = 4 * 4 + 4, 4 * 2 + 2, 4 * 2 + 2, 4 * 4, 3 * 4 * 6, 2 * 4
    # One head of keys and values cannot be split, and the bias of q is split as its heads are.
    layer = q // 2 + k + v + o // 2 + mlp // 2 + norms
    held = 2 * layer + 2 * (12 * 4 // 2) + 4
    assert held_numbers(SMALL, MeshShape(tensor=2)) == held
    assert (need.params, need.reference, need.gradients, need.moments) == (4 * held, 2 * held, 4 * held, 8 * held)
    assert (need.resting_moments, need.micro_batch, need.new) == (8 * held, 4 * held, 12 * held)
    assert need.logits == 3 * 4 * 2 * 4 * 12 // 2
    heads = 2 * 2 + 2 * 1 * 2
    assert need.activations == 2 * 16 * 4 * 2 + 16 * 2 * (6 * 4 + (2 * heads + 4 * 6) // 2) + 2 * 12 * 4 * 2 // 2
    assert need.adding == 22 * held + need.activations + need.logits
    assert need.updating == 30 * held
    assert need.peak == max(need.adding, need.updating)


def test_what_changes_the_bytes() -> None:
    settings = {"mesh": MeshShape(), "rows": 1, "row_tokens": 8, "logprob_chunk": 4, "itemsize": 2}
    plain = step_bytes(SMALL, **settings)
    assert step_bytes(SMALL, **settings, offload=True).adding == plain.adding - 8 * num_params(SMALL)
    assert step_bytes(SMALL, **settings, remat=False).activations > plain.activations
    lora = LoraConfig(rank=2)
    adapted = step_bytes(SMALL, **settings, lora=lora, has_reference=True)
    tree = init_adapters(SMALL, lora)
    numbers = sum(leaf.size for leaf in _leaves(tree))
    assert adapted.params == 2 * num_params(SMALL) + 4 * numbers
    assert adapted.reference == 0  # the frozen params are the reference
    assert adapted.gradients == 4 * numbers


def _leaves(tree):
    return [leaf for node in tree.values() for leaf in (_leaves(node) if isinstance(node, dict) else [node])]


@pytest.mark.parametrize(("num_devices", "kv_share"), [(1, 1), (2, 2), (3, 1)])
def test_bytes_of_an_engine(num_devices: int, kv_share: int) -> None:
    need = engine_bytes(WIDE, num_slots=4, cache_tokens=64, num_devices=num_devices, itemsize=4)
    caches = init_caches(WIDE, 4, 64, "float32")
    assert need.cache == sum(array.nbytes for pair in caches for array in pair) // kv_share
    assert need.weights == need.staged == 4 * held_numbers(WIDE, MeshShape(tensor=num_devices))
    assert need.total == need.weights + need.staged + need.cache + 3 * 4 * 4 * 8192


@pytest.mark.parametrize(
    ("model", "mesh", "row_tokens", "updating_decides"),
    [
        pytest.param(WIDE, "fsdp=2,tensor=2", 512, False, marks=pytest.mark.slow),
        pytest.param(WIDE, "fsdp=4", 512, False, marks=pytest.mark.slow),
        (DEEP, "1", 128, True),
    ],
)
def test_the_estimate_is_within_a_quarter_of_what_xla_plans(
    model: ModelConfig, mesh: str, row_tokens: int, updating_decides: bool
) -> None:
    learner = Learner(model, LearnerConfig(logprob_chunk=64), SFT, make_mesh(parse_mesh(mesh)), init_params(model, 0))
    shape, rows = parse_mesh(mesh), 2
    packing = PackingConfig(row_tokens=(row_tokens,), rows_per_micro_batch=rows * shape.num_row_shards)
    planned = learner.compile_ahead(packing).peak
    need = step_bytes(model, mesh=shape, rows=rows, row_tokens=row_tokens, logprob_chunk=64, itemsize=4)
    programs = {False: need.adding - need.resting_moments, True: need.updating}  # the first does not see the moments
    assert (programs[True] > programs[False]) is updating_decides
    assert 0.8 < max(programs.values()) / planned < 1.25
