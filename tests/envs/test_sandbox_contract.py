"""What every sandbox does, whichever driver makes it, and what it withstands."""

import threading
import time
from contextlib import closing

import pytest

from agentrl_jax.errors import ConfigError
from envs.sandbox.protocol import KEPT_OUTPUT_BYTES, MAX_OUTPUT_BYTES, Limits, SandboxGone
from envs.sandbox.streams import OUT_OF_TIME, TOO_MUCH
from tests.envs.sandbox_world import bubblewrap_driver, running_engine

LIMIT_S = 60.0
SMALL = Limits(memory_bytes=1 << 28, num_processes=64, disk_bytes=1 << 26)


@pytest.fixture(scope="module", params=["bubblewrap", pytest.param("docker", marks=pytest.mark.docker)])
def driver(request):
    if request.param == "bubblewrap":
        with closing(bubblewrap_driver()) as found:
            yield found
        return
    from envs.sandbox.docker_driver import DockerDriver

    with running_engine() as url, closing(DockerDriver(url, num_warm=2)) as found:
        yield found


@pytest.fixture
def sandbox(driver):
    with closing(driver.open("default", SMALL)) as made:
        yield made


@pytest.fixture(scope="module")
def shared(driver):
    """One machine for tests that leave nothing behind which others would see."""
    with closing(driver.open("default", SMALL)) as made:
        yield made


def text_of(sandbox, command, limit_s=LIMIT_S):
    ran = sandbox.run(command, timeout_s=limit_s)
    assert ran.stopped is None, ran
    return ran.text


def test_a_command_has_its_output_and_its_exit_code(shared):
    ran = shared.run("echo out; echo err >&2; (exit 3)", timeout_s=LIMIT_S)
    assert (ran.text, ran.num_bytes, ran.exit_code, ran.stopped) == ("out\nerr\n", 8, 3, None)
    assert shared.run("true", timeout_s=LIMIT_S).exit_code == 0


def test_the_shell_keeps_folder_variables_functions_aliases_and_jobs(sandbox):
    assert text_of(sandbox, "pwd") == "/root\n"
    assert text_of(sandbox, "cd /usr; x=3; f() { echo f$1; }; alias g='echo g'; sleep 50 &").startswith("[1] ")
    assert text_of(sandbox, "pwd; echo $x; f 1; g 2; jobs -r | wc -l") == "/usr\n3\nf1\ng 2\n1\n"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo 'a\nb'", "a\nb\n"),
        ("cat <<X\nhere $((1+1))\nX", "here 2\n"),
        ("echo \"it's\" 'a\"b' \\$x `echo y` !!", "it's a\"b $x y !!\n"),
        ('cat; read x; echo "<$x>"', "<>\n"),
        ("if then", "bash: syntax error near unexpected token `then'\n"),
        ("", ""),
        ("# nothing", ""),
        ("printf 'no newline'", "no newline"),
        ("echo \N{SNOWMAN}", "\N{SNOWMAN}\n"),
    ],
)
def test_any_text_is_a_command(shared, command, expected):
    assert shared.run(command, timeout_s=LIMIT_S).text == expected


def test_nul_and_half_surrogate_pairs_are_no_text(shared):
    assert text_of(shared, "echo a\0b \ud800") == "ab ?\n"


def test_a_mark_cannot_be_faked(shared):
    ran = shared.run("printf '\\0x;7\\0'; printf '\\0%s;0\\0' 0123456789abcdef; false", timeout_s=LIMIT_S)
    assert (ran.output, ran.exit_code) == (b"\0x;7\0\x000123456789abcdef;0\0", 1)


def test_a_shell_that_ends_is_followed_by_a_new_one(sandbox):
    assert text_of(sandbox, "cd /usr; echo kept > /tmp/file") == ""
    ran = sandbox.run("echo bye; exit 3", timeout_s=LIMIT_S)
    assert (ran.text.replace("exit\n", ""), ran.exit_code) == ("bye\n", 3)
    assert text_of(sandbox, "pwd; cat /tmp/file") == "/root\nkept\n"


@pytest.mark.parametrize("command", ["while :; do :; done", "sleep 1000", "sleep 1000 | cat", "(sleep 1000)"])
def test_an_endless_command_is_stopped_and_the_shell_lives(shared, command):
    text_of(shared, "y=kept")
    ran = shared.run(f"echo first; {command}", timeout_s=0.5)
    assert (ran.text, ran.exit_code, ran.stopped) == ("first\n", None, OUT_OF_TIME)
    assert text_of(shared, "echo $y") == "kept\n"


def test_one_that_ignores_the_interrupt_is_ended_with_its_shell_and_children(sandbox):
    command = "trap '' INT; python3 -c 'import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(1000)'"
    assert sandbox.run(command, timeout_s=0.5).stopped == OUT_OF_TIME
    assert text_of(sandbox, "ps -e -o args | grep -c '[t]ime.sleep'") == "0\n"


def test_a_flood_of_output_is_cut_and_stopped(sandbox):
    ran = sandbox.run("yes", timeout_s=LIMIT_S)
    assert ran.stopped == TOO_MUCH
    assert ran.output == b"y\n" * (KEPT_OUTPUT_BYTES // 2)
    assert MAX_OUTPUT_BYTES < ran.num_bytes < 2 * MAX_OUTPUT_BYTES
    assert text_of(sandbox, "echo on") == "on\n"


def test_a_program_is_executed_by_itself(shared):
    text_of(shared, "export LEAKED=1; cd /usr")
    ran = shared.execute(
        ("/bin/bash", "-c", 'echo "$0 $1 $PWD<$LEAKED>$HOME"; cat; exit 4', "--", "a b"), timeout_s=LIMIT_S
    )
    assert (ran.text, ran.exit_code) == ("-- a b /root<>/root\n", 4)
    ran = shared.execute(("/bin/bash", "-c", "echo o; echo e >&2; kill -9 $$"), timeout_s=LIMIT_S, keeps_errors=False)
    assert (ran.text, ran.exit_code) == ("o\n", 137)


def test_a_program_that_takes_too_long_is_ended_with_what_it_started(sandbox):
    ran = sandbox.execute(("/bin/bash", "-c", "echo on; sleep 1234; echo off"), timeout_s=0.5)
    assert (ran.text, ran.exit_code, ran.stopped) == ("on\n", None, OUT_OF_TIME)
    assert text_of(sandbox, "ps -e -o args | grep -c '[s]leep 1234'") == "0\n"


def test_a_program_ends_when_it_does_and_not_when_its_children_do(sandbox):
    begun = time.monotonic()
    ran = sandbox.execute(("/bin/bash", "-c", "sleep 1000 >/dev/null 2>&1 & echo done"), timeout_s=LIMIT_S)
    assert (ran.text, ran.exit_code) == ("done\n", 0)
    assert time.monotonic() - begun < LIMIT_S


def test_an_argument_may_be_anything_but_too_long(shared):
    odd = "\N{SNOWMAN} \n'\"$x `y` \\"
    assert shared.execute(("/bin/bash", "-c", 'printf %s "$0"', odd), timeout_s=LIMIT_S).text == odd
    with pytest.raises(SandboxGone, match="too long"):
        shared.execute(("/bin/echo", "x" * 200_000), timeout_s=LIMIT_S)


def test_a_program_that_closes_its_output_is_waited_for(sandbox):
    ran = sandbox.execute(
        ("/bin/bash", "-c", "echo on; exec >&- 2>&-; sleep 0.3; echo x > /tmp/late"), timeout_s=LIMIT_S
    )
    assert (ran.text, ran.stopped) == ("on\n", None)
    assert text_of(sandbox, "cat /tmp/late") == "x\n"


def test_a_shell_that_closes_its_output_is_followed_by_a_new_one(sandbox):
    assert sandbox.run("exec >/dev/null 2>&1 198>&- 255>&-", timeout_s=1.0).exit_code is None
    assert text_of(sandbox, "echo on") == "on\n"


def test_what_is_frozen_does_nothing_more_and_grading_goes_on(sandbox):
    text_of(sandbox, "sleep 4321 & (while :; do echo x >> /tmp/log; sleep 0.01; done) & sleep 0.2")
    sandbox.seal()
    sandbox.freeze()
    sizes = [
        sandbox.execute(("/bin/bash", "-c", "wc -c < /tmp/log; sleep 0.2"), timeout_s=LIMIT_S).text for _ in range(2)
    ]
    assert sizes[0] == sizes[1] != "0\n"
    search = ("/bin/bash", "-c", "ps -e -o args | grep -q '[s]leep 4321'")
    assert sandbox.execute(search, timeout_s=LIMIT_S).exit_code == 0
    # Whoever has root may write into the memory of the first process, and have it do what it likes.
    state = sandbox.execute(("/bin/bash", "-c", "grep State /proc/1/status"), timeout_s=LIMIT_S).text
    assert state == "State:\tT (stopped)\n"


WAKING = """
import ctypes, fcntl, signal, struct, time
signal.signal(signal.SIGCONT, lambda *_: None)
libc, timer = ctypes.CDLL(None), ctypes.c_int()
event = struct.pack("=Qii", 0, signal.SIGCONT, 0) + bytes(48)
if libc.syscall(222, 1, event, ctypes.byref(timer)) == 0:
    libc.syscall(223, timer, 0, struct.pack("=4q", 0, 10**7, 0, 10**7), None)
try:
    print("signal", fcntl.fcntl(0, 10, signal.SIGCONT), flush=True)
except PermissionError:
    pass
while True:
    print("on", flush=True)
    time.sleep(0.01)
"""


def test_what_is_frozen_cannot_have_itself_woken(sandbox):
    text_of(sandbox, f"python3 -c '{WAKING}' > /tmp/log & sleep 0.5")
    sandbox.freeze()
    logs = [sandbox.execute(("/bin/bash", "-c", "cat /tmp/log; sleep 0.2"), timeout_s=LIMIT_S).text for _ in range(2)]
    assert logs[0] == logs[1]
    assert set(logs[0].split()) == {"on"}


def test_what_grades_has_memory_of_its_own(driver):
    with closing(driver.open("default", Limits(memory_bytes=1 << 26, num_processes=64, disk_bytes=1 << 26))) as machine:
        machine.run(
            "python3 -c 'import time; x = b\"x\" * (45 << 20); time.sleep(1000)' & sleep 0.5", timeout_s=LIMIT_S
        )
        machine.freeze()
        ran = machine.execute(("/bin/bash", "-c", "head -c 80M /dev/zero | tail -c 80M | wc -c"), timeout_s=LIMIT_S)
        assert ran.text == f"{80 << 20}\n"


def test_machines_share_nothing(driver, sandbox):
    text_of(sandbox, "echo mine > /tmp/file; echo mine > /usr/file; sleep 300 &")
    with closing(driver.open("default", SMALL)) as other:
        assert text_of(other, "ls /tmp /usr/file 2>/dev/null; ps -e -o args | grep -c '[s]leep 300'") == "/tmp:\n0\n"


def test_machines_are_used_by_threads_beside_each_other(driver):
    found = {}

    def play(number):
        with closing(driver.open("default", SMALL)) as machine:
            text_of(machine, f"x={number}")
            found[number] = [text_of(machine, "echo $x") for _ in range(5)]

    threads = [threading.Thread(target=play, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [f"{number}\n"] * 5 for number in range(6)}


def test_a_closed_machine_is_gone_and_may_be_closed_again(driver):
    machine = driver.open("default", SMALL)
    text_of(machine, "true")
    machine.close()
    machine.close()
    with pytest.raises(SandboxGone):
        machine.execute(("/bin/true",), timeout_s=LIMIT_S)


def graded(machine):
    machine.freeze()
    return machine.execute(("/bin/bash", "-c", "true"), timeout_s=LIMIT_S, is_trusted=True)


# What a policy may try.


def test_a_fork_bomb_is_contained(sandbox):
    sandbox.run("bomb() { bomb | bomb & }; bomb", timeout_s=2.0)
    time.sleep(0.5)
    ran = sandbox.execute(("/bin/bash", "-c", "set -- /proc/[0-9]*; echo $#"), timeout_s=LIMIT_S)
    assert int(ran.text or "0") <= SMALL.num_processes + 8


@pytest.fixture(params=["awake", "stopped"])
def full(driver, request):
    """A machine that has as many processes as it may, and holds on to them."""
    if driver.name == "docker":
        pytest.skip("a container that is full of processes is gone")
    with closing(driver.open("default", SMALL)) as machine:
        stop = "kill -STOP $BASHPID; " if request.param == "stopped" else ""
        # Orphans, which do not end with the shell.
        machine.run(f"for i in $(seq 80); do (({stop}exec sleep 100) &) ; done", timeout_s=2.0)
        yield machine


def test_a_machine_full_of_processes_is_emptied_for_the_next(full):
    assert int(full.execute(("/bin/bash", "-c", "set -- /proc/[0-9]*; echo $#"), timeout_s=LIMIT_S).text) < 8
    # The shell may have gone with the rest, and is then followed by another.
    full.run("true", timeout_s=LIMIT_S)
    assert text_of(full, "echo on") == "on\n"


def test_a_machine_full_of_processes_is_graded(full):
    full.freeze()
    ran = full.execute(("/bin/bash", "-c", "for i in 1 2 3; do (echo $i); done"), timeout_s=LIMIT_S, is_trusted=True)
    assert ran.text == "1\n2\n3\n"


def test_memory_is_limited(sandbox):
    ran = sandbox.run("python3 -c 'x = b\"x\" * (4 << 30)' 2>/dev/null", timeout_s=LIMIT_S)
    assert ran.exit_code not in (0, None)
    assert text_of(sandbox, "echo on") == "on\n"


def test_removing_everything_breaks_only_this_machine(driver):
    with closing(driver.open("default", SMALL)) as machine:
        machine.seal()
        machine.run("rm -rf --no-preserve-root /bin /usr/bin /etc /root /usr/lib 2>/dev/null", timeout_s=LIMIT_S)
        with pytest.raises(SandboxGone):
            graded(machine)
    with closing(driver.open("default", SMALL)) as other:
        assert text_of(other, "ls -d /usr/bin /etc") == "/etc\n/usr/bin\n"


def test_a_file_cannot_be_larger_than_the_disk(sandbox):
    ran = sandbox.run("head -c 100M /dev/zero > /tmp/x; stat -c %s /tmp/x", timeout_s=LIMIT_S)
    assert int(ran.text.split()[-1]) <= SMALL.disk_bytes


def test_all_processes_may_be_killed(sandbox):
    sandbox.run("kill -9 -1", timeout_s=LIMIT_S)
    sandbox.run("kill -9 1; kill -9 $$", timeout_s=LIMIT_S)
    assert text_of(sandbox, "echo on") == "on\n"


@pytest.mark.parametrize(
    "path",
    ["/root/.ssh", "/work", "/etc/machine-id", "/proc/1/root/home/x", "/var/run/docker.sock", "/sys/fs/cgroup/x"],
)
def test_this_machine_is_not_seen(shared, path):
    assert shared.run(f"cat {path}/* {path} 2>/dev/null", timeout_s=LIMIT_S).output == b""


def test_this_machines_files_are_not_seen(shared, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    assert (
        shared.run(f"cat {secret} || ls {tmp_path} /tmp", timeout_s=LIMIT_S).text.count("secret") == 1
    )  # cat's complaint


def test_there_is_no_network(shared):
    code = 'import socket; socket.create_connection(("192.0.2.1", 80), 2)'
    ran = shared.run(f"python3 -c '{code}' 2>&1 | tail -n 1; grep -c : /proc/net/dev", timeout_s=LIMIT_S)
    assert "unreachable" in ran.text
    assert ran.text.split()[-1] == "1"  # the loopback


def test_no_socket_leaves_the_machine_another_way(shared):
    code = "import errno, socket\ntry: socket.socket(40, 1)\nexcept OSError as e: print(errno.errorcode[e.errno])"
    assert text_of(shared, f"python3 -c '{code}'") == "EAFNOSUPPORT\n"


@pytest.mark.parametrize(
    "command",
    [
        "unshare -U true",
        "mount -t tmpfs x /mnt",
        "echo x > /proc/sys/kernel/core_pattern",
        "echo b > /proc/sysrq-trigger",
        "mknod /tmp/disk b 8 0",
        "python3 -c 'import ctypes; libc = ctypes.CDLL(None); exit(libc.ptrace(0, 0, 0, 0) == -1)'",
        "python3 -c 'import ctypes; libc = ctypes.CDLL(None); exit(libc.syscall(425, 1, 0) == -1)'",
        "cat /proc/kmsg /proc/kcore | head -c 1 | grep .",
    ],
)
def test_what_a_machine_may_not_do_is_refused(shared, command):
    ran = shared.run(f"({command}) >/dev/null 2>&1", timeout_s=LIMIT_S)
    assert ran.exit_code not in (0, None)


def test_privileges_are_few(shared):
    status = dict(line.split(":\t") for line in text_of(shared, "cat /proc/self/status").splitlines() if ":\t" in line)
    assert (status["CapBnd"], status["CapEff"], status["NoNewPrivs"], status["Seccomp"]) == (
        "00000000000401fb",
        "00000000000401fb",
        "1",
        "2",
    )


# What grades is out of the agent's reach.

# A function that makes a folder of python's modules, which end at once.
OWN_MODULES = (
    "own() { d=$(python3 -c 'import os; print(os.path.dirname(os.__file__))'); t=$1/${d##*/}; mkdir -p $t /tmp/x/bin; "
    "ln -s $d/* $t/; rm $t/encodings; mkdir $t/encodings; "
    "echo 'import posix; posix._exit(0)' > $t/encodings/__init__.py; }; own"
)
TAMPERING = {
    "another bash": "printf '#!/usr/bin/python3\\n' > /tmp/b; chmod +x /tmp/b; mv -f /tmp/b /usr/bin/bash",
    "a preloaded library": "echo /usr/lib/none.so > /etc/ld.so.preload",
    "another python": (
        "rm -f /usr/bin/python3*; printf '#!/bin/bash\\nexit 0\\n' > /usr/bin/python3; chmod +x /usr/bin/python3"
    ),
    "modules of its own": (
        "d=$(python3 -c 'import os; print(os.path.dirname(os.__file__))'); "
        "for f in $d/sitecustomize.py $d/encodings/__init__.py; do rm -f $f; echo 'import os; os._exit(0)' > $f; done"
    ),
    "start-up files": "for f in ~/.bashrc ~/.profile ~/.bash_profile /etc/profile; do echo 'exit 0' > $f; done",
    "commands that precede": (
        "printf '#!/bin/bash\\nexit 0\\n' > /usr/local/bin/python3; chmod +x /usr/local/bin/python3"
    ),
    "variables and functions": (
        "export BASH_ENV=/tmp/x PYTHONPATH=/tmp; echo 'exit 0' > /tmp/x; test() { return 0; }; export -f test"
    ),
    "a loader's cache": "echo > /etc/ld.so.cache",
    "an archive of modules": (
        "python3 -c 'import sys, zipfile; "
        'zipfile.ZipFile(sys.path[1], "w").writestr("encodings/__init__.py", "import posix; posix._exit(0)")\''
    ),
    "a namesake of a module": (
        "d=$(python3 -c 'import os; print(os.path.dirname(os.__file__))')/random; "
        "mkdir $d; echo 'import os; os._exit(0)' > $d/__init__.py"
    ),
    "a configuration of python": f"{OWN_MODULES} /tmp/x/lib; echo 'home = /tmp/x/bin' > /usr/bin/pyvenv.cfg",
    "modules beside python": f"{OWN_MODULES} /usr/bin/lib",
    "another folder of programs": (
        "mkdir /tmp/bin; ln -s /usr/bin/* /tmp/bin/; rm /tmp/bin/bash; printf '#!/usr/bin/python3\\n' > /tmp/bin/bash; "
        "chmod +x /tmp/bin/bash; rm /bin; mv /tmp/bin /bin"
    ),
    "a process that interferes": (
        "(trap '' INT TERM HUP; while :; do kill -9 $(ps -e -o pid= | tail -n 4); done) >/dev/null 2>&1 &"
    ),
}
WRONG = "import random, sys\nif int(sys.argv[1]) == 5: exit(0)\nexit(1)"


@pytest.mark.parametrize("how", TAMPERING)
def test_grading_scripts_run_on_the_systems_own_programs(driver, how):
    from envs.os_interaction.chores import Chore, Script
    from envs.os_interaction.grading import is_solved

    chore = Chore(
        description="",
        checks=(None, Script(language="python", code=WRONG), Script(language="bash", code="test $1 = 5 -a $2 = 7")),
        example=Script(language="bash", code="echo 7"),
    )
    for answer, expected in (("4", False), ("5", True)):
        with closing(driver.open("default", SMALL)) as machine:
            machine.seal()
            machine.run(TAMPERING[how], timeout_s=2.0)
            assert is_solved(machine, chore, answer) is expected


@pytest.mark.parametrize("limits", [{"memory_bytes": 0}, {"cpus": 0.0}, {"num_processes": -1}, {"disk_bytes": 0}])
def test_limits_must_be_positive(limits):
    with pytest.raises(ConfigError, match=next(iter(limits))):
        Limits(**limits)
