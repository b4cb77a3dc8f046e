"""Does the native ALFWorld executor say and allow what TextWorld does? Plays both side by side, comparing each step.

    tools/install_textworld.sh
    .venv-textworld/bin/python -m tools.textworld_parity --data FOLDER [--games 90] [--seed 0] [--shard 0/1]

In every game, commands are drawn from the walkthrough, from the admissible ones (mostly those that move or change
something), and now and then from those that are not admissible. Compared are the observation, the admissible commands
and whether the game is won. A good answer: at least 99.9 % of at least 2,000 steps are equal; the exit code is 1
otherwise. TextWorld takes about 50 ms of processor time a step and 1.6 s a game.
"""

import argparse
import json
import lzma
import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld.envs.pddl import PddlEnv

from envs.alfworld.packs import SPLITS, load_pack
from envs.alfworld.world import World

LEAST_EQUAL = 0.999
LEAST_STEPS = 2000
MAX_STEPS = 30
_STILL = ("look", "inventory", "help", "examine")
_INADMISSIBLE = ("fly", "open fridge 9", "take mug 1", "go to", "move apple 1 to moon 1", "use desklamp 7", "")


@dataclass
class Tally:
    """differences: what was unequal, as readable lines."""

    num_games: int = 0
    num_steps: int = 0
    num_equal: int = 0
    num_won: int = 0
    differences: list[str] = field(default_factory=list)


def game_file(record: dict[str, object], common: dict[str, object]) -> dict[str, object]:
    """A game as TextWorld's PDDL environment loads it."""
    table = " ".join(common["can_contain"][record["cc"]])
    problem = record["problem"].replace("(:init", f"(:init {table} ", 1)
    return {
        "pddl_domain": common["pddl_domain"],
        "grammar": common["grammar_template"].replace("@@TASK@@", record["task"]),
        "pddl_problem": problem,
        "walkthrough": record["walkthrough"],
    }


def play(game: dict[str, object], world: World, walkthrough: tuple[str, ...], rng: Random, tally: Tally) -> None:
    """One game in both, to its end or MAX_STEPS."""
    env = AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True)))
    env.load(game)
    state = env.reset()
    compare("reset", state, world.introduction(), world, tally)
    plan = list(walkthrough)
    for _ in range(MAX_STEPS):
        command = choose(rng, plan, sorted(state["admissible_commands"]))
        state, _, _ = env.step(command)
        compare(command, state, world.step(command), world, tally)
        if state["won"]:
            tally.num_won += 1
            break
    env.close()
    tally.num_games += 1


def choose(rng: Random, plan: list[str], admissible: list[str]) -> str:
    """The next of the walkthrough, or a random command. Detours may spoil the plan, but seldom do."""
    if plan and plan[0] in admissible and rng.random() < 0.4:
        return plan.pop(0)
    if rng.random() < 0.05:
        return rng.choice(_INADMISSIBLE)
    acting = [command for command in admissible if not command.startswith(_STILL)]
    near = [command for command in acting if not command.startswith("go to")]
    if near and rng.random() < 0.5:
        return rng.choice(near)
    return rng.choice(acting if acting and rng.random() < 0.6 else admissible)


def compare(command: str, state: dict[str, object], said: str, world: World, tally: Tally) -> None:
    tally.num_steps += 1
    expected = (state["feedback"].strip(), sorted(state["admissible_commands"]), bool(state["won"]))
    given = (said.strip(), world.commands(), world.is_won)
    tally.num_equal += expected == given
    for name, theirs, ours in zip(("observation", "commands", "won"), expected, given, strict=True):
        if theirs != ours:
            tally.differences.append(f"{command!r}: {name}: TextWorld {theirs!r}, native {ours!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the native ALFWorld executor with TextWorld.")
    parser.add_argument("--data", type=Path, required=True, help="folder of task data, with a folder alfworld in it")
    parser.add_argument("--games", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", default="0/1", help="play only the games that are NUMBER modulo COUNT")
    options = parser.parse_args()
    shard, num_shards = map(int, options.shard.split("/"))
    folder = options.data / "alfworld"
    common = json.loads(lzma.decompress((folder / "common.json.xz").read_bytes()))
    rows = {}
    for split in SPLITS:
        with lzma.open(folder / f"{split}.jsonl.xz") as file:
            rows[split] = [json.loads(line) for line in file if line.strip()]
    rng, tally = Random(options.seed), Tally()
    for number in range(options.games):
        split = SPLITS[number % len(SPLITS)]
        index = rng.randrange(len(rows[split]))
        if number % num_shards == shard:
            world = World(load_pack(options.data, split).game(index))
            record = rows[split][index]
            play(game_file(record, common), world, record["walkthrough"], Random(number), tally)
            print(f"{number}: {tally.num_equal} of {tally.num_steps} steps equal", file=sys.stderr, flush=True)
    frac = tally.num_equal / max(1, tally.num_steps)
    print("\n".join(tally.differences))
    print(
        f"{tally.num_games} games, {tally.num_won} won, {tally.num_steps} steps, {tally.num_equal} equal ({frac:.3%})"
    )
    return int(frac < LEAST_EQUAL or (num_shards == 1 and tally.num_steps < LEAST_STEPS))


if __name__ == "__main__":
    sys.exit(main())
