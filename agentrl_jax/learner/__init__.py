"""Pure, jitted training over a device mesh. `Learner` is the whole interface."""

from agentrl_jax.learner.compiles import Memory
from agentrl_jax.learner.config import LearnerConfig
from agentrl_jax.learner.learner import Learner
from agentrl_jax.learner.lora import LoraConfig
from agentrl_jax.learner.metrics import Outcome, StepMetrics, Validation
from agentrl_jax.learner.updates import TrainState

__all__ = ["Learner", "LearnerConfig", "LoraConfig", "Memory", "Outcome", "StepMetrics", "TrainState", "Validation"]
