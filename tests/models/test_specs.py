"""Any part of a leaf is read from Hugging Face's layout without reading more than it holds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.families import param_specs
from agentrl_jax.models.specs import matrix, table, vector

GLM = ModelConfig(
    family="glm4", vocab_size=11, width=8, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, mlp_width=6,
    rotary_frac=0.5, tie_embeddings=False,
)  # fmt: skip


def part_of(size: int) -> st.SearchStrategy[slice]:
    bounds = st.tuples(st.integers(0, size), st.integers(0, size)).filter(lambda pair: pair[0] != pair[1])
    return st.one_of(st.just(slice(None)), bounds.map(lambda pair: slice(min(pair), max(pair))))


@given(st.data(), st.sampled_from(param_specs(GLM)))
def test_any_part_is_read_and_nothing_else(data, spec):
    ours = np.arange(np.prod(spec.layer_shape)).reshape(spec.layer_shape)
    theirs, reads = spec.to_hf(ours), []

    def read(rectangle):
        reads.append(theirs[rectangle])
        return reads[-1]

    index = tuple(data.draw(part_of(size)) for size in spec.layer_shape)
    np.testing.assert_array_equal(spec.read(index, read), ours[index])
    assert sum(piece.size for piece in reads) == ours[index].size


def test_a_shard_of_heads_is_one_read_and_of_a_fused_matrix_two():
    heads = matrix("attention.q", "q", {"width": 8}, {"heads": 4, "head_dim": 3})
    fused = matrix("mlp.gate_up", "gate_up", {"width": 8}, {"gate_up": 2, "mlp": 6})
    for spec, index, expected in (
        (heads, np.s_[2:4, 1:3, :], [np.s_[3:9, 2:4]]),
        (fused, np.s_[:, :, 3:6], [np.s_[3:6, 0:8], np.s_[9:12, 0:8]]),
    ):
        reads = []

        def read(rectangle, reads=reads, shape=spec.hf_shape):
            reads.append(rectangle)
            return np.zeros(shape)[rectangle]

        spec.read(index, read)
        assert reads == expected


def test_a_fused_matrix_holds_gate_over_up():
    spec = matrix("mlp.gate_up", "gate_up", {"width": 2}, {"gate_up": 2, "mlp": 3})
    gate, up = np.arange(6).reshape(3, 2), np.arange(10, 16).reshape(3, 2)
    ours = spec.from_hf(np.concatenate([gate, up]))
    np.testing.assert_array_equal(ours[:, 0], gate.T)
    np.testing.assert_array_equal(ours[:, 1], up.T)


def test_stacking_adds_an_axis_and_a_layer_to_the_name():
    spec = vector("norm.scale", "norm.weight", {"norm": 5}, "ones").stacked("model.layers", 7)
    assert (spec.path, spec.shape, spec.axes) == (("layers", "norm", "scale"), (7, 5), ("layers", "norm"))
    assert (spec.hf_name, spec.hf_shape, spec.layer_shape) == ("model.layers.{layer}.norm.weight", (5,), (5,))
    assert not spec.has_decay
    assert table("e", "e.weight", {"vocab": 3, "vocab_width": 2}).has_decay
