"""The embedded engine and the shipped fake keep one contract."""

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from agentrl_jax.engines.protocol import Engine
from agentrl_jax.testing.engine import FakeEngine
from tests.engines.contract import EngineContract
from tests.engines.pause_contract import SpanContract
from tests.engines.tiny_engine import open_tiny, random_weights


class TestLocalEngine(SpanContract, EngineContract):
    @pytest.fixture
    async def engine(self) -> AsyncIterator[Engine]:
        async with open_tiny(name="engine-0", pool="lagging") as engine:
            yield engine

    def weights(self, version: int) -> Any:
        return random_weights(version)

    def bad_weights(self) -> Any:
        weights = random_weights(1)
        weights["final_norm"]["scale"] = np.ones(3, np.float32)
        return weights


class TestFakeEngine(SpanContract, EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        return FakeEngine(name="engine-0", pool="lagging", accepts=lambda weights: weights is not None)

    def weights(self, version: int) -> Any:
        return {"version": version}

    def bad_weights(self) -> Any:
        return None
