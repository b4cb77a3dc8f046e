"""The G episodes of one task, run side by side."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import trio

from agentrl_jax.controller.cancellation import CancelSwitch
from agentrl_jax.controller.episode import EpisodeSetup, run_episode
from agentrl_jax.controller.slots import EpisodeSlots, Places
from agentrl_jax.errors import RecordError
from agentrl_jax.types import Group, Task, Trajectory


@dataclass(slots=True, kw_only=True, eq=False)
class AdmittedGroup:
    """A group that holds a permit and is to be run. Tripping `switch` makes all its episodes end as CANCELLED.

    start_version: the learner's at its admission; if it has to wait for places, that at which it got them: nothing of
    it is older, and what waits grows no staler. is_waiting: for them, now.
    task_position: where the draw found `task` (`TaskSampler.last_position`); None if it was drawn again, or by nobody.
    on_start: told as soon as it waits no longer, to bring `start_version` up to date.
    """

    group_id: int
    task: Task
    start_version: int
    task_position: int | None = None
    switch: CancelSwitch = field(default_factory=CancelSwitch)
    is_waiting: bool = False
    on_start: "Callable[[AdmittedGroup], None]" = lambda group: None

    @asynccontextmanager
    async def placed(self, slots: EpisodeSlots, num_places: int) -> AsyncIterator[Places]:
        """Wait for so many places, and hold them for the body; see `EpisodeSlots.place`."""
        self.is_waiting = True
        async with slots.place(self.task.env, num_places) as places:
            self.is_waiting = False
            self.on_start(self)
            yield places


async def run_group(
    admitted: AdmittedGroup, *, group_size: int, setup: EpisodeSetup, on_end: Callable[[], None] = lambda: None
) -> Group:
    """Run `group_size` episodes of one task and return them in member order once all have ended.

    on_end: told of each that has.

    Raises RecordError if members that got a first prompt got different ones: a baseline over them would compare
    answers to different questions, so this is a fault of the environment that a run must not survive.
    """
    trajectories: list[Trajectory | None] = [None] * group_size

    async def run_member(member: int) -> None:
        trajectories[member] = await run_episode(
            admitted.task, admitted.group_id, member, setup=setup, switch=admitted.switch
        )
        on_end()

    async with trio.open_nursery() as nursery:
        for member in range(group_size):
            nursery.start_soon(run_member, member, name=f"g{admitted.group_id}-m{member}")
    ended = tuple(trajectory for trajectory in trajectories if trajectory is not None)
    _check_first_prompts(admitted.task, ended)
    return Group(
        group_id=admitted.group_id,
        task=admitted.task,
        start_version=admitted.start_version,
        trajectories=ended,
    )


async def run_group_when_placed(
    admitted: AdmittedGroup, *, group_size: int, setup: EpisodeSetup, slots: EpisodeSlots
) -> Group:
    """`run_group` once there is a place for each of its episodes, which is free again as soon as that episode ends."""
    async with admitted.placed(slots, group_size) as places:
        return await run_group(admitted, group_size=group_size, setup=setup, on_end=places.give_back)


def check_versions(group: Group, newest: int) -> None:
    """Raise RecordError if an engine claims that a version after `newest`, the newest published, sampled a token.

    Its stamps are worthless then, and with them every age and every importance ratio.
    """
    for trajectory in group.trajectories:
        for turn in trajectory.turns:
            completion = turn.completion
            claimed = max(span.version for span in completion.version_spans)
            if claimed > newest:
                raise RecordError(
                    f"{trajectory.episode_id}: engine {completion.engine!r} claims that version {claimed} sampled it, "
                    f"but no version after {newest} has been published"
                )


def _check_first_prompts(task: Task, trajectories: Sequence[Trajectory]) -> None:
    prompts = {t.member: t.segments[0].turns[0].context_ids for t in trajectories if t.segments}
    for member, prompt in prompts.items():
        first = next(iter(prompts))
        if not np.array_equal(prompts[first], prompt):
            raise RecordError(
                f"task {task.key}: all members of a group must get the same first prompt, but those of members "
                f"{first} and {member} differ ({len(prompts[first])} and {len(prompt)} ids); its reset is not "
                "determined by the task's seed"
            )
