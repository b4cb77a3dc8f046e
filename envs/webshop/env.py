"""One episode of one goal: a search or a click a turn until something is bought."""

from enum import Enum

from agentrl_jax.env import Action, Message, StepResult, ToolCall
from agentrl_jax.errors import EnvError
from agentrl_jax.types import EpisodeEnd
from envs.webshop.calls import SEARCH_ACTION, BadCall, argument_of
from envs.webshop.catalogue import Catalogue
from envs.webshop.goals import Goal
from envs.webshop.shop import Shop

SYSTEM = "Buy what the instruction asks for. Each turn search with search_action or click with click_action."
NO_CALL = "Call search_action or click_action."
BOUGHT = "done"
NOT_EXECUTED = "not executed: one action a turn"


class _State(Enum):
    NEW = "is new"
    LIVE = "is live"
    OVER = "is over"
    CLOSED = "is closed"


class WebShopEnv:
    """Implements `agentrl_jax.env.Env`. The reward, in [0, 1], comes with the purchase, and ends the episode.

    The first call of a turn is carried out and answered by the page that follows; a bad one is answered by a text
    starting with `error:`. Either way the turn is spent. upstream_compat: as published, the calls beyond the first
    and the purchase are not answered.
    """

    def __init__(self, catalogue: Catalogue, goal: Goal, *, upstream_compat: bool = False) -> None:
        self._shop = Shop(catalogue, goal)
        self._upstream_compat = upstream_compat
        self._state = _State.NEW

    def reset(self) -> tuple[Message, ...]:
        self._require(_State.NEW)
        self._state = _State.LIVE
        text = f"The initial observation:\n{self._shop.observation()}{self._actions()}"
        return (Message(role="system", content=SYSTEM), Message(role="user", content=text))

    def step(self, action: Action) -> StepResult:
        """Carry out one assistant turn. Raises EnvError unless the episode is live."""
        self._require(_State.LIVE)
        if not action.calls:
            errors = tuple(Message(role="tool", content=text) for text in action.errors)
            no_call = Message(role="user", content=f"Observation:\n{NO_CALL}{self._actions()}")
            return StepResult(messages=errors or (no_call,))
        texts = [self._carry_out(action.calls[0])]
        is_bought = self._shop.reward is not None
        if not self._upstream_compat:
            texts += [NOT_EXECUTED] * (len(action.calls) - 1) + list(action.errors)
        elif is_bought:
            texts = []
        messages = tuple(Message(role="tool", content=text) for text in texts)
        if self._shop.reward is None:
            return StepResult(messages=messages)
        self._state = _State.OVER
        return StepResult(messages=messages, reward=self._shop.reward, end=EpisodeEnd.COMPLETED)

    def close(self) -> None:
        self._state = _State.CLOSED

    def _require(self, state: _State) -> None:
        if self._state is not state:
            raise EnvError(f"a webshop env that {self._state.value} was used as one that {state.value}")

    def _carry_out(self, call: ToolCall) -> str:
        try:
            argument = argument_of(call)
        except BadCall as bad:
            return str(bad)
        if call.name == SEARCH_ACTION.name:
            self._shop.search(argument)
            done = f"search[{argument}]"
        else:
            self._shop.click(argument)
            done = f"click[{argument}]"
        if self._shop.reward is not None:
            return BOUGHT
        return f"Action: {done}\n\nObservation:\n{self._shop.observation()}{self._actions()}"

    def _actions(self) -> str:
        return f"\n\nAvailable Actions:\n{self._shop.available_actions()}"
