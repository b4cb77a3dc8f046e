"""The script that tests on the newest jax: which interpreter it takes, and what it does where there is none."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "tools" / "second_interpreter.sh"


def run(folder: Path, *, is_ci: bool) -> subprocess.CompletedProcess[str]:
    """The script in a copy of its folder, on a PATH of the shell's own tools only."""
    tools, bin_folder = folder / "tools", folder / "bin"
    tools.mkdir()
    bin_folder.mkdir(exist_ok=True)
    (tools / SCRIPT.name).write_bytes(SCRIPT.read_bytes())
    for name in ("dirname", "sort", "ls", "touch"):
        (bin_folder / name).symlink_to(next(Path(p) / name for p in ("/usr/bin", "/bin") if (Path(p) / name).exists()))
    settings = {"PATH": str(bin_folder), "HOME": str(folder)} | ({"CI": "true"} if is_ci else {})
    bash = next(path for path in ("/bin/bash", "/usr/bin/bash") if os.path.exists(path))
    return subprocess.run(
        [bash, str(tools / SCRIPT.name)], env=settings, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(("is_ci", "code"), [(False, 0), (True, 1)])
def test_without_an_interpreter_it_skips_with_a_reason_and_fails_in_ci(is_ci: bool, code: int, tmp_path: Path) -> None:
    done = run(tmp_path, is_ci=is_ci)
    assert done.returncode == code
    assert "no Python >= 3.12 with venv on PATH or in pyenv" in done.stderr
    assert ("skipped" in done.stderr) != is_ci


def test_pyenvs_newest_interpreter_is_found(tmp_path: Path) -> None:
    for version, is_new in {"3.9.18": False, "3.12.1": True, "3.13.0": True}.items():
        folder = tmp_path / ".pyenv" / "versions" / version / "bin"
        folder.mkdir(parents=True)
        stand_in = folder / "python"
        answer = f'[ "$1" = -c ] && exit {int(not is_new)}\n[ "$1" = --version ] && echo "Python {version}" && exit 0'
        stand_in.write_text(f"#!/bin/sh\n{answer}\necho called with $*\nexit 7\n")
        stand_in.chmod(0o755)
    done = run(tmp_path, is_ci=True)
    assert f"{tmp_path}/.pyenv/versions/3.13.0/bin/python (Python 3.13.0)" in done.stdout
    assert done.returncode == 7  # the stand-in makes no environment
