"""The parameter table and what is derived from it."""

import re

import jax
import numpy as np
import pytest

from agentrl_jax.errors import ConfigError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.families import hf_entries, param_specs
from agentrl_jax.models.params import build_tree, check_params, init_params, leaf_at, num_params

CONFIG = ModelConfig(
    vocab_size=11, width=8, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=6, mlp_width=10, tie_embeddings=False
)


def test_tree_is_the_documented_one():
    shapes = build_tree(CONFIG, lambda spec: spec.shape)
    kv = {"kernel": (3, 8, 2, 6), "bias": (3, 2, 6)}
    assert shapes == {
        "embed": {"embedding": (11, 8)},
        "layers": {
            "input_norm": {"scale": (3, 8)},
            "attention": {
                "q": {"kernel": (3, 8, 4, 6), "bias": (3, 4, 6)},
                "k": kv,
                "v": kv,
                "o": {"kernel": (3, 4, 6, 8)},
            },
            "post_norm": {"scale": (3, 8)},
            "mlp": {"gate": {"kernel": (3, 8, 10)}, "up": {"kernel": (3, 8, 10)}, "down": {"kernel": (3, 10, 8)}},
        },
        "final_norm": {"scale": (8,)},
        "lm_head": {"kernel": (8, 11)},
    }


def test_a_tied_model_has_no_head_of_its_own():
    tied = ModelConfig(vocab_size=11, width=8, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, mlp_width=6)
    assert "lm_head" not in build_tree(tied, lambda spec: spec)


def test_number_of_params_by_hand():
    layer = 8 + (8 * 24 + 24) + 2 * (8 * 12 + 12) + 24 * 8 + 8 + 3 * 80
    assert num_params(CONFIG) == 11 * 8 + 3 * layer + 8 + 8 * 11


def test_names_follow_hugging_face_layer_by_layer():
    names = [name for name, _, _ in hf_entries(CONFIG)]
    assert names[0] == "model.embed_tokens.weight"
    assert names[1] == "model.layers.0.input_layernorm.weight"
    assert names[13] == "model.layers.1.input_layernorm.weight"
    assert names[-2:] == ["model.norm.weight", "lm_head.weight"]
    assert len(names) == len(set(names)) == 1 + 3 * 12 + 2


def test_a_projection_row_becomes_the_column_of_its_head():
    spec = next(spec for spec in param_specs(CONFIG) if spec.path[-2:] == ("q", "kernel"))
    theirs = np.arange(24 * 8, dtype=np.float32).reshape(24, 8)  # [heads * head_dim, width]
    ours = spec.from_hf(theirs)
    for head, dim, channel in ((0, 0, 0), (1, 2, 3), (3, 5, 7)):
        assert ours[channel, head, dim] == theirs[head * 6 + dim, channel]


def test_every_layout_change_can_be_undone():
    rng = np.random.default_rng(0)
    for spec in param_specs(CONFIG):
        ours = rng.standard_normal(spec.layer_shape).astype(np.float32)
        theirs = spec.to_hf(ours)
        assert theirs.shape == spec.hf_shape
        assert theirs.flags.c_contiguous
        np.testing.assert_array_equal(spec.from_hf(theirs), ours)


def test_initial_values_have_their_variance():
    wide = ModelConfig(vocab_size=300, width=64, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32, mlp_width=256)
    params = init_params(wide, seed=3)
    for spec in param_specs(wide):
        leaf = leaf_at(params, spec.path)
        assert leaf.dtype == np.float32
        if spec.initial == "normal":
            assert leaf.mean() == pytest.approx(0.0, abs=0.1 * spec.fan_in**-0.5)
            assert leaf.std() == pytest.approx(spec.fan_in**-0.5, rel=0.03)
        else:
            assert (leaf == (1.0 if spec.path[-1] == "scale" else 0.0)).all()
    fan_ins = {".".join(spec.path[-2:]): spec.fan_in for spec in param_specs(wide) if spec.initial == "normal"}
    assert fan_ins["o.kernel"] == 128
    assert fan_ins["down.kernel"] == 256
    assert fan_ins["embed.embedding"] == fan_ins["q.kernel"] == 64


def test_initial_values_depend_on_the_seed_alone():
    first, again, other = (init_params(CONFIG, seed) for seed in (1, 1, 2))
    assert jax.tree.all(jax.tree.map(np.array_equal, first, again))
    assert not np.array_equal(first["embed"]["embedding"], other["embed"]["embedding"])
    attention = first["layers"]["attention"]
    assert not np.array_equal(attention["k"]["kernel"], attention["v"]["kernel"])


def test_params_that_do_not_fit_are_named():
    params = init_params(CONFIG, 0)
    check_params(CONFIG, params)
    del params["final_norm"]
    params["layers"]["mlp"]["up"]["kernel"] = np.zeros((3, 8, 9), np.float32)
    params["value_head"] = np.zeros(2)
    with pytest.raises(ConfigError) as caught:
        check_params(CONFIG, params)
    for part in (
        "final_norm.scale: expected (8,), got nothing",
        "layers.mlp.up.kernel: expected (3, 8, 10), got (3, 8, 9)",
        "value_head: expected nothing, got (2,)",
    ):
        assert re.search(re.escape(part), str(caught.value))
