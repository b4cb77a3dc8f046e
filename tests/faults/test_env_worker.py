"""Faults of env workers: what a worker that is killed, or told to end, leaves behind."""

import json
import os
import signal
from pathlib import Path

import trio

from agentrl_jax.engines.http import open_http_client
from tests.envs.test_worker_links import open_controller, process


def parents() -> dict[int, int]:
    """Of each process that runs: its parent."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if fields[0] != "Z":
            found[int(status.parent.name)] = int(fields[1])
    return found


def descendants(pid: int) -> set[int]:
    running = parents()
    found = {pid}
    while grown := {child for child, parent in running.items() if parent in found} - found:
        found |= grown
    return found - {pid}


async def start_sessions(client, count):
    for number in range(count):
        body = json.dumps({"index": number, "session_id": number + 1}).encode()
        answer = await client.request("POST", "/api/start_sample", body, is_idempotent=False)
        assert answer.status == 200


async def test_env_04_no_session_outlives_a_worker_that_is_killed_or_told_to_end():
    for number in (signal.SIGKILL, signal.SIGTERM):
        async with (
            open_controller() as controller,
            process("alfworld", "-C", controller.url, "--session-kind", "process", "--drain-s", "0") as (worker, url),
            open_http_client(url) as client,
        ):
            await start_sessions(client, 4)
            started = descendants(worker.pid)
            assert len(started) >= 5  # the sessions and what they are forked from
            handles = [os.pidfd_open(pid) for pid in started]
            worker.send_signal(number)
            with trio.fail_after(10):
                await worker.wait()
            with trio.fail_after(5):
                for handle in handles:
                    await trio.lowlevel.wait_readable(handle)  # until that process has ended
                    os.close(handle)
