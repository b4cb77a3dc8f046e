"""An OpenAI-compatible endpoint: what is sent, what is read, and what becomes of its failures. In virtual time."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio

from agentrl_jax.engines.http import open_http_client
from agentrl_jax.engines.http_server import Answer, HttpProblem, HttpRequest, json_answer
from agentrl_jax.env import Action, Message
from agentrl_jax.errors import ConfigError, EngineError
from agentrl_jax.playing.chat_json import chat_messages
from agentrl_jax.playing.endpoint import EndpointOptions, EndpointPolicy
from agentrl_jax.playing.policies import PlayedTurn, TurnSettings
from agentrl_jax.types import EpisodeEnd
from tests.engines.http_fakes import connect_to
from tests.playing.world import ACT, TASK, act

SETTINGS = TurnSettings(temperature=0.5, max_new_tokens=7, max_context_tokens=64, seed=2**40 + 3)
USER = Message(role="user", content="Go.")
ASKED = [USER, act(n=1), Message(role="tool", content="one"), act(n=2), Message(role="tool", content="two")]


def answer(message: dict[str, Any], reason: str = "stop") -> Answer:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    return json_answer({"choices": [choice], "usage": {"prompt_tokens": 11, "completion_tokens": 5}})


class Endpoint:
    """Answers with `answers`, one after the other; the last one for ever."""

    def __init__(self, nursery: trio.Nursery, *answers: Answer | Callable[[], Answer]) -> None:
        self.answers, self.asked = list(answers), list[HttpRequest]()
        self.connect = connect_to(nursery, lambda: self._handle)

    async def _handle(self, request: HttpRequest) -> Answer:
        self.asked.append(request)
        await trio.lowlevel.checkpoint()
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return found if isinstance(found, Answer) else found()

    async def play(self, **options: Any) -> PlayedTurn:
        async with open_http_client("http://e/v1", token="k3y", connect=self.connect) as client:
            policy = EndpointPolicy("gpt", client, EndpointOptions(model="m-1", **options))
            return await policy.join(TASK, [ACT], "e").play(ASKED, SETTINGS)

    def body(self, number: int = 0) -> Any:
        return json.loads(self.asked[number].body)


async def test_a_turn_by_hand(nursery: trio.Nursery, autojump_clock: object) -> None:
    called = [{"id": "x", "type": "function", "function": {"name": "act", "arguments": '{"n": 3}'}}]
    endpoint = Endpoint(nursery, answer({"content": None, "tool_calls": called}, "tool_calls"))
    turn = await endpoint.play()
    assert (turn.action, turn.message, turn.end) == (Action(calls=act(n=3).tool_calls), act(n=3), None)
    assert (turn.num_prompt_tokens, turn.num_sampled_tokens) == (11, 5)
    assert endpoint.asked[0].path == "/v1/chat/completions"
    assert dict(endpoint.asked[0].headers)["authorization"] == "Bearer k3y"
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "act", "arguments": f'{{"n": {n + 1}}}'}}
        for n in range(2)
    ]
    assert endpoint.body() == {
        "model": "m-1",
        "temperature": 0.5,
        "max_tokens": 7,
        "tools": [ACT.to_json()],
        "messages": [
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": None, "tool_calls": calls[:1]},
            {"role": "tool", "content": "one", "tool_call_id": "call_0"},
            {"role": "assistant", "content": None, "tool_calls": calls[1:]},
            {"role": "tool", "content": "two", "tool_call_id": "call_1"},
        ],
    }


async def test_text_truncation_and_seeds(nursery: trio.Nursery, autojump_clock: object) -> None:
    endpoint = Endpoint(nursery, answer({"content": "Hm."}, "length"))
    turn = await endpoint.play(sends_seed=True)
    assert (turn.action.content, turn.end) == ("Hm.", EpisodeEnd.TURN_TRUNCATED)
    assert endpoint.body()["seed"] == (2**40 + 3) % 2**31


@pytest.mark.parametrize("arguments", ["{", "[]", '{"n": 1, "n": 2}', '"{}"', "{} x"])
async def test_a_call_that_cannot_be_read_is_an_error_text(
    arguments: str, nursery: trio.Nursery, autojump_clock: object
) -> None:
    called = [{"function": {"name": "act", "arguments": arguments}}, {"function": {"name": "act", "arguments": "{}"}}]
    turn = await Endpoint(nursery, answer({"content": "So:", "tool_calls": called})).play()
    assert turn.action.calls == turn.message.tool_calls == act().tool_calls
    assert len(turn.action.errors) == 1
    assert turn.action.errors[0].startswith("tool call 1: ")
    assert turn.message.content.startswith("So:\n{")


def test_answers_to_calls_that_stand_as_text_are_the_user_s() -> None:
    said = [act(n=1), Message(role="tool", content="one"), Message(role="tool", content="tool call 2: invalid JSON")]
    assert [(m["role"], m.get("tool_call_id")) for m in chat_messages([USER, *said])] == [
        ("user", None),
        ("assistant", None),
        ("tool", "call_0"),
        ("user", None),
    ]


def status(code: int, text: str = "no") -> Callable[[], Answer]:
    def fail() -> Answer:
        raise HttpProblem(code, text)

    return fail


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 529])
async def test_a_busy_server_is_asked_again(code: int, nursery: trio.Nursery, autojump_clock: object) -> None:
    endpoint = Endpoint(nursery, status(code), status(code), answer({"content": "ok"}))
    assert (await endpoint.play()).action.content == "ok"
    assert len(endpoint.asked) == 3
    assert trio.current_time() == pytest.approx(1.5)
    with pytest.raises(EngineError, match=f"gpt: gave up after 2 attempts: status {code}: no"):
        await Endpoint(nursery, status(code)).play(max_attempts=2)


@pytest.mark.parametrize("code", [401, 403, 404])
async def test_a_refusal_for_good_is_no_episode_s_fault(
    code: int, nursery: trio.Nursery, autojump_clock: object
) -> None:
    with pytest.raises(ConfigError, match=f"gpt at http://e/v1 refuses model 'm-1': status {code}: bad key"):
        await Endpoint(nursery, status(code, "bad key")).play()


async def test_a_conversation_that_is_too_long_is_the_policy_s_end(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    text = "This model's maximum context length is 8192 tokens"
    turn = await Endpoint(nursery, status(400, text)).play()
    assert (turn.end, turn.num_sampled_tokens) == (EpisodeEnd.CONTEXT_LIMIT, 0)
    with pytest.raises(EngineError, match="gpt: status 400: tools are not supported"):
        await Endpoint(nursery, status(400, "tools are not supported")).play()


async def test_models_that_know_another_name_of_the_bound(nursery: trio.Nursery, autojump_clock: object) -> None:
    text = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    endpoint = Endpoint(nursery, status(400, text), answer({"content": "ok"}))
    assert (await endpoint.play()).action.content == "ok"
    assert endpoint.body(1)["max_completion_tokens"] == 7
    assert "max_tokens" not in endpoint.body(1)


async def test_episodes_that_find_out_the_other_name_at_once(nursery: trio.Nursery, autojump_clock: object) -> None:
    async def handle(request: HttpRequest) -> Answer:
        await trio.sleep(1.0)
        return refusal() if "max_tokens" in json.loads(request.body) else answer({"content": "ok"})

    refusal = status(400, "Use 'max_completion_tokens' instead.")
    said: list[str] = []

    async def play(policy: EndpointPolicy) -> None:
        said.append((await policy.join(TASK, [ACT], "e").play(ASKED, SETTINGS)).action.content)

    async with open_http_client("http://e/v1", connect=connect_to(nursery, lambda: handle)) as client:
        policy = EndpointPolicy("gpt", client, EndpointOptions(model="m-1"))
        async with trio.open_nursery() as episodes:
            for _ in range(3):
                episodes.start_soon(play, policy)
    assert said == ["ok"] * 3


async def test_pauses_grow_under_another_name_of_the_bound_too(nursery: trio.Nursery, autojump_clock: object) -> None:
    busy = [status(429, "slow down")] * 3
    endpoint = Endpoint(nursery, status(400, "Use 'max_completion_tokens'."), *busy, answer({"content": "ok"}))
    begun = trio.current_time()
    assert (await endpoint.play()).action.content == "ok"
    assert trio.current_time() - begun == pytest.approx(0.5 + 1.0 + 2.0)


@pytest.mark.parametrize("body", [{"choices": []}, {"x": 1}, {"choices": [{}]}])
async def test_an_answer_that_is_none(body: Any, nursery: trio.Nursery, autojump_clock: object) -> None:
    with pytest.raises(EngineError):
        await Endpoint(nursery, json_answer(body)).play()


async def test_a_server_that_is_gone(autojump_clock: object) -> None:
    async def connect() -> trio.abc.Stream:
        raise OSError("refused")

    async with open_http_client("http://e/v1", connect=connect) as client:
        policy = EndpointPolicy("gpt", client, EndpointOptions(model="m", max_attempts=3))
        with pytest.raises(EngineError, match="gave up after 3 attempts: cannot reach http://e/v1: refused"):
            await policy.join(TASK, [ACT], "e").play([USER], SETTINGS)
