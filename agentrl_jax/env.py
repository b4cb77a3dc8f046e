"""The one function-call interface of all environments, and the registry of environment families.

An `Env` is synchronous, single-use and knows nothing of tokens: it receives the calls of an assistant turn and
answers with messages. A family is a data set of tasks together with the way to make an `Env` for one of them.
`controller/sessions.py` owns the asynchronous side.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from random import Random
from typing import Any, Literal, Protocol, runtime_checkable

from agentrl_jax.errors import ConfigError, EnvError, RecordError
from agentrl_jax.types import EpisodeEnd, Split, Task

Role = Literal["system", "user", "assistant", "tool"]
SessionKind = Literal["thread", "process"]
"""Where an env runs: on a thread, or in a process of its own."""
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function the policy may call, as OpenAI's `type: function` describes it."""

    name: str
    description: str
    parameters: Json

    def to_json(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    name: str
    arguments: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message. Only an assistant message has `tool_calls`."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    def __post_init__(self) -> None:
        if self.tool_calls and self.role != "assistant":
            raise RecordError(f"only an assistant message has tool calls, got role {self.role!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An assistant turn as the env sees it: text, the calls in order, and why other calls could not be parsed.

    errors: one text per malformed call, worded for the policy. They are never dispatched.
    num_bare_calls: how many of `calls` came as JSON without tags (`tool_calls = lenient`).
    """

    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    errors: tuple[str, ...] = ()
    num_bare_calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The env's answer to one action.

    messages: exactly one tool message per call in call order, then any user message; a call-less turn is answered
      by user messages. May be empty only if the episode is over.
    end: None while the episode goes on; else why it ended: COMPLETED, or a policy-caused reason.
    reward: of this step alone; the episode's is the sum over its steps. One that is not finite raises EnvError:
      scoring failed, and the policy is not to blame.
    metrics: other figures of this step for those who read results, such as a `score` that is finer than the reward;
      nothing is learnt from them. They must be finite too.
    """

    messages: tuple[Message, ...]
    reward: float = 0.0
    end: EpisodeEnd | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.end is not None and self.end.is_infrastructure:
            raise RecordError(f"an env cannot end its own episode as {self.end.value}; raise EnvError instead")
        if not math.isfinite(self.reward):
            raise EnvError(f"a step's reward must be finite, the env gave {self.reward}")
        for name, value in self.metrics.items():
            if not math.isfinite(value):
                raise EnvError(f"a step's metrics must be finite, the env gave {name} = {value}")


class Env(Protocol):
    """One live environment instance, for one episode of one task."""

    def reset(self) -> tuple[Message, ...]:
        """Return the messages before the first assistant turn; the same for every instance of a task."""
        ...

    def step(self, action: Action) -> StepResult:
        """Carry out one assistant turn. Bad calls are answered, never raised."""
        ...

    def close(self) -> None:
        """Release everything; called exactly once, whatever happened."""
        ...


@runtime_checkable
class EnvFamily(Protocol):
    """A data set of tasks of one kind.

    name: what `--tasks` and metrics call it. max_turns: its usual limit. A family that needs more than a thread, or
    has data sets with names of their own, says so in an attribute `traits` (see `FamilyTraits`). One whose tasks have
    different tools has a method `tools_of` (see `tools_for`); `tools` are then all of them.
    """

    @property
    def name(self) -> str: ...

    @property
    def tools(self) -> tuple[Tool, ...]: ...

    @property
    def max_turns(self) -> int: ...

    def num_tasks(self, split: Split) -> int:
        """How many tasks a split holds; the indices are range(num_tasks). No task stands in both splits."""
        ...

    def task(self, split: Split, index: int) -> Task: ...

    def make(self, task: Task) -> Env: ...

    def demonstrate(self, task: Task, rng: Random, *, noise: float) -> tuple[Message, ...]:
        """A whole episode by the scripted expert: initial messages, assistant turns and answers.

        With probability `noise` a turn is a random, well-formed action instead of the expert's; the expert goes
        on from wherever that led.
        """
        ...

    def vocabulary(self) -> tuple[str, ...]:
        """Words that a small tokenizer should keep whole (entity names and the like); may be empty."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTraits:
    """What a family declares about itself beyond the protocol.

    session_kind: "thread" if its envs may run on threads beside each other; "process" if each needs a process of its
      own that can be killed, because it may hang, crash, or keep state in globals.
    needs_sandbox: its envs carry out what the policy writes, and need `envs.sandbox` for it.
    services: what must run beside the envs, by name, such as "mariadb"; empty: nothing.
    reward_range: the least and the greatest reward of an episode.
    data_sets: names that `FamilyOptions.eval_set` may have with the options that this family was made from.
    """

    session_kind: SessionKind = "thread"
    needs_sandbox: bool = False
    services: tuple[str, ...] = ()
    reward_range: tuple[float, float] = (0.0, 1.0)
    data_sets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        low, high = self.reward_range
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ConfigError(f"a reward range needs two finite numbers in order, got {self.reward_range}")


def traits_of(family: EnvFamily) -> FamilyTraits:
    """What `family` declares; the defaults if it declares nothing."""
    traits = getattr(family, "traits", FamilyTraits())
    if not isinstance(traits, FamilyTraits):
        raise ConfigError(f"{family.name}: expected traits to be FamilyTraits, got {traits!r}")
    return traits


def tools_for(family: EnvFamily, task: Task) -> tuple[Tool, ...]:
    """The tools that one task is played with: what the family's method `tools_of` says if it has one, else all of the
    family's. A family returns the same objects each time, so that rendered tools can be kept."""
    tools_of: Callable[[Task], tuple[Tool, ...]] | None = getattr(family, "tools_of", None)
    return family.tools if tools_of is None else tools_of(task)


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyOptions:
    """What a family is made from. data: folder of real task data, or None for the family's own generator.

    upstream_compat: reproduce the published environments' faults too, to compare with published results.
    eval_set: the named data set that the eval split is; None: the family's choice. No task of it is in training.
    sandbox: what runs the policy's programs, for a family that needs it (see `envs.sandbox.shared`); None: its choice.
    """

    seed: int = 0
    data: Path | None = None
    level: int = 1
    upstream_compat: bool = False
    eval_set: str | None = None
    sandbox: str | None = None


def check_sandbox(sandbox: str | None, families: Iterable[EnvFamily]) -> None:
    """Raises ConfigError for a choice of sandbox that no family needs."""
    if sandbox is not None and not any(traits_of(family).needs_sandbox for family in families):
        raise ConfigError("--sandbox has no effect: none of the environments runs what a policy writes; leave it out")


FamilyFactory = Callable[[FamilyOptions], EnvFamily]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSource:
    """What another process makes envs from: an importable function, and keyword arguments for it that JSON can say.

    target: `module:function`; it returns a function from a Task to its Env.
    """

    target: str
    arguments: Json = field(default_factory=dict)

    def load(self) -> Callable[[Task], Env]:
        """Import and call it. Raises ConfigError if there is no such function, and whatever it raises itself."""
        factory: Callable[..., Callable[[Task], Env]] = import_function(self.target)
        return factory(**self.arguments)


def import_function(target: str) -> Any:
    """What `module:function` names. Raises ConfigError if it is not of that form or the module has no such function,
    and whatever importing it raises."""
    module, _, function = target.partition(":")
    if not (module and function):
        raise ConfigError(f"expected module:function, got {target!r}")
    found = getattr(import_module(module), function, None)
    if not callable(found):
        raise ConfigError(f"{module} has no function {function!r}")
    return found


def family_envs(target: str, data: str | None, **options: Any) -> Callable[[Task], Env]:
    """The envs of the family that `target` makes: what `EnvRegistry.source` names. options: of `FamilyOptions`."""
    factory: FamilyFactory = import_function(target)
    return factory(FamilyOptions(data=None if data is None else Path(data), **options)).make


ENTRY_POINTS = "agentrl_jax.envs"
"""The entry point group in which installed packages name families: `name = "module:function"`."""


@dataclass
class EnvRegistry:
    """Family names to `module:function`; a family's module is imported only when it is asked for."""

    entries: dict[str, str] = field(default_factory=dict)

    def register(self, name: str, target: str) -> None:
        if name in self.entries:
            raise ConfigError(f"environment {name!r} is registered twice: {self.entries[name]} and {target}")
        self.entries[name] = target

    def register_installed(self) -> None:
        """Register what installed packages name in the entry point group `ENTRY_POINTS`. Raises ConfigError for a
        name that is taken, with the package that wants it."""
        for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
            try:
                self.register(entry.name, entry.value)
            except ConfigError as error:
                package = "an installed package" if entry.dist is None else f"the installed package {entry.dist.name}"
                raise ConfigError(f"{package}: {error}") from error

    def make(self, name: str, options: FamilyOptions) -> EnvFamily:
        """Raises ConfigError for an unknown name or data set, and whatever the family refuses."""
        factory: FamilyFactory = import_function(self.target(name))
        family = factory(options)
        known = traits_of(family).data_sets
        if options.eval_set is not None and options.eval_set not in known:
            raise ConfigError(
                f"environment {name} has no data set {options.eval_set!r} with these options: "
                f"known ones are {', '.join(known) or 'none'}"
            )
        return family

    def source(self, name: str, options: FamilyOptions) -> EnvSource:
        """Where another process gets the envs of `make(name, options)` from."""
        arguments = {
            "target": self.target(name),
            **asdict(options),
            "data": None if options.data is None else str(options.data.resolve()),
        }
        return EnvSource(target=f"{__name__}:{family_envs.__name__}", arguments=arguments)

    def target(self, name: str) -> str:
        """The `module:function` of an env. Raises ConfigError if there is none of that name."""
        if name not in self.entries:
            known = ", ".join(sorted(self.entries)) or "none"
            near = get_close_matches(name, self.entries, n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise ConfigError(f"unknown environment {name!r}{meant}: known ones are {known}")
        return self.entries[name]
