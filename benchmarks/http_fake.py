"""A server that answers every request after the same time, in a process of its own: `python -m benchmarks.http_fake S`.

Prints its port. The answer has the size of one of SGLang for 200 ids; what a request says is not read.
"""

import sys

import trio

from agentrl_jax.engines.http_server import Answer, HttpRequest, ServerLimits, json_answer, serve_http

NUM_IDS = 200
BODY = json_answer(
    {
        "output_ids": list(range(NUM_IDS)),
        "meta_info": {"output_token_logprobs": [(-1.2345678806304932, token, None) for token in range(NUM_IDS)]},
    }
)


async def serve(service_s: float) -> None:
    async def handle(request: HttpRequest) -> Answer:
        await trio.sleep(service_s)
        return BODY

    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(_start, handle)
        print(port, flush=True)


async def _start(handle: object, *, task_status: trio.TaskStatus[int]) -> None:
    await serve_http(handle, host="127.0.0.1", port=0, limits=ServerLimits(), task_status=task_status)  # type: ignore[arg-type]


if __name__ == "__main__":
    trio.run(serve, float(sys.argv[1]))
