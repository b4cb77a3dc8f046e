"""ENV, IDM, SEC: rows of the fault list that the controller of remote workers decides, in virtual time."""

from dataclasses import replace
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode, single_engine
from agentrl_jax.controller.remote_config import ListenConfig
from agentrl_jax.controller.remote_controller import RemoteController
from agentrl_jax.controller.remote_env import RemoteSession
from agentrl_jax.controller.wire_access import Access
from agentrl_jax.controller.wire_types import WireProblem
from agentrl_jax.errors import ConfigError
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.renderer import FakeRenderer
from agentrl_jax.types import EpisodeEnd, Task
from tests.controller.remote_world import CONFIG, SAY, FakeRemote, Loss, controlling, num_taken, problem_of

TASK = Task(env="three", split="train", index=0, seed=0)


def setup_over(controller: RemoteController) -> EpisodeSetup:
    return EpisodeSetup(
        sessions=lambda task: RemoteSession(controller, "three", task.index, ()),
        tools=(),
        renderer=FakeRenderer(),
        choose_engine=single_engine(FakeEngine(script=lambda prompt, sampling: [])),
        config=EpisodeConfig(max_turns=8, max_new_tokens=4, max_context_tokens=512),
        run_seed=0,
    )


async def test_env_13_a_turn_slower_than_the_expiry_ends_with_its_reason_and_no_reward(
    autojump_clock: MockClock,
) -> None:
    worker = FakeRemote()
    async with controlling(worker) as controller:
        record, _ = await controller.start("three", 0)
        await trio.sleep(CONFIG.expire_s + 1.0)  # the model thinks
        with pytest.raises(WireProblem, match="session not found; session_expired") as caught:
            await controller.session(record.session_id)
        assert caught.value.body() == {"message": "session not found", "reason": "session_expired"}
        assert (worker.sessions, num_taken(controller)) == ({}, 0)


async def test_env_13_sessions_of_this_process_outlive_any_turn(autojump_clock: MockClock) -> None:
    async with controlling(FakeRemote()) as controller:
        session = RemoteSession(controller, "three", 0, ())
        await session.reserve()
        await session.start()
        await trio.sleep(10 * CONFIG.expire_s)
        (record,) = controller.book.store.live.values()
        assert (await controller.interact(record, SAY)).status == "running"
        await session.close()


async def test_idm_04_ten_failed_attempts_leave_no_session_on_a_remote_worker(autojump_clock: MockClock) -> None:
    worker = FakeRemote(num_places=4)
    turns = 0

    def loses(endpoint: str, call: int) -> Loss:
        nonlocal turns
        turns += endpoint == "interact"
        return "answer" if endpoint == "interact" and turns % 2 == 0 else "none"

    worker.loses = loses
    async with controlling(worker) as controller:
        for attempt in range(10):
            trajectory = await run_episode(TASK, attempt, 0, setup=setup_over(controller))
            assert (trajectory.end, trajectory.reward) == (EpisodeEnd.ENV_ERROR, None)
            assert len(controller.book.store.live) <= 1
        await trio.sleep(1.0)
        assert (worker.sessions, num_taken(controller), worker.peak) == ({}, 0, 1)
    assert all(count == 2 for count in worker.turns.values())


async def test_idm_05_a_turn_is_carried_out_once_however_often_it_is_sent(autojump_clock: MockClock) -> None:
    worker = FakeRemote()
    async with controlling(worker) as controller:
        record, _ = await controller.start("three", 0)
        for _ in range(3):
            answer = await controller.interact(record, SAY, request_id="1")
            assert answer.status == "running"
        assert worker.turns == {record.session_id: 1}
        worker.loses = lambda endpoint, call: "answer"
        assert (await problem_of(partial(controller.interact, record, SAY)))[2] == "answer_lost"
        await problem_of(partial(controller.interact, record, SAY))
        assert worker.turns == {record.session_id: 2}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org"])
def test_sec_03_a_controller_that_others_can_reach_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="can be reached from other machines"):
        Access(ListenConfig(host=host))
    assert not Access(ListenConfig(host=host, token="s3cret")).admits({}, "127.0.0.1")
    assert Access(ListenConfig(host=host, token="s3cret")).admits({"authorization": "Bearer s3cret"}, "1.2.3.4")


async def test_sec_05_a_reward_counts_once_and_only_from_the_worker(autojump_clock: MockClock) -> None:
    worker = FakeRemote(num_turns=1)
    async with controlling(worker, config=replace(CONFIG, resume_s=0.0)) as controller:
        record, _ = await controller.start("three", 0)
        answer = await controller.interact(record, SAY)
        assert (answer.status, answer.reward) == ("completed", 0.5)
        # The session is over with its score: acting on changes nothing.
        assert (await problem_of(partial(controller.interact, record, SAY)))[2] == "completed"
        assert worker.turns[record.session_id] == 1
