"""Without staleness, the asynchronous loop is the plain one: the same batches in the same order, the same params."""

from itertools import count

from trio.testing import MockClock

from agentrl_jax.controller.group import AdmittedGroup
from tests.learner.small import same_bits
from tests.pipeline.speeches import PARAMS, Real, Speeches, learned, simulation

NUM_STEPS = 6


async def plain_loop(run: Speeches, num_steps: int) -> None:
    """Synchronous training as one would write it down: draw tasks, play them one by one, learn, publish."""
    assert isinstance(run.learner, Real)
    sampler, numbers = run.sampler(), count()
    for version in range(num_steps):
        groups = []
        for _ in range(run.config.min_groups_per_batch):
            admitted = AdmittedGroup(group_id=next(numbers), task=sampler.draw(), start_version=version)
            groups.append(await run.run_one_group(admitted))
        assert run.learner.learn(tuple(groups), version).is_applied
        await run.publish(version + 1)


async def test_without_staleness_the_loop_is_the_plain_one_bit_for_bit(autojump_clock: MockClock) -> None:
    asynchronous, plain = simulation(), simulation()
    await asynchronous.run(NUM_STEPS)
    await plain_loop(plain, NUM_STEPS)
    assert [record.version for record in asynchronous.records] == list(range(NUM_STEPS))
    assert same_bits(learned(asynchronous), learned(plain))
    assert not same_bits(learned(plain), PARAMS)
    # The groups really ended in another order than the plain loop's.
    assert [group.group_id for group in asynchronous.groups] != [group.group_id for group in plain.groups]


async def test_with_staleness_it_is_not(autojump_clock: MockClock) -> None:
    stale, plain = simulation(max_staleness=1), simulation()
    await stale.run(NUM_STEPS)
    await plain_loop(plain, NUM_STEPS)
    assert not same_bits(learned(stale), learned(plain))
    assert max(age for record in stale.records for age in record.ages) == 1
