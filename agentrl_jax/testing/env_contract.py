"""The contract of environment families as checks, for any test runner.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_contract(check):
        check(lambda: my_family(FamilyOptions()))

A check takes a function that makes the family anew, always from the same options, and raises AssertionError saying what
broke. They play a sample of tasks; generated families take about a second together.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import zip_longest
from random import Random
from statistics import fmean
from typing import Any, get_args

from agentrl_jax.env import Action, Env, EnvFamily, Message, StepResult, Tool, ToolCall, tools_for, traits_of
from agentrl_jax.errors import AgentRLError, EnvError
from agentrl_jax.testing.random_calls import random_call
from agentrl_jax.types import Split, Task

MakeFamily = Callable[[], EnvFamily]
Check = Callable[[MakeFamily], None]

NUM_TASKS = 12
"""Tasks of each split that most checks play."""

NUM_OPENINGS = 100
"""Tasks of each split whose openings are compared; of a family that needs sandboxes, a tenth of that."""

LEAST_EXPERT_MEAN = 0.99
"""Of the greatest reward: what the scripted expert earns on average without noise."""

MOST_RANDOM_MEAN = 0.5
"""Of the greatest reward: more than a policy that calls at random ever earns on average."""

DEADLINE_S = 5.0
"""Processor time that no reset, step or close needs."""

_SPLITS: tuple[Split, ...] = get_args(Split)
_ERRORS = ("tool call 1: invalid JSON", "tool call 2: no such thing \N{SNOWMAN}")
_STRANGE: tuple[dict[str, Any], ...] = (
    {},
    {"x": None},
    {"": [[[]]]},
    {"action": 3, "value": {}, "query": True},
    {"_": "\N{SNOWMAN}" * 5000},
)


def check_declarations(make: MakeFamily) -> None:
    """Name, tools, limits and traits are what the protocol says."""
    family = make()
    assert isinstance(family, EnvFamily), f"{family!r} lacks something of EnvFamily"
    assert family.name, "a family needs a name"
    assert family.name.isascii(), f"expected an ASCII name, got {family.name!r}"
    names = [tool.name for tool in family.tools]
    assert len(set(names)) == len(names), f"two tools have one name: {names}"
    for tool in family.tools:
        assert isinstance(tool, Tool), f"expected Tools, got {tool!r}"
        assert tool.parameters.get("type") == "object", f"{tool.name}: parameters must be of type object"
    assert family.max_turns >= 1, f"max_turns must be >= 1, got {family.max_turns}"
    assert family.num_tasks("eval") >= 1, "a family needs tasks to evaluate on"
    assert family.num_tasks("train") >= 0
    assert all(isinstance(word, str) and word for word in family.vocabulary()), "the vocabulary must be words"
    assert traits_of(family).session_kind in ("thread", "process")


def check_tasks(make: MakeFamily) -> None:
    """A task is the same whenever it is asked for; an index out of range and another family's task raise EnvError."""
    first, second = make(), make()
    for split in _SPLITS:
        count = first.num_tasks(split)
        for index in _sample(count, NUM_TASKS):
            task = first.task(split, index)
            assert (task.env, task.split, task.index) == (first.name, split, index), f"{task} is another task"
            assert task == second.task(split, index), f"{task.key} differs between two families of equal options"
        for index in (-1, count):
            _refused(partial(first.task, split, index), f"task {split} {index}")
    task = first.task("eval", 0)
    stranger = Task(env=f"not-{first.name}", split=task.split, index=task.index, seed=task.seed)
    _refused(partial(first.make, stranger), "the env of another family's task")


def check_opening(make: MakeFamily) -> None:
    """Every instance of a task begins with the same messages, which say something and carry no calls."""
    first, second = make(), make()
    for task in _tasks(first, NUM_TASKS):
        openings = [_opening(family, task) for family in (first, first, second)]
        assert openings[0] == openings[1] == openings[2], f"{task.key}: first observations differ"
        assert openings[0], f"{task.key}: reset returned no messages"
        roles = [message.role for message in openings[0]]
        assert roles[-1] == "user", f"{task.key}: the last message must be the user's, got {roles}"
        for message in openings[0]:
            _check_text(task, message)


def check_splits(make: MakeFamily) -> None:
    """No problem of eval is one of training: where openings are equal, what is hidden behind them differs."""
    family = make()
    openings: dict[Split, dict[tuple[Message, ...], list[Task]]] = {"train": {}, "eval": {}}
    number = NUM_OPENINGS // 10 if traits_of(family).needs_sandbox else NUM_OPENINGS
    for split in _SPLITS:
        for index in _sample(family.num_tasks(split), number):
            task = family.task(split, index)
            openings[split].setdefault(_opening(family, task), []).append(task)
    for opening in openings["train"].keys() & openings["eval"].keys():
        shown = [
            {repr(family.demonstrate(task, Random(0), noise=0.0)) for task in openings[split][opening]}
            for split in _SPLITS
        ]
        assert not shown[0] & shown[1], f"train and eval share a problem: {opening[-1].content[:500]!r}"


def check_expert(make: MakeFamily) -> None:
    """The scripted expert earns the greatest reward within the turn limit, and what it shows is what the env says."""
    family = make()
    best = traits_of(family).reward_range[1]
    rewards = []
    for number, task in enumerate(_tasks(family, NUM_TASKS)):
        shown = family.demonstrate(task, Random(number), noise=0.0)
        messages, results = _replay(family, task, shown)
        assert messages == shown, f"{task.key}: the demonstration is not what the env answers"
        assert len(results) <= family.max_turns, f"{task.key}: {len(results)} turns, the limit is {family.max_turns}"
        rewards.append(sum(result.reward for result in results))
    assert fmean(rewards) >= LEAST_EXPERT_MEAN * best, f"the expert earns {fmean(rewards):.3f} on average, not {best}"


def check_noisy_expert(make: MakeFamily) -> None:
    """With noise the demonstration is still an episode that the env plays, and differs between draws."""
    family = make()
    shown = []
    for task in _tasks(family, NUM_TASKS):
        for seed in (1, 2):
            shown.append(family.demonstrate(task, Random(seed), noise=0.7))
            assert shown[-1] == family.demonstrate(task, Random(seed), noise=0.7), f"{task.key}: not from the rng alone"
            messages, _ = _replay(family, task, shown[-1])
            assert messages == shown[-1], f"{task.key}: the noisy demonstration is not what the env answers"
    assert any(one != two for one, two in zip(shown[::2], shown[1::2], strict=True)), "noise changes nothing"


def check_random_policy(make: MakeFamily) -> None:
    """Calls of declared tools with random arguments are played without an error, and do not earn the reward."""
    family = make()
    low, best = traits_of(family).reward_range
    rewards = []
    for number, task in enumerate(_tasks(family, 2 * NUM_TASKS)):
        rng, total = Random(number), 0.0
        tools = tools_for(family, task)
        with closing(family.make(task)) as env:
            said = " ".join(message.content for message in env.reset())
            for _ in range(family.max_turns):
                calls = tuple(random_call(rng, tools, said, family.vocabulary()) for _ in range(rng.choice((1, 1, 2))))
                result = _step(task, env, Action(calls=calls))
                total += result.reward
                said = " ".join(message.content for message in result.messages) or said
                if result.end is not None:
                    break
        assert low <= total <= best, f"{task.key}: reward {total} is out of the declared range {low} to {best}"
        rewards.append(total)
    assert fmean(rewards) <= MOST_RANDOM_MEAN * best, f"a random policy earns {fmean(rewards):.3f} on average"


def check_order_of_calls(make: MakeFamily) -> None:
    """An env is reset once, first; after the end of the episode, and after close, nothing is carried out."""
    family = make()
    for task in _tasks(family, 2):
        turns = _turns(family.demonstrate(task, Random(0), noise=0.0))
        env = family.make(task)
        _refused(partial(env.step, turns[0]), "a step before the reset")
        env.close()
        env = family.make(task)
        env.reset()
        env.close()
        _refused(partial(env.step, turns[0]), "a step after close")
        env = family.make(task)
        env.reset()
        _refused(env.reset, "a second reset")
        for turn in turns:
            result = env.step(turn)
        assert result.end is not None, f"{task.key}: the expert's episode does not end"
        for turn in (turns[-1], Action(content="more"), Action()):
            _refused(partial(env.step, turn), "a step after the end")
        env.close()


def check_bad_calls(make: MakeFamily) -> None:
    """What the policy does wrong is answered, never raised: each call by one message, malformed ones last."""
    family = make()
    for task in _tasks(family, 2):
        for action in _bad_actions(tools_for(family, task)):
            with closing(family.make(task)) as env:
                env.reset()
                for _ in range(2):  # the answer must leave the env usable
                    if _step(task, env, action).end is not None:
                        break


def check_calls_are_answered_in_order(make: MakeFamily) -> None:
    """A turn's malformed calls are answered by their own texts behind the answers of the others."""
    family = make()
    for task in _tasks(family, 2):
        turn = next((turn for turn in _turns(family.demonstrate(task, Random(0), noise=0.0)) if turn.calls), None)
        if turn is None:
            continue
        with closing(family.make(task)) as alone, closing(family.make(task)) as together:
            alone.reset()
            together.reset()
            expected = alone.step(Action(calls=turn.calls)).messages
            mixed = Action(calls=turn.calls, errors=_ERRORS)
            given = _step(task, together, mixed).messages
        num_calls = len(turn.calls)
        assert given[:num_calls] == expected[:num_calls], f"{task.key}: a malformed call changes other calls' answers"
        texts = tuple(message.content for message in given[num_calls : num_calls + len(_ERRORS)])
        assert texts == _ERRORS, f"{task.key}: malformed calls must be answered by {_ERRORS}, got {texts}"


def check_isolation(make: MakeFamily) -> None:
    """Sessions share nothing: interleaved, and on threads where the family allows it, they go as one by one."""
    family = make()
    plans = [(task, _turns(family.demonstrate(task, Random(1), noise=0.3))) for task in _tasks(family, NUM_TASKS // 2)]
    plans += plans[:3]
    expected = [_play(family, task, turns) for task, turns in plans]
    interleaved = _play_interleaved(family, plans)
    assert interleaved == expected, "sessions that are played in turns differ from sessions played one by one"
    if traits_of(family).session_kind == "thread":
        found: list[list[StepResult] | None] = [None] * len(plans)

        def play(number: int) -> None:
            found[number] = _play(family, *plans[number])

        threads = [threading.Thread(target=play, args=(number,)) for number in range(len(plans))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == expected, "sessions on threads differ from sessions played one by one"


CHECKS: tuple[Check, ...] = (
    check_declarations,
    check_tasks,
    check_opening,
    check_splits,
    check_expert,
    check_noisy_expert,
    check_random_policy,
    check_order_of_calls,
    check_bad_calls,
    check_calls_are_answered_in_order,
    check_isolation,
)
"""All of the contract."""


def _sample(count: int, number: int) -> Sequence[int]:
    """Indices over the whole range, the first and the last among them."""
    if count <= number:
        return range(count)
    return [round(i * (count - 1) / (number - 1)) for i in range(number)]


def _tasks(family: EnvFamily, number: int) -> Iterator[Task]:
    """Half of each split, or all of the one that there is."""
    splits = [split for split in _SPLITS if family.num_tasks(split)]
    for split in splits:
        for index in _sample(family.num_tasks(split), max(2, number // len(splits))):
            yield family.task(split, index)


def _opening(family: EnvFamily, task: Task) -> tuple[Message, ...]:
    with closing(family.make(task)) as env, _within(f"{task.key}: reset"):
        return tuple(env.reset())


def _turns(messages: Iterable[Message]) -> list[Action]:
    return [
        Action(content=message.content, calls=message.tool_calls) for message in messages if message.role == "assistant"
    ]


def _replay(family: EnvFamily, task: Task, shown: Sequence[Message]) -> tuple[tuple[Message, ...], list[StepResult]]:
    said = [message for message in shown if message.role == "assistant"]
    with closing(family.make(task)) as env:
        messages = list(env.reset())
        results = []
        for message, turn in zip(said, _turns(shown), strict=True):
            results.append(_step(task, env, turn))
            messages += (message, *results[-1].messages)
    for result in results[:-1]:
        assert result.end is None, f"{task.key}: the demonstration goes on after its end"
    return tuple(messages), results


def _play(family: EnvFamily, task: Task, turns: Sequence[Action]) -> list[StepResult]:
    with closing(family.make(task)) as env:
        return [StepResult(messages=tuple(env.reset())), *(env.step(turn) for turn in turns)]


def _play_interleaved(family: EnvFamily, plans: Sequence[tuple[Task, list[Action]]]) -> list[list[StepResult]]:
    envs = [family.make(task) for task, _ in plans]
    results = [[StepResult(messages=tuple(env.reset()))] for env in envs]
    for row in zip_longest(*(turns for _, turns in plans)):
        for env, found, turn in zip(envs, results, row, strict=True):
            if turn is not None:
                found.append(env.step(turn))
    for env in envs:
        env.close()
    return results


def _step(task: Task, env: Env, action: Action) -> StepResult:
    """Play one turn and check its answer."""
    with _within(f"{task.key}: step"):
        result = env.step(action)
    assert isinstance(result, StepResult), f"{task.key}: expected a StepResult, got {result!r}"
    assert math.isfinite(result.reward)
    num_calls = len(action.calls) + len(action.errors)
    roles = [message.role for message in result.messages]
    assert roles[:num_calls] == ["tool"] * num_calls, f"{task.key}: {num_calls} calls were answered by {roles}"
    assert set(roles[num_calls:]) <= {"user"}, f"{task.key}: {num_calls} calls were answered by {roles}"
    assert roles or result.end is not None, f"{task.key}: a turn without an answer does not end the episode"
    for message in result.messages:
        _check_text(task, message)
    return result


def _check_text(task: Task, message: Message) -> None:
    assert isinstance(message, Message), f"{task.key}: expected Messages, got {message!r}"
    assert not message.tool_calls, f"{task.key}: an env calls no tools"
    message.content.encode("utf-8")  # half a surrogate pair could neither be tokenised nor sent


def _bad_actions(tools: Sequence[Tool]) -> Iterator[Action]:
    yield Action()
    yield Action(content="I think.")
    yield Action(errors=_ERRORS)
    for name in ("no_such_tool", "close", "reset", "step", "__init__", "__class__"):
        yield Action(calls=(ToolCall(name=name, arguments={}),))
    for tool in tools:
        for arguments in _STRANGE:
            yield Action(calls=(ToolCall(name=tool.name, arguments=arguments),))
        yield Action(calls=(ToolCall(name=tool.name, arguments={}),) * 3, errors=_ERRORS)
        wrong = dict.fromkeys(tool.parameters.get("properties", {}), math.nan)
        yield Action(calls=(ToolCall(name=tool.name, arguments=wrong),))


class _within:
    """Holds a call to DEADLINE_S of this thread's processor time."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        self._begun_s = time.thread_time()

    def __exit__(self, *exc: object) -> None:
        used_s = time.thread_time() - self._begun_s
        assert used_s <= DEADLINE_S, f"{self._what} took {used_s:.1f} s of processor time"


def _refused(call: Callable[[], object], what: str) -> None:
    try:
        given = call()
    except EnvError:
        return
    except AgentRLError as error:
        raise AssertionError(f"{what} must raise EnvError, raised {error!r}") from error
    raise AssertionError(f"{what} must raise EnvError, got {given!r}")
