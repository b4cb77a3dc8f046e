"""The parts of sandboxes by themselves: system calls, control groups, layers, frames, the host's files."""

import errno
import json
import os
import socket
import stat
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.errors import ConfigError
from envs.sandbox import base_root, cgroups, frames, layers
from envs.sandbox.cgroups import OwnedCgroups, Places, find_places, start_time
from envs.sandbox.layers import Layer, TooMuchChanged
from envs.sandbox.protocol import Limits
from envs.sandbox.seccomp import docker_profile, filter_program
from envs.sandbox.shared import shared_driver

X86, ARM = ("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)
ALLOWED = 0x7FFF0000


def verdict(machine, architecture, number, *arguments):
    """What a kernel would answer: an errno, or 0."""
    data = struct.pack("=iIQ6Q", number, architecture, 0, *(*arguments, *[0] * (6 - len(arguments))))
    steps = list(struct.iter_unpack("=HBBI", filter_program(machine)))
    position = accumulator = 0
    while True:
        code, if_true, if_false, constant = steps[position]
        position += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, constant)
        elif code == 0x06:
            assert constant == ALLOWED or constant & 0xFFFF0000 == 0x50000
            return 0 if constant == ALLOWED else constant & 0xFFFF
        else:
            holds = {0x15: accumulator == constant, 0x35: accumulator >= constant, 0x45: bool(accumulator & constant)}
            position += if_true if holds[code] else if_false


@pytest.mark.parametrize(
    ("name", "x86", "arm", "arguments", "expected"),
    [
        ("read", 0, 63, (), 0),
        ("execve", 59, 221, (), 0),
        ("chroot", 161, 51, (), 0),
        ("mount", 165, 40, (), errno.EPERM),
        ("ptrace", 101, 117, (), errno.EPERM),
        ("bpf", 321, 280, (), errno.EPERM),
        ("io_uring_setup", 425, 425, (), errno.EPERM),
        ("mount_setattr", 442, 442, (), errno.EPERM),
        ("unshare", 272, 97, (0x10000000,), errno.EPERM),
        ("clone of a thread", 56, 220, (0x3D0F00,), 0),
        ("clone of a process", 56, 220, (17,), 0),
        ("clone with users", 56, 220, (0x10000000 | 17,), errno.EPERM),
        ("clone with a network", 56, 220, (0x40000000 | 17,), errno.EPERM),
        ("clone3", 435, 435, (), errno.ENOSYS),
        ("unix socket", 41, 198, (1, 1), 0),
        ("internet socket", 41, 198, (2, 1), 0),
        ("netlink socket", 41, 198, (16, 3), 0),
        ("socket of virtual machines", 41, 198, (40, 1), errno.EAFNOSUPPORT),
        ("socket of Bluetooth", 41, 198, (31, 1), errno.EAFNOSUPPORT),
        ("pair of unix sockets", 53, 199, (1, 1), 0),
        ("pair of TIPC sockets", 53, 199, (30, 1), errno.EAFNOSUPPORT),
        ("flags of a file", 72, 25, (0, 4), 0),
        ("signal of a file", 72, 25, (0, 10), errno.EPERM),
        ("timer with a signal", 222, 107, (), errno.ENOSYS),
        ("message with a signal", 244, 184, (), errno.ENOSYS),
        ("alarm", 38, 103, (), 0),
        ("terminal size", 16, 29, (0, 0x5413), 0),
        ("typing", 16, 29, (0, 0x5412), errno.EPERM),
    ],
)
def test_system_calls_are_let_through_or_refused(name, x86, arm, arguments, expected):
    assert verdict(*X86, x86, *arguments) == expected
    assert verdict(*ARM, arm, *arguments) == expected


def test_calls_of_other_kinds_do_not_exist():
    assert verdict("x86_64", 0x40000003, 165) == errno.ENOSYS  # of 32 bits
    assert verdict(*X86, 0x40000000 | 165) == errno.ENOSYS  # of x32
    with pytest.raises(ConfigError, match="riscv64"):
        filter_program("riscv64")


def test_docker_is_told_the_same():
    profile = json.loads(docker_profile())
    rules = {name: rule for rule in profile["syscalls"] if "args" not in rule for name in rule["names"]}
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    assert {"mount", "ptrace", "bpf", "io_uring_setup", "keyctl", "unshare"} <= rules.keys()
    assert {rules[name]["errnoRet"] for name in ("clone3", "timer_create", "mq_notify")} == {errno.ENOSYS}
    (signals,) = (rule["args"] for rule in profile["syscalls"] if rule["names"] == ["fcntl"])
    assert signals == [{"index": 1, "value": 10, "op": "SCMP_CMP_EQ"}]
    families = [rule["args"][0]["value"] for rule in profile["syscalls"] if rule["names"] == ["socket", "socketpair"]]
    assert 40 in families
    assert not {1, 2, 10, 16} & set(families)
    masks = [rule["args"][0]["value"] for rule in profile["syscalls"] if rule["names"] == ["clone"]]
    assert sorted(masks) == [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000]


# Control groups, in folders that behave like the kernel's.

V1_FILES = {
    "memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    "pids": ("pids.max",),
    "cpu": ("cpu.cfs_quota_us",),
}
V2_FILES = ("memory.max", "memory.swap.max", "pids.max", "cpu.max", "cgroup.subtree_control")


@pytest.fixture
def kernel(monkeypatch):
    """Makes new folders hold what the kernel would put there, and go as the kernel's do."""
    make, remove = Path.mkdir, Path.rmdir

    def mkdir(self, *args, **kwargs):
        make(self, *args, **kwargs)
        names = next((files for name, files in V1_FILES.items() if f"/{name}/" in str(self)), V2_FILES)
        for name in (*names, "cgroup.procs"):
            (self / name).write_text("")

    def rmdir(self):
        for path in self.iterdir():
            if path.is_file():
                path.unlink()
        remove(self)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "rmdir", rmdir)


def proc_with(folder, groups, mounts):
    own = folder / "proc" / "self"
    os.makedirs(own)
    (own / "cgroup").write_text(groups)
    (own / "mountinfo").write_text(mounts)
    return folder / "proc"


def test_groups_of_version_1_are_made_below_ones_own(tmp_path, kernel):
    for name in ("memory/box", "pids", "cpu"):
        os.makedirs(tmp_path / "fs" / name)
    mounts = "".join(
        f"3{i} 1 0:1 / {tmp_path}/fs/{name} rw - cgroup cgroup rw,{name}\n"
        for i, name in enumerate(("memory", "pids", "cpu"))
    )
    places = find_places(proc_with(tmp_path, "4:memory:/box\n3:pids:/\n1:cpu:/elsewhere\n", mounts))
    assert places is not None
    assert places.version == 1
    assert {str(folder.relative_to(tmp_path / "fs")) for folder in places.folders} == {"memory/box", "pids", "cpu"}
    owned = OwnedCgroups(places)
    group = owned.create("7", Limits(memory_bytes=1000, cpus=1.5, num_processes=9))
    values = {path.name: path.read_text() for folder in group for path in folder.iterdir() if path.read_text()}
    assert values == {
        "memory.limit_in_bytes": "1000",
        "memory.memsw.limit_in_bytes": "1000",
        "pids.max": "9",
        "cpu.cfs_quota_us": "150000",
    }
    owned.widen(group, Limits(memory_bytes=1000))
    widened = {path.read_text() for folder in group for path in folder.glob("memory.*limit_in_bytes")}
    assert widened == {str(1000 + (1 << 28))}
    owned.remove(group)
    assert not any(folder.exists() for folder in group)
    owned.close()
    assert not list((tmp_path / "fs").glob("**/agentrl_jax*"))


def test_groups_of_version_2_are_made_where_their_controllers_are(tmp_path, kernel):
    top = tmp_path / "fs"
    os.makedirs(top / "own")
    for folder in (top, top / "own"):
        (folder / "cgroup.subtree_control").write_text("")
    places = find_places(proc_with(tmp_path, "0::/own\n", f"30 1 0:1 / {top} rw - cgroup2 cgroup2 rw\n"))
    assert places == Places(version=2, folders=(top / "own",))
    owned = OwnedCgroups(places)
    owned.hand_over(os.getuid())
    (group,) = owned.create("0", Limits(memory_bytes=1000, cpus=2.0, num_processes=9))
    assert (group / "memory.max").read_text() == "1000"
    assert (group / "memory.swap.max").read_text() == "0"
    assert (group / "pids.max").read_text() == "9"
    assert (group / "cpu.max").read_text() == "200000 100000"
    assert (group.parent / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    owned.widen([group], Limits(memory_bytes=1000))
    assert (group / "memory.max").read_text() == str(1000 + (1 << 28))
    assert (group.parent / "keeper" / "cgroup.procs").read_text() == "0"


def test_without_a_hierarchy_there_are_no_groups(tmp_path):
    assert find_places(proc_with(tmp_path, "0::/\n", "30 1 0:1 / /x rw - tmpfs tmpfs rw\n")) is None


def test_what_dead_processes_left_is_swept_and_what_lives_is_not(tmp_path, kernel):
    places = Places(version=2, folders=(tmp_path,))
    (tmp_path / "cgroup.subtree_control").write_text("")
    (tmp_path / f"agentrl_jax-{os.getpid()}-{start_time(os.getpid())}").mkdir()
    for name in ("agentrl_jax-999999999-1", f"agentrl_jax-{os.getpid()}-1", "agentrl_jax-other", "system.slice"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "3").mkdir()
    OwnedCgroups(places).sweep()
    left = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert left == {f"agentrl_jax-{os.getpid()}-{start_time(os.getpid())}", "agentrl_jax-other", "system.slice"}


def test_a_process_is_told_from_a_later_one_by_its_start():
    assert start_time(os.getpid()) == start_time(os.getpid())
    assert start_time(1) != start_time(os.getpid())
    assert start_time(999_999_999) is None


# Layers.


@pytest.fixture
def layer(tmp_path):
    for name in ("lower/bin", "lower/lib/deep", "upper"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lower/bin/tool").write_text("original")
    (tmp_path / "lower/bin/link").symlink_to("tool")
    (tmp_path / "lower/lib/deep/file").write_text("x" * 100)
    fds = [os.open(tmp_path / name, os.O_RDONLY | os.O_DIRECTORY) for name in ("lower", "upper")]
    made = Layer(point="usr", lower=fds[0], upper=fds[1])
    yield made
    made.close()


def whiteout(path):
    try:
        os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))
    except PermissionError:
        pytest.skip("no device 0/0 can be made here")


def test_only_other_content_is_a_change(layer, tmp_path):
    upper = tmp_path / "upper"
    assert layers.changes([layer]) == {}
    (upper / "bin").mkdir()
    (upper / "bin/tool").write_text("original")
    (upper / "bin/tool").chmod(0o4755)
    (upper / "bin/new").write_text("added")
    (upper / "bin/link").symlink_to("tool")
    (upper / "share").mkdir()
    assert layers.changes([layer]) == {}
    (upper / "bin/tool").write_text("changed!")
    (upper / "bin/link").unlink()
    (upper / "bin/link").symlink_to("/tmp/tool")
    (upper / "lib/deep").mkdir(parents=True)
    whiteout(upper / "lib/deep/file")
    assert sorted(layers.changes([layer])) == ["usr/bin/link", "usr/bin/tool", "usr/lib/deep/file"]


def test_a_folder_that_is_gone_cannot_be_put_back(layer, tmp_path):
    (tmp_path / "upper/lib").symlink_to("/tmp")
    with pytest.raises(TooMuchChanged, match="lib"):
        layers.changes([layer])


@pytest.mark.parametrize(
    ("name", "is_decisive"),
    [
        ("sbin/tool", True),
        ("sbin/new", False),
        ("bin/lib", True),
        ("bin/pyvenv.cfg", True),
        ("pyvenv.cfg", True),
        ("lib/python311.zip", True),
        ("lib/python3.11/random", True),
        ("lib/python3.11/json/tool.so", True),
        ("lib/python3.11/__pycache__/x.pyc", False),
        ("lib/python3/dist-packages/x.py", False),
        ("lib/deep/x", False),
    ],
)
def test_an_addition_counts_only_if_it_precedes_something(layer, tmp_path, name, is_decisive):
    for folder in ("sbin", "lib/python3.11/json", "lib/python3.11/__pycache__", "lib/python3/dist-packages"):
        (tmp_path / "lower" / folder).mkdir(parents=True)
    path = tmp_path / "upper" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("added")
    assert [*layers.changes([layer])] == ([f"usr/{name}"] if is_decisive else [])


@pytest.mark.parametrize("how", ["a link", "another folder"])
def test_a_folder_above_that_was_replaced_cannot_be_put_back(tmp_path, how):
    (tmp_path / "lower/usr/bin").mkdir(parents=True)
    (tmp_path / "upper").mkdir()
    if how == "a link":
        (tmp_path / "upper/usr").symlink_to("/tmp")
    else:
        (tmp_path / "upper/usr").mkdir()
        try:
            os.setxattr(tmp_path / "upper/usr", "user.overlay.opaque", b"y")
        except OSError:
            pytest.skip("no extended attributes here")
    fds = [os.open(tmp_path / name, os.O_RDONLY | os.O_DIRECTORY) for name in ("lower", "upper")]
    whole = Layer(point="", lower=fds[0], upper=fds[1])
    with pytest.raises(TooMuchChanged, match="usr"):
        layers.changes([whole])
    whole.close()


def test_too_many_changes_cannot_be_put_back(layer, tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "_MAX_CHANGES", 1)
    (tmp_path / "upper/bin").mkdir()
    for name in ("tool", "link"):
        (tmp_path / "upper/bin" / name).write_text("other")
    with pytest.raises(TooMuchChanged):
        layers.changes([layer])


# What sandboxes see of this machine.


def host_in(folder):
    for name in ("usr/bin", "usr/local/bin", "usr/lib", "etc/pam.d", "etc/ssh"):
        (folder / name).mkdir(parents=True)
    for name in ("bash", "env", "sleep"):
        (folder / "usr/bin" / name).write_text("")
    (folder / "bin").symlink_to("usr/bin")
    for name in ("shadow", "hosts", "profile", "machine-id", "ssh/key", "pam.d/su", "pam.d/private"):
        (folder / "etc" / name).write_text(f"of the host: {name}")
    (folder / "etc/pam.d/private").chmod(0o600)
    return folder


def test_only_listed_public_files_are_copied(tmp_path):
    host, target = host_in(tmp_path / "host"), tmp_path / "target"
    target.mkdir()
    base_root.check_host(host)
    base_root.build(target, host)
    copied = {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file() and "of the host" in p.read_text()}
    assert copied == {"etc/profile", "etc/pam.d/su"}
    assert os.readlink(target / "bin") == "usr/bin"
    assert stat.S_IMODE((target / "root").stat().st_mode) == 0o700
    assert stat.S_IMODE((target / "tmp").stat().st_mode) == 0o1777
    assert (target / "etc/passwd").read_text().startswith("root:x:0:0:root:/root:/bin/bash\n")
    assert {path.stat().st_mtime for path in target.rglob("*") if not path.is_symlink()} == {1_704_067_200}


def test_a_machine_whose_programs_cannot_be_shared_is_refused(tmp_path):
    host = host_in(tmp_path)
    (host / "usr/bin/bash").unlink()
    with pytest.raises(ConfigError, match="no /usr/bin/bash"):
        base_root.check_host(host)
    (host / "bin").unlink()
    (host / "bin").mkdir()
    with pytest.raises(ConfigError, match="--sandbox bubblewrap:FOLDER"):
        base_root.check_host(host)


# Frames.


@given(st.recursive(st.none() | st.text() | st.integers(), lambda inner: st.lists(inner, max_size=3)))
def test_values_arrive_as_they_were_sent(value):
    one, other = socket.socketpair()
    with one, other:
        frames.send(one, value)
        assert frames.receive(other) == (value, ())


def test_a_short_value_goes_out_in_one_piece_as_two_may_speak_at_once():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        frames.send(one, "words")
        assert other.recv(100).endswith(b'"words"')


def test_descriptors_come_with_values_and_do_not_pass_to_programs():
    one, other = socket.socketpair()
    read, write = os.pipe()
    with one, other:
        frames.send(one, {"x": "y" * 100_000}, (write,))
        os.close(write)
        value, (copy,) = frames.receive(other)
        assert len(value["x"]) == 100_000
        assert not os.get_inheritable(copy)
        os.write(copy, b"hi")
        assert os.read(read, 2) == b"hi"
        os.close(copy)
        one.close()
        assert frames.receive(other) is None
    os.close(read)


@pytest.mark.parametrize("wanted", ["podman", "", "docker:tcp//nonsense"])
def test_unknown_sandboxes_are_refused(wanted):
    with pytest.raises(ConfigError):
        shared_driver(wanted)


def test_a_folder_must_hold_a_file_system(tmp_path):
    with pytest.raises(ConfigError, match="bubblewrap"):
        shared_driver(f"bubblewrap:{tmp_path}")


def test_groups_that_still_hold_processes_are_waited_for_but_not_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "_GONE_S", 0.05)
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy/file").write_text("")
    with pytest.raises(OSError, match="not empty"):
        OwnedCgroups(Places(version=2, folders=(tmp_path,))).remove([tmp_path / "busy"])


def test_what_grades_has_memory_and_processes_of_its_own(tmp_path):
    limits = Limits(memory_bytes=1 << 20, num_processes=64)
    for name in ("memory.max", "pids.max"):
        (tmp_path / name).write_text("")
    OwnedCgroups(Places(version=2, folders=(tmp_path,))).widen([tmp_path], limits)
    assert (tmp_path / "pids.max").read_text() == str(64 + cgroups.GRADING_PROCESSES)
    assert (tmp_path / "memory.max").read_text() == str((1 << 20) + cgroups.GRADING_BYTES)


def test_nothing_forks_while_a_group_is_emptied(tmp_path, monkeypatch):
    (tmp_path / "pids.max").write_text("64\n")
    (tmp_path / "cgroup.procs").write_text("1\n77\n")
    (tmp_path / "pids.current").write_text("2\n")
    seen = []

    def kill(pid, _):
        seen.append((pid, (tmp_path / "pids.max").read_text()))
        (tmp_path / "pids.current").write_text("1\n")

    monkeypatch.setattr(cgroups.os, "kill", kill)
    OwnedCgroups(Places(version=2, folders=(tmp_path,))).end_all_but({1}, [tmp_path], num_waited_for=0)
    assert seen == [(77, "0")]
    assert (tmp_path / "pids.max").read_text() == "64\n"
