"""The picture of pass@k: there is one where there is a curve."""

from pathlib import Path

from agentrl_jax.playing.curves import draw_pass_curves
from agentrl_jax.playing.scores import score
from tests.playing.world import record


def test_a_picture_for_several_samples_only(tmp_path: Path) -> None:
    assert not draw_pass_curves(score([record(solved=True)]), tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()
    episodes = [
        record(solved=bool(sample % 2), mixture=mixture, sample=sample, env=env)
        for sample in range(4)
        for mixture in ("x", "turn:x+y", "episode:x+y")
        for env in ("a", "b")
    ]
    assert draw_pass_curves(score(episodes), tmp_path / "b.png")
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
