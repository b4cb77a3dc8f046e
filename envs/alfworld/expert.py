"""The scripted expert, which shows whole episodes for supervised warm-up."""

from random import Random

from agentrl_jax.env import Action, Env, Message
from agentrl_jax.errors import ConfigError, EnvError
from envs.alfworld.calls import action_call
from envs.alfworld.env import MAX_REPEATS
from envs.alfworld.game import Game
from envs.alfworld.planner import Planner
from envs.alfworld.world import World

# No plan is that long: the planner goes in circles.
MAX_PLAN = 500


def demonstrate(
    env: Env, game: Game, rng: Random, *, noise: float, max_turns: int, knows_all: bool
) -> tuple[Message, ...]:
    """Play `env`, an env of `game`, from reset to its end or `max_turns`; the messages have the form an episode has.

    A turn is random with probability `noise`: a uniformly drawn admissible command, unless the expert needs all the
    turns that are left, or the command leads to where there is no way on (some things can be taken, but put nowhere).
    Then the expert goes on from there. knows_all: the expert need not search. The caller closes
    `env`. Raises ConfigError for `noise` out of [0, 1], and EnvError if the goal cannot be reached.
    """
    if not 0.0 <= noise <= 1.0:
        raise ConfigError(f"noise must be between 0 and 1, got {noise}")
    messages = list(env.reset())
    world, planner = World(game), Planner(game, knows_all=knows_all)
    played: list[str] = []
    for turns_left in range(max_turns, 0, -1):
        is_random = rng.random() < noise and num_turns_needed(world, planner) < turns_left
        command = _expert_command(world, planner)
        if is_random and _can_go_on(world, planner, drawn := _random_command(rng, world, played)):
            command = drawn
        call = action_call(command)
        result = env.step(Action(calls=(call,)))
        messages += (Message(role="assistant", tool_calls=(call,)), *result.messages)
        if result.end is not None:
            break
        played.append(command)
        world.step(command)
        planner.observe(world)
    return tuple(messages)


def num_turns_needed(world: World, planner: Planner) -> int:
    """How many turns the expert would need from here on."""
    world, planner = world.copy(), planner.copy()
    for num_turns in range(MAX_PLAN):
        if world.is_won:
            return num_turns
        world.step(_expert_command(world, planner))
        planner.observe(world)
    raise EnvError(f"the expert's plan to fulfil {world.game.task!r} has no end")


def _can_go_on(world: World, planner: Planner, command: str) -> bool:
    world, planner = world.copy(), planner.copy()
    world.step(command)
    planner.observe(world)
    return world.is_won or planner.next_command(world) is not None


def _expert_command(world: World, planner: Planner) -> str:
    command = planner.next_command(world)
    if command is None:
        raise EnvError(f"the expert found no way to fulfil {world.game.task!r}")
    return command


def _random_command(rng: Random, world: World, played: list[str]) -> str:
    """Any admissible command that does not repeat one so often that the episode would end."""
    recent = played[1 - MAX_REPEATS :]
    spent = recent[0] if len(recent) == MAX_REPEATS - 1 and len(set(recent)) == 1 else None
    return rng.choice([command for command in world.commands() if command != spent])
