"""Remote tasks as a family: what is said to the policy and the task, splits, and whole episodes."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.controller.remote_config import ListenConfig, RemoteTasks
from agentrl_jax.controller.remote_controller import RemoteController
from agentrl_jax.controller.remote_env import RemoteFamily, RemoteSession, TrainingController, discover
from agentrl_jax.controller.remote_messages import assistant_turn, first_messages, step_result, tools_of
from agentrl_jax.controller.session_kinds import open_sessions
from agentrl_jax.controller.wire_types import WorkerAnswer
from agentrl_jax.env import Action, EnvFamily, Message, Tool, ToolCall
from agentrl_jax.errors import ConfigError, EnvError, EnvTimeout
from agentrl_jax.types import EpisodeEnd
from tests.controller.remote_world import FakeRemote, beat, controlling, num_taken

NOTICE = "not executed: too many calls"


def answer(messages: Sequence[Any] = (), status: str = "running", **more: Any) -> WorkerAnswer:
    return msgspec.convert({"messages": list(messages), "status": status, **more}, WorkerAnswer)


def decoded(messages: Sequence[Any]) -> WorkerAnswer:
    return msgspec.json.decode(msgspec.json.encode({"messages": messages, "status": "running"}), type=WorkerAnswer)


def test_a_turn_is_said_as_openai_says_it() -> None:
    action = Action(
        content="I look.", calls=(ToolCall(name="look", arguments={"at": "é"}), ToolCall(name="go", arguments={}))
    )
    messages, ids = assistant_turn(action, 2)
    assert ids == ["call_2_0", "call_2_1"]
    assert msgspec.json.decode(msgspec.json.encode(messages)) == [
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "call_2_0", "type": "function", "function": {"name": "look", "arguments": '{"at":"é"}'}},
                {"id": "call_2_1", "type": "function", "function": {"name": "go", "arguments": "{}"}},
            ],
        }
    ]
    assert "tool_calls" not in msgspec.json.decode(msgspec.json.encode(assistant_turn(Action(content="x"), 0)[0]))[0]


def tool(content: str, call_id: str | None = None) -> dict[str, str]:
    return {"role": "tool", "content": content, **({"tool_call_id": call_id} if call_id else {})}


USER = {"role": "user", "content": "u"}


@pytest.mark.parametrize(
    ("sent", "ids", "expected"),
    [
        ([tool("b", "1"), USER, tool("a", "0")], ["0", "1"], ["tool a", "tool b", "user u"]),
        ([tool("a", "0")], ["0", "1"], ["tool a", f"tool {NOTICE}"]),
        ([tool("x"), tool("y")], ["0", "1"], ["tool x", "tool y"]),
        ([tool("x", "9"), tool("b", "1")], ["0", "1"], ["tool x", "tool b"]),
        ([tool("x"), USER], [], ["user x", "user u"]),
        ([tool("a", "0"), tool("again", "0")], ["0"], ["tool a", "user again"]),
        ([], ["0"], [f"tool {NOTICE}"]),
    ],
)
def test_every_call_has_one_answer_in_call_order(sent: list[Any], ids: list[str], expected: list[str]) -> None:
    result = step_result(answer(sent), ids)
    assert [f"{message.role} {message.content}" for message in result.messages] == expected


@pytest.mark.parametrize(
    ("status", "end"),
    [
        ("running", None),
        ("completed", EpisodeEnd.COMPLETED),
        ("agent context limit", EpisodeEnd.CONTEXT_LIMIT),
        ("agent validation failed", EpisodeEnd.VALIDATION_FAILED),
        ("agent invalid action", EpisodeEnd.INVALID_ACTION),
        ("task limit reached", EpisodeEnd.MAX_TURNS),
    ],
)
def test_what_the_policy_caused_is_an_end(status: str, end: EpisodeEnd | None) -> None:
    result = step_result(answer([USER], status, reward=0.25), [])
    assert (result.end, result.reward) == (end, 0.25)


@pytest.mark.parametrize("status", ["task error", "cancelled", "unknown", "something new"])
def test_what_it_did_not_cause_is_an_env_error(status: str) -> None:
    with pytest.raises(EnvError, match=status):
        step_result(answer([], status), [])


@pytest.mark.parametrize("role", ["system", "assistant", "function"])
def test_a_history_that_is_written_anew_is_refused(role: str) -> None:
    with pytest.raises(EnvError, match=role):
        step_result(answer([{"role": role, "content": "x"}]), [])


def test_first_messages() -> None:
    call = {"id": "0", "function": {"name": "look", "arguments": '{"at":1}'}}
    sent = [
        {"role": "system", "content": "s"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        tool("seen", "0"),
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    looked = (ToolCall(name="look", arguments={"at": 1}),)
    assert first_messages(decoded(sent)) == (
        Message(role="system", content="s"),
        Message(role="assistant", tool_calls=looked),
        Message(role="tool", content="seen"),
        Message(role="user", content="ab"),
    )
    for bad in (
        decoded([{"role": "user", "content": [{"type": "image_url"}]}]),
        decoded([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]),
        answer([], "task error"),
        answer([]),
    ):
        with pytest.raises(EnvError):
            first_messages(bad)


def test_tools_of_either_kind() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    openai = {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}
    anthropic = {"name": "g", "input_schema": schema}

    def offered(tools: Any) -> tuple[Tool, ...]:
        return tools_of(answer(tools=msgspec.Raw(msgspec.json.encode(tools))))

    assert offered([openai, anthropic]) == (
        Tool(name="f", description="d", parameters=schema),
        Tool(name="g", description="", parameters=schema),
    )
    assert offered(None) == ()
    for bad in ("x", [1], [{"function": 3}], [{"function": {}}]):
        with pytest.raises(EnvError, match="expected tools"):
            offered(bad)


@pytest.mark.parametrize(
    ("config", "count", "train", "held_out"),
    [
        (RemoteTasks(), 10, range(8), range(8, 10)),
        (RemoteTasks(), 2, range(1), range(1, 2)),
        (RemoteTasks(train="2:4", eval="0:1"), 10, range(2, 4), range(1)),
    ],
)
def test_splits(config: RemoteTasks, count: int, train: range, held_out: range) -> None:
    assert config.split("t", list(range(count))) == (list(train), list(held_out))


def test_splits_that_cannot_be() -> None:
    for settings in ({"train": "0:4"}, {"train": "0:4", "eval": "3:5"}, {"train": "4:0", "eval": "5:6"}, {"wait_s": 0}):
        with pytest.raises(ConfigError):
            RemoteTasks(**settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no position 9"):
        RemoteTasks(train="0:4", eval="8:10").split("t", list(range(9)))
    with pytest.raises(ConfigError, match="too few"):
        RemoteTasks().split("t", [1])


async def test_an_episode_on_a_remote_worker(autojump_clock: MockClock) -> None:
    worker = FakeRemote(num_places=1)
    async with controlling(worker) as controller:
        session = RemoteSession(controller, "three", 7, ())
        await session.reserve()
        assert num_taken(controller) == 1
        assert await session.start() == (Message(role="user", content="index 7"),)
        rewards = []
        for _ in range(3):
            result = await session.interact(Action(content="hi"))
            rewards.append(result.reward)
        assert (rewards, result.end) == ([0.0, 0.0, 0.5], EpisodeEnd.COMPLETED)
        await session.close()
        assert num_taken(controller) == 0


async def test_every_way_to_leave_an_episode_frees_its_place(autojump_clock: MockClock) -> None:
    worker = FakeRemote(num_places=1)
    async with controlling(worker) as controller:
        for leave_after in ("reserve", "start", "interact", "start cancelled", "interact cancelled"):
            session = RemoteSession(controller, "three", 7, ())
            await session.reserve()
            if leave_after != "reserve":
                with trio.move_on_after(0.5 if leave_after == "start cancelled" else 100.0):
                    await session.start()
            if leave_after.startswith("interact"):
                with trio.move_on_after(0.5 if leave_after == "interact cancelled" else 100.0):
                    await session.interact(Action(content="hi"))
            await session.close()
            await trio.sleep(2.0)
            assert (num_taken(controller), worker.sessions) == (0, {})


async def test_failures_are_env_errors(autojump_clock: MockClock) -> None:
    async def failing(controller: RemoteController, worker: FakeRemote, **changes: Any) -> EnvError:
        session = RemoteSession(controller, "three", 7, ())
        await session.reserve()
        await session.start()
        for name, value in changes.items():
            setattr(worker, name, value)
        with pytest.raises(EnvError) as caught:
            await session.interact(Action(content="hi"))
        await session.close()
        return caught.value

    worker = FakeRemote()
    async with controlling(worker) as controller:
        assert type(await failing(controller, worker, step_s=300.0)) is EnvTimeout
        worker.step_s = 0.1
        assert "answer_lost" in str(await failing(controller, worker, loses=lambda e, c: "answer"))
        worker.loses = lambda endpoint, call: "none"
        session = RemoteSession(controller, "three", 7, (Tool(name="x", description="", parameters={}),))
        await session.reserve()
        with pytest.raises(EnvError, match="its tools are not those"):
            await session.start()
        await session.close()


async def test_families_are_found_and_play(autojump_clock: MockClock) -> None:
    worker, said = FakeRemote(num_places=2), []
    opened: list[RemoteController] = []
    training = TrainingController(RemoteTasks(listen=ListenConfig(port=0)), said.append)

    async def register(*names: str) -> None:
        """Beats for whichever controller is open."""
        while True:
            controller = training._controller
            if controller is not None:
                worker.gives_notice = controller.book.noticed
                opened.append(controller)
                for name in names:
                    beat(controller, worker, name=name, address=f"http://{name}", indices=[-1, "a", "b", "c"])
            await trio.sleep(1.0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(register, "three")
        (family,) = await discover(training, ["three"])
        assert isinstance(family, EnvFamily)
        assert (family.name, family.max_turns, family.tools) == ("remote:three", 20, ())
        assert (family.num_tasks("train"), family.num_tasks("eval")) == (2, 1)
        port = training._listen.port
        assert said == [f"env workers may register at http://127.0.0.1:{port}/api or grpc://127.0.0.1:{port}"]
        other = RemoteFamily(training, "other", train=[0], held_out=[1], tools=())
        async with open_sessions([family, other], {}, {}, max_threads=1) as sessions:
            session = sessions["remote:three"](family.task("eval", 0))
            await session.reserve()
            assert (await session.start())[0].content == "index c"
            await session.close()
        assert len(set(map(id, opened))) == 2  # one to find, one to play: shared by both families
        assert len(said) == 2
        nursery.cancel_scope.cancel()
    assert worker.sessions == {}


async def test_a_task_that_nobody_serves_ends_the_wait(autojump_clock: MockClock) -> None:
    training = TrainingController(RemoteTasks(listen=ListenConfig(port=0), wait_s=5.0), lambda line: None)
    with pytest.raises(ConfigError, match=r"no worker for remote:three within 5\.0 s"):
        await discover(training, ["three"])


def test_a_family_without_envs_says_so() -> None:
    training = TrainingController(RemoteTasks(), lambda line: None)
    family = RemoteFamily(training, "three", train=[0], held_out=[1], tools=())
    with pytest.raises(ConfigError, match="served by remote workers"):
        family.make(family.task("train", 0))
    assert family.vocabulary() == ()
