"""A sandbox's shell and its processes by themselves: marks that are faked, shells that hear nothing, killed helpers."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envs.sandbox import frames, machines
from envs.sandbox.machines import Machine, MachineError
from envs.sandbox.protocol import Limits
from envs.sandbox.shell import Shell
from envs.sandbox.streams import OUT_OF_TIME, PipeStream, read_to_end

ROOT = Path(__file__).resolve().parents[2]


class ScriptedStream:
    """Answers each line that is written by what `say` makes of its mark: a list of pieces."""

    def __init__(self, say, *, code=None):
        self._say, self._code, self._pieces = say, code, [b"\0%b;0\0"]
        self.is_first = True

    def write(self, data):
        mark = re.search(rb"000([0-9a-f]{16});", data)[1]
        say = (lambda mark: [b"\0" + mark + b";0\0"]) if self.is_first else self._say
        self.is_first = False
        self._pieces = say(mark)

    def read(self, deadline):
        return self._pieces.pop(0) if self._pieces else None

    def exit_code(self):
        return self._code

    def close(self):
        pass


def run_with(say, **options):
    shell = Shell(ScriptedStream(say, **options), lambda: None)
    return shell.run("x", 1.0), shell.is_alive


@pytest.mark.parametrize("faked", [b";abc\0", b";-1\0", b";\0", b";99999999\0", b";1 2\0"])
def test_a_mark_that_the_command_has_found_and_faked_is_output(faked):
    ran, is_alive = run_with(lambda mark: [b"a\0" + mark + faked + b"b", b"\0" + mark + b";7\0"])
    assert (ran.exit_code, ran.stopped, is_alive) == (7, None, True)
    assert ran.output.startswith(b"a\0")
    assert ran.output.endswith(faked.removeprefix(b";") + b"b")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_a_mark_may_come_in_pieces(size):
    def pieces(mark):
        whole = b"out\0put\0" + mark + b";130\0"
        return [whole[i : i + size] for i in range(0, len(whole), size)]

    ran, is_alive = run_with(pieces)
    assert (ran.output, ran.exit_code, is_alive) == (b"out\0put", 130, True)


class DeafStream(ScriptedStream):
    def write(self, data):
        if not self.is_first:
            raise TimeoutError("the process reads nothing")
        super().write(data)


def test_a_shell_that_does_not_listen_is_stopped_and_not_waited_for():
    shell = Shell(DeafStream(lambda mark: []), lambda: None)
    ran = shell.run("x", 1.0)
    assert (ran.exit_code, ran.stopped, shell.is_alive) == (None, OUT_OF_TIME, False)


def test_a_process_that_runs_has_no_exit_code():
    (stdin, _), (output, said), (ended, ends) = os.pipe(), os.pipe(), os.pipe()
    stream = PipeStream(stdin, output, ended)
    begun = time.monotonic()
    assert stream.exit_code() is None
    assert time.monotonic() - begun < 5.0
    os.write(ends, b"3")
    assert stream.exit_code() == 3
    stream.close()
    for fd in (said, ends):
        os.close(fd)


@pytest.mark.parametrize(
    ("pieces", "code", "stopped", "is_killed"),
    [([b"out", b""], 3, None, False), ([b"out", b""], None, None, True), ([b"out", None], 3, OUT_OF_TIME, True)],
)
def test_a_program_is_ended_unless_it_has_ended_itself(pieces, code, stopped, is_killed):
    stream, killed = ScriptedStream(None, code=code), []
    stream._pieces = pieces
    ran = read_to_end(stream, b"said ", 1.0, lambda: killed.append(True))
    assert (ran.output, ran.exit_code, ran.stopped) == (b"said out", None if is_killed else code, stopped)
    assert bool(killed) == is_killed


def spawned(script):
    return os.posix_spawn("/bin/sh", ["sh", "-c", script], {})


@pytest.mark.parametrize("script", ["kill -9 $$", "exit 1", "exit 0"])
def test_a_machine_is_frozen_only_if_what_stops_it_was_not_stopped_itself(monkeypatch, script):
    monkeypatch.setattr(machines, "_enter", lambda ground, machine, run: spawned(script))
    pid = spawned("sleep 100")
    machine = Machine(
        pid=pid,
        first=os.pidfd_open(pid),
        first_pid=pid,
        hold=-1,
        limits=Limits(),
        has_group=False,
        cgroup=[],
        layers=[],
    )
    try:
        if script == "exit 0":
            machines.freeze(None, machine)
            assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        else:
            with pytest.raises(MachineError, match="does not let"):
                machines.freeze(None, machine)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(machine.first)


def test_what_is_stopped_on_its_way_into_a_machine_is_not_waited_for():
    ours, theirs = socket.socketpair()
    pid = spawned("kill -STOP $$")
    with ours, theirs:
        with pytest.raises(MachineError, match="stops what is brought into it"):
            machines._heard(ours, pid)
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, 0)


def test_what_is_slow_on_its_way_into_a_machine_is_waited_for(monkeypatch):
    ours, theirs = socket.socketpair()
    look = os.waitid

    def waitid(*arguments):
        frames.send(theirs, "late")
        return look(*arguments)

    monkeypatch.setattr(machines, "_STOPPED_STEP_MS", 0)
    monkeypatch.setattr(machines.os, "waitid", waitid)
    pid = spawned("sleep 100")
    with ours, theirs:
        assert machines._heard(ours, pid) == ("late", ())
    os.kill(pid, signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL


def test_what_a_keeper_forks_cannot_be_looked_into():
    script = "import ctypes; from envs.sandbox.namespaces import hide_memory; hide_memory(); "
    get_dumpable = "exit(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    assert subprocess.run([sys.executable, "-c", script + get_dumpable], cwd=ROOT, check=False).returncode == 0
