"""Random batches of outcomes, for tests of everything between rewards and advantages."""

import numpy as np
from hypothesis import strategies as st

from agentrl_jax.algo.outcomes import Outcomes

REWARDS = st.sampled_from([-0.2, 0.0, 0.3, 0.5, 1.0])


@st.composite
def outcomes(draw: st.DrawFn, *, intermediate: bool = True, least_turns: int = 0) -> Outcomes:
    """Up to five groups in up to two tasks, members in random order, some without a vote, some without turns."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    num = sum(sizes)
    tasks = draw(st.lists(st.integers(0, 1), min_size=len(sizes), max_size=len(sizes)))
    order = np.array(draw(st.permutations(range(num))))
    num_turns = np.array(draw(st.lists(st.integers(least_turns, 4), min_size=num, max_size=num)))
    votes = np.array(draw(st.lists(st.booleans(), min_size=num, max_size=num))) & (num_turns > 0)
    total = int(num_turns.sum())
    tokens = np.array(draw(st.lists(st.integers(0, 20), min_size=total, max_size=total)), np.int64)
    given = draw(st.lists(REWARDS, min_size=total, max_size=total)) if intermediate else [0.0] * total
    return Outcomes(
        rewards=np.array(draw(st.lists(REWARDS, min_size=num, max_size=num))),
        votes=votes,
        group_ids=(np.repeat(np.arange(len(sizes)) * 7 - 3, sizes))[order],
        task_ids=np.repeat(tasks, sizes)[order],
        num_turns=num_turns,
        turn_rewards=np.array(given, np.float64),
        turn_loss_tokens=np.where(np.repeat(votes, num_turns), tokens, 0),
    )


def reordered(batch: Outcomes, order: np.ndarray) -> tuple[Outcomes, np.ndarray]:
    """The batch with its trajectories in another order, and where each of its turns stood before."""
    ends = np.cumsum(batch.num_turns)
    turns = [np.arange(ends[i] - batch.num_turns[i], ends[i]) for i in order]
    where = np.concatenate([*turns, np.zeros(0, np.int64)]).astype(np.int64)
    by_trajectory = {n: getattr(batch, n)[order] for n in ("rewards", "votes", "group_ids", "task_ids", "num_turns")}
    by_turn = {n: getattr(batch, n)[where] for n in ("turn_rewards", "turn_loss_tokens")}
    return Outcomes(**by_trajectory, **by_turn), where
