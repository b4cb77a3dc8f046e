"""What is left of sandboxes when processes die: nothing."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from envs.sandbox.protocol import Limits, SandboxLost
from tests.envs.sandbox_world import bubblewrap_driver, cgroup_folders, is_alive, processes_in, running_engine

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
# Opens machines, says who ends them and what Docker calls them, and waits to be killed.
OWNER = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from envs.sandbox.protocol import Limits
from envs.sandbox.shared import shared_driver
driver = shared_driver(sys.argv[1]).driver()
def opened(number):
    machine = driver.open("default", Limits())
    machine.run("sleep 1000 & echo x > /tmp/file", timeout_s=60.0)
    return machine
with ThreadPoolExecutor(8) as pool:
    machines = list(pool.map(opened, range(int(sys.argv[2]))))
last = driver._keeper if hasattr(driver, "_keeper") else driver._janitor
print(json.dumps([last.pid, [getattr(machine, "_container", "") for machine in machines]]), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def bubblewrap():
    bubblewrap_driver().close()


def started(sandbox, number):
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, sandbox, str(number)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, *json.loads(process.stdout.readline())


def end_of(process):
    process.kill()
    process.communicate(timeout=PATIENCE_S)


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)  # of processes that are not ours there is no other news
    assert condition()


def traces():
    """Mounts and temporary files of this machine that could be ours."""
    mounts = Path("/proc/mounts").read_text().splitlines()
    names = os.listdir(tempfile.gettempdir())
    return [line for line in mounts if "/layers/" in line], [name for name in names if "sandbox" in name]


def test_nothing_is_left_when_the_owner_is_killed_with_64_sessions(bubblewrap):
    before = traces()
    process, keeper, _ = started("bubblewrap", 64)
    pids = processes_in(cgroup_folders(keeper))
    if cgroup_folders(keeper):
        assert len(pids) >= 3 * 64
    end_of(process)
    wait_until(lambda: not is_alive(keeper))
    wait_until(lambda: not any(map(is_alive, pids)))
    wait_until(lambda: not cgroup_folders(keeper))
    assert traces() == before


def test_machines_die_with_their_keeper_and_the_next_one_removes_what_is_left(bubblewrap):
    process, keeper, _ = started("bubblewrap", 4)
    pids = processes_in(cgroup_folders(keeper))
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, pids)))
    end_of(process)
    bubblewrap_driver().close()
    wait_until(lambda: not cgroup_folders(keeper))


def test_a_driver_without_its_keeper_says_so(bubblewrap):
    driver = bubblewrap_driver()
    machine = driver.open("", Limits())
    machine.run("true", timeout_s=30.0)
    os.kill(driver._keeper.pid, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        machine.execute(("/bin/true",), timeout_s=5.0)
    machine.close()
    driver.close()
    with pytest.raises(SandboxLost, match="were ended"):
        driver.open("", Limits())


def test_a_keeper_that_was_killed_is_followed_by_another(bubblewrap):
    with closing(bubblewrap_driver()) as driver:
        lost = driver.open("", Limits())
        lost.run("true", timeout_s=30.0)
        os.kill(driver._keeper.pid, signal.SIGKILL)
        with pytest.raises(SandboxLost):
            lost.execute(("/bin/true",), timeout_s=5.0)
        with closing(driver.open("", Limits())) as machine:
            assert machine.run("x=1; echo $x", timeout_s=30.0).text == "1\n"
            # The lost one's number may be this one's.
            lost.close()
            assert machine.run("echo $x", timeout_s=30.0).text == "1\n"


def test_a_keeper_knows_nothing_of_its_owners_environment(bubblewrap, monkeypatch):
    monkeypatch.setenv("AGENTRL_TEST_SECRET", "secret")
    with closing(bubblewrap_driver()) as driver:
        assert b"secret" not in Path(f"/proc/{driver._keeper.pid}/environ").read_bytes()


def test_closing_a_driver_ends_its_machines(bubblewrap):
    driver = bubblewrap_driver()
    machine = driver.open("", Limits())
    machine.run("sleep 1000 &", timeout_s=30.0)
    pids = processes_in(cgroup_folders(driver._keeper.pid))
    machine._shell.close()
    driver.close()
    assert not any(map(is_alive, pids))
    wait_until(lambda: not cgroup_folders(driver._keeper.pid))


@pytest.mark.slow
def test_128_machines_at_once(bubblewrap):
    with closing(bubblewrap_driver()) as driver, ThreadPoolExecutor(16) as pool:
        machines = list(pool.map(lambda _: driver.open("", Limits()), range(128)))
        said = pool.map(
            lambda numbered: numbered[1].run(f"x={numbered[0]}; echo $x", timeout_s=60.0).text, enumerate(machines)
        )
        assert list(said) == [f"{number}\n" for number in range(128)]
        list(pool.map(lambda machine: machine.close(), machines))


@pytest.mark.docker
@pytest.mark.parametrize("dies", ["owner", "owner and janitor"])
def test_no_container_is_left_when_the_owner_is_killed_with_64_sessions(dies):
    from envs.sandbox.docker_engine import LABEL, connect, sweep

    with running_engine() as url, closing(connect(url)) as api:
        process, janitor, names = started(f"docker:{url}", 64 if dies == "owner" else 4)
        listed = api.containers(all=True, filters={"label": LABEL})
        assert len(listed) >= (64 if dies == "owner" else 4)
        if dies != "owner":
            os.kill(janitor, signal.SIGKILL)
        end_of(process)
        if dies != "owner":
            # Those that were being started ahead may be left to whoever comes next.
            wait_until(lambda: not {item["Id"] for item in api.containers()}.intersection(names))
            sweep(api)
        wait_until(lambda: not api.containers(all=True, filters={"label": LABEL}))
        wait_until(lambda: not is_alive(janitor))


@pytest.mark.docker
def test_a_container_whose_owner_dies_while_it_starts_ends_by_itself(monkeypatch):
    from envs.sandbox import docker_engine

    monkeypatch.setattr(docker_engine, "_WAITING", docker_engine._WAITING.replace("-t 30", "-t 1"))
    monkeypatch.setattr(docker_engine.Container, "keep", lambda self: None)
    with running_engine() as url, closing(docker_engine.connect(url)) as api:
        # Nothing is said, and the input stays open.
        container = docker_engine.create(api, "default", Limits(), docker_engine.new_mark())
        wait_until(lambda: not api.containers(all=True))
        container.let_go()


@pytest.mark.docker
def test_the_next_driver_removes_what_a_killed_one_left_behind():
    from envs.sandbox.docker_driver import DockerDriver
    from envs.sandbox.docker_engine import LABEL, connect, create, new_mark

    with running_engine() as url, closing(connect(url)) as api:
        own = new_mark()
        world, pid, began, word = own.rsplit(".", 3)
        dead, elsewhere = f"{world}.{pid}.{int(began) + 1}.{word}", f"other-boot.1.{pid}.{began}.{word}"
        made = [create(api, "default", Limits(), mark) for mark in (own, elsewhere, dead)]
        with closing(DockerDriver(url, num_warm=0)):
            kept = {container.name for container in made[:2]}
            assert {item["Id"] for item in api.containers(all=True, filters={"label": LABEL})} == kept
        for container in made:
            container.let_go()
        wait_until(lambda: not api.containers(all=True, filters={"label": LABEL}))
