"""Groups to pack, and what they were packed into."""

import numpy as np

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.batch import TokenBatch, map_tokens
from agentrl_jax.packing import PackedBatch, PackingConfig
from agentrl_jax.types import Group
from tests.algo.record_builders import make_group, make_segment, make_turn

PLAIN = AdvantageConfig(estimator="dr_grpo", task_normalisation="off")


def one_row(tokens: int) -> PackingConfig:
    return PackingConfig(row_tokens=(tokens,), rows_per_micro_batch=1)


def varied_groups(seed: int = 0) -> list[Group]:
    """Two envs, six groups, several turns and segments, masked tokens, versions 3 to 7; some without signal."""
    rng = np.random.default_rng(seed)

    def segments() -> list:
        return [
            make_segment(
                *(
                    make_turn(
                        int(rng.integers(1, 5)),
                        int(rng.integers(1, 7)),
                        version=int(rng.integers(3, 8)),
                        first_id=int(rng.integers(1, 20)),
                        masked=[0] if rng.random() < 0.2 else [],
                    )
                    for _ in range(rng.integers(1, 4))
                )
            )
            for _ in range(rng.integers(1, 3))
        ]

    rewards = [[1.0, 0.0, 0.0], [1.0, 0.3, None], [0.0, 0.0, 0.0], [1.0, 0.0, -0.2], [None, 1.0, None], [0.5, 1.0, 0.0]]
    return [
        make_group(values, group_id=i, env="ab"[i % 2], index=i, segments=[segments() for _ in values])
        for i, values in enumerate(rewards)
    ]


ARRAYS = [name for name in TokenBatch._fields if name not in ("totals", "reference_logprobs")]


def stacked(batch: PackedBatch) -> TokenBatch:
    return map_tokens(lambda *parts: np.concatenate(parts), *batch.micro_batches)
