"""The cost of a reply, with room for busy machines: three times the bound of `benchmarks.rendering`."""

import json

import pytest

from benchmarks.rendering import NUM_IDS, main, make_renderer, make_talk, make_tokenizer, stream_at


def test_turns_and_answers_have_two_hundred_ids() -> None:
    renderer = make_renderer(make_tokenizer(None), "keep")
    talk = make_talk(renderer)
    reply = stream_at(renderer, talk, 0).follow(talk.sampled, talk.answer).ids
    assert NUM_IDS - 20 <= len(talk.sampled) <= NUM_IDS + 40
    assert NUM_IDS <= len(reply) <= NUM_IDS + 60
    assert len(renderer.parse(talk.sampled).calls) == 1


def test_a_reply_is_cheap_and_does_not_grow_with_the_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {(line["case"], line["metric"]): line["value"] for line in lines}
    assert found["whole-20", "tokens"] >= 8_000
    assert 0.0 < found["reply-20", "cpu_ms"] < 1.5
    assert found["reply-20", "growth"] < 3.0
    assert found["whole-20", "whole_ratio"] > 5.0
    assert found["strip-20", "cpu_ms"] > found["reply-20", "cpu_ms"]
