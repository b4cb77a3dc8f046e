"""SGLang's requests and answers as JSON, and what of them this package's own server takes. No jax.

Keys that SGLang ignores are ignored; a setting that would change what is sampled, and that the engine does not offer,
is refused by name instead.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from agentrl_jax.engines.http_server import HttpProblem
from agentrl_jax.errors import RecordError
from agentrl_jax.types import SamplingParams, Truncation

Request = TypeVar("Request")

PauseMode = Literal["abort", "retract", "in_place"]

API_VERSION = "0.5.23"
"""The SGLang release whose interface is spoken; clients decide by it what they may ask for."""

NO_STOP = -1
"""A stop id that is never sampled."""


class SamplingFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`sampling_params`. Of the fields below the blank line only the default is offered."""

    max_new_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] = 128
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    sampling_seed: Annotated[int, msgspec.Meta(ge=0)] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0

    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    n: int = 1
    beam_width: int | None = None
    stop: str | list[str] | None = None
    stop_regex: str | list[str] | None = None
    json_schema: Any = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: Any = None
    logit_bias: dict[str, float] | None = None
    custom_params: Any = None
    stream_interval: int | None = None
    spaces_between_special_tokens: bool = True

    def to_params(self, *, seed: int, eos_ids: Sequence[int]) -> SamplingParams:
        """seed: where the request brings none. eos_ids: end a turn too, unless ignore_eos. Raises HttpProblem."""
        for name in _FIXED:
            value, default = getattr(self, name), _DEFAULTS[name]
            if value != default and value not in ([], {}, ""):
                raise HttpProblem(400, f"this engine offers only {name} = {default!r}, got {value!r}")
        stop_ids = dict.fromkeys([] if self.ignore_eos else [*(self.stop_token_ids or []), *eos_ids])
        try:
            return SamplingParams(
                temperature=self.temperature,
                max_new_tokens=self.max_new_tokens,
                seed=seed if self.sampling_seed is None else self.sampling_seed,
                stop_ids=tuple(stop_ids) or (NO_STOP,),
                truncation=Truncation(top_k=max(self.top_k, 0), top_p=self.top_p, min_p=self.min_p),
            )
        except RecordError as error:
            raise HttpProblem(400, str(error)) from error


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(SamplingFields)}
_FIXED = list(_DEFAULTS)[list(_DEFAULTS).index("frequency_penalty") :]


class Generate(msgspec.Struct, kw_only=True):
    """The body of /generate. With a list of prompts it stands for a request each: see `parts`."""

    rid: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    text: str | list[str] | None = None
    sampling_params: SamplingFields | list[SamplingFields] = msgspec.field(default_factory=SamplingFields)
    return_logprob: bool = False
    logprob_start_len: Literal[-1] = -1
    top_logprobs_num: Literal[0] = 0
    token_ids_logprob: None = None
    return_hidden_states: Literal[False] = False
    input_embeds: None = None
    lora_path: None = None
    custom_logit_processor: None = None
    stream: bool = False
    session_id: str | None = None

    @property
    def is_batch(self) -> bool:
        prompts = self.text if self.input_ids is None else self.input_ids
        return isinstance(prompts, list) and not all(isinstance(part, int) for part in prompts)

    def parts(self) -> list["PartOfGenerate"]:
        """One for each prompt. Raises HttpProblem: no prompt or two kinds of it, or lists of different lengths."""
        if (self.input_ids is None) == (self.text is None):
            raise HttpProblem(400, "give either input_ids or text")
        prompts = self.text if self.input_ids is None else self.input_ids
        if not self.is_batch:
            if isinstance(self.rid, list) or isinstance(self.sampling_params, list):
                raise HttpProblem(400, "one prompt has one rid and one sampling_params, got a list")
            return [PartOfGenerate(prompts, self.rid, self.sampling_params)]
        assert isinstance(prompts, list)
        if any(isinstance(part, int) for part in prompts):
            raise HttpProblem(400, "input_ids must be ids, or a list of ids for each prompt, got both")
        count = len(prompts)
        rids: Sequence[str | None] = [None] * count if self.rid is None else [*self.rid]
        params = self.sampling_params if isinstance(self.sampling_params, list) else [self.sampling_params] * count
        if isinstance(self.rid, str) or len(rids) != count or len(params) != count:
            raise HttpProblem(400, f"{count} prompts need a list of as many rids, and one sampling_params or as many")
        if self.rid is not None and len(set(rids)) != count:
            raise HttpProblem(400, f"Duplicate request ID detected: {self.rid}")
        return [PartOfGenerate(*part) for part in zip(prompts, rids, params, strict=True)]


class PartOfGenerate(NamedTuple):
    """One prompt, as text or ids, of a request."""

    prompt: Any
    rid: str | None
    sampling: SamplingFields


class UpdateFromDisk(msgspec.Struct, kw_only=True):
    model_path: str
    weight_version: str | None = None
    load_format: Literal["auto", "safetensors"] | None = None
    abort_all_requests: bool = False
    flush_cache: bool = True


class StageWeights(msgspec.Struct, kw_only=True):
    """Of this package's server only."""

    model_path: str


class UpdateFromTensor(msgspec.Struct, kw_only=True):
    """serialized_named_tensors: for each rank, of which there is one. weight_version: of the last request only."""

    serialized_named_tensors: Annotated[list[str], msgspec.Meta(min_length=1)]
    load_format: Literal["flattened_bucket"] | None = None
    weight_version: str | None = None
    abort_all_requests: bool = False
    flush_cache: bool = True


class CheckWeights(msgspec.Struct, kw_only=True):
    action: Literal["checksum"]


class PauseGeneration(msgspec.Struct, kw_only=True):
    mode: PauseMode = "abort"


class AbortRequest(msgspec.Struct, kw_only=True):
    rid: str | None = None
    abort_all: bool = False


class Tokenize(msgspec.Struct, kw_only=True):
    prompt: str


class Detokenize(msgspec.Struct, kw_only=True):
    tokens: list[int]
    skip_special_tokens: bool = True


class CloseSession(msgspec.Struct, kw_only=True):
    session_id: str


class Nothing(msgspec.Struct):
    """A body that says nothing that matters here."""


def parse_body(body: bytes, kind: type[Request]) -> Request:
    """`body` as `kind`; an empty one is {}. Raises HttpProblem: no JSON, or a field of another kind, which is named."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise HttpProblem(400, f"the request does not fit: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpProblem(400, f"the body must be a JSON object: {error}") from error


class WeightVersion(msgspec.Struct, kw_only=True):
    """Ids [start, end) of a completion were sampled by `version`."""

    version: str | int
    start: int
    end: int


class FinishReason(msgspec.Struct, kw_only=True):
    type: str
    matched: int | str | None = None
    message: str = ""


class MetaInfo(msgspec.Struct, kw_only=True):
    """What a client reads of `meta_info`. weight_versions: absent before SGLang 0.5.19."""

    finish_reason: FinishReason | None
    weight_version: str | None = None
    weight_versions: list[WeightVersion] | None = None
    cached_tokens: int = 0
    output_token_logprobs: list[tuple[float | None, int, str | None]] | None = None


class Generated(msgspec.Struct, kw_only=True):
    """What a client reads of an answer of /generate."""

    output_ids: list[int]
    meta_info: MetaInfo


class ModelInfo(msgspec.Struct, kw_only=True):
    """What a client reads of /model_info."""

    model_path: str = ""
    weight_version: str = "default"
    preferred_sampling_params: dict[str, Any] | None = None


class ServerInfo(msgspec.Struct, kw_only=True):
    """What a client reads of /server_info. engine: only this package's server has it. The rest: settings by which a
    server draws from another distribution than it reports."""

    version: str = ""
    engine: str = "sglang"
    speculative_algorithm: str | None = None
    speculative_accept_threshold_single: float = 1.0
    speculative_accept_threshold_acc: float = 1.0
    watermark_default_enabled: bool = False
    watermark_enforce_all: bool = False


class Verdict(msgspec.Struct, kw_only=True):
    """The answer of the weight endpoints."""

    success: bool = True
    message: str = ""
