"""Play one recorded episode again, turn by turn: `python -m launch.replay_episode RUN_DIR EPISODE_ID`. See `--help`.

Exit code 0: every reply of the environment is identical to the recorded one; 1: it diverges, and where is said;
2: not a run, no such episode, or one that was recorded without token ids.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from agentrl_jax.config import TrainConfig
from agentrl_jax.controller.episode_replay import CallBudget, Closing, ReplayedTurn, replay
from agentrl_jax.env import tools_for
from agentrl_jax.episode_log import RecordedEpisode, read_episode
from agentrl_jax.errors import ConfigError
from agentrl_jax.rendering.config import read_rendering
from agentrl_jax.rendering.tokenizer import ChatTokenizer, load_tokenizer
from agentrl_jax.rendering.transcript import TemplateRenderer
from launch.config import make_families, parse, printer, refuse

PROGRAM = "launch.replay_episode"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """Play a recorded episode against a fresh environment of its task, and say where the replies differ."""

    run_dir: Annotated[Path, tyro.conf.Positional]
    """Of `python -m launch.train`"""
    episode_id: Annotated[str, tyro.conf.Positional]
    """As in RUN_DIR/episodes.jsonl: g<group>-m<member>"""
    data: Path | None = None
    """Folder of task data, if it has moved since the run"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the episode and return the exit code."""
    config = parse(ReplayConfig, arguments, program=PROGRAM)
    try:
        episode = read_episode(config.run_dir, config.episode_id)
        return _replay(config, episode, printer())
    except ConfigError as error:
        refuse(error, program=PROGRAM)


def _replay(config: ReplayConfig, episode: RecordedEpisode, say: Callable[[str], None]) -> int:
    settings, budget = _settings(config)
    families = {family.name: family for family in make_families(settings)}
    task = episode.task
    if task.env not in families:
        raise ConfigError(f"{config.run_dir}: its config.json has no environment {task.env!r}")
    family = families[task.env]
    if task.index >= family.num_tasks(task.split) or family.task(task.split, task.index) != task:
        raise ConfigError(f"{task.env} has no task {task.key} any more: its data or its generator have changed")
    tokenizer = load_tokenizer(config.run_dir / "model")
    renderer = TemplateRenderer(tokenizer, tools=family.tools, config=read_rendering(config.run_dir / "model"))
    say(f"{episode.episode_id}  {task.key}  step {episode.step}  {len(episode.turns)} turns  {_outcome(episode)}")
    divergence, number = "", 0
    for part in replay(episode, family.make, renderer, tools_for(family, task), budget):
        for line in _closing_lines(part) if isinstance(part, Closing) else _turn_lines(part, tokenizer):
            say(line)
        divergence = part.divergence
        number = part.number if isinstance(part, ReplayedTurn) else number
    where = f"at turn {number}" if number else "before the first turn"
    say(f"diverges {where}: {divergence}" if divergence else "identical")
    return 1 if divergence else 0


def _settings(config: ReplayConfig) -> tuple[TrainConfig, CallBudget]:
    """What decides the tasks and the env's calls; what else the run's config.json says may be of another version."""
    path = config.run_dir / "config.json"
    if not path.is_file():
        raise ConfigError(f"{config.run_dir} has no config.json; expected the run directory of a training run")
    try:
        saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        wanted = {name: saved[name] for name in ("tasks", "level", "seed", "data")}
        limits = {field.name: saved["episode"].get(field.name) for field in fields(CallBudget)}
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{path} is not the settings of a training run: {error!r}") from error
    data = config.data or (None if wanted["data"] is None else Path(wanted["data"]))
    settings = replace(TrainConfig(), tasks=wanted["tasks"], level=wanted["level"], seed=wanted["seed"], data=data)
    return settings, CallBudget(**limits)


def _outcome(episode: RecordedEpisode) -> str:
    reward = "no reward" if episode.reward is None else f"reward {episode.reward:g}"
    given = "" if episode.env_reward in (None, episode.reward) else f" ({episode.env_reward:g} from the environment)"
    return f"{episode.end.value}, {reward}{given}"


def _turn_lines(turn: ReplayedTurn, tokenizer: ChatTokenizer) -> list[str]:
    recorded = turn.recorded
    versions = ", ".join(f"v{version}" for version in recorded.versions)
    lines = [f"── turn {turn.number}: {len(turn.context)} ids before it"]
    lines += _indented(tokenizer.decode(turn.context))
    if turn.divergence and len(turn.context) and turn.action is None:
        lines += ["── recorded instead", *_indented(tokenizer.decode(recorded.context_ids))]
    lines.append(f"── sampled: {len(recorded.ids)} ids by {recorded.engine} ({recorded.pool}, {versions})")
    lines += _indented(tokenizer.decode(recorded.ids))
    if turn.action is not None:
        calls = [f"{call.name}({json.dumps(dict(call.arguments), ensure_ascii=False)})" for call in turn.action.calls]
        lines += [f"   → {text}" for text in (*calls, *turn.action.errors)]
    if turn.result is not None and turn.result.reward:
        lines.append(f"   reward {turn.result.reward:g}")
    if turn.result is not None and turn.result.end is not None:
        lines.append(f"   the environment ends the episode: {turn.result.end.value}")
        lines += [f"   {message.role}: {message.content}" for message in turn.result.messages]
    return lines


def _closing_lines(closing: Closing) -> list[str]:
    return [f"note: {closing.note}"] if closing.note else []


def _indented(text: str) -> list[str]:
    return [f"   {line}" for line in text.split("\n")]


if __name__ == "__main__":
    raise SystemExit(main())
