"""What no scheduler can beat, given the service times: the bound behind `fraction_of_bound`.

A batch asks for work that somebody has to do. Whatever the order of events, a resource cannot do more than one second
of work in a second, so a step takes at least the busy time of the busiest resource:

    learner   num_tokens × learn_s / g + fixed_s + publish_s          it computes, or sends its weights
    engines   (new_tokens × prefill_s                                  no prompt token can be had for less
               + I × t0 + context_tokens × kappa) / e + publish_s      iterations, and what they read

    I >= sampled_tokens / max_running      an iteration gives one token to each running turn, and those are limited;
    I >= context_tokens / cache_tokens     it reads the contexts of the running turns, and they must fit the cache

with g GPUs for the learner and e engines, one GPU each. Environments are as many as are wanted, and bound nothing; the
latency of an episode does not either, since more episodes can always overlap. Prefixes that a publish or a full cache
costs are left out, as is every wait; the bound is therefore not quite reachable. It holds for what a step takes on the
average: a few steps that train on what engines had in store can be faster. Over all divisions of the GPUs:

    tokens/s  <=  max over e + g = num_gpus of  num_tokens / max(learner, engines)
"""

from dataclasses import dataclass

from benchmarks.service_cases import Work
from benchmarks.service_model import ServiceModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The fastest step on one division of the GPUs. learner_s, engine_s: busy times of a step."""

    num_engines: int
    num_learner_gpus: int
    learner_s: float
    engine_s: float
    tokens_per_step: float

    @property
    def step_s(self) -> float:
        return max(self.learner_s, self.engine_s)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens_per_step / self.step_s


def bound(model: ServiceModel, work: Work, *, num_engines: int, num_learner_gpus: int) -> Bound:
    """See the module; `work` is that of `work.num_steps` steps."""
    iterations = max(work.sampled_tokens / model.engine.max_running, work.context_tokens / model.cache_tokens)
    engine_s = (
        work.new_tokens * model.prefill_s + iterations * model.iteration_s + work.context_tokens * model.context_token_s
    )
    return Bound(
        num_engines=num_engines,
        num_learner_gpus=num_learner_gpus,
        learner_s=model.step_s(work.num_tokens / work.num_steps, num_learner_gpus) + model.publish_s,
        engine_s=engine_s / num_engines / work.num_steps + model.publish_s,
        tokens_per_step=work.num_tokens / work.num_steps,
    )


def bounds(model: ServiceModel, work: Work, num_gpus: int) -> list[Bound]:
    """One for each division of the GPUs, the fastest first."""
    every = [bound(model, work, num_engines=count, num_learner_gpus=num_gpus - count) for count in range(1, num_gpus)]
    return sorted(every, key=lambda found: found.step_s)
