#!/usr/bin/env bash
# A Docker engine for the tests marked docker, and what its images are built from without a registry. Only the
# programs: the tests start an engine of their own, on folders of their own.
set -euo pipefail
. "$(dirname "$0")/debian.bash"

install_packages "dockerd debootstrap" "docker.io debootstrap iptables" "docker.service docker.socket containerd.service"
