"""The policies of a run as its engines take them: the learner's, and the lagging one beside it. No trio.

Where several processes share the learner, each of these steps is told to all of them first (`lead`).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from agentrl_jax.config import TrainConfig
from agentrl_jax.lead import Leader, policy_buckets
from agentrl_jax.learner import Learner
from agentrl_jax.policy import Policy
from agentrl_jax.run_engines import Weights
from agentrl_jax.scoring import score_ids
from agentrl_jax.step_plan import StepPlan
from agentrl_jax.survival import LaggingPolicy
from agentrl_jax.types import Floats, Ids


class RunPolicies:
    """lagging: None before its first copy, and in runs without one. Every method may wait for a device."""

    def __init__(
        self, config: TrainConfig, policy: Policy, learner: Learner, lead: Leader, lagging: LaggingPolicy | None
    ) -> None:
        self.learner, self.lagging = learner, lagging
        self._config, self._policy, self._lead = config, policy, lead

    def learned(self, version: int) -> Weights:
        """The learner's params of the moment in which they are taken, to be served as `version`."""
        return Weights(take=partial(self._take, None), version=version)

    def lagged(self) -> Weights | None:
        """The lagging policy, as the version that it has been since it was copied."""
        if self.lagging is None:
            return None
        return Weights(take=partial(self._take, self.lagging), version=self.lagging.version)

    def lag(self, version: int) -> None:
        """Let the lagging policy be a copy of the learner's params, which are served as `version`."""
        self._lead(StepPlan(lag=True))
        self.lagging = LaggingPolicy(weights=jax.tree.map(jnp.copy, self.learner.params), version=version)

    def score(self, ids: Ids, temperature: float) -> Floats:
        """The learner's log-probabilities of these ids; see `score_ids`."""
        return score_ids(self.learner, self._config.packing, ids, temperature)

    def _take(self, lagging: LaggingPolicy | None) -> Any:
        """Trees of params for engines in this process, buckets of tensors for servers."""
        if self._config.has_local_engines and lagging is None:
            return self._lead.engine_weights(self.learner)
        if self._config.has_local_engines and lagging is not None:
            return self._lead.lagging_weights(lagging.weights, self._policy.model)
        self._lead(StepPlan(publish=lagging is None, publish_lagging=lagging is not None))
        params = self.learner.params if lagging is None else lagging.weights
        return policy_buckets(self._config, self._policy.model, self._policy.dtype, params)
