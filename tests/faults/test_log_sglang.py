"""LOG, GRP and TOK rows that servers and their client decide: what is asked for, and what an answer is."""

import json
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from agentrl_jax.controller.episode import EpisodeConfig, EpisodeSetup, run_episode, single_engine
from agentrl_jax.controller.group import AdmittedGroup, run_group
from agentrl_jax.engines.http import open_http_client
from agentrl_jax.engines.http_server import Answer, HttpRequest, json_answer
from agentrl_jax.engines.protocol import Engine
from agentrl_jax.testing.engine import FakeEngine
from agentrl_jax.testing.envs import EnvScript, SessionLog, scripted_sessions
from agentrl_jax.testing.renderer import VOCABULARY_SIZE, FakeRenderer
from agentrl_jax.types import EpisodeEnd, Task
from launch.config import parse_training
from tests.engines.served_engines import FAKE_MODEL, Host, open_served

TASK = Task(env="a", split="train", index=0, seed=0)
SERVED = replace(FAKE_MODEL, vocab_size=VOCABULARY_SIZE, max_prompt_tokens=500)


def setup_over(engine: Engine, log: SessionLog | None = None, run_seed: int = 0) -> EpisodeSetup:
    """Episodes of two turns at temperature 0.8."""
    return EpisodeSetup(
        sessions=scripted_sessions(EnvScript(rewards=(0.0, 1.0)), log or SessionLog()),
        tools=(),
        renderer=FakeRenderer(),
        choose_engine=single_engine(engine),
        config=EpisodeConfig(max_turns=4, max_new_tokens=8, max_context_tokens=512, temperature=0.8),
        run_seed=run_seed,
    )


def obedient() -> FakeEngine:
    return FakeEngine(script=lambda prompt, sampling: [5, 6])


async def asked_for(group_size: int, *, run_seed: int = 0) -> list[dict[str, Any]]:
    """The sampling parameters of all requests of one group, by what was asked."""
    async with open_served(obedient(), model=SERVED, truncates=False) as (client, host):
        admitted = AdmittedGroup(group_id=3, task=TASK, start_version=0)
        group = await run_group(admitted, group_size=group_size, setup=setup_over(client, run_seed=run_seed))
        assert {t.end for t in group.trajectories} == {EpisodeEnd.COMPLETED}
        bodies = [json.loads(request.body) for request in host.requests if request.path == "/generate"]
    return [body["sampling_params"] for body in sorted(bodies, key=lambda body: body["session_id"])]


async def test_log_06_training_draws_from_the_whole_distribution_whatever_a_servers_defaults_are(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every setting is named: a server may take others from the model's generation_config.json."""
    for asked in await asked_for(2):
        del asked["max_new_tokens"], asked["stop_token_ids"], asked["sampling_seed"]
        assert asked == {
            "temperature": 0.8,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "min_new_tokens": 0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "n": 1,
        }
    for flag in ("--top-p=0.9", "--episode.top-p=0.9", "--engine.top-k=5"):
        with pytest.raises(SystemExit) as caught:
            parse_training([flag], program="launch.train")
        assert caught.value.code == 2
        assert "training samples from the policy's whole distribution" in capsys.readouterr().err


async def test_log_11_every_turn_of_every_member_has_a_seed_of_its_own_and_a_resumed_run_the_same(
    autojump_clock: MockClock,
) -> None:
    seeds = [asked["sampling_seed"] for asked in await asked_for(8)]
    assert len(set(seeds)) == len(seeds) == 8 * 2
    assert seeds == [asked["sampling_seed"] for asked in await asked_for(8)]
    assert not set(seeds) & {asked["sampling_seed"] for asked in await asked_for(8, run_seed=1)}


async def test_log_12_members_differ_whichever_replica_serves_them(autojump_clock: MockClock) -> None:
    """Two replicas that were started alike, and one prompt: what is drawn depends on the member alone."""

    async def drawn(names: tuple[str, str]) -> list[list[int]]:
        found = []
        for member, name in enumerate(names):
            async with open_served(FakeEngine(name=name), model=SERVED) as (client, _):
                trajectory = await run_episode(TASK, 0, member, setup=setup_over(client))
                found.append([*trajectory.turns[0].completion.ids])
        return found

    first, second = await drawn(("a", "b"))
    assert first != second
    assert [first, second] == await drawn(("b", "a"))


async def test_log_07_a_servers_missing_number_masks_its_token_and_no_other(autojump_clock: MockClock) -> None:
    engine = replace(obedient(), nonfinite_positions={1})
    async with open_served(engine, model=SERVED) as (client, _):
        trajectory = await run_episode(TASK, 0, 0, setup=setup_over(client))
        assert client.statistics().num_nonfinite_logprobs == 2
    assert trajectory.end is EpisodeEnd.COMPLETED
    for turn in trajectory.turns:
        assert turn.completion.ids.tolist() == [5, 6, 0]
        assert turn.completion.loss_mask.tolist() == [True, False, True]
        assert turn.completion.logprobs[1] == 0.0


async def test_tok_24_a_stream_has_the_ids_of_the_whole_answer(nursery: trio.Nursery) -> None:
    """Control tokens included, which text would not show."""
    said = [5, 11, 6, 14, 7]
    host = Host(nursery)
    host.serve(FakeEngine(script=lambda prompt, sampling: said), SERVED)
    sampling = {"max_new_tokens": 9, "sampling_seed": 1, "stop_token_ids": [0]}
    asked = {"input_ids": [3, 4], "return_logprob": True, "sampling_params": sampling}
    async with open_http_client("http://e", connect=host.connect) as client:
        whole = json.loads((await client.post("/generate", asked, is_idempotent=True)).body)
        streamed = (await client.post("/generate", asked | {"stream": True}, is_idempotent=True)).body
    *events, end = [part.removeprefix(b"data: ") for part in streamed.split(b"\n\n") if part]
    assert end == b"[DONE]"
    grown = [json.loads(event)["output_ids"] for event in events]
    assert grown == [[*said, 0][: len(ids)] for ids in grown]
    assert grown[-1] == whole["output_ids"] == [*said, 0]


class CutStream(trio.abc.Stream):
    """Ends in the middle of the first answer that has ids in it."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream, self._is_cut = stream, False

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self._is_cut:
            return b""
        data = await self._stream.receive_some(max_bytes)
        place = data.find(b'"output_ids"')
        self._is_cut = place >= 0
        return data[: place + 20] if self._is_cut else data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


class CutHost(Host):
    """A host whose every connection is cut in the middle of a turn."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__(nursery)
        connect = self.connect

        async def cut() -> trio.abc.Stream:
            return CutStream(await connect())

        self.connect = cut


async def test_grp_16_a_connection_that_is_cut_in_an_answer_is_an_error_and_no_short_turn(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    log = SessionLog()
    async with open_served(obedient(), model=SERVED, host=CutHost(nursery)) as (client, _):
        trajectory = await run_episode(TASK, 0, 0, setup=setup_over(client, log))
    assert (trajectory.end, trajectory.reward, trajectory.turns) == (EpisodeEnd.ENGINE_ERROR, None, ())
    assert "broke off /generate" in trajectory.error
    assert (log.num_steps, log.num_open) == (0, 0)


async def test_grp_16_a_turn_that_a_server_aborted_is_an_error_and_no_short_turn(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    class Aborting(Host):
        async def _handle(self, request: HttpRequest) -> Answer:
            answer: Answer = await super()._handle(request)
            if request.path != "/generate":
                return answer
            said = json.loads(answer.body)
            said["meta_info"]["finish_reason"] = {"type": "abort", "message": "out of memory"}
            return json_answer(said)

    async with open_served(obedient(), model=SERVED, host=Aborting(nursery)) as (client, _):
        trajectory = await run_episode(TASK, 0, 0, setup=setup_over(client))
    assert (trajectory.end, trajectory.reward, trajectory.turns) == (EpisodeEnd.ENGINE_ERROR, None, ())
    assert "by abort: out of memory" in trajectory.error
