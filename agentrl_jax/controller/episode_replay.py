"""Plays a recorded episode again: the env of its task answers the recorded turns, and its replies are compared.

The sampled ids are the recorded ones, so only the environment, the template and the parser can differ. Ids are
compared, not texts: what the policy saw were ids. No trio, no engine.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from agentrl_jax.controller.call_budget import answering_all, within_budget
from agentrl_jax.controller.guarded_env import EnvFactory, GuardedEnv
from agentrl_jax.env import Action, Message, StepResult, Tool
from agentrl_jax.episode_log import RecordedEpisode, RecordedTurn
from agentrl_jax.errors import EnvError
from agentrl_jax.rendering.protocol import Renderer
from agentrl_jax.types import EpisodeEnd, Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBudget:
    """See `EpisodeConfig`: calls beyond it are answered by a notice, and the env never sees them."""

    max_calls_per_turn: int | None = None
    max_calls: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayedTurn:
    """One turn, played again as far as it goes.

    number: from 1. context: the ids before it, as they are now. action: the recorded ids, parsed now (None if they
    never reached the environment). result: what the policy is answered now. divergence: what differs from the record,
    "" if nothing does; the turn after it would be played in another world, so it is the last.
    """

    number: int
    recorded: RecordedTurn
    context: Ids
    action: Action | None
    result: StepResult | None
    divergence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """What comes after the last turn. divergence: as of ReplayedTurn. note: what cannot be compared, and why."""

    divergence: str = ""
    note: str = ""


def replay(
    episode: RecordedEpisode,
    make_env: EnvFactory,
    renderer: Renderer,
    tools: Sequence[Tool],
    budget: CallBudget | None = None,
) -> Iterator[ReplayedTurn | Closing]:
    """Yield each turn as it is played, then a `Closing`; stop early at the first turn that diverges.

    The renderer, the tools, the env and the budget must be the run's. An env error where none is recorded is a
    divergence; the recorded one is reproduced or noted.
    """
    env = _BudgetedEnv(GuardedEnv(make_env, episode.task), budget or CallBudget())
    try:
        yield from _play(episode, env, renderer, tools)
    finally:
        env.close()


class _BudgetedEnv:
    """An env that is asked for no more calls than an episode may make."""

    def __init__(self, env: GuardedEnv, budget: CallBudget) -> None:
        self._env = env
        self._per_turn = _bound(budget.max_calls_per_turn)
        self._left = _bound(budget.max_calls)
        self.close = env.close

    def start(self) -> tuple[Message, ...]:
        self._env.make()
        return self._env.reset()

    def step(self, action: Action) -> StepResult:
        executed = within_budget(action, min(self._left, self._per_turn))
        self._left -= len(executed.calls)
        result = self._env.step(executed)
        return answering_all(result, num_executed=len(executed.calls), num_calls=len(action.calls))


def _bound(limit: int | None) -> float:
    return math.inf if limit is None else limit


def _play(
    episode: RecordedEpisode, env: _BudgetedEnv, renderer: Renderer, tools: Sequence[Tool]
) -> Iterator[ReplayedTurn | Closing]:
    try:
        messages = env.start()
    except EnvError as error:
        yield _failed(episode, error, at_end=not episode.turns)
        return
    stream = renderer.stream(tools)
    context = stream.begin(messages)
    for number, recorded in enumerate(episode.turns, start=1):
        is_last = number == len(episode.turns)
        action, result = None, None
        divergence = _difference(recorded.context_ids, context)
        # A turn without its stop id ends the episode before the env hears of it.
        if not divergence and recorded.finish_reason != "length":
            action = renderer.parse(recorded.ids)
            divergence = _parsed_otherwise(recorded, action)
            if not divergence:
                try:
                    result = env.step(action)
                except EnvError as error:
                    yield ReplayedTurn(
                        number=number, recorded=recorded, context=context, action=action, result=None, divergence=""
                    )
                    yield _failed(episode, error, at_end=is_last)
                    return
                divergence = _answered_otherwise(episode, recorded, result, is_last=is_last)
        yield ReplayedTurn(
            number=number, recorded=recorded, context=context, action=action, result=result, divergence=divergence
        )
        if divergence:
            return
        if result is not None and not is_last:
            context = stream.follow(recorded.ids, result.messages).ids
    yield _closing(episode)


def _difference(recorded: Ids, now: Ids) -> str:
    if np.array_equal(recorded, now):
        return ""
    shared = min(len(recorded), len(now))
    differing = np.flatnonzero(recorded[:shared] != now[:shared])
    position = int(differing[0]) if len(differing) else shared
    return (
        f"the ids before this turn differ from position {position} on: {len(recorded)} were recorded, now there are "
        f"{len(now)}"
    )


def _parsed_otherwise(recorded: RecordedTurn, action: Action) -> str:
    then = (recorded.num_calls, recorded.call_errors)
    now = (len(action.calls), action.errors)
    return "" if then == now else f"the turn was parsed as (calls, errors) = {then}, now as {now}"


def _answered_otherwise(episode: RecordedEpisode, recorded: RecordedTurn, result: StepResult, *, is_last: bool) -> str:
    is_answered = not (is_last and episode.end.is_infrastructure)
    if is_answered and not is_last and result.end is not None:
        return f"the environment ends the episode here as {result.end.value}; recorded are further turns"
    if is_answered and is_last and result.end not in (None, episode.end):
        assert result.end is not None
        return f"the environment ends the episode as {result.end.value}; it was recorded as {episode.end.value}"
    if is_answered and is_last and result.end is None and episode.end is EpisodeEnd.COMPLETED:
        return "the environment goes on; the episode was recorded as completed"
    if is_answered and result.reward != recorded.reward:
        return f"the environment gives reward {result.reward}; recorded is {recorded.reward}"
    return ""


def _failed(episode: RecordedEpisode, error: EnvError, *, at_end: bool) -> Closing:
    if isinstance(error.__cause__, KeyboardInterrupt):
        raise error.__cause__
    if at_end and episode.end in (EpisodeEnd.ENV_ERROR, EpisodeEnd.ENV_TIMEOUT):
        return Closing(note=f"the environment fails here again: {error}")
    return Closing(divergence=f"the environment fails: {error}")


def _closing(episode: RecordedEpisode) -> Closing:
    if episode.end.is_infrastructure:
        why = f" ({episode.error})" if episode.error else ""
        return Closing(note=f"it was cut off by {episode.end.value}{why}, which a replay does not meet")
    if episode.end is EpisodeEnd.WALL_TIMEOUT:
        return Closing(note="it was cut off by its time budget, which a replay does not have")
    return Closing()
