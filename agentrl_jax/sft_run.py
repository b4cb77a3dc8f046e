"""Supervised fine-tuning as a run of its own: conversations in, a policy folder out, resumable in between.

    RUN_DIR/config.json, metrics.jsonl    as in a training run; kinds "start", "step", "validation", "resume"
    RUN_DIR/conversations.jsonl           with --from-experts: what was learnt from
    RUN_DIR/checkpoints, model            what --resume goes on from; weights and tokenizer
    RUN_DIR/reference                     with --lora.rank: the base under the adapters

The ids of a conversation are those that reinforcement learning would have for an episode of the same turns: both are
put together by `TemplateRenderer`, turn by turn. Which conversations a step learns from follows from seed and step.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from time import monotonic

import numpy as np
from jax.sharding import Mesh

from agentrl_jax.algo.losses import LossConfig, make_loss
from agentrl_jax.checkpoint import CheckpointStore
from agentrl_jax.errors import ConfigError, RecordError, TemplateError
from agentrl_jax.learner import Learner, Validation
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.models.params import num_params
from agentrl_jax.models.save import save_pretrained
from agentrl_jax.packing import PackedBatch, PackingConfig, pack_demonstrations
from agentrl_jax.policy import Policy, create_policy, open_policy
from agentrl_jax.preparation import settle_rendering
from agentrl_jax.rendering.transcript import TemplateRenderer
from agentrl_jax.row_sizes import rounded
from agentrl_jax.runlog import RunLog
from agentrl_jax.seeding import derive_seed
from agentrl_jax.sft import Demonstration, shuffled
from agentrl_jax.sft_config import SftConfig
from agentrl_jax.sft_data import Conversation

Say = Callable[[str], None]
Segments = tuple[Demonstration, ...]

_LINE_EVERY_S = 2.0
"""Steps that take less are not all worth a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftResult:
    """first, last: validations before the first step (None if resumed) and after the last one, None without any.

    is_stopped: on request, before all steps had been taken.
    """

    model_folder: Path
    num_steps: int
    first: Validation | None
    last: Validation | None
    is_stopped: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SftData:
    """What is learnt and what is validated on, as conversations; keep_whole: words for a tokenizer from nothing."""

    train: Sequence[Conversation]
    valid: Sequence[Conversation]
    keep_whole: Sequence[str] = ()


def split_conversations(conversations: Sequence[Conversation], valid_frac: float, seed: int) -> SftData:
    """Hold out a share of them, drawn from `seed`, at least one. Raises ConfigError if none would be left to learn."""
    num_valid = min(max(1, round(valid_frac * len(conversations))), len(conversations)) if valid_frac else 0
    if num_valid == len(conversations):
        raise ConfigError(
            f"--valid-frac {valid_frac:g} of {len(conversations)} conversations leaves none to learn from"
        )
    held_out = set(
        np.random.default_rng(derive_seed(seed, "valid")).permutation(len(conversations))[:num_valid].tolist()
    )
    return SftData(
        train=[c for number, c in enumerate(conversations) if number not in held_out],
        valid=[c for number, c in enumerate(conversations) if number in held_out],
    )


def run_sft(
    config: SftConfig, data: SftData, mesh: Mesh, run: RunLog, say: Say, should_stop: Callable[[], bool]
) -> SftResult:
    """Carry out a run, or the rest of one, and leave its policy in RUN_DIR/model.

    should_stop: asked before each step; a stopped run is saved and can be resumed.
    Raises ConfigError if nothing can be learnt from the data, or it is not the data that the run began with.
    """
    with CheckpointStore(run.folder / "checkpoints", keep=config.keep_checkpoints) as store:
        return _Run(config, data, mesh, run, store, say).carry_out(should_stop)


class _Run:
    def __init__(
        self, config: SftConfig, data: SftData, mesh: Mesh, run: RunLog, store: CheckpointStore, say: Say
    ) -> None:
        self.config, self.run_log, self.store, self.say = config, run, store, say
        self.begun_at = store.latest()
        policy = self._policy(data)
        self.policy = replace(policy, rendering=settle_rendering(policy, config.rendering, say))
        self.train, self.valid, self.packing = self._rendered(data)
        self.digest = _digest(self.train)
        self.num_steps = config.num_steps(len(self.train))
        self.step, self.saved_step = self.begun_at or 0, self.begun_at
        self.learner = self._learner(mesh)

    def carry_out(self, should_stop: Callable[[], bool]) -> SftResult:
        if self.begun_at is None:
            self._save_model()  # what a resumed run opens must be there before there is anything to resume
            self._save()
        else:
            self.run_log.log_resume(self.step, 0)
            self.say(f"resumed at step {self.step}")
        first = last = self._validate() if self.begun_at is None else None
        last = self._learn(should_stop) or last
        self._save()
        self.store.wait()
        self._save_model()
        if first is not None and last is not None and last is not first:
            self.say(f"validation loss {first.mean_loss:.3f} → {last.mean_loss:.3f}")
        return SftResult(
            model_folder=self.run_log.model_folder,
            num_steps=self.step,
            first=first,
            last=last,
            is_stopped=self.step < self.num_steps,
        )

    def _learn(self, should_stop: Callable[[], bool]) -> Validation | None:
        order = shuffled(
            len(self.train),
            batch_size=self.config.batch_size,
            seed=derive_seed(self.config.seed, "order"),
            num_taken=self.step,
        )
        last: Validation | None = None
        begun = said = monotonic()
        while self.step < self.num_steps and not should_stop():
            packed = _packed([self.train[number] for number in next(order)], self.packing)
            outcome = self.learner.step(packed)
            self.step += 1
            now = monotonic()
            figures = {**outcome.as_dict(), "num_tokens": packed.num_tokens, "num_loss_tokens": packed.num_loss_tokens}
            progress = {"step": self.step, "max_steps": self.num_steps, "sft_s": now - begun}
            self.run_log.log_metrics("step", {**progress, "metrics": figures})
            if now - said > _LINE_EVERY_S or self.step in (1, self.num_steps):
                said = now
                self.say(self._line(outcome.loss, outcome.learning_rate, now - begun))
            if self.step % self.config.evaluate_every == 0 or self.step == self.num_steps:
                last = self._validate()
            if self.step % self.config.save_every == 0:
                self._save()
        return last

    def _line(self, loss: float, rate: float, seconds: float) -> str:
        width = len(str(self.num_steps))
        text = f"{loss:.3f}" if isfinite(loss) else "not finite: not applied"
        return f"step {self.step:>{width}}/{self.num_steps}  loss {text}  learning rate {rate:.2g}  {seconds:.0f} s"

    def _validate(self) -> Validation | None:
        if not self.valid:
            return None
        found = sum((self.learner.validate(batch) for batch in self.valid), Validation())
        figures = {**asdict(found), "mean_loss": found.mean_loss, "accuracy": found.accuracy}
        self.run_log.log_metrics("validation", {"step": self.step, **figures})
        self.say(
            f"step {self.step}: validation loss {found.mean_loss:.3f}, token accuracy {100 * found.accuracy:.1f} % "
            f"({found.num_tokens:,} tokens)"
        )
        return found

    def _save(self) -> None:
        """Begin a checkpoint in the background, if this step has none."""
        if self.step != self.saved_step:
            self.store.save(self.step, self.learner.state, {"data": self.digest})
            self.saved_step = self.step

    def _save_model(self) -> None:
        self.policy.save(self.learner.params, self.run_log.model_folder)

    def _policy(self, data: SftData) -> Policy:
        if self.begun_at is not None:
            return open_policy(self.run_log.model_folder)
        if self.config.model is not None:
            return open_policy(self.config.model)
        return create_policy(
            [(conversation.messages, conversation.tools) for conversation in data.train],
            self.run_log.model_folder,
            network=self.config.network,
            keep_whole=data.keep_whole,
            seed=derive_seed(self.config.seed, "init"),
        )

    def _learner(self, mesh: Mesh) -> Learner:
        model, settings = self.policy.model, self.config.learner_for(self.num_steps)
        loss, reference = make_loss(LossConfig(name="sft")), self.run_log.folder / "reference"
        if self.begun_at is None or not self.config.lora.is_on:
            params = self.policy.load_params(mesh)
        else:
            params = load_pretrained(reference, mesh=mesh)[1]
        if self.begun_at is None and self.config.lora.is_on:
            save_pretrained(params, model, reference)
        learner = Learner(model, settings, loss, mesh, params, lora=self.config.lora)
        if self.begun_at is not None:
            restored = self.store.restore(self.begun_at, learner.abstract_state())
            if restored.loop_state["data"] != self.digest:
                raise ConfigError(
                    "--resume: these are not the conversations, or not the tokenizer, that the run began with; put the "
                    "file back as it was, or start a new run with --model"
                )
            if self.begun_at >= self.num_steps:
                raise ConfigError(f"--resume: the run has taken all its {self.num_steps} steps; ask for more --epochs")
            learner.restore(restored.state)
        return learner

    def _rendered(self, data: SftData) -> tuple[list[Segments], list[PackedBatch], PackingConfig]:
        """What to learn, what to validate on, and the rows that hold both. Raises ConfigError if none fits."""
        renderer = TemplateRenderer(self.policy.tokenizer, config=self.policy.rendering)
        rendered = [[segments_of(c, renderer) for c in part] for part in (data.train, data.valid)]
        longest = max(_length(c) for part in rendered for c in part)
        most = self.policy.model.max_positions
        limit = min(rounded(min(self.config.max_context_tokens or longest, most)), most)
        train, valid = ([c for c in part if _length(c) <= limit and _is_learnt(c)] for part in rendered)
        num_long = sum(_length(c) > limit for part in rendered for c in part)
        num_mute = sum(not _is_learnt(c) for part in rendered for c in part)
        self.say(
            f"{len(train):,} conversations to learn from, {len(valid):,} to validate on, the longest of {longest:,} "
            f"tokens; {num_params(self.policy.model) / 1e6:.2f} M parameters, {self.policy.model.vocab_size:,} ids"
        )
        if num_long:
            self.say(
                f"warning: {num_long:,} conversations of more than {limit:,} tokens are left out; none is ever cut"
            )
        if num_mute:
            self.say(f"warning: {num_mute:,} conversations whose every weight is 0 are left out")
        if not train:
            raise ConfigError(f"no conversation is left to learn from within {limit} tokens: set --max-context-tokens")
        packing, size = self.config.packing(min(limit, longest)), self.config.batch_size
        batches = [_packed(valid[start : start + size], packing) for start in range(0, len(valid), size)]
        return train, batches, packing


def segments_of(conversation: Conversation, renderer: TemplateRenderer) -> Segments:
    """(ids, mask) of each segment of the conversation; the mask is False on turns that are not to be imitated.

    Raises ConfigError, naming the line, if the policy's template refuses the conversation.
    """
    segments, num_turns = [], 0
    try:
        rendered = renderer.demonstration_segments(conversation.messages, conversation.tools)
    except (TemplateError, RecordError) as error:
        raise ConfigError(f"the conversation in line {conversation.line} cannot be rendered: {error}") from error
    for ids, mask in rendered:
        turns = num_turns + np.cumsum(mask & ~np.concatenate([[False], mask[:-1]])) - 1
        is_learnt = np.asarray(conversation.is_learnt, np.bool_)[np.maximum(turns, 0)]
        num_turns = int(turns[-1]) + 1
        segments.append((ids, mask & is_learnt))
    return tuple(segments)


def _packed(conversations: Sequence[Segments], packing: PackingConfig) -> PackedBatch:
    return pack_demonstrations([segment for segments in conversations for segment in segments], packing)


def _length(segments: Segments) -> int:
    return max(len(ids) for ids, _ in segments)


def _is_learnt(segments: Segments) -> bool:
    return any(mask.any() for _, mask in segments)


def _digest(conversations: Sequence[Segments]) -> str:
    content = hashlib.sha256()
    for ids, mask in (segment for segments in conversations for segment in segments):
        content.update(len(ids).to_bytes(8, "little") + ids.tobytes() + mask.tobytes())
    return content.hexdigest()
