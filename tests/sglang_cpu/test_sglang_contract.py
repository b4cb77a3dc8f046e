"""A real SGLang server keeps the contract of every engine. It takes seeds on GPUs only, so draws are greedy here."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl_jax.engines.sglang import SGLangEngine, open_sglang_engine
from agentrl_jax.engines.weight_folder import tensor_shapes
from tests.engines.contract import PARAMS, EngineContract
from tests.engines.pause_contract import PauseContract
from tests.engines.served_engines import fake_weights
from tests.sglang_cpu.models import write_ids_policy
from tests.sglang_cpu.reset import reset
from tests.sglang_cpu.servers import SGLangServer

pytestmark = pytest.mark.sglang


class TestSGLangServer(PauseContract, EngineContract):
    repeatable = replace(PARAMS, temperature=0.0)

    @pytest.fixture(autouse=True)
    def _use_folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    @pytest.fixture
    async def engine(self, _use_folder: None, ids_server: SGLangServer) -> AsyncIterator[SGLangEngine]:
        await reset(ids_server)
        tensors = tensor_shapes(ids_server.folder)
        options = {"tensors": tensors, "name": "engine-0", "pool": "lagging", "truncates": True}
        async with open_sglang_engine(ids_server.url, **options) as engine:
            yield engine

    def weights(self, version: int) -> Path:
        return write_ids_policy(self.folder / f"weights-{version}", version)

    def bad_weights(self) -> Any:
        return fake_weights(self.folder, 1)
