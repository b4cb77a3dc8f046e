"""Groups: members side by side, in order, from one prompt."""

from functools import partial

import pytest
import trio

from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, single_engine
from agentrl_jax.controller.group import AdmittedGroup, run_group, run_group_when_placed
from agentrl_jax.controller.sessions import WithoutQueue
from agentrl_jax.controller.slots import EpisodeSlots
from agentrl_jax.env import Action, Message, StepResult
from agentrl_jax.errors import RecordError
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript, ScriptedSession, SessionLog
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.types import EpisodeEnd, Group, Task

TASK = Task(env="scripted", split="train", index=3, seed=5)
CONFIG = EpisodeConfig(max_turns=2, max_new_tokens=8, max_context_tokens=512)


def setup_with(sessions: object, config: EpisodeConfig = CONFIG) -> EpisodeSetup:
    return EpisodeSetup(
        sessions=sessions,  # type: ignore[arg-type]
        tools=(),
        renderer=FakeRenderer(),
        choose_engine=single_engine(FakeEngine(script=lambda prompt, sampling: [5])),
        config=config,
        run_seed=1,
    )


async def test_members_run_at_once_and_come_back_in_order(autojump_clock: trio.testing.MockClock) -> None:
    log, seconds = SessionLog(), iter([30.0, 10.0, 20.0])
    setup = setup_with(lambda task: ScriptedSession(task, EnvScript(step_s=next(seconds)), log))
    admitted = AdmittedGroup(group_id=9, task=TASK, start_version=4)
    group = await run_group(admitted, group_size=3, setup=setup)
    assert trio.current_time() == pytest.approx(30.0)
    assert (group.group_id, group.task, group.start_version) == (9, TASK, 4)
    assert [t.member for t in group.trajectories] == [0, 1, 2]
    assert {t.episode_id for t in group.trajectories} == {"g9-m0", "g9-m1", "g9-m2"}
    assert (log.peak_open, log.num_open) == (3, 0)


async def test_each_end_is_told_as_it_comes(autojump_clock: trio.testing.MockClock) -> None:
    seconds, ended_s = iter([30.0, 10.0, 20.0]), list[float]()
    setup = setup_with(lambda task: ScriptedSession(task, EnvScript(step_s=next(seconds)), SessionLog()))
    admitted = AdmittedGroup(group_id=9, task=TASK, start_version=4)
    await run_group(admitted, group_size=3, setup=setup, on_end=lambda: ended_s.append(trio.current_time()))
    assert ended_s == pytest.approx([10.0, 20.0, 30.0])


async def test_a_place_is_free_as_soon_as_its_episode_ends(autojump_clock: trio.testing.MockClock) -> None:
    seconds, slots = iter([30.0, 10.0, 20.0]), EpisodeSlots(4, lambda: {TASK.env: 1.0})
    setup = setup_with(lambda task: ScriptedSession(task, EnvScript(step_s=next(seconds)), SessionLog()))
    admitted = AdmittedGroup(group_id=9, task=TASK, start_version=4)
    running = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(run_group_when_placed, admitted, group_size=3, setup=setup, slots=slots))
        for moment in (5.0, 15.0, 25.0, 35.0):
            await trio.sleep_until(moment)
            running.append(slots.statistics().running.get(TASK.env, 0))
    assert running == [3, 2, 1, 0]


async def test_its_age_counts_from_when_it_got_its_places(autojump_clock: trio.testing.MockClock) -> None:
    """Its version at admission was 4; by the time that there is a place, the learner's is 6."""
    slots, versions = EpisodeSlots(1, lambda: {TASK.env: 1.0}), [4]
    setup = setup_with(lambda task: ScriptedSession(task, EnvScript(step_s=10.0), SessionLog()))

    def bring_up_to_date(group: AdmittedGroup) -> None:
        group.start_version = versions[-1]

    groups: list[Group] = []
    waiting: list[bool] = []

    async def run(number: int) -> None:
        admitted = AdmittedGroup(group_id=number, task=TASK, start_version=4, on_start=bring_up_to_date)
        nursery.start_soon(watch, admitted)
        groups.append(await run_group_when_placed(admitted, group_size=1, setup=setup, slots=slots))

    async def watch(admitted: AdmittedGroup) -> None:
        await trio.sleep(5.0)
        waiting.append(admitted.is_waiting)
        versions.append(6)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, 0)
        await trio.sleep(1.0)
        nursery.start_soon(run, 1)
    assert waiting == [False, True]
    assert [(group.group_id, group.start_version) for group in groups] == [(0, 4), (1, 6)]


async def test_one_switch_cancels_all_members(autojump_clock: trio.testing.MockClock) -> None:
    log = SessionLog()
    setup = setup_with(lambda task: ScriptedSession(task, EnvScript(step_s=30.0), log))
    admitted = AdmittedGroup(group_id=0, task=TASK, start_version=0)
    async with trio.open_nursery() as nursery:

        async def trip() -> None:
            await trio.sleep(5.0)
            admitted.switch.trip()

        nursery.start_soon(trip)
        group = await run_group(admitted, group_size=3, setup=setup)
    assert [t.end for t in group.trajectories] == [EpisodeEnd.CANCELLED] * 3
    assert log.num_open == 0


class Moody(WithoutQueue):
    """A session whose first message depends on how many there were before it."""

    num_made = 0

    def __init__(self, task: Task) -> None:
        Moody.num_made += 1
        self.mood = "good" if Moody.num_made < 3 else "bad"

    async def start(self) -> tuple[Message, ...]:
        await trio.lowlevel.checkpoint()
        return (Message(role="user", content=self.mood),)

    async def interact(self, action: Action) -> StepResult:
        await trio.lowlevel.checkpoint()
        return StepResult(messages=(), end=EpisodeEnd.COMPLETED)

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_members_with_different_first_prompts_are_refused(autojump_clock: trio.testing.MockClock) -> None:
    admitted = AdmittedGroup(group_id=0, task=TASK, start_version=0)
    with pytest.raises(RecordError, match="scripted/train/3/5"):
        await run_group(admitted, group_size=3, setup=setup_with(Moody))
