"""Behind HTTP the embedded engine and the shipped fake keep the contract that they keep in this process."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from agentrl_jax.engines.protocol import Engine
from agentrl_jax.engines.served_generation import ServedModel
from agentrl_jax.engines.sglang import SGLangEngine
from agentrl_jax.engines.weight_folder import tensor_shapes
from agentrl_jax.models.save import save_pretrained
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.types import Completion, SamplingParams
from launch.engine import weights_loader
from tests.engines.contract import PROMPT, EngineContract
from tests.engines.pause_contract import SpanContract
from tests.engines.restart_contract import RestartContract
from tests.engines.served_engines import Host, fake_weights, open_served
from tests.engines.tiny_engine import CONFIG, MODEL, open_tiny, random_weights

SERVED = ServedModel(
    path="tiny",
    vocab_size=MODEL.vocab_size,
    max_prompt_tokens=CONFIG.cache_tokens - 1,
    load_weights=weights_loader(MODEL),
)
Served = tuple[SGLangEngine, Host]
Restart = Callable[[], Awaitable[None]]


class Unwatched:
    """Turns that are said to have begun ever later: now and then it is true."""

    num_checkpoints = 1

    async def generate_watched(self, engine: Engine, params: SamplingParams, has_begun: trio.Event) -> Completion:
        async def begin() -> None:
            self.num_checkpoints = self.num_checkpoints % 4096 * 2
            for _ in range(self.num_checkpoints):
                await trio.lowlevel.checkpoint()
            has_begun.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin)
            return await engine.generate(PROMPT, params, session="s")
        raise AssertionError("a nursery without exceptions swallows none")


class TestFakeEngineOverHttp(Unwatched, SpanContract, RestartContract, EngineContract):
    @pytest.fixture(autouse=True)
    def _use_folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    @pytest.fixture
    async def served(self, _use_folder: None) -> AsyncIterator[Served]:
        async with open_served(FakeEngine(name="inner")) as served:
            yield served

    @pytest.fixture
    def engine(self, served: Served) -> Engine:
        return served[0]

    @pytest.fixture
    def restart(self, served: Served) -> Restart:
        async def start_again() -> None:
            served[1].serve(FakeEngine(name="inner"))

        return start_again

    def weights(self, version: int) -> Any:
        return fake_weights(self.folder, version)

    def bad_weights(self) -> Any:
        return fake_weights(self.folder, 1, w=np.ones((3, 2), np.float32))


class TestLocalEngineOverHttp(Unwatched, SpanContract, RestartContract, EngineContract):
    @pytest.fixture(autouse=True)
    def _use_folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    @pytest.fixture
    def tensors_of(self, _use_folder: None) -> Path:
        return self.weights(0)

    @pytest.fixture
    async def served(self, tensors_of: Path) -> AsyncIterator[Served]:
        tensors = tensor_shapes(tensors_of)
        async with open_tiny(name="inner") as inner, open_served(inner, model=SERVED, tensors=tensors) as served:
            yield served

    @pytest.fixture
    def engine(self, served: Served) -> Engine:
        return served[0]

    @pytest.fixture
    async def restart(self, served: Served) -> AsyncIterator[Restart]:
        async with open_tiny(name="inner") as second, open_tiny(name="inner") as third:
            others = iter((second, third))

            async def start_again() -> None:
                served[1].serve(next(others), SERVED)

            yield start_again

    def weights(self, version: int) -> Path:
        folder = self.folder / f"weights-{version}"
        save_pretrained(random_weights(version), MODEL, folder, dtype="float32")
        return folder

    def bad_weights(self) -> Any:
        return fake_weights(self.folder, 1)
