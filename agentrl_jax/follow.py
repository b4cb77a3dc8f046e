"""The processes beside process 0 of a learner that several share: they do what its plans say.

They hold their part of params, optimiser and checkpoints, and nothing else: no controller, no engines, no log.
`agentrl_jax/lead.py` is the other half.
"""

from collections.abc import Callable
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from agentrl_jax.algo.losses import make_loss
from agentrl_jax.checkpoint import CheckpointStore
from agentrl_jax.distributed import any_of, wait_for
from agentrl_jax.errors import NoProgressError
from agentrl_jax.lead import BEGINNING, Beginning, plan_key, policy_buckets, receive_rows
from agentrl_jax.learner import Learner
from agentrl_jax.learning import begin_learning, resume_learning, warm_up_learner
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.export import host_params
from agentrl_jax.models.load import load_pretrained, place_params
from agentrl_jax.models.params import Params, init_params
from agentrl_jax.models.save import save_pretrained
from agentrl_jax.seeding import derive_seed
from agentrl_jax.step_plan import StepPlan


def follow_training(mesh: Mesh, should_stop: Callable[[], bool]) -> int:
    """Do process 0's bidding until it lets go; return the steps that were taken.

    should_stop: whether this process was asked to stop, which is passed on to process 0 with its next plan.
    """
    data = wait_for(BEGINNING)
    if not data:  # process 0 found out that there is nothing to do
        return 0
    beginning = Beginning.from_bytes(data)
    with CheckpointStore(beginning.run_dir / "checkpoints", keep=beginning.config.keep_checkpoints) as store:
        return Follower(beginning, mesh, store, should_stop).run()


class Follower:
    """One process's part of a training run."""

    def __init__(
        self, beginning: Beginning, mesh: Mesh, store: CheckpointStore, should_stop: Callable[[], bool]
    ) -> None:
        self.beginning, self.config, self.mesh = beginning, beginning.config, mesh
        self.store, self.should_stop = store, should_stop
        self.lagging: Params | None = None
        self.num_steps = self._num_plans = 0

    def run(self) -> int:
        """Take this process's part in the phases of `pipeline.train`."""
        begun, config, model = self.beginning, self.config, self.beginning.model
        loss, params = make_loss(config.loss), self._params()
        if begun.step is not None:
            learner = resume_learning(config, model, loss, self.mesh, params, begun.run_dir)
            restored = self.store.restore(begun.step, learner.abstract_state(), learner.abstract_params())
            learner.restore(restored.state)
            self.lagging = restored.lagging
        else:
            if config.has_warm_up:
                num_copy_steps = begun.num_copy_steps
                learner = warm_up_learner(config, model, self.mesh, params, num_copy_steps=num_copy_steps)
                self.follow_all(learner)
                params = learner.params
            learner = begin_learning(config, model, loss, self.mesh, params, begun.run_dir)
        self.num_steps = 0
        self.follow_all(learner)
        return self.num_steps

    def follow_all(self, learner: Learner) -> None:
        """Follow plans until one says to stop."""
        is_over = False
        while not is_over:
            plan = self._next_plan()
            self.follow(learner, plan)
            is_over = plan.stop

    def follow(self, learner: Learner, plan: StepPlan) -> None:
        """Take this process's part in what `plan` says, in the order of its fields."""
        if plan.compile:
            learner.compile_ahead(self.config.packing)
        if plan.train:
            self._train(learner, plan)
        if plan.record:
            _ = learner.scores
        if plan.lag:
            self.lagging = jax.tree.map(jnp.copy, learner.params)
        if plan.publish:
            self._gather(learner.params, learner.model)
        if plan.publish_lagging:
            assert self.lagging is not None
            self._gather(self.lagging, learner.model)
        if plan.export:
            save_pretrained(learner.params, learner.model, self.beginning.run_dir / "model", dtype=self.beginning.dtype)
        if plan.save:
            self.store.save(plan.step, learner.state, {}, self.lagging)

    def _gather(self, params: Params, model: ModelConfig) -> None:
        if self.config.has_local_engines:
            host_params(params, model)
        else:
            for _ in policy_buckets(self.config, model, self.beginning.dtype, params):
                pass

    def _next_plan(self) -> StepPlan:
        """Wait for it, and tell process 0 whether this one was asked to stop."""
        plan = StepPlan.from_numbers(np.frombuffer(wait_for(plan_key(self._num_plans)), np.int32))
        self._num_plans += 1
        any_of(self.should_stop())
        return plan

    def _train(self, learner: Learner, plan: StepPlan) -> None:
        packed = receive_rows(plan, self.config.packing.rows_per_micro_batch, self.mesh)
        with suppress(NoProgressError):  # process 0 has the same figures, and decides
            learner.step(packed)
        self.num_steps += 1

    def _params(self) -> Params:
        if self.beginning.weights is not None:
            return load_pretrained(self.beginning.weights, mesh=self.mesh)[1]
        host = init_params(self.beginning.model, derive_seed(self.config.seed, "init"))
        return place_params(self.beginning.model, host, self.mesh)
