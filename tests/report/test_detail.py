"""Episodes token by token: ids spelt piece by piece, and each token's own figures."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.algo.advantages import AdvantageConfig
from agentrl_jax.batch import Scores
from agentrl_jax.batch_files import save_batch
from agentrl_jax.packing import build_batch
from agentrl_jax.report.detail import LOGPROB_UNIT, collect_details, pieces
from agentrl_jax.report.episode_table import read_table
from agentrl_jax.report.page import embedded_json
from agentrl_jax.report.recorded_tokens import RecordedTokens
from agentrl_jax.runlog import RunLog
from agentrl_jax.types import as_ids
from tests.report.drawn_run import PACKING, TOKENIZER, draw_group, draw_run, log_step


@given(st.lists(st.integers(0, 255), max_size=40), st.text(max_size=10))
def test_pieces_together_are_the_text_and_there_is_one_for_each_id(noise: list[int], text: str) -> None:
    ids = as_ids([*noise, *TOKENIZER.encode(text), *noise])
    found = pieces(ids, TOKENIZER.decode)
    assert len(found) == len(ids)
    assert "".join(found) == TOKENIZER.decode(ids)


def test_a_character_of_several_ids_stands_at_its_last() -> None:
    assert pieces(as_ids(TOKENIZER.encode("a€b")), TOKENIZER.decode) == ["a", "", "", "€", "b"]


def test_every_sampled_token_has_its_own_figures(tmp_path: Path) -> None:
    """Against the groups that were logged, segment by segment."""
    rng = np.random.default_rng(3)
    groups = [draw_group(rng, number, 2, 3, 0.5, "") for number in range(4)]
    with RunLog(tmp_path / "run") as log:
        log_step(log, 2, groups, rng)
        batch = RecordedTokens(log.batch_path(2))
    table = read_table(tmp_path / "run")
    details = collect_details(table, range(len(table)), {2: batch}, TOKENIZER.decode)
    played = [trajectory for group in groups for trajectory in group.trajectories]
    assert len(details.episodes) == len(played) == 12
    for trajectory, shown in zip(played, details.episodes.values(), strict=True):
        assert shown["hasBatch"] == trajectory.end.is_valid
        for turn, found in zip(trajectory.turns, shown["turns"], strict=True):
            completion = turn.completion
            assert details.texts[found["context"]] == TOKENIZER.decode(turn.context_ids)
            assert "".join(found["pieces"]) == TOKENIZER.decode(completion.ids)
            np.testing.assert_allclose(np.array(found["behavior"]) * LOGPROB_UNIT, completion.logprobs, atol=6e-5)
            assert found["masked"] == [1]
            assert found["versions"] == [(0, 0, 2), (1, 2, len(completion.ids))]
            if trajectory.end.is_valid:
                assert found["lag"] == [1, 0, *[0] * (len(completion.ids) - 2)]
                difference = (np.array(found["learner"]) - np.array(found["behavior"])) * LOGPROB_UNIT
                assert 0 < np.abs(difference).max() < 0.3


def test_a_policy_that_has_broken_down_has_no_logprobs(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    group = draw_group(rng, 0, 1, 2, 1.0, "")
    with RunLog(tmp_path / "run") as log:
        packed = build_batch([group], advantages=AdvantageConfig(), packing=PACKING, learner_version=0)
        scores = [Scores(logprobs=np.full(m.ids.shape, np.nan, np.float32)) for m in packed.micro_batches]
        save_batch(log.batch_path(1), packed, scores)
        for trajectory in group.trajectories:
            log.log_episode(1, trajectory, TOKENIZER.decode)
        batch = RecordedTokens(log.batch_path(1))
    shown = collect_details(read_table(tmp_path / "run"), [0], {1: batch}, TOKENIZER.decode).episodes[0]["turns"][0]
    assert set(shown["learner"]) == {None}
    assert len(shown["learner"]) == len(shown["behavior"])


def test_members_of_one_group_have_one_advantage_each_and_they_add_up_to_nothing(tmp_path: Path) -> None:
    draw_run(tmp_path / "run", num_steps=1, num_groups=2, size=4)
    table = read_table(tmp_path / "run")
    batch = RecordedTokens(tmp_path / "run" / "batches" / "step-000001.npz")
    details = collect_details(table, range(len(table)), {1: batch}, TOKENIZER.decode)
    for shown in details.episodes.values():
        advantages = [turn["advantage"] for turn in shown["turns"] if "advantage" in turn]
        assert all(isinstance(value, float) for value in advantages)
        assert len(set(advantages)) <= 1


def test_without_a_tokenizer_or_a_batch_there_is_text(tmp_path: Path) -> None:
    draw_run(tmp_path / "run", num_steps=1)
    table = read_table(tmp_path / "run")
    plain = collect_details(table, [0], {}, None).episodes[0]["turns"][0]
    assert plain["pieces"] == ["".join(plain["pieces"])]
    assert "behavior" not in plain
    spelt = collect_details(table, [0], {}, TOKENIZER.decode).episodes[0]
    assert not spelt["hasBatch"]
    assert len(spelt["turns"][0]["behavior"]) == len(spelt["turns"][0]["pieces"])
    assert "learner" not in spelt["turns"][0]


@pytest.mark.parametrize("missing", [("logprobs",), ("logprobs", "ids", "context_ids")])
def test_runs_of_earlier_versions_can_be_read(tmp_path: Path, missing: tuple[str, ...]) -> None:
    draw_run(tmp_path / "run", num_steps=1)
    path = tmp_path / "run" / "episodes.jsonl"
    for name in missing:
        path.write_text(path.read_text().replace(f'"{name}":', f'"no_{name}":'))
    batch = RecordedTokens(tmp_path / "run" / "batches" / "step-000001.npz")
    shown = collect_details(read_table(tmp_path / "run"), [0], {1: batch}, TOKENIZER.decode).episodes[0]
    assert ("behavior" in shown["turns"][0]) == ("ids" not in missing)  # the batch has them too


def test_room_is_counted_as_the_page_spells_it(tmp_path: Path) -> None:
    draw_run(tmp_path / "run", num_steps=1, said="<你好>" * 8)
    table = read_table(tmp_path / "run")
    details = collect_details(table, range(len(table)), {}, TOKENIZER.decode, max_bytes=20_000)
    assert details.omitted
    assert len(embedded_json(details.texts)) + len(embedded_json(list(details.episodes.values()))) < 22_000


def test_there_is_room_for_the_first_and_for_as_many_as_fit(tmp_path: Path) -> None:
    draw_run(tmp_path / "run", num_steps=1)
    table = read_table(tmp_path / "run")
    details = collect_details(table, [5, 0, 1, 2], {}, TOKENIZER.decode, max_bytes=1)
    assert list(details.episodes) == [5]
    assert details.omitted == [0, 1, 2]
