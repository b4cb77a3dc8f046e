"""The endpoints that sample: /generate, chat completions, and what ends turns and sessions. No jax."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import trio

from agentrl_jax.engines.http_server import Answer, EventStream, HttpProblem, HttpRequest, json_answer
from agentrl_jax.engines.served import ServableEngine
from agentrl_jax.engines.served_chat import ChatAnswers, ChatFormat, ChatRequest
from agentrl_jax.engines.served_names import WeightNames
from agentrl_jax.engines.served_streams import Content, serve_turns, stream_turns
from agentrl_jax.engines.served_turns import ServedTurns, Turn
from agentrl_jax.engines.sglang_schema import (
    AbortRequest,
    CloseSession,
    Detokenize,
    Generate,
    SamplingFields,
    Tokenize,
    parse_body,
)
from agentrl_jax.seeding import derive_seed
from agentrl_jax.types import Ids, as_ids

LoadWeights = Callable[[Path], Any]
"""From a folder to what the engine's `publish` takes. Called in a thread; raises ConfigError naming what is wrong."""

HashWeights = Callable[[Any], Mapping[str, str]]
"""From what `LoadWeights` returns to `server_checksums.bytes_hash` by Hugging Face's name. Called in a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """path: the folder that the first weights came from. max_prompt_tokens: of one request. hash_weights: None for an
    engine that does not say what its tensors hash to. chat: None for a model without a tokenizer, which takes and gives
    ids only."""

    path: str
    vocab_size: int
    max_prompt_tokens: int
    load_weights: LoadWeights
    hash_weights: HashWeights | None = None
    chat: ChatFormat | None = None


class GenerationEndpoints:
    """Each method answers the requests of one path. `turns`: those that are under way."""

    def __init__(self, engine: ServableEngine, model: ServedModel, names: WeightNames) -> None:
        self._engine, self._model, self._names = engine, model, names
        self.turns = ServedTurns(engine)
        self._sessions: set[str] = set()

    async def generate(self, request: HttpRequest) -> Answer | EventStream:
        asked = parse_body(request.body, Generate)
        is_kept = asked.session_id is not None
        parts = asked.parts()
        if is_kept and len(parts) > 1:
            raise HttpProblem(400, "the prompts of a batch are no turns of one session: leave out session_id")
        turns = [self._new_turn(self._prompt(part.prompt), part.sampling, part.rid, asked.session_id) for part in parts]

        def content(index: int) -> dict[str, Any]:
            turn, sampling = turns[index], parts[index].sampling
            text = {}
            if self._model.chat is not None:
                text["text"] = self._model.chat.decode(
                    turn.ids, trim_stop=not sampling.no_stop_trim, skip_special=sampling.skip_special_tokens
                )
            meta = turn.meta_info(self._engine.version, with_logprobs=asked.return_logprob)
            place = {"index": index} if asked.stream and asked.is_batch else {}
            return {**text, "output_ids": turn.ids, "meta_info": meta, **place}

        if asked.stream:
            return self._stream(turns, content, is_kept=is_kept)
        await serve_turns(turns, partial(self._serve, is_kept=is_kept))
        contents = [content(index) for index in range(len(turns))]
        return json_answer(contents if asked.is_batch else contents[0])

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
            return self._stream([turn], lambda _: answers.chunk(self._engine.version), is_kept=is_kept)
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
        await self.forget_prefixes()
        return Answer(body=b"Cache flushed.", content_type="text/plain")

    async def forget_prefixes(self) -> None:
        """Of every session."""
        while self._sessions:
            await self._engine.end_session(self._sessions.pop())

    async def tokenize(self, request: HttpRequest) -> Answer:
        asked = parse_body(request.body, Tokenize)
        ids = self._chat_format().encode(asked.prompt)
        await trio.lowlevel.checkpoint()
        return json_answer({"tokens": ids, "count": len(ids), "max_model_len": self._model.max_prompt_tokens + 1})

    async def detokenize(self, request: HttpRequest) -> Answer:
        asked = parse_body(request.body, Detokenize)
        self._checked(asked.tokens)
        await trio.lowlevel.checkpoint()
        text = self._chat_format().decode(asked.tokens, trim_stop=False, skip_special=asked.skip_special_tokens)
        return json_answer({"text": text})

    async def health_generate(self, request: HttpRequest) -> Answer:
        """Sample one id."""
        await self._serve(self._new_turn(as_ids([0]), SamplingFields(max_new_tokens=1), None, None), is_kept=False)
        return Answer()

    def _chat_format(self) -> ChatFormat:
        if self._model.chat is None:
            raise HttpProblem(400, "this model has no tokenizer: give input_ids to /generate")
        return self._model.chat

    def _prompt(self, given: str | list[int]) -> Ids:
        return self._checked(self._chat_format().encode(given) if isinstance(given, str) else given)

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

    def _stream(self, turns: Sequence[Turn], content: Content, *, is_kept: bool) -> EventStream:
        return EventStream(write=partial(stream_turns, turns, partial(self._serve, is_kept=is_kept), content))
