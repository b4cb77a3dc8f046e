"""Pure, jitted training over a device mesh. `Learner` is the whole interface."""

from agentrl_jax.learner.config import LearnerConfig
from agentrl_jax.learner.learner import Learner, Outcome, StepMetrics
from agentrl_jax.learner.updates import TrainState

__all__ = ["Learner", "LearnerConfig", "Outcome", "StepMetrics", "TrainState"]
