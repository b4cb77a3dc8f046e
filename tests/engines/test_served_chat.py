"""Chat completions: messages and tools in, text and calls out, whole and as a stream."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from agentrl_jax.engines.http import HttpClient, open_http_client
from agentrl_jax.engines.served_chat import ChatFormat
from agentrl_jax.env import Message, Tool, ToolCall
from agentrl_jax.rendering.templates import hermes_template
from agentrl_jax.rendering.tokenizer import load_tokenizer
from agentrl_jax.rendering.train_tokenizer import train_tokenizer
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.testing.engine import FakeEngine
from tests.engines.served_engines import FAKE_MODEL, Host

TOOLS = [{"type": "function", "function": {"name": "look", "description": "d", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "é"}}\n</tool_call>'
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "Where"}, {"type": "text", "text": "?"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look", "arguments": '{"at": "x"}'}}]},
    {"role": "tool", "content": "nothing", "tool_call_id": "c"},
]


class Chatting:
    """A fake engine that says what `text` says, and a client of its server."""

    def __init__(self, folder: Path) -> None:
        train_tokenizer(["a b"], folder, vocab_size=400, chat_template=hermes_template(), keep_whole=[])
        self.tokenizer = load_tokenizer(folder)
        self.renderer = TemplateRenderer(self.tokenizer)
        self.text = ""
        self.engine = FakeEngine(script=lambda prompt, sampling: self.tokenizer.encode(self.text))
        self.engine.vocabulary = (1, 2)
        self.chat = ChatFormat(self.tokenizer, self.renderer)
        self.model = replace(FAKE_MODEL, vocab_size=self.tokenizer.vocab_size, max_prompt_tokens=3000, chat=self.chat)
        self.client: HttpClient

    async def ask(self, status: int = 200, **fields: Any) -> Any:
        response = await self.client.post("/v1/chat/completions", {"messages": MESSAGES} | fields, is_idempotent=True)
        assert response.status == status, response.body
        return response.body if fields.get("stream") else msgspec.json.decode(response.body)


@pytest.fixture
async def chatting(nursery: trio.Nursery, tmp_path: Path) -> AsyncIterator[Chatting]:
    made = Chatting(tmp_path)
    host = Host(nursery)
    host.serve(made.engine, made.model)
    async with open_http_client("http://e", connect=host.connect) as made.client:
        yield made


async def test_messages_and_tools_become_the_templates_prompt(chatting: Chatting) -> None:
    chatting.text = "Here."
    answer = await chatting.ask(tools=TOOLS, return_prompt_token_ids=True, return_token_ids=True, logprobs=True)
    prompt = chatting.renderer.prompt(
        [
            Message(role="user", content="Where?"),
            Message(role="assistant", tool_calls=(ToolCall(name="look", arguments={"at": "x"}),)),
            Message(role="tool", content="nothing"),
        ],
        [Tool(name="look", description="d", parameters={"type": "object"})],
    )
    choice = answer["choices"][0]
    assert choice["prompt_token_ids"] == prompt.tolist()
    stop = chatting.renderer.stop_ids[0]
    ids = [*chatting.tokenizer.encode("Here."), stop]
    assert choice["response_token_ids"] == ids
    assert choice["message"] == {"role": "assistant", "content": "Here."}
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", stop)
    assert "".join(item["token"] for item in choice["logprobs"]["content"][:-1]) == "Here."
    assert answer["usage"]["total_tokens"] == len(prompt) + len(ids)
    assert answer["metadata"]["weight_version"] == "0"


async def test_calls(chatting: Chatting) -> None:
    chatting.text = "I look." + CALL
    choice = (await chatting.ask(tools=TOOLS))["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "look")
    assert json.loads(call["function"]["arguments"]) == {"at": "é"}
    assert choice["message"]["content"].strip() == "I look."
    assert choice["finish_reason"] == "tool_calls"
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = (await chatting.ask(**fields))["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": "I look." + CALL}
        assert choice["finish_reason"] == "stop"


async def test_a_call_that_is_none_stays_text(chatting: Chatting) -> None:
    chatting.text = "<tool_call>\n{broken\n</tool_call>"
    choice = (await chatting.ask(tools=TOOLS))["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": chatting.text}
    assert choice["finish_reason"] == "stop"


async def test_a_turn_cut_short(chatting: Chatting) -> None:
    chatting.text = "one two three four"
    choice = (await chatting.ask(max_tokens=3))["choices"][0]
    assert choice["finish_reason"] == "length"
    assert chatting.text.startswith(choice["message"]["content"])


@pytest.mark.parametrize("tools", [None, TOOLS])
async def test_a_stream_of_deltas_adds_up_to_the_whole_answer(chatting: Chatting, tools: Any) -> None:
    chatting.text = "Größe 😀 und mehr" + ("" if tools is None else CALL)
    whole = (await chatting.ask(tools=tools, rid="a"))["choices"][0]
    parts = (await chatting.ask(tools=tools, rid="a", stream=True)).split(b"\n\n")
    assert parts[-2:] == [b"data: [DONE]", b""]
    chunks = [json.loads(part.removeprefix(b"data: "))["choices"][0] for part in parts[:-2]]
    deltas = [chunk["delta"] for chunk in chunks]
    assert "".join(delta.get("content", "") for delta in deltas) == whole["message"]["content"]
    assert not any("\ufffd" in delta.get("content", "") for delta in deltas)
    assert chunks[-1]["finish_reason"] == whole["finish_reason"]
    assert [d["tool_calls"] for d in deltas if "tool_calls" in d] == (
        [] if tools is None else [whole["message"]["tool_calls"]]
    )


async def test_text_prompts_and_their_text(chatting: Chatting) -> None:
    chatting.text = "Fine."
    body = {"text": "How?", "sampling_params": {"temperature": 0}}
    answer = msgspec.json.decode((await chatting.client.post("/generate", body, is_idempotent=True)).body)
    assert answer["text"] == "Fine."
    assert answer["meta_info"]["prompt_tokens"] == len(chatting.tokenizer.encode("How?"))
    body["sampling_params"] = {"no_stop_trim": True, "skip_special_tokens": False}
    answer = msgspec.json.decode((await chatting.client.post("/generate", body, is_idempotent=True)).body)
    assert answer["text"] == "Fine.<|im_end|>"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "boss"}]}, "boss"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"messages": [{**MESSAGES[1], "role": "user"}]}, "only an assistant message"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
            "not JSON",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "1"}}]}]},
            "object",
        ),
        ({"tool_choice": "required"}, "required"),
        ({"n": 2}, "only n = 1"),
        ({"stop": "x"}, "only stop = None"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"input_ids": [10**9]}, "ids must be in"),
    ],
)
async def test_what_is_refused(chatting: Chatting, fields: dict[str, Any], said: str) -> None:
    assert said in (await chatting.ask(400, **fields))["error"]["message"]
