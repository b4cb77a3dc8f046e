"""A shared server as it was when it was started."""

from agentrl_jax.engines.http import HttpClient, open_http_client
from tests.sglang_cpu.servers import SGLangServer


async def reset(server: SGLangServer) -> None:
    """First weights, nothing cached, nothing paused, nothing slow."""
    async with open_http_client(server.url) as client:
        await _post(client, "/continue_generation", {})
        await _post(client, "/slow_down", {"forward_sleep_time": 0})
        update = {"model_path": str(server.folder), "weight_version": "default", "abort_all_requests": True}
        await _post(client, "/update_weights_from_disk", update)


async def _post(client: HttpClient, path: str, body: dict[str, object]) -> None:
    response = await client.post(path, body, is_idempotent=True)
    assert response.status == 200, response.body


async def slow_down(server: SGLangServer, seconds: float, *, token: str | None = None) -> None:
    """Let every forward pass of the server take so much longer."""
    async with open_http_client(server.url, token=token) as client:
        await _post(client, "/slow_down", {"forward_sleep_time": seconds})
