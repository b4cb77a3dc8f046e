"""The scripted expert, which shows whole episodes for supervised warm-up."""

from random import Random

from agentrl_jax.env import Action, Env, Message, ToolCall
from agentrl_jax.errors import ConfigError
from envs.os_interaction.calls import answer_call, bash_call, finish_call
from envs.os_interaction.chores import Chore
from envs.os_interaction.outputs import EMPTY

# Of the random actions: how many answer, and so end the episode, mostly wrongly.
ANSWER_FRAC = 0.1
FINISHED = "done"
_OUTPUT_MARK = "\n\n"
_LOOKS = ("ls", "pwd", "ls -a", "whoami")


def demonstrate(
    env: Env, chore: Chore, rng: Random, *, noise: float, max_turns: int, words: tuple[str, ...] = ()
) -> tuple[Message, ...]:
    """Play `env` from reset to its end; returns the messages in the form an episode has.

    A turn is random with probability `noise`, unless the expert needs all the turns that are left. Random commands
    only look. words: file names that they look at. The caller closes `env`.
    """
    if not 0.0 <= noise <= 1.0:
        raise ConfigError(f"noise must be between 0 and 1, got {noise}")
    messages = list(env.reset())
    steps = list(chore.expert_steps)
    said = ""
    for turns_left in range(max_turns, 0, -1):
        is_random = turns_left > len(steps) + 1 and rng.random() < noise
        if is_random:
            call = random_call(rng, words)
        elif steps:
            call = bash_call(steps.pop(0))
        else:
            call = _last_call(chore, said)
        result = env.step(Action(calls=(call,)))
        messages += (Message(role="assistant", tool_calls=(call,)), *result.messages)
        if result.end is not None:
            break
        if not is_random:
            said = result.messages[0].content
    return tuple(messages)


def _last_call(chore: Chore, said: str) -> ToolCall:
    if chore.is_change:
        return finish_call(FINISHED)
    if chore.answer is not None:
        return answer_call(chore.answer)
    if chore.match is not None:
        return answer_call(chore.match.answer)
    return answer_call("" if said == EMPTY else said.partition(_OUTPUT_MARK)[2].strip())


def random_call(rng: Random, words: tuple[str, ...]) -> ToolCall:
    """A well-formed call that need not make sense, and changes nothing."""
    word = rng.choice(words) if words else "0"
    if rng.random() < ANSWER_FRAC:
        return answer_call(word)
    if words and rng.random() < 0.5:
        return bash_call(f"cat {word}")
    return bash_call(rng.choice(_LOOKS))
