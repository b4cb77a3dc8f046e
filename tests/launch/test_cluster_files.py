"""Containers of the controller and of env workers: what their files say is what the programs accept."""

import re
import subprocess
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, requires
from pathlib import Path

import pytest
import trio
import yaml

from agentrl_jax.engines.http_server import Answer, ServerLimits, serve_http
from launch.cluster.health import main
from launch.command import parse
from launch.controller import ControllerConfig
from launch.worker import WorkerConfig

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "launch" / "cluster"
NOT_THERE = ("jax", "flax", "optax", "orbax", "transformers", "tokenizers", "matplotlib", "jinja2", "rich", "jaxtyping")
# What the packages use if it happens to be there.
OPTIONAL = {"simplejson", "mypy-extensions", "setuptools", "cython"}
SETTINGS = {"AGENTRL_TOKEN": "a.token", "AGENTRL_DATA": "/data", "POD_IP": "10.0.0.7"}
TASKS = {f"{name}-{kind}" for name in ("alfworld", "dbbench", "kg", "os", "webshop") for kind in ("std", "env_train")}


def expanded(text):
    """As Compose and Kubernetes do: ${NAME}, ${NAME:-default}, ${NAME:?why} and $(NAME)."""

    def value(match):
        name, _, default = re.fullmatch(r"(\w+)(?::([-?]))?(.*)", match[1]).groups()
        return SETTINGS.get(name, default)

    return re.sub(r"\$\(([^)]*)\)", value, re.sub(r"\$\{([^}]*)\}", value, text))


def compose():
    return yaml.safe_load((CLUSTER / "compose.yaml").read_text())["services"]


def manifests():
    return [document for document in yaml.safe_load_all((CLUSTER / "kubernetes.yaml").read_text()) if document]


def deployments():
    return {each["metadata"]["name"]: each for each in manifests() if each["kind"] == "Deployment"}


def worker_config(arguments, tmp_path):
    arguments = [expanded(word).replace("--data=/data", f"--data={tmp_path}") for word in arguments]
    return parse(WorkerConfig, arguments, program="launch.worker")


@pytest.mark.parametrize("name", [name for name in compose() if name != "controller"])
def test_every_composed_worker_starts_with_settings_that_hold(name, tmp_path):
    service = compose()[name]
    config = worker_config(service["command"], tmp_path)
    assert service["build"]["target"] == config.task == service["image"].rpartition("/")[2]
    assert config.place.reached_at(config.port) == f"http://{name}:5021/a.token/api"
    assert config.controller == "http://controller:5020/api"
    assert config.controller_token == "a.token"


@pytest.mark.parametrize("name", [name for name in deployments() if name != "controller"])
def test_every_deployed_worker_starts_with_settings_that_hold(name, tmp_path):
    pod = deployments()[name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    config = worker_config(container["args"], tmp_path)
    assert config.task == container["image"].removeprefix("agentrl/").removesuffix(":latest")
    assert config.place.reached_at(config.port) == "http://10.0.0.7:5021/a.token/api"
    mounted = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == mounted
    is_root = config.task == "os_interaction"
    assert is_root == bool(container["securityContext"].get("privileged"))
    assert is_root or pod["securityContext"]["runAsNonRoot"]


def test_the_same_tasks_are_served_everywhere_once():
    composed = [flag for service in compose().values() for flag in service["command"] if flag.startswith("--name=")]
    deployed = [
        flag
        for each in deployments().values()
        for flag in each["spec"]["template"]["spec"]["containers"][0]["args"]
        if flag.startswith("--name=")
    ]
    assert sorted(composed) == sorted(deployed) == sorted(f"--name={name}" for name in TASKS)


def test_controllers_start_with_settings_that_hold():
    (container,) = deployments()["controller"]["spec"]["template"]["spec"]["containers"]
    for words in (compose()["controller"]["command"], container["args"]):
        config = parse(ControllerConfig, [expanded(word) for word in words], program="launch.controller")
        assert (config.listen.host, config.listen.port, config.listen.token) == ("0.0.0.0", 5020, "a.token")


@pytest.mark.parametrize("name", compose())
def test_every_service_has_health_limits_and_a_restart_policy(name):
    service = compose()[name]
    assert service["restart"] == "unless-stopped"
    assert service["healthcheck"]["test"][1:4] == ["python", "-m", "launch.cluster.health"]
    assert {"mem_limit", "cpus", "pids_limit", "logging", "read_only"} <= service.keys()
    assert service["cap_drop"] == ["ALL"]
    assert service["build"]["target"] in re.findall(r" AS (\S+)", (CLUSTER / "Dockerfile").read_text())


@pytest.mark.parametrize("name", deployments())
def test_every_deployment_has_probes_limits_and_a_matching_selector(name):
    spec = deployments()[name]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
    assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert spec["template"]["spec"]["automountServiceAccountToken"] is False


def test_services_lead_to_ports_that_are_there():
    services = [each for each in manifests() if each["kind"] == "Service"]
    for service in services:
        (pod,) = [
            each["spec"]["template"]
            for each in deployments().values()
            if service["spec"]["selector"].items() <= each["spec"]["template"]["metadata"]["labels"].items()
        ]
        named = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= named


def test_all_but_shell_tasks_run_as_nobody_in_particular():
    text = (CLUSTER / "Dockerfile").read_text()
    stages = {part.split(" AS ")[1].split()[0]: part for part in re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]}
    for name, stage in stages.items():
        parent = stage.split()[0]
        is_user = "USER 10001" in stage or "USER 10001" in stages.get(parent, "")
        assert is_user or name in ("base", "os_interaction"), name


def with_dependencies(names):
    """Distributions and those that they require, extras aside."""
    found, waiting = set(), [name.lower() for name in names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            lines = [line for line in requires(name) or () if "extra ==" not in line]
            waiting += [re.match(r"[\w.-]+", line)[0].lower() for line in lines if is_here(line)]
    return found


def normal(name):
    return name.lower().replace("_", "-")


def is_here(line):
    try:
        return bool(distribution(re.match(r"[\w.-]+", line)[0]))
    except PackageNotFoundError:
        return False


def test_the_images_have_what_workers_import():
    names = re.findall(r"^([a-z][\w.-]*?)>=", (CLUSTER / "requirements.txt").read_text(), re.MULTILINE)
    code = (
        "import sys\n"
        "import launch.worker, launch.controller, launch.cluster.health\n"
        "from agentrl_jax.env import EnvRegistry, FamilyOptions\n"
        "from envs import register_all\n"
        "registry = EnvRegistry()\n"
        "register_all(registry)\n"
        "for name in ('alfworld', 'dbbench', 'kg', 'webshop'):\n"
        "    registry.make(name, FamilyOptions())\n"
        "import envs.sandbox.docker_driver, envs.sandbox.bubblewrap, envs.worker.grpc, envs.kg_tools.large_store\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))\n"
    )
    ours = {"__main__", "agentrl_jax", "envs", "launch", "_distutils_hack", "cython_runtime"}
    printed = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True).stdout
    owners = packages_distributions()
    needed = {normal(owners[name][0]) for name in set(printed.split()) - ours if name in owners}
    assert needed - OPTIONAL <= set(map(normal, with_dependencies(names)))
    assert not needed & set(NOT_THERE)


async def test_health_is_what_the_server_answers(capsys, tmp_path):
    asked = []

    async def handle(request):
        asked.append(request.headers.get("authorization"))
        return Answer(status=200 if request.path == "/api/version" else 404, body=b"{}")

    async with trio.open_nursery() as nursery:
        port = await nursery.start(partial(serve_http, handle, host="127.0.0.1", port=0, limits=ServerLimits()))
        url = f"http://127.0.0.1:{port}/api"
        assert await trio.to_thread.run_sync(main, [f"{url}/version", "t"]) == 0
        (tmp_path / "token").write_text("of a file\n")
        assert await trio.to_thread.run_sync(main, [f"{url}/version", f"@{tmp_path}/token"]) == 0
        assert await trio.to_thread.run_sync(main, [f"{url}/none"]) == 1
        nursery.cancel_scope.cancel()
    assert asked == ["Bearer t", "Bearer of a file", None]
    assert main([f"{url}/version", f"@{tmp_path}/nothing"]) == 2
    assert main([f"{url}/version"]) == 1
    assert main(["somewhere"]) == 2
    assert main([]) == 2
