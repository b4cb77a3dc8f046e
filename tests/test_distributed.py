"""The process group: which flags make sense, what is detected, and two processes that learn as one."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from agentrl_jax.distributed import ProcessGroup, ProcessGroupConfig, detect, join, leads
from agentrl_jax.errors import ConfigError
from agentrl_jax.sharding import local_rows, make_mesh, num_row_shares, parse_mesh
from tests.two_processes import MESHES, learn

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"coordinator_address": "a:1"}, "belong together: give all three or none, got a:1, None, None"),
        ({"num_processes": 2, "process_id": 0}, "belong together"),
        ({"coordinator_address": "a", "num_processes": 2, "process_id": 0}, "must be host:port, .* got 'a'"),
        ({"coordinator_address": ":80", "num_processes": 2, "process_id": 0}, "must be host:port"),
        ({"coordinator_address": "a:0", "num_processes": 2, "process_id": 0}, "must be host:port"),
        ({"coordinator_address": "a:65536", "num_processes": 2, "process_id": 0}, "must be host:port"),
        ({"coordinator_address": "a:b", "num_processes": 2, "process_id": 0}, "must be host:port"),
        ({"coordinator_address": "a:1", "num_processes": 0, "process_id": 0}, "--num-processes must be >= 1, got 0"),
        ({"coordinator_address": "a:1", "num_processes": 2, "process_id": 2}, r"in \[0, --num-processes = 2\), got 2"),
        ({"coordinator_address": "a:1", "num_processes": 2, "process_id": -1}, "--process-id must be in"),
    ],
)
def test_half_a_group_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ProcessGroupConfig(**settings)


@pytest.mark.parametrize(
    ("environment", "group"),
    [
        ({}, None),
        ({"SLURM_NTASKS": "16", "SLURM_STEP_NODELIST": "node[001-002]"}, ProcessGroup("SLURM", 16)),
        ({"SLURM_NTASKS": "1", "SLURM_STEP_NODELIST": "node001"}, None),
        ({"SLURM_NTASKS": "16"}, None),  # an allocation, not a step of it
        ({"OMPI_COMM_WORLD_SIZE": "4"}, ProcessGroup("Open MPI", 4)),
        ({"OMPI_COMM_WORLD_SIZE": "many"}, None),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}, ProcessGroup("Kubernetes", None)),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),  # any pod
    ],
)
def test_who_is_started_together_is_told_by_the_environment(environment, group):
    assert detect(environment) == group


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        ({}, {}, True),
        ({"coordinator_address": "a:1", "num_processes": 2, "process_id": 0}, {"OMPI_COMM_WORLD_SIZE": "2"}, True),
        ({"coordinator_address": "a:1", "num_processes": 2, "process_id": 1}, {}, False),
        ({}, {"SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": "0"}, True),
        ({}, {"SLURM_NTASKS": "2", "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_PROCID": "1"}, False),
        ({}, {"SLURM_NTASKS": "1", "SLURM_STEP_NODELIST": "n1", "SLURM_PROCID": "1"}, True),
        ({}, {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}, False),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "2"}, False),
    ],
)
def test_which_process_leads_is_known_before_it_joins(flags, environment, expected):
    assert leads(ProcessGroupConfig(**flags), environment) is expected


def test_a_process_alone_joins_nothing():
    assert join(ProcessGroupConfig()) is None
    assert jax.process_count() == 1


def test_joining_too_late_is_an_error():
    with pytest.raises(ConfigError, match=r"cannot join the process group of the flags: .*must be called before"):
        join(ProcessGroupConfig(coordinator_address="localhost:1", num_processes=1, process_id=0))


@pytest.mark.parametrize("mesh", ["1", "16", "data=2,fsdp=4,tensor=2", "tensor=8"])
def test_one_process_gives_all_rows(mesh):
    mesh = make_mesh(parse_mesh(mesh))
    assert num_row_shares(mesh) == 1
    assert local_rows(mesh, 32) == slice(0, 32)
    if mesh.shape["fsdp"] > 1:
        with pytest.raises(ConfigError, match="must be a multiple of data"):
            local_rows(mesh, 3)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_two_processes_learn_as_one(mesh, tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(HERE / "two_processes.py"), mesh, f"localhost:{port}"]
    processes = [
        subprocess.Popen(
            [*command, str(process_id)],
            cwd=HERE.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for process_id in range(2)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
        assert "rematerialization" not in errors
    first, second = (json.loads(output.splitlines()[-1]) for output, _ in outputs)
    assert first == second
    alone = learn(make_mesh(parse_mesh(mesh)))
    for ours, theirs in zip(first["metrics"], alone["metrics"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)
    assert first["logprobs"] == pytest.approx(alone["logprobs"], abs=1e-5)
    assert first["is_split"]


def test_a_process_that_falls_silent_is_missed_within_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, object] = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda *args, **options: told.update(options, args=args))
    join(ProcessGroupConfig(coordinator_address="host:1", num_processes=2, process_id=1))
    assert told == {"args": ("host:1", 2, 1), "heartbeat_timeout_seconds": 60}
