"""Stopping a machine's processes, where one of them ends what is to stop them."""

import os
import subprocess
from types import SimpleNamespace

import pytest

from envs.sandbox import machines


@pytest.mark.parametrize("num_lost", [0, 1, 5])
def test_a_lost_race_is_run_again(monkeypatch, num_lost):
    entered = enter_as(monkeypatch, ["false"] * num_lost + ["true"])
    freeze()
    assert len(entered) == num_lost + 1


def test_who_loses_every_race_gives_up(monkeypatch):
    entered = enter_as(monkeypatch, ["false"] * 100)
    with pytest.raises(machines.MachineError, match="does not let its processes be stopped"):
        freeze()
    assert 10 <= len(entered) < 100


def enter_as(monkeypatch, programs):
    """What is brought into the machine ends as these programs do."""
    entered, left = [], iter(programs)

    def enter(*_):
        program = next(left)
        entered.append(os.posix_spawnp(program, [program], os.environ))
        return entered[-1]

    monkeypatch.setattr(machines, "_enter", enter)
    return entered


def freeze():
    with subprocess.Popen(["sleep", "60"]) as first:
        descriptor = os.pidfd_open(first.pid)
        try:
            machines.freeze(None, SimpleNamespace(first=descriptor))
        finally:
            os.close(descriptor)
            first.kill()
