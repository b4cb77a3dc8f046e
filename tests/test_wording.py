"""How numbers of things and folders are said."""

from pathlib import Path

from agentrl_jax.wording import counted, quoted


def test_one_is_singular() -> None:
    assert [counted(number, "step") for number in (0, 1, 2, 1200)] == ["0 steps", "1 step", "2 steps", "1,200 steps"]


def test_a_folder_is_quoted_where_a_shell_needs_it() -> None:
    assert quoted(Path("runs/a")) == "runs/a"
    assert quoted(Path("my runs/a")) == "'my runs/a'"
