"""launch/cluster/slurm.sbatch, carried out with stand-ins for SLURM's commands and for SGLang, on one machine."""

import os
import re
import shlex
import signal
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from launch.command import parse
from launch.config import parse_training
from launch.worker import WorkerConfig

SCRIPT = Path(__file__).resolve().parents[2] / "launch" / "cluster" / "slurm.sbatch"

SRUN = r"""#!/bin/bash
# Carries a step out on this machine: what the learner is told is kept, the others run as two tasks, or as one.
set -u
group=${1#--het-group=}
shift
while [[ $1 == --* ]]; do shift; done
if [[ $group == 0 ]]; then
    exec 9<> "$STARTED"
    for _ in 1 2 3 4; do read -r -u 9; done
    printf '%q ' "$@" > "$AGENTRL_SHARED/learner.new"
    env | grep -c "^AGENTRL_ENGINE_TOKEN=" > "$AGENTRL_SHARED/learner.env"
    stat -c %a "$AGENTRL_SECRETS"/* | sort -u > "$AGENTRL_SHARED/modes"
    cp "$AGENTRL_SECRETS/engine.yaml" "$AGENTRL_SHARED/engine.yaml"
    mkdir -p "$AGENTRL_SHARED/run" && echo '{}' > "$AGENTRL_SHARED/run/config.json"
    mv "$AGENTRL_SHARED/learner.new" "$AGENTRL_SHARED/learner"
    if [[ -n ${LEARNER_WAITS:-} ]]; then
        sleep 60 & sleeper=$!
        trap 'echo told > "$AGENTRL_SHARED/told"; kill $sleeper; exit 0' TERM
        echo waiting > "$LEARNER_WAITS"
        wait
    fi
    exit "${LEARNER_CODE:-0}"
fi
set -m  # so that a task can be killed with all that it has started, as SLURM does
trap 'for pid in $(jobs -p); do kill -- -$pid; done; exit' TERM
for place in 0 1; do
    SLURM_LOCALID=$place SLURM_PROCID=$place "$@" &
done
wait
"""

PROGRAM = r"""#!/bin/bash
# Stands for both interpreters: says what it was asked for, and serves until it is killed.
line=$(printf '%q ' "${CUDA_VISIBLE_DEVICES:-}" "$@")
echo "$line" >> "$AGENTRL_SHARED/asked"
[[ $2 == launch.cluster.health ]] && exit "${HEALTH:-0}"
echo "$2" > "$STARTED"
exec sleep 60
"""


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """The environment of a job of one node for each component."""
    (tmp_path / "bin").mkdir()
    programs = {"srun": SRUN, "python": PROGRAM, "scontrol": '#!/bin/bash\necho "$3" | tr , "\\n"\n'}
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "data").mkdir()
    os.mkfifo(tmp_path / "started")  # by which the two servers and the two workers say that they are
    return {
        "STARTED": f"{tmp_path}/started",
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "AGENTRL_MODEL": f"{tmp_path}/model",
        "AGENTRL_DATA": f"{tmp_path}/data",
        "AGENTRL_SHARED": f"{tmp_path}/shared",
        "AGENTRL_PYTHON": f"{tmp_path}/bin/python",
        "AGENTRL_SGLANG_PYTHON": f"{tmp_path}/bin/python",
        "AGENTRL_TASKS": "kg:train webshop:train",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "learn1,learn2",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "serve1",
        "SLURM_JOB_NODELIST_HET_GROUP_2": "work1",
        "SLURM_NTASKS_PER_NODE_HET_GROUP_0": "8",
        "SLURM_NTASKS_PER_NODE_HET_GROUP_1": "4",
    }


def carry_out(settings: dict[str, str], *flags: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPT), *flags]
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=50, check=False)


def learner_arguments(shared: Path) -> list[str]:
    words = shlex.split((shared / "learner").read_text())
    assert words[1:3] == ["-m", "launch.train"]
    return words[3:]


def asked(shared: Path, module: str) -> list[list[str]]:
    """What the stand-in was asked for, when it was to run `module`: the GPUs that it saw, then the module's flags."""
    lines = [shlex.split(line) for line in (shared / "asked").read_text().splitlines()]
    return sorted([line[0], *line[3:]] for line in lines if line[2] == module)


def test_it_parses_and_its_head_asks_for_three_components() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    directives = re.findall(r"^#SBATCH (.*)", SCRIPT.read_text(), re.MULTILINE)
    components = " ".join(directives).split(" hetjob ")
    assert [re.findall(r"--ntasks-per-node=(\d+)", each) for each in components] == [["8"], ["4"], ["5"]]
    assert ["--gres=gpu:8" in each for each in components] == [True, True, False]
    assert all("--time=" in each for each in components)


def test_a_job_starts_servers_workers_and_the_learner_and_leaves_nothing(settings: dict[str, str]) -> None:
    shared = Path(settings["AGENTRL_SHARED"])
    done = carry_out(settings, "--max-steps=3")
    assert done.returncode == 0, done.stderr
    assert "4 servers on 1 nodes serve, tasks come from 1 nodes" in done.stdout

    arguments = learner_arguments(shared)
    token = next(word.partition("=")[2] for word in arguments if word.startswith("--remote.listen.token-file="))
    assert not Path(token).exists()  # secrets are gone with the job
    config, _ = parse_training([*arguments, "--dry-run"], program="launch.train")
    assert config.tasks == "remote:kg-train,remote:webshop-train"
    assert (config.recipe, config.mesh, config.max_steps) == ("paper-14b", "16", 3)
    assert config.engines == tuple(f"sglang:http://serve1:{port}" for port in (30000, 30001, 30002))
    assert config.lagging_engines == ("sglang:http://serve1:30003",)
    assert config.publish.folder == shared / "exports"
    assert (config.remote.listen.host, config.remote.listen.port) == ("0.0.0.0", 5020)

    assert [line[0] for line in asked(shared, "sglang.launch_server")] == ["0,1", "2,3"]
    ports = [line[-2:] for line in asked(shared, "sglang.launch_server")]
    assert ports == [["--port", "30000"], ["--port", "30001"]]
    assert sorted(path.name for path in shared.iterdir() if path.name.startswith("secrets")) == []


def test_workers_are_given_settings_that_hold(settings: dict[str, str], tmp_path: Path) -> None:
    shared = Path(settings["AGENTRL_SHARED"])
    assert carry_out(settings).returncode == 0
    secret = tmp_path / "secret"
    secret.write_text("abc")
    secret.chmod(0o600)
    workers = asked(shared, "launch.worker")
    assert [line[1] for line in workers] == ["kg", "webshop"]
    for number, line in enumerate(workers):
        words = [re.sub(r"(token-file)=.*", rf"\1={secret}", word) for word in line[1:]]
        config = parse(WorkerConfig, words, program="launch.worker")
        assert (config.split, config.concurrency) == ("train", 512)
        assert config.controller == "http://learn1:5020/api"
        assert (config.controller_token_file, config.token_file) == (secret, secret)
        assert config.place.reached_at(config.port).endswith(f":{5021 + number}/abc/api")


def test_no_secret_stands_on_a_command_line(settings: dict[str, str]) -> None:
    shared = Path(settings["AGENTRL_SHARED"])
    assert carry_out(settings).returncode == 0
    server = yaml.safe_load((shared / "engine.yaml").read_text())
    assert server["model-path"] == settings["AGENTRL_MODEL"]
    assert (server["tp-size"], server["host"]) == (2, "0.0.0.0")
    assert re.fullmatch(r"[0-9a-f]{64}", server["api-key"])
    for name in ("learner", "asked"):
        assert server["api-key"] not in (shared / name).read_text()
        assert not re.search(r"[0-9a-f]{64}", (shared / name).read_text())
    assert (shared / "learner.env").read_text() == "1\n"
    assert (shared / "modes").read_text() == "600\n"
    assert stat.S_IMODE(shared.stat().st_mode) == 0o700


def test_submitted_again_it_goes_on_and_says_how_the_learner_ended(settings: dict[str, str]) -> None:
    shared = Path(settings["AGENTRL_SHARED"])
    assert carry_out(settings | {"LEARNER_CODE": "3"}).returncode == 3
    assert carry_out(settings | {"AGENTRL_LAGGING": "0", "SLURM_JOB_ID": "8"}).returncode == 0
    arguments = learner_arguments(shared)
    assert arguments[:2] == ["--resume", str(shared / "run")]
    assert "--pool.lagging-prob=0" in arguments
    assert "--lagging-engines" not in arguments


def test_a_job_that_is_requeued_after_its_node_was_lost_starts_anew(settings: dict[str, str]) -> None:
    shared = Path(settings["AGENTRL_SHARED"])
    left = shared / "secrets-7"  # nobody was there to remove them, and the number of the job stays
    left.mkdir(parents=True)
    (left / "controller").write_text("old")
    done = carry_out(settings)
    assert done.returncode == 0, done.stderr
    assert not left.exists()


def test_a_signal_reaches_the_learner_which_is_waited_for(settings: dict[str, str], tmp_path: Path) -> None:
    shared = Path(settings["AGENTRL_SHARED"])
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    environment = settings | {"LEARNER_WAITS": str(fifo)}
    with subprocess.Popen(
        ["bash", str(SCRIPT)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as job:
        assert fifo.read_text() == "waiting\n"
        job.send_signal(signal.SIGTERM)
        job.wait(timeout=30)
    assert job.returncode == 0
    assert (shared / "told").read_text() == "told\n"
    assert not list(shared.glob("secrets-*"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"AGENTRL_MODEL": ""}, "AGENTRL_MODEL is not set"),
        ({"SLURM_JOB_NODELIST_HET_GROUP_0": ""}, "this is no heterogeneous job"),
        ({"AGENTRL_LAGGING": "4"}, "4 servers, 4 of them lagging"),
        ({"HEALTH": "1", "AGENTRL_START_S": "0"}, "http://serve1:30000 does not serve"),
    ],
)
def test_what_is_missing_is_said(settings: dict[str, str], change: dict[str, str], message: str) -> None:
    done = carry_out(settings | change)
    assert done.returncode != 0
    assert message in done.stderr
    assert not list(Path(settings["AGENTRL_SHARED"]).glob("secrets-*"))


def test_the_settings_that_are_named_are_those_that_are_read() -> None:
    head, body = SCRIPT.read_text().split("set -euo pipefail")
    own = {"AGENTRL_SECRETS", "AGENTRL_LEADER", "AGENTRL_ENGINE_TOKEN", "AGENTRL_START_S"}
    assert set(re.findall(r"AGENTRL_[A-Z_]+", body)) - own == set(re.findall(r"AGENTRL_[A-Z_]+", head))
