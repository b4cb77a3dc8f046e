"""The process that broadcasts: what becomes of it when a server does not join, and what is said when it ends."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from agentrl_jax.engines.exports import Export
from agentrl_jax.engines.sglang_weights import ServerWeights
from agentrl_jax.engines.transports import distributed
from agentrl_jax.engines.transports.distributed import DistributedSettings, DistributedTransport
from agentrl_jax.errors import EngineError

WAITS = "import sys; print('{\"port\": 5}'); print('{\"joined\": true}'); sys.stdin.read()"


class Server:
    """Joins no group before the attempt of this number. groups: that it was asked to join."""

    def __init__(self, joins_from: int) -> None:
        self.groups: list[str] = []
        self._joins_from = joins_from

    async def join_group(self, body: Mapping[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        self.groups.append(body["group_name"])
        assert (body["master_port"], body["world_size"], body["rank_offset"]) == (5, 3, 1)
        if len(self.groups) < self._joins_from:
            raise EngineError("no")


ANY_EXPORT = Export(folder=Path(), version=1, dtype="float32", places={}, checksums={})


def transport(server: Server, nursery: trio.Nursery) -> DistributedTransport:
    settings = DistributedSettings(
        python=Path(sys.executable), host="127.0.0.1", backend="gloo", device="cpu", bucket_bytes=1000, timeout_s=60.0
    )
    return DistributedTransport(cast("ServerWeights", server), 2, settings, nursery)


async def test_a_group_that_was_not_joined_is_not_taken_for_one_that_was(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "sidecar.py"
    script.write_text(WAITS)
    monkeypatch.setattr(distributed, "_SCRIPT", script)
    server = Server(joins_from=2)
    joining = transport(server, nursery)
    with trio.fail_after(30.0):
        with pytest.raises(EngineError, match="no"):
            await joining.prepare(ANY_EXPORT)
        for _ in range(2):
            await joining.prepare(ANY_EXPORT)
    assert len(server.groups) == len(set(server.groups)) == 2  # the second is kept, and a process of its own


async def test_a_process_that_ends_is_an_error(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "sidecar.py"
    script.write_text("raise SystemExit(1)")
    monkeypatch.setattr(distributed, "_SCRIPT", script)
    with trio.fail_after(30.0), pytest.raises(EngineError, match="the broadcasting process has ended"):
        await transport(Server(joins_from=1), nursery).prepare(ANY_EXPORT)
