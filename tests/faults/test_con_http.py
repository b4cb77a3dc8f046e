"""CON-02 and IDM-05: thousands of requests at a time, and connections that the server closes first."""

import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.engines.http import HttpError, HttpLimits, open_http_client
from agentrl_jax.engines.http_server import Answer, HttpRequest, ServerLimits
from agentrl_jax.testing.engine import FakeEngine, constant_latency
from agentrl_jax.types import SamplingParams, as_ids
from tests.engines.http_fakes import connect_to
from tests.engines.served_engines import open_served


@pytest.mark.slow
async def test_con_02_five_thousand_turns_at_a_time_all_end(autojump_clock: MockClock) -> None:
    sampling = SamplingParams(temperature=1.0, max_new_tokens=2, seed=0, stop_ids=(15,))
    inner = FakeEngine(token_latency=constant_latency(1))
    num_done = 0
    async with open_served(inner) as (client, _):

        async def ask(number: int) -> None:
            nonlocal num_done
            await client.generate(as_ids([3, 4]), sampling, session=f"s{number}")
            num_done += 1

        async with trio.open_nursery() as nursery:
            for number in range(5000):
                nursery.start_soon(ask, number)
        assert num_done == inner.statistics().num_requests == 5000
        assert trio.current_time() < 15


async def test_idm_05_connections_that_the_server_closes_fail_and_repeat_nothing(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    served: list[str] = []

    async def handler(request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        served.append(request.path)
        return Answer()

    connect = connect_to(nursery, lambda: handler, ServerLimits(idle_s=1))
    async with open_http_client("http://e", connect=connect) as client:
        for number in range(20):
            response = await client.post(f"/{number}", {}, is_idempotent=number % 2 == 0)
            assert response.status == 200
            await trio.sleep(2)
        assert client.statistics().num_retries > 0
    assert served == [f"/{number}" for number in range(20)]


@pytest.mark.parametrize("reuse_s", [0.0, 60.0])  # on a connection of its own, or on one that was used before
async def test_idm_05_what_may_have_been_carried_out_is_repeated_only_if_that_has_no_second_effect(
    reuse_s: float, nursery: trio.Nursery
) -> None:
    served: list[str] = []

    async def handler(request: HttpRequest) -> Answer:
        await trio.lowlevel.checkpoint()
        served.append(request.path)
        if request.path.startswith("/lost") and served.count(request.path) == 1:
            raise trio.BrokenResourceError  # it is done, and nobody hears of it
        return Answer()

    limits, connect = HttpLimits(reuse_s=reuse_s), connect_to(nursery, lambda: handler)
    async with open_http_client("http://e", limits=limits, connect=connect) as client:
        await client.post("/first", {}, is_idempotent=True)
        with pytest.raises(HttpError, match="broke off /lost-once"):
            await client.post("/lost-once", {}, is_idempotent=False)
        await client.post("/second", {}, is_idempotent=True)
        assert (await client.post("/lost-twice", {}, is_idempotent=True)).status == 200
    assert served == ["/first", "/lost-once", "/second", "/lost-twice", "/lost-twice"]
