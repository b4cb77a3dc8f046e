"""A whole evaluation: every sample of every task by every mixture, many at a time, each kept once it has ended."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import trio

from agentrl_jax.controller.cancellation import unwrapped_errors
from agentrl_jax.errors import ConfigError, NoProgressError
from agentrl_jax.playing.episode import PlaySetup, play_episode
from agentrl_jax.playing.mixtures import Mixture
from agentrl_jax.playing.records import EpisodeKey, EpisodeRecord
from agentrl_jax.playing.store import EvaluationStore
from agentrl_jax.types import Task

Say = Callable[[str], None]

_NUM_LINES = 20
"""Lines of progress in a whole evaluation, or in what is left of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An episode that is to be played."""

    mixture: Mixture
    task: Task
    sample: int

    @property
    def key(self) -> EpisodeKey:
        """Of the record that it leaves."""
        return self.mixture.name, self.task.env, self.task.index, self.task.seed, self.sample


def jobs(mixtures: Sequence[Mixture], tasks: Iterable[Task], num_samples: int) -> list[Job]:
    """Every sample of every task by every mixture: sample by sample, so that what is there when an evaluation is cut
    short covers the tasks evenly."""
    tasks = list(tasks)
    return [
        Job(mixture=mixture, task=task, sample=sample)
        for sample in range(num_samples)
        for task in tasks
        for mixture in mixtures
    ]


async def evaluate(
    wanted: Sequence[Job],
    setups: Mapping[str, PlaySetup],
    store: EvaluationStore,
    say: Say,
    *,
    max_concurrent: int,
    max_failures: int,
) -> list[EpisodeRecord]:
    """Play what the store does not hold yet; return the record of every wanted episode, in their order.

    setups: by env. Cancelling it loses the running episodes only. max_failures: so many episodes in a row that
    infrastructure ended, of one env by one mixture, end the evaluation. Raises NoProgressError then, and ConfigError
    for a policy that can never be asked.
    """
    todo = [job for job in wanted if not store.is_finished(job.key)]
    if len(todo) < len(wanted):
        say(f"{len(wanted) - len(todo)} of {len(wanted)} episodes are there already, {len(todo)} are to be played")
    progress = _Progress(todo, say, max_failures)
    slots = trio.Semaphore(max_concurrent)
    reasons: list[ConfigError | NoProgressError] = []

    async def play(job: Job) -> None:
        try:
            record = await play_episode(job.mixture, job.task, job.sample, setups[job.task.env])
            store.add(record)
            progress.ended(record)
        except (ConfigError, NoProgressError) as reason:  # the first one says it; others come at the same moment
            reasons.append(reason)
            nursery.cancel_scope.cancel()
        finally:
            slots.release()

    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            for job in todo:
                await slots.acquire()
                nursery.start_soon(play, job)
    if reasons:
        raise reasons[0]
    return [store.episodes[job.key] for job in wanted]


class _Progress:
    """Says how far an evaluation is, and ends one that cannot get anywhere."""

    def __init__(self, todo: Sequence[Job], say: Say, max_failures: int) -> None:
        if max_failures < 1:
            raise ConfigError(f"--max-failures must be >= 1, got {max_failures}")
        self._num_todo, self._say, self._max_failures = len(todo), say, max_failures
        self._num_ended = self._num_said = 0
        self._failures: Counter[tuple[str, str]] = Counter()
        self._valid: Counter[str] = Counter()
        self._solved: Counter[str] = Counter()

    def ended(self, record: EpisodeRecord) -> None:
        self._num_ended += 1
        where = record.mixture, record.task.env
        if record.end.is_valid:
            self._failures.pop(where, None)
            self._valid[record.mixture] += 1
            self._solved[record.mixture] += record.is_success
        else:
            self._failures[where] += 1
            if self._failures[where] >= self._max_failures:
                raise NoProgressError(
                    f"{self._failures[where]} episodes of {record.task.env} in a row by {record.mixture} came to "
                    f"nothing; the last one ended as {record.end.value}: {record.error}"
                )
        share = self._num_ended * _NUM_LINES // self._num_todo
        if share > self._num_said:
            self._num_said = share
            self._say(f"{self._num_ended:>{len(str(self._num_todo))}}/{self._num_todo} episodes  {self._rates()}")

    def _rates(self) -> str:
        return "  ".join(
            f"{mixture} {self._solved[mixture] / valid:.1%} of {valid}" for mixture, valid in self._valid.items()
        )
