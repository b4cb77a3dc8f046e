"""An engine behind SGLang's HTTP interface, so that any client of SGLang can talk to it. No jax.

What differs from SGLang, always to the stricter side: a publish never leaves a prompt's cache computed by older weights
(`in_place` and `retract` are the same here); a folder of weights must hold every tensor and no other, and a refused one
leaves the old weights serving; tensors that come in requests are served together, when their update ends. SGLang has no
/stage_weights, which loads and hashes a folder while turns go on, so that the pause in which it is served is short.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from hmac import compare_digest
from importlib.metadata import version as installed_version
from typing import TypeAlias

import trio

from agentrl_jax.engines.http_hosts import host_problem
from agentrl_jax.engines.http_server import (
    Answer,
    EventStream,
    HttpProblem,
    HttpRequest,
    ServerLimits,
    json_answer,
    problem_answer,
    serve_http,
)
from agentrl_jax.engines.served import ServableEngine
from agentrl_jax.engines.served_generation import GenerationEndpoints, ServedModel
from agentrl_jax.engines.served_names import WeightNames
from agentrl_jax.engines.served_weights import WeightEndpoints
from agentrl_jax.engines.sglang_schema import API_VERSION
from agentrl_jax.errors import EngineError

Endpoint: TypeAlias = Callable[[HttpRequest], Awaitable[Answer | EventStream]]

_OPEN_PATHS = ("/health", "/ready")
_NOT_FROM_HERE = "this engine takes weights from a folder or from requests: POST /update_weights_from_disk or _tensor"
_REFUSED = {
    "/update_weights_from_distributed": _NOT_FROM_HERE,
    "/update_weights_from_ipc": _NOT_FROM_HERE,
    "/init_weights_update_group": _NOT_FROM_HERE,
    "/destroy_weights_update_group": _NOT_FROM_HERE,
    "/update_weight_version": "the weights of this engine have their version from the request that brought them",
}
"""What SGLang offers and this engine does not, and why."""


class EngineServer:
    """Answers requests for one engine: `serve` at an address of its own, `handle` wherever else they come from."""

    def __init__(
        self, engine: ServableEngine, model: ServedModel, *, token: str | None = None, weight_name: str | None = None
    ) -> None:
        """weight_name: of the weights that `engine` serves now (default: its version)."""
        self._engine, self._model, self._token = engine, model, token
        self._names = WeightNames(engine, weight_name)
        self._generation = GenerationEndpoints(engine, model, self._names)
        forget = self._generation.forget_prefixes
        self._weights = WeightEndpoints(engine, model, self._generation.turns, self._names, forget)
        self._routes = self._make_routes()

    async def serve(
        self, *, host: str, port: int, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Answer until cancelled; reports the port once it listens. Of a client that is refused the body is not read.

        Raises ConfigError if the address cannot be had.
        """
        refuse = partial(self._refusal, host)
        await serve_http(
            self.handle, host=host, port=port, limits=ServerLimits(), refuse=refuse, task_status=task_status
        )

    def _refusal(self, host: str, request: HttpRequest) -> Answer | None:
        problem = host_problem(request, host) if self._token is None else self._token_problem(request)
        return None if problem is None else problem_answer(problem)

    async def handle(self, request: HttpRequest) -> Answer | EventStream:
        """Raises HttpProblem for what is refused; an engine that fails is a 503."""
        problem = self._token_problem(request)
        if problem is not None:
            raise problem
        methods = self._routes.get(request.path)
        if methods is None:
            if request.path in _REFUSED:
                raise HttpProblem(501, _REFUSED[request.path])
            raise HttpProblem(404, f"there is no {request.path} here")
        if request.method not in methods:
            raise HttpProblem(405, f"{request.path} takes {' or '.join(methods)}, got {request.method}")
        try:
            return await methods[request.method](request)
        except EngineError as error:
            raise HttpProblem(503, str(error)) from error

    def _make_routes(self) -> dict[str, dict[str, Endpoint]]:
        generation, weights = self._generation, self._weights
        posts: dict[str, Endpoint] = {
            "/generate": generation.generate,
            "/v1/chat/completions": generation.chat,
            "/abort_request": generation.abort,
            "/close_session": generation.close_session,
            "/flush_cache": generation.flush,
            "/pause_generation": weights.pause,
            "/continue_generation": weights.resume,
            "/begin_weight_update": weights.begin,
            "/end_weight_update": weights.end,
            "/stage_weights": weights.stage,
            "/update_weights_from_disk": weights.from_disk,
            "/update_weights_from_tensor": weights.from_tensors,
            "/weights_checker": weights.check,
            "/release_memory_occupation": weights.release,
            "/resume_memory_occupation": weights.take_back,
            "/tokenize": generation.tokenize,
            "/detokenize": generation.detokenize,
        }
        gets: dict[str, Endpoint] = {
            "/flush_cache": generation.flush,
            "/health": self._health,
            "/ping": self._health,
            "/health_generate": generation.health_generate,
            "/ready": self._ready,
            "/model_info": self._model_info,
            "/get_model_info": self._model_info,
            "/server_info": self._server_info,
            "/get_server_info": self._server_info,
            "/v1/models": self._models,
            "/v1/loads": self._loads,
        }
        routes: dict[str, dict[str, Endpoint]] = {}
        for method, endpoints in (("GET", gets), ("POST", posts)):
            for path, endpoint in endpoints.items():
                routes.setdefault(path, {})[method] = endpoint
        return routes

    def _token_problem(self, request: HttpRequest) -> HttpProblem | None:
        if self._token is None or request.path in _OPEN_PATHS:
            return None
        given = request.headers.get("authorization", "")
        if compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            return None
        return HttpProblem(401, "expected the header Authorization: Bearer TOKEN with this server's token")

    async def _health(self, request: HttpRequest) -> Answer:
        """Whether the server lives, paused or not."""
        await trio.lowlevel.checkpoint()
        return Answer()

    async def _ready(self, request: HttpRequest) -> Answer:
        """Whether a turn would be served now."""
        await trio.lowlevel.checkpoint()
        return Answer(status=503 if self._weights.is_paused else 200)

    async def _model_info(self, request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        return json_answer(
            {
                "model_path": self._weights.path,
                "served_model_name": self._weights.path,
                "tokenizer_path": self._model.path if self._model.chat else None,
                "is_generation": True,
                "weight_version": self._names.current,
            }
        )

    async def _server_info(self, request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        return json_answer(
            {
                "version": API_VERSION,
                "engine": "agentrl_jax",
                "engine_version": installed_version("agentrl_jax"),
                "model_path": self._weights.path,
                "max_req_input_len": self._model.max_prompt_tokens,
                "vocab_size": self._model.vocab_size,
                "is_paused": self._weights.is_paused,
                "internal_states": [],
            }
        )

    async def _models(self, request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        size = self._model.max_prompt_tokens + 1
        model = {"id": self._weights.path, "object": "model", "owned_by": "agentrl_jax", "max_model_len": size}
        return json_answer({"object": "list", "data": [model]})

    async def _loads(self, request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        statistics = self._engine.statistics()
        load = {
            "dp_rank": 0,
            "num_running_reqs": statistics.running,
            "num_waiting_reqs": statistics.waiting,
        }
        return json_answer({"loads": [load]})
