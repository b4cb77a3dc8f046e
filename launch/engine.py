"""Serve a model to any client of SGLang: `python -m launch.engine --model PATH --port N`. See `--help`."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import trio

from agentrl_jax.engines.http_server import check_address, check_bind
from agentrl_jax.engines.local.config import LocalEngineConfig
from agentrl_jax.engines.local.engine import open_local_engine
from agentrl_jax.engines.served_chat import ChatFormat
from agentrl_jax.engines.served_generation import HashWeights, LoadWeights, ServedModel
from agentrl_jax.engines.server import EngineServer
from agentrl_jax.engines.server_checksums import bytes_hash
from agentrl_jax.engines.token_files import chosen_token
from agentrl_jax.errors import ConfigError, TemplateError
from agentrl_jax.models.config import ModelConfig
from agentrl_jax.models.export import host_tensors
from agentrl_jax.models.load import load_pretrained
from agentrl_jax.models.params import Params
from agentrl_jax.models.save import natural_dtype
from agentrl_jax.policy import Policy, check_model_folder, open_policy
from agentrl_jax.rendering.config import read_rendering
from agentrl_jax.rendering.transcript import TemplateRenderer
from launch.config import parse, printer, refuse

PROGRAM = "launch.engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineServerConfig:
    """Serve a model by the embedded engine, behind SGLang's HTTP interface: /generate, /v1/chat/completions, and what
    weights, pauses and aborts need. Ctrl-C ends it.
    """

    model: Path
    """Folder with config.json, weights and tokenizer, as training leaves it"""
    port: int = 30000
    """TCP port; 0: the system's choice, which is printed"""
    host: str = "127.0.0.1"
    """Address to listen on. One that other machines can reach needs --token"""
    token: str | None = None
    """What clients must send as `Authorization: Bearer TOKEN`"""
    token_file: Path | None = None
    """The same, from a file that only its owner may read"""
    version: int | None = None
    """Weight version of the model as it is on disk (default: none, which clients see as "default")"""
    max_context_tokens: int = 512
    """Longest prompt and what is sampled behind it, together. On a CPU twice as much decodes half as fast"""
    engine: LocalEngineConfig = field(default_factory=LocalEngineConfig)

    def __post_init__(self) -> None:
        check_bind(self.host, self.secret)
        if not 0 <= self.port < 65536:
            raise ConfigError(f"--port must be in [0, 65536), got {self.port}")
        if self.version is not None and self.version < 0:
            raise ConfigError(f"--version must be >= 0, got {self.version}")

    @property
    def secret(self) -> str | None:
        """The token, wherever it stands. Raises ConfigError."""
        return chosen_token(self.token, self.token_file)

    @property
    def sized_engine(self) -> LocalEngineConfig:
        return replace(self.engine, cache_tokens=self.max_context_tokens)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal comes and return the exit code: 0 ended by Ctrl-C or SIGTERM, 2 wrong settings."""
    try:
        config = parse(EngineServerConfig, arguments, program=PROGRAM)
        check_model_folder(config.model)
        trio.run(check_address, config.host, config.port)
        policy = open_policy(config.model)
        sized = config.sized_engine
        sized.check_model(policy.model)
        chat = chat_format(policy)
        trio.run(_serve, config, sized, policy, chat, printer())
    except* ConfigError as errors:
        refuse(_first(errors), program=PROGRAM)
    return 0


def chat_format(policy: Policy) -> ChatFormat:
    """How the policy's conversations are rendered. Raises ConfigError for a chat template that cannot be used."""
    try:
        renderer = TemplateRenderer(policy.tokenizer, config=read_rendering(policy.tokenizer_folder))
    except TemplateError as error:
        raise ConfigError(f"--model {policy.tokenizer_folder}: {error}") from error
    return ChatFormat(policy.tokenizer, renderer)


def weights_loader(model: ModelConfig) -> LoadWeights:
    """Reads folders that hold weights of exactly this architecture."""

    def load(folder: Path) -> object:
        found, params = load_pretrained(folder)
        if found != model:
            raise ConfigError(f"{folder}: expected the architecture that is served, {model}, got {found}")
        return params

    return load


def weights_hasher(model: ModelConfig) -> HashWeights:
    """Hashes params of this architecture, each tensor in the precision that it has."""

    def hash_weights(params: Params) -> dict[str, str]:
        return {name: bytes_hash([array]) for name, array in host_tensors(params, model, natural_dtype(params))}

    return hash_weights


async def _serve(
    config: EngineServerConfig, sized: LocalEngineConfig, policy: Policy, chat: ChatFormat, say: Callable[[str], None]
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve_forever, config, sized, policy, chat, say)
            async for _ in signals:
                break
            nursery.cancel_scope.cancel()
    say("stopped")


async def _serve_forever(
    config: EngineServerConfig, sized: LocalEngineConfig, policy: Policy, chat: ChatFormat, say: Callable[[str], None]
) -> None:
    say(f"loading {config.model} and compiling for {sized.num_slots} turns at a time")
    weights = await trio.to_thread.run_sync(policy.load_params, None)
    model = ServedModel(
        path=str(config.model),
        vocab_size=policy.model.vocab_size,
        max_prompt_tokens=sized.cache_tokens - 1,
        load_weights=weights_loader(policy.model),
        hash_weights=weights_hasher(policy.model),
        chat=chat,
    )
    name = "default" if config.version is None else str(config.version)
    engine_block = open_local_engine(model=policy.model, config=sized, weights=weights, version=config.version or 0)
    async with engine_block as engine, trio.open_nursery() as nursery:
        server = EngineServer(engine, model, token=config.secret, weight_name=name)
        port: int = await nursery.start(partial(server.serve, host=config.host, port=config.port))
        say(f"serving {config.model} as version {name} at http://{config.host}:{port}")


def _first(errors: BaseExceptionGroup[ConfigError]) -> ConfigError:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


if __name__ == "__main__":
    raise SystemExit(main())
