"""The endpoints that sample: /generate, chat completions, and what ends turns and sessions. No jax."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import trio

from agentrl_jax.engines.http_server import Answer, EventStream, HttpProblem, HttpRequest, Send, json_answer
from agentrl_jax.engines.served import ServableEngine
from agentrl_jax.engines.served_chat import ChatAnswers, ChatFormat, ChatRequest
from agentrl_jax.engines.served_names import WeightNames
from agentrl_jax.engines.served_turns import ServedTurns, Turn
from agentrl_jax.engines.sglang_schema import AbortRequest, CloseSession, Generate, SamplingFields, parse_body
from agentrl_jax.errors import EngineError
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Ids, as_ids

LoadWeights = Callable[[Path], Any]
"""From a folder to what the engine's `publish` takes. Called in a thread; raises ConfigError naming what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """path: the folder that the first weights came from. max_prompt_tokens: of one request. chat: None for a model
    without a tokenizer, which takes and gives ids only."""

    path: str
    vocab_size: int
    max_prompt_tokens: int
    load_weights: LoadWeights
    chat: ChatFormat | None = None


class GenerationEndpoints:
    """Each method answers the requests of one path. `turns`: those that are under way."""

    def __init__(self, engine: ServableEngine, model: ServedModel, names: WeightNames) -> None:
        self._engine, self._model, self._names = engine, model, names
        self.turns = ServedTurns(engine)
        self._sessions: set[str] = set()

    async def generate(self, request: HttpRequest) -> Answer | EventStream:
        asked = parse_body(request.body, Generate)
        if asked.return_logprob and asked.logprob_start_len != -1:
            raise HttpProblem(400, f"this engine offers only logprob_start_len = -1, got {asked.logprob_start_len}")
        sampling = asked.sampling_params
        turn = self._new_turn(self._prompt(asked), sampling, asked.rid, asked.session_id)

        def content() -> dict[str, Any]:
            text = {}
            if self._model.chat is not None:
                text["text"] = self._model.chat.decode(
                    turn.ids, trim_stop=not sampling.no_stop_trim, skip_special=sampling.skip_special_tokens
                )
            meta = turn.meta_info(self._engine.version, with_logprobs=asked.return_logprob)
            return {**text, "output_ids": turn.ids, "meta_info": meta}

        is_kept = asked.session_id is not None
        if asked.stream:
            return EventStream(write=partial(self._stream, turn, content, is_kept))
        await self._serve(turn, is_kept=is_kept)
        return json_answer(content())

    async def chat(self, request: HttpRequest) -> Answer | EventStream:
        asked = parse_body(request.body, ChatRequest)
        chat = self._chat_format()
        if asked.input_ids is None:
            messages = [message.to_message() for message in asked.messages]
            # Rendering a long conversation takes longer than other requests should wait.
            ids = await trio.to_thread.run_sync(lambda: chat.prompt(messages, asked.used_tools()).tolist())
        else:
            ids = asked.input_ids
        prompt = self._checked(ids)
        sampling = asked.sampling(self._model.max_prompt_tokens + 1 - len(prompt))
        turn = self._new_turn(prompt, sampling, asked.rid, asked.session_id)
        answers = ChatAnswers(chat, asked, turn, self._model.path)
        is_kept = asked.session_id is not None
        if asked.stream:
            return EventStream(write=partial(self._stream, turn, lambda: answers.chunk(self._engine.version), is_kept))
        await self._serve(turn, is_kept=is_kept)
        return json_answer(answers.whole(self._engine.version))

    async def abort(self, request: HttpRequest) -> Answer:
        asked = parse_body(request.body, AbortRequest)
        await trio.lowlevel.checkpoint()
        if asked.abort_all:
            self.turns.abort_all()
        elif asked.rid is not None:
            self.turns.abort(asked.rid)
        else:
            raise HttpProblem(400, "give either rid or abort_all")
        return Answer()

    async def close_session(self, request: HttpRequest) -> Answer:
        session = parse_body(request.body, CloseSession).session_id
        self._sessions.discard(session)
        await self._engine.end_session(session)
        return Answer()

    async def flush(self, request: HttpRequest) -> Answer:
        """Forget the prefixes of all sessions; refused while turns are under way, as SGLang does."""
        if len(self.turns):
            return Answer(status=400, body=b"Flush cache failed.", content_type="text/plain")
        while self._sessions:
            await self._engine.end_session(self._sessions.pop())
        return Answer(body=b"Cache flushed.", content_type="text/plain")

    async def health_generate(self, request: HttpRequest) -> Answer:
        """Sample one id."""
        await self._serve(self._new_turn(as_ids([0]), SamplingFields(max_new_tokens=1), None, None), is_kept=False)
        return Answer()

    def _chat_format(self) -> ChatFormat:
        if self._model.chat is None:
            raise HttpProblem(400, "this model has no tokenizer: give input_ids to /generate")
        return self._model.chat

    def _prompt(self, asked: Generate) -> Ids:
        if asked.input_ids is not None and asked.text is None:
            return self._checked(asked.input_ids)
        if asked.text is not None and asked.input_ids is None:
            return self._checked(self._chat_format().encode(asked.text))
        raise HttpProblem(400, "give either input_ids or text")

    def _checked(self, ids: list[int]) -> Ids:
        limit, vocabulary = self._model.max_prompt_tokens, self._model.vocab_size
        if not ids:
            raise HttpProblem(400, "a prompt needs at least one id, got none")
        if len(ids) > limit:
            raise HttpProblem(400, f"The input ({len(ids)} tokens) is longer than this engine's limit ({limit} tokens)")
        if min(ids) < 0 or max(ids) >= vocabulary:
            raise HttpProblem(400, f"ids must be in [0, {vocabulary}), got {min(ids)} to {max(ids)}")
        return as_ids(ids)

    def _new_turn(self, prompt: Ids, sampling: SamplingFields, rid: str | None, session: str | None) -> Turn:
        rid = rid or uuid4().hex
        self.turns.check_free(rid)
        eos_ids = self._model.chat.stop_ids if self._model.chat else ()
        params = sampling.to_params(seed=derive_seed("request", rid), eos_ids=eos_ids)
        session = session or f"request {rid}"
        return Turn(rid=rid, prompt=prompt, sampling=params, session=session, name_of=self._names.of)

    async def _serve(self, turn: Turn, *, is_kept: bool) -> None:
        if is_kept:
            self._sessions.add(turn.session)
        try:
            await self.turns.serve(turn)
        finally:
            if not is_kept:
                with trio.CancelScope(shield=True):  # it waits for nothing
                    await self._engine.end_session(turn.session)

    async def _stream(
        self, turn: Turn, content: Callable[[], dict[str, Any] | None], is_kept: bool, send: Send
    ) -> None:
        """Send `content()` whenever there is more, and at the end; what fails is the last event."""
        announce, arrived = trio.open_memory_channel[None](1)

        def on_news() -> None:
            if not announce.statistics().current_buffer_used:
                announce.send_nowait(None)

        async def serve() -> None:
            with announce:
                try:
                    await self._serve(turn, is_kept=is_kept)
                except (EngineError, HttpProblem) as error:
                    turn.error = str(error)

        turn.on_news = on_news
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            async for _ in arrived:
                if turn.finish_reason is None and (event := content()) is not None:
                    await send(msgspec.json.encode(event))
        last = {"error": {"message": turn.error, "code": 503}} if turn.error else content()
        await send(msgspec.json.encode(last))
        await send(b"[DONE]")
