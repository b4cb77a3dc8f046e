"""Process 0 of a learner that several processes share: it says what comes next, and hands out the rows of each batch.

`agentrl_jax/follow.py` is the other half. After each plan the processes say whether they were asked to stop, so that a
signal counts that arrived while they were waiting for it.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from agentrl_jax.batch import Scores, TokenBatch, Totals, map_tokens
from agentrl_jax.config import TrainConfig
from agentrl_jax.distributed import any_of, forget, is_alone, share, tell
from agentrl_jax.errors import ConfigError
from agentrl_jax.learner import Learner, Memory, StepMetrics
from agentrl_jax.models.buckets import HostBucket
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.export import ExportDType, export_buckets, host_params
from agentrl_jax.models.params import Params
from agentrl_jax.packing import PACKED_FIELDS, PackedBatch, PackingConfig
from agentrl_jax.saved_config import config_from_json, config_to_json
from agentrl_jax.sharding import local_rows
from agentrl_jax.step_plan import StepPlan

BEGINNING = "agentrl_jax/beginning"
"""The key of what the others are told first: nothing, if there is nothing to do."""


def plan_key(number: int) -> str:
    """The key of the so-many-th plan, counted from 0."""
    return f"agentrl_jax/plan/{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """What the other processes need to know once.

    config: with every derived size. dtype: in which the policy is written. weights: the policy folder that training
    starts from; None draws them from the config's seed. num_copy_steps: as `learning.warm_up_learner` wants it. step:
    of the checkpoint that is resumed, None if none is.
    """

    config: TrainConfig
    model: ModelConfig
    dtype: ExportDType
    run_dir: Path
    weights: Path | None
    num_copy_steps: int
    step: int | None

    def to_bytes(self) -> bytes:
        """As JSON: nothing that travels between processes is ever executed."""
        return json.dumps(config_to_json(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Beginning":
        """The inverse of `to_bytes`. Raises ConfigError for anything else."""
        try:
            values = json.loads(data)
        except ValueError as error:
            raise ConfigError(f"process 0 sent the beginning of no run: {error}") from error
        return config_from_json(cls, values)


class Leader:
    """What process 0 says to the others before anything that they all do; nothing where it has the devices to itself.

    on_stop: called, in whatever thread a plan is sent from, once another process has been asked to stop.
    """

    def __init__(self) -> None:
        self.is_alone = is_alone()
        self.on_stop: Callable[[], object] = lambda: None
        self._num_plans = 0
        self._has_begun = False

    def begin(self, beginning: Beginning) -> None:
        """Let the others begin."""
        self._has_begun = True
        if not self.is_alone:
            tell(BEGINNING, beginning.to_bytes())

    def __call__(self, plan: StepPlan) -> None:
        """Let the others do their part in what this process does next."""
        if not self.is_alone and self._exchange(plan):
            self.on_stop()

    def end(self) -> None:
        """Let the others go."""
        if self.is_alone:
            return
        if self._has_begun:
            self._exchange(StepPlan(stop=True))
        else:
            tell(BEGINNING, b"")

    def make_learner(self, *args: Any, **options: Any) -> Learner:
        """A `Learner` whose steps and compilation the others take part in."""
        return Learner(*args, **options) if self.is_alone else SharedLearner(self, *args, **options)

    def engine_weights(self, learner: Learner) -> Params:
        """The learner's params, where an engine of this process can take them from."""
        if self.is_alone:
            return learner.params
        self(StepPlan(publish=True))
        return learner.host_params()

    def lagging_weights(self, weights: Params, model: ModelConfig) -> Params:
        """Likewise those that the lagging policy has."""
        if self.is_alone:
            return weights
        self(StepPlan(publish_lagging=True))
        return host_params(weights, model)

    def _exchange(self, plan: StepPlan) -> bool:
        key = plan_key(self._num_plans)
        tell(key, plan.to_numbers().tobytes())
        is_asked_to_stop = any_of(False)
        forget(key)
        self._num_plans += 1
        return is_asked_to_stop


def policy_buckets(config: TrainConfig, model: ModelConfig, dtype: ExportDType, params: Params) -> Iterator[HostBucket]:
    """All tensors of `params` for servers. Every process of the learner goes through all of them."""
    return export_buckets(params, model, dtype=dtype, bucket_bytes=config.publish.bucket_bytes)


@contextmanager
def leading() -> Iterator[Leader]:
    """A leader whose followers are let go in the end, whatever happens in the block."""
    leader = Leader()
    try:
        yield leader
    finally:
        leader.end()


class SharedLearner(Learner):
    """Process 0's learner: takes whole batches, and has the others take their rows of them."""

    def __init__(self, lead: Leader, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lead = lead

    def step(self, packed: PackedBatch) -> StepMetrics:
        """See `Learner.step`; `packed` has all rows."""
        if not packed.micro_batches or not packed.loss_weight > 0:
            return super().step(packed)
        for batch in packed.micro_batches:
            self.check_ids(batch)  # here, where all rows are: nobody else must find out
        self._lead(StepPlan(train=True, num_micro_batches=len(packed.micro_batches), row_tokens=packed.row_tokens))
        return super().step(share_rows(packed, self.mesh))

    @property
    def scores(self) -> tuple[Scores, ...]:
        """See `Learner.scores`."""
        if not self.has_scores:
            return ()
        self._lead(StepPlan(record=True))
        return super().scores

    def compile_ahead(self, packing: PackingConfig) -> Memory:
        """See `Learner.compile_ahead`; the others do so at the same time."""
        self._lead(StepPlan(compile=True))
        return super().compile_ahead(packing)


def share_rows(packed: PackedBatch, mesh: Mesh) -> PackedBatch:
    """Give the others their rows of a batch that they get by `receive_rows`; return this process's."""
    batches = []
    for batch in packed.micro_batches:
        share(_message(batch, packed.loss_weight))
        batches.append(_own(batch, mesh))
    return replace(packed, micro_batches=tuple(batches))


def receive_rows(plan: StepPlan, rows: int, mesh: Mesh) -> PackedBatch:
    """This process's rows of the batch of `plan`, whose micro-batches have `rows` rows.

    Loss weight and totals are those of the whole batch; what only the log wants is 0.
    """
    empty = {name: np.zeros((rows, plan.row_tokens), dtype) for name, dtype in PACKED_FIELDS.items()}
    nothing = TokenBatch(**empty, totals=Totals(*[np.float32(0)] * len(Totals._fields)))
    batches, weight = [], 0.0
    for _ in range(plan.num_micro_batches):
        tokens, totals, loss_weight = share(_message(nothing, 0.0))
        fields = {name: _restored(column, name) for name, column in zip(PACKED_FIELDS, tokens, strict=True)}
        batches.append(_own(TokenBatch(**fields, totals=Totals(*totals)), mesh))
        weight = float(loss_weight.view(np.float64)[0])
    return PackedBatch(
        micro_batches=tuple(batches), loss_weight=weight, num_loss_tokens=0, num_tokens=0, efficiency=0.0, task_names=()
    )


def _message(batch: TokenBatch, loss_weight: float) -> tuple[Any, Any, Any]:
    """(int32 [fields, B, T], totals, the bits of loss_weight): what is not an integer goes as its bits."""
    columns = [np.asarray(getattr(batch, name)) for name in PACKED_FIELDS]
    words = [column.view(np.int32) if column.dtype.itemsize == 4 else column.astype(np.int32) for column in columns]
    return np.stack(words), np.array(batch.totals, np.float32), np.array([loss_weight], np.float64).view(np.int32)


def _restored(column: Any, name: str) -> Any:
    dtype = np.dtype(PACKED_FIELDS[name])
    return column.view(dtype) if dtype.itemsize == 4 else column.astype(dtype)


def _own(batch: TokenBatch, mesh: Mesh) -> TokenBatch:
    rows = local_rows(mesh, batch.ids.shape[0])
    return map_tokens(lambda array: array[rows], batch)
