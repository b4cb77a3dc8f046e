"""One episode of one household game: one `take_action` a turn until the goal holds."""

from enum import Enum

from agentrl_jax.env import Action, Message, StepResult
from agentrl_jax.errors import EnvError
from agentrl_jax.types import EpisodeEnd
from envs.alfworld.calls import BadCall, action_of
from envs.alfworld.game import Game
from envs.alfworld.matching import resolve
from envs.alfworld.world import World

SYSTEM = "Do the task. Call take_action with an available action each turn."
NO_CALL = "Call take_action."
NOT_EXECUTED = "not executed: one action a turn"
# The same action this many times in a row ends the episode as `invalid_action`.
MAX_REPEATS = 3


class _State(Enum):
    NEW = "is new"
    LIVE = "is live"
    OVER = "is over"
    CLOSED = "is closed"


class AlfworldEnv:
    """Implements `agentrl_jax.env.Env`. Reward 1 in the turn that fulfils the task, whatever went before; else 0.

    The first call of a turn is carried out and answered by what happens and the actions that are available then; a
    bad one is answered by a text starting with `error:`. Either way the turn is spent.

    upstream_compat: as AgentBench-FC has it, a bad turn decides how the episode ends, even if the game is won later,
    and calls that are not carried out get no answer.
    """

    def __init__(self, game: Game, *, upstream_compat: bool = False) -> None:
        self._game = game
        self._upstream_compat = upstream_compat
        self._end = EpisodeEnd.COMPLETED
        self._world = World(game)
        self._commands = self._world.commands()
        self._state = _State.NEW
        self._last = ""
        self._num_repeats = 0

    def reset(self) -> tuple[Message, ...]:
        self._require(_State.NEW)
        self._state = _State.LIVE
        _, _, scene = self._world.introduction().partition("\n\n")
        return (Message(role="system", content=SYSTEM), Message(role="user", content=self._with_actions(scene)))

    def step(self, action: Action) -> StepResult:
        """Carry out one assistant turn. Raises EnvError unless the episode is live."""
        self._require(_State.LIVE)
        if not action.calls:
            self._note(EpisodeEnd.INVALID_ACTION if action.errors else EpisodeEnd.VALIDATION_FAILED)
            errors = tuple(Message(role="tool", content=text) for text in action.errors)
            return StepResult(messages=errors or (Message(role="user", content=NO_CALL),))
        try:
            text = self._carry_out(action_of(action.calls[0]))
        except BadCall as bad:
            self._note(EpisodeEnd.INVALID_ACTION)
            text = str(bad)
        notices = () if self._upstream_compat else (NOT_EXECUTED,) * (len(action.calls) - 1)
        messages = tuple(Message(role="tool", content=content) for content in (text, *notices, *action.errors))
        if self._world.is_won:
            self._state = _State.OVER
            return StepResult(messages=messages, reward=1.0, end=self._end)
        if self._num_repeats < MAX_REPEATS:
            return StepResult(messages=messages)
        self._state = _State.OVER
        return StepResult(messages=messages, end=EpisodeEnd.INVALID_ACTION)

    def close(self) -> None:
        self._state = _State.CLOSED

    def _require(self, state: _State) -> None:
        if self._state is not state:
            raise EnvError(f"an alfworld env that {self._state.value} was used as one that {state.value}")

    def _note(self, end: EpisodeEnd) -> None:
        """A turn was wasted, in the way of `end`."""
        self._num_repeats = 0
        if self._upstream_compat:
            self._end = end

    def _carry_out(self, action: str) -> str:
        command = resolve(action, self._commands)
        self._num_repeats = self._num_repeats + 1 if command == self._last and self._num_repeats else 1
        self._last = command
        observation = self._world.step(command)
        self._commands = self._world.commands()
        # The sentence that says where one has arrived only repeats the command.
        if observation.startswith("You arrive at "):
            _, _, observation = observation.partition(". ")
        return self._with_actions(observation)

    def _with_actions(self, text: str) -> str:
        return "\n".join((text, "", "Available actions:", *self._commands))
