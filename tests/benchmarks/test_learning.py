"""Cells are finished once and kept; what they say is computed by hand here; a tiny experiment really runs."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl_jax.config import TrainConfig
from agentrl_jax.errors import ConfigError
from agentrl_jax.saved_config import config_to_json
from benchmarks.figures import Figure
from benchmarks.learning import at_once, main, run_all
from benchmarks.learning_cells import Cells, Settings
from benchmarks.learning_figures import learning_figures

SETTINGS = Settings(tasks=("kg", "alfworld"), max_steps=4, eval_every=2, num_tasks=10, samples=1)


class FakeLaunch:
    """Leaves what launch.train and launch.evaluate would; the arm of a folder decides how many are solved."""

    def __init__(self, solved: dict[str, int]) -> None:
        self.calls: list[list[str]] = []
        self.solved = solved
        self.fails_at: str | None = None
        self.stops_at: str | None = None

    def __call__(self, arguments: Sequence[str]) -> None:
        self.calls.append(list(arguments))
        flags = dict(part.removeprefix("--").partition("=")[::2] for part in arguments if "=" in part)
        if arguments[0] == "launch.train":
            run_dir = Path(flags.get("run-dir") or flags["resume"])
            run_dir.mkdir(parents=True, exist_ok=True)
            config = TrainConfig(max_context_tokens=160 if "specialist" in run_dir.name else 352)
            (run_dir / "config.json").write_text(json.dumps(config_to_json(config)))
            if run_dir.name == self.fails_at:
                raise RuntimeError("killed")
            lines = [
                {"kind": "start"},
                self._evaluation(step=0, mode="sampled", solved=1),
                self._evaluation(step=0, mode="greedy", solved=9),
                self._evaluation(step=4, mode="sampled", solved=self._of(run_dir)),
            ]
            if "max-steps" not in flags or flags["max-steps"] != "0":
                lines.append({"kind": "gain", "mode": "sampled", "envs": {}})
            if run_dir.name == self.stops_at:
                lines = lines[:2]
            (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            return
        out = Path(flags["out"])
        out.mkdir(parents=True)
        solved = self._of(out.parent)
        scores = [
            {
                "mixture": "policy",
                "env": env,
                "num_valid": 10,
                "num_successes": solved,
                "pass_at_k": {"1": 0.5, "2": 0.75},
            }
            for env in flags["tasks"].split(",")
        ]
        (out / "results.json").write_text(json.dumps({"scores": scores}))

    def _of(self, folder: Path) -> int:
        return self.solved.get(folder.name, 5)

    def _evaluation(self, *, step: int, mode: str, solved: int) -> dict[str, Any]:
        return {
            "kind": "evaluation",
            "step": step,
            "mode": mode,
            "env": "kg",
            "num_valid": 10,
            "num_successes": solved,
        }


def value(found: Sequence[Figure], case: str, metric: str) -> float:
    (figure,) = [figure for figure in found if (figure.case, figure.metric) == (case, metric)]
    return figure.value


def test_every_arm_starts_from_the_policy_of_its_seed_with_its_own_flags(tmp_path: Path) -> None:
    run = FakeLaunch({})
    run_all(Cells(tmp_path, SETTINGS, run), ["full", "synchronous", "specialist-kg"], [0])
    trained = [call for call in run.calls if call[0] == "launch.train"]
    assert "--max-steps=0" in trained[0]
    assert all(f"--model={tmp_path / 'policy-0' / 'model'}" in call for call in trained[1:])
    full, synchronous, specialist = trained[1:]
    assert set(synchronous) - set(full) == {f"--run-dir={tmp_path / 'synchronous-0'}", "--rollout.max-staleness=0"}
    assert "--tasks=kg" in specialist
    assert "--tasks=kg,alfworld" in full
    evaluated = [call for call in run.calls if call[0] == "launch.evaluate"]
    assert len(evaluated) == 4  # three arms and the mixtures
    assert all("--tasks=kg,alfworld" in call for call in evaluated)  # a specialist on what it was not trained on, too
    assert all("--max-context-tokens=352" in call for call in evaluated)  # as long as that takes
    assert evaluated[-1][3:9] == ["--name", "full-0", "policy-0", "--mix", "single", "turn"]


def test_finished_cells_are_not_run_again_and_one_cut_short_goes_on(tmp_path: Path) -> None:
    run = FakeLaunch({})
    run.fails_at = "synchronous-0"
    with pytest.raises(RuntimeError, match="killed"):
        run_all(Cells(tmp_path, SETTINGS, run), ["full", "synchronous"], [0])
    assert list(Cells(tmp_path, SETTINGS, run).finished) == ["policy-0", "full-0"]
    again = FakeLaunch({})
    cells = Cells(tmp_path, SETTINGS, again)
    run_all(cells, ["full", "synchronous"], [0])
    assert again.calls[0] == ["launch.train", f"--resume={tmp_path / 'synchronous-0'}"]
    assert list(cells.finished) == ["policy-0", "full-0", "synchronous-0", "mixtures"]
    assert [call[0] for call in again.calls] == ["launch.train", "launch.evaluate", "launch.evaluate"]


def test_cells_of_several_threads_are_those_of_one(tmp_path: Path) -> None:
    one, several = (
        Cells(tmp_path / "one", SETTINGS, FakeLaunch({})),
        Cells(tmp_path / "several", SETTINGS, FakeLaunch({})),
    )
    run_all(one, ["full", "synchronous"], [0, 1, 2])
    run_all(several, ["full", "synchronous"], [0, 1, 2], num_workers=4)
    kept = Cells(tmp_path / "several", SETTINGS, FakeLaunch({})).finished
    assert sorted(kept) == sorted(one.finished)
    for name, cell in one.finished.items():
        assert {**kept[name], "seconds": 0} == {**cell, "seconds": 0}


def test_training_that_was_stopped_is_no_cell(tmp_path: Path) -> None:
    """Asked to stop, it saves and ends with exit code 0, as after its last step."""
    run = FakeLaunch({})
    run.stops_at = "full-0"
    with pytest.raises(RuntimeError, match="full-0 was stopped before its end; the same command goes on"):
        run_all(Cells(tmp_path, SETTINGS, run), ["full", "synchronous"], [0])
    again = FakeLaunch({})
    run_all(Cells(tmp_path, SETTINGS, again), ["full"], [0])
    assert again.calls[0] == ["launch.train", f"--resume={tmp_path / 'full-0'}"]


def test_a_cell_that_was_cut_short_in_its_evaluation_is_not_trained_again(tmp_path: Path) -> None:
    class Stopped(FakeLaunch):
        def __call__(self, arguments: Sequence[str]) -> None:
            super().__call__(arguments)
            if arguments[0] == "launch.evaluate":
                cells.stopping.set()  # as a key pressed does

    cells = Cells(tmp_path, SETTINGS, Stopped({}))
    with pytest.raises(RuntimeError, match="stopped"):
        run_all(cells, ["full"], [0])
    assert list(Cells(tmp_path, SETTINGS, FakeLaunch({})).finished) == ["policy-0"]
    again = FakeLaunch({})
    (tmp_path / "full-0" / "evaluation" / "results.json").unlink()
    (tmp_path / "full-0" / "evaluation").rmdir()
    run_all(Cells(tmp_path, SETTINGS, again), ["full"], [0])
    assert [call[0] for call in again.calls] == ["launch.evaluate", "launch.evaluate"]


def test_a_key_pressed_ends_it_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def press(arguments: Sequence[str]) -> None:
        raise KeyboardInterrupt

    assert main(["--quick", f"--out={tmp_path}"], run=press) == 130
    assert "stopped; the same command goes on with" in capsys.readouterr().err


def test_what_failed_first_is_raised_and_not_what_was_stopped_for_it() -> None:
    for _ in range(100):  # both have ended by the time that anybody looks, now and then
        stopping = threading.Event()

        def stopped(stopping: threading.Event = stopping) -> None:
            assert stopping.wait(10)
            raise RuntimeError("stopped")

        def fails() -> None:
            raise ValueError("the reason")

        with pytest.raises(ValueError, match="the reason"):
            at_once([stopped, fails], 2, stopping)


def test_no_cell_is_begun_after_one_has_failed(tmp_path: Path) -> None:
    run = FakeLaunch({})
    run.fails_at = "full-0"
    with pytest.raises(RuntimeError, match="killed"):
        run_all(Cells(tmp_path, SETTINGS, run), ["full", "synchronous"], range(20))
    begun = [call for call in run.calls if any(part.startswith("--model=") for part in call)]
    assert len(begun) == 1


def test_all_arms_learn_from_batches_of_one_size(tmp_path: Path) -> None:
    run = FakeLaunch({})
    run_all(Cells(tmp_path, Settings(), run), ["full", "synchronous"], [0])
    trained = [call for call in run.calls if call[0] == "launch.train"]
    assert len(trained) == 3
    for call in trained:
        assert {"--rollout.min-groups-per-batch=20", "--rollout.max-groups-per-batch=20"} <= set(call)


def test_half_a_line_of_a_killed_experiment_is_forgotten(tmp_path: Path) -> None:
    run_all(Cells(tmp_path, SETTINGS, FakeLaunch({})), ["full"], [0])
    with (tmp_path / "cells.jsonl").open("a") as file:
        file.write('{"cell":"synchronous-0","sec')
    run_all(Cells(tmp_path, SETTINGS, FakeLaunch({})), ["full", "synchronous"], [0])
    assert list(Cells(tmp_path, SETTINGS, FakeLaunch({})).finished) == [
        "policy-0",
        "full-0",
        "mixtures",
        "synchronous-0",
    ]


def test_another_experiments_folder_is_refused(tmp_path: Path) -> None:
    Cells(tmp_path, SETTINGS, FakeLaunch({}))
    with pytest.raises(ConfigError, match="holds an experiment with other settings"):
        Cells(tmp_path, Settings(), FakeLaunch({}))


def test_figures_by_hand(tmp_path: Path) -> None:
    solved = {"full-0": 8, "full-1": 6, "no-cross-policy-0": 5, "no-cross-policy-1": 5}
    cells = Cells(tmp_path, SETTINGS, FakeLaunch(solved))
    run_all(cells, ["full", "no-cross-policy"], [0, 1])
    found = list(learning_figures(list(cells.finished.values())))
    assert value(found, "full kg", "success") == pytest.approx(0.7)
    assert value(found, "no-cross-policy over full kg", "gain") == pytest.approx(-0.2)
    # Student's t with one degree of freedom: −0.2 ± 12.706 × 0.1, and never beyond one point.
    assert value(found, "no-cross-policy over full kg", "gain_mean") == pytest.approx(-0.2)
    assert value(found, "no-cross-policy over full kg", "gain_low") == -1.0
    assert value(found, "no-cross-policy over full kg", "gain_high") == 1.0
    assert value(found, "full kg step=0", "success") == pytest.approx(0.1)  # sampled, not greedy
    assert value(found, "full kg step=4", "success") == pytest.approx(0.7)
    assert value(found, "policy kg k=2", "pass_at_k") == 0.75


def test_seeds_that_agree_are_no_certainty() -> None:
    def cell(arm: str, seed: int, solved: int) -> dict[str, Any]:
        success = {"kg": {"num_valid": 10, "num_successes": solved}}
        return {"cell": f"{arm}-{seed}", "arm": arm, "seed": seed, "success": success, "curve": [], "seconds": 1.0}

    cells = [cell("full", seed, 10) for seed in (0, 1)] + [cell("synchronous", seed, 9) for seed in (0, 1)]
    found = list(learning_figures(cells))
    assert value(found, "full kg", "success_low") == pytest.approx(0.8389, abs=1e-4)  # Wilson's, of 20 of 20
    assert value(found, "full kg", "success_high") == 1.0
    # Newcombe's, of 18 and 20 of 20: the seeds alone would say −0.1 and −0.1
    assert value(found, "synchronous over full kg", "gain_low") == pytest.approx(-0.3010, abs=1e-4)
    assert value(found, "synchronous over full kg", "gain_high") == pytest.approx(0.0765, abs=1e-4)


def test_contradicting_sizes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--quick", "--full"])
    assert exit_.value.code == 2
    assert "contradict" in capsys.readouterr().err


@pytest.mark.soak
def test_a_tiny_experiment_runs_and_is_not_run_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--json", f"--out={tmp_path}"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"benchmark"')]
    assert {line["case"] for line in lines} >= {"full kg", "full kg step=1"}
    assert any(line["metric"] == "pass_at_k" for line in lines)

    def never(arguments: Sequence[str]) -> None:
        raise AssertionError(arguments)

    assert main(["--quick", f"--out={tmp_path}"], never) == 0
