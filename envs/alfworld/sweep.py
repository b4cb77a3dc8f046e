"""Do all published games play as they should? `python -m envs.alfworld.sweep --data FOLDER`

Plays the recorded walkthrough and the scripted expert in every game of every split, and prints how many win. A good
answer is that all of them do; the exit code is 1 otherwise. The 4,027 games take about ten seconds.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from agentrl_jax.errors import AgentRLError
from envs.alfworld.expert import num_turns_needed
from envs.alfworld.packs import SPLITS, Pack, load_pack
from envs.alfworld.planner import Planner
from envs.alfworld.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """Plays every published ALFWorld game."""

    data: Path
    """Folder of task data, with a folder `alfworld` in it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """games; how many the walkthroughs and the expert win; the expert's longest game; CPU time of a parse and a step
    with its list of commands.
    """

    games: int
    walkthroughs: int
    expert: int
    most_turns: int
    parse_ms: float
    step_ms: float


def sweep(pack: Pack) -> Tally:
    """Play all games of a split."""
    num_won, num_commands, parse_s, step_s = 0, 0, 0.0, 0.0
    turns = []
    for index in range(len(pack)):
        walkthrough = pack.record(index).walkthrough
        started_s = time.process_time()
        game = pack.game(index)
        parsed_s = time.process_time()
        world = World(game)
        for command in walkthrough:
            world.step(command)
            world.commands()
        step_s += time.process_time() - parsed_s
        parse_s += parsed_s - started_s
        num_commands += len(walkthrough)
        num_won += world.is_won
        turns.append(num_turns_needed(World(game), Planner(game, knows_all=True)))
    return Tally(
        games=len(pack),
        walkthroughs=num_won,
        expert=len(turns),
        most_turns=max(turns),
        parse_ms=1e3 * parse_s / len(pack),
        step_ms=1e3 * step_s / num_commands,
    )


def main() -> None:
    config = tyro.cli(SweepConfig)
    try:
        tallies = {split: sweep(load_pack(config.data, split)) for split in SPLITS}
    except AgentRLError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(
        f"{'split':<13}{'games':>7}{'walkthroughs won':>18}{'expert won':>12}{'turns':>7}{'parse ms':>10}{'step ms':>9}"
    )
    for split, tally in tallies.items():
        print(
            f"{split:<13}{tally.games:>7}{tally.walkthroughs:>18}{tally.expert:>12}{tally.most_turns:>7}"
            f"{tally.parse_ms:>10.2f}{tally.step_ms:>9.3f}"
        )
    sys.exit(any(tally.games != tally.walkthroughs for tally in tallies.values()))


if __name__ == "__main__":
    main()
