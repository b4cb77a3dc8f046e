"""A model that an `Engine` serves, played at message level by its own template and tokenizer. No jax.

Tokens are facts here too: as long as nobody else has spoken since its last turn, the next prompt is that turn's ids as
they were sampled, and the ids of what answered it. Once another policy has, the conversation is rendered anew.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from agentrl_jax.engines.protocol import Engine
from agentrl_jax.env import Action, Message, Tool
from agentrl_jax.errors import EngineError, TemplateError
from agentrl_jax.playing.policies import PlayedTurn, Seat, TurnSettings
from agentrl_jax.rendering.protocol import Context, Renderer
from agentrl_jax.types import Completion, EpisodeEnd, Ids, SamplingParams, Task, as_ids


class RenderedPolicy:
    """Implements `PlayingPolicy`.

    renderers: by env. decode: ids to text, special tokens spelt out. context_tokens: the longest segment that the
    engine can take; None: as long as any episode.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        renderers: Mapping[str, Renderer],
        decode: Callable[[Ids], str],
        context_tokens: int | None = None,
    ) -> None:
        self._name, self._engine, self._renderers, self._decode = name, engine, renderers, decode
        self._context_tokens = context_tokens

    @property
    def name(self) -> str:
        return self._name

    def join(self, task: Task, tools: Sequence[Tool], episode: str) -> Seat:
        """See `PlayingPolicy.join`."""
        return _RenderedSeat(self, self._engine, self._renderers[task.env], tools, episode)

    def decode(self, ids: Ids) -> str:
        """The text of ids."""
        return self._decode(ids)

    def room(self, settings: TurnSettings, num_tokens: int) -> int:
        """How many tokens fit behind so many."""
        limit = settings.max_context_tokens
        return min(limit, self._context_tokens or limit) - num_tokens


class _RenderedSeat:
    def __init__(
        self, policy: RenderedPolicy, engine: Engine, renderer: Renderer, tools: Sequence[Tool], episode: str
    ) -> None:
        self._policy, self._engine, self._renderer, self._tools = policy, engine, renderer, tools
        self._episode = episode
        self._stream = renderer.stream(tools)
        self._ids: Ids = as_ids(())  # of the last segment
        self._sampled: Ids = as_ids(())  # of the last turn
        self._said: tuple[int, Message] | None = None  # its place in the conversation

    async def play(self, messages: Sequence[Message], settings: TurnSettings) -> PlayedTurn:
        try:
            context = self._context(messages)
        except TemplateError as error:
            raise EngineError(
                f"{self._engine.name}: its chat template cannot show the conversation: {error}"
            ) from error
        if context.starts_segment:
            self._ids = as_ids(())
        prompt = np.concatenate([self._ids, context.ids])
        room = self._policy.room(settings, len(prompt))
        if room < 1:
            return PlayedTurn(
                action=Action(),
                message=Message(role="assistant"),
                end=EpisodeEnd.CONTEXT_LIMIT,
                num_prompt_tokens=len(prompt),
            )
        bound = min(room, settings.max_new_tokens)
        sampling = SamplingParams(
            temperature=settings.temperature,
            max_new_tokens=bound,
            seed=settings.seed,
            stop_ids=self._renderer.stop_ids,
        )
        completion = await self._engine.generate(prompt, sampling, session=self._episode)
        self._ids, self._sampled = np.concatenate([prompt, completion.ids]), completion.ids
        turn = self._turn(completion, len(prompt), is_clipped=bound < settings.max_new_tokens)
        self._said = len(messages), turn.message
        return turn

    async def leave(self) -> None:
        await self._engine.end_session(self._episode)

    def _context(self, messages: Sequence[Message]) -> Context:
        if self._said is not None:
            place, said = self._said
            answers = messages[place + 1 :]
            if messages[place] is said and all(message.role != "assistant" for message in answers):
                return self._stream.follow(self._sampled, answers)
        self._stream = self._renderer.stream(self._tools)
        return Context(ids=self._stream.begin(messages), starts_segment=True)

    def _turn(self, completion: Completion, num_prompt_tokens: int, *, is_clipped: bool) -> PlayedTurn:
        end = None
        if completion.finish_reason == "length":
            end = EpisodeEnd.CONTEXT_LIMIT if is_clipped else EpisodeEnd.TURN_TRUNCATED
        action = self._renderer.parse(completion.ids)
        # A call that could not be read stays visible as the text that it was.
        is_whole = not action.errors
        ids = completion.ids[:-1] if end is None else completion.ids
        message = Message(
            role="assistant",
            content=action.content if is_whole else self._policy.decode(ids),
            tool_calls=action.calls if is_whole else (),
        )
        versions = [span.version for span in completion.version_spans]
        return PlayedTurn(
            action=action,
            message=message,
            end=end,
            num_prompt_tokens=num_prompt_tokens,
            num_sampled_tokens=len(completion.ids),
            versions=(min(versions), max(versions)),
        )
