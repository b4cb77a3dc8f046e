"""What does the HTTP client cost, with 2,000 requests under way at a time?

    python -m benchmarks.http [--json] [--quick]

A server in another process answers each after 5 s, with 200 ids and log-probabilities (8 kB); a request carries 1,000
ids. All are sent at once. connecting: each opens its connection. kept: each finds one that an earlier request left.
cpu_ms_per_request is processor time of this process, with encoding and decoding of JSON; latencies are on the wall.

A good answer: no error, cpu_ms_per_request <= 0.4 and latency_p99_s <= 7, with a core each for client and server.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import trio

from agentrl_jax.engines.http import HttpClient, open_http_client
from agentrl_jax.errors import EngineError
from benchmarks.figures import Figure, json_lines, summarise, table
from launch.config import parse

NAME = "http"
UNITS = {"cpu_ms_per_request": "ms", "latency_p50_s": "s", "latency_p99_s": "s", "latency_max_s": "s", "num_errors": ""}
BODY = {"rid": "0" * 32, "input_ids": list(range(1000)), "sampling_params": {"temperature": 1.0}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Processor time and latency of thousands of requests at a time."""

    json: bool = False
    """One JSON line per figure instead of a table"""
    quick: bool = False
    """A tenth of the requests, each answered after half a second, once"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(Options, arguments, program="benchmarks.http")
    figures = measure(*((200, 0.5, 1) if options.quick else (2000, 5.0, 3)))
    print("\n".join(json_lines(figures)) if options.json else table(figures))
    return 0


def measure(num_requests: int, service_s: float, repeats: int) -> list[Figure]:
    found: dict[str, list[dict[str, float]]] = {"connecting": [], "kept": []}
    with fake_server(service_s) as url:
        for _ in range(repeats):
            for case, metrics in trio.run(_both_rounds, url, num_requests).items():
                found[case].append(metrics)
    return [
        summarise([run[metric] for run in runs], benchmark=NAME, case=case, metric=metric, unit=unit)
        for case, runs in found.items()
        for metric, unit in UNITS.items()
    ]


@contextmanager
def fake_server(service_s: float) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.http_fake", str(service_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


async def _both_rounds(url: str, num_requests: int) -> dict[str, dict[str, float]]:
    async with open_http_client(url) as client:
        return {case: await _round(client, num_requests) for case in ("connecting", "kept")}


async def _round(client: HttpClient, num_requests: int) -> dict[str, float]:
    latencies: list[float] = []
    num_errors = 0

    async def ask() -> None:
        nonlocal num_errors
        begin = trio.current_time()
        try:
            response = await client.post("/generate", BODY, is_idempotent=True)
            response.decode(dict[str, Any])
        except EngineError:
            num_errors += 1
        latencies.append(trio.current_time() - begin)

    begin_cpu_s = time.process_time()
    async with trio.open_nursery() as nursery:
        for _ in range(num_requests):
            nursery.start_soon(ask)
    cpu_s = time.process_time() - begin_cpu_s
    cuts = quantiles(latencies, n=100)
    return {
        "cpu_ms_per_request": 1000 * cpu_s / num_requests,
        "latency_p50_s": cuts[49],
        "latency_p99_s": cuts[98],
        "latency_max_s": max(latencies),
        "num_errors": num_errors,
    }


if __name__ == "__main__":
    raise SystemExit(main())
