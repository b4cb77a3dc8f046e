"""The Kubernetes manifests against the schemas that Kubernetes publishes, of an old version and of the newest known."""

import subprocess
from pathlib import Path

import pytest

from tests.envs.sandbox_world import unless_missing

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "launch/cluster/kubernetes.yaml"
VALIDATE = ROOT / ".venv-kubernetes/bin/kubernetes-validate"
NUM_RESOURCES = 12
pytestmark = pytest.mark.slow


def judged(path, version):
    """The exit code, and what is said of each resource."""
    if not VALIDATE.exists():
        unless_missing("no schemas here: tools/install_kubernetes.sh installs them")
    command = [VALIDATE, "--strict", "--kubernetes-version", version, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_the_manifests_are_valid(version):
    code, said = judged(MANIFESTS, version)
    assert (code, said.count(" passed ")) == (0, NUM_RESOURCES), said


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("targetPort: http", "targetport: http"), ("replicas: 1", "replicas: one"), ("capabilities:", "capability:")],
)
def test_what_is_misspelled_is_noticed(tmp_path, right, wrong):
    text = MANIFESTS.read_text()
    assert right in text
    (tmp_path / "wrong.yaml").write_text(text.replace(right, wrong))
    assert judged(tmp_path / "wrong.yaml", "1.37")[0] != 0
