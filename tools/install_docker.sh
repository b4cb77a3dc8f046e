#!/usr/bin/env bash
# A Docker engine for the tests marked docker, and what its images are built from without a registry. Only the
# programs: the tests start an engine of their own, on folders of their own; the package's service is neither started
# nor left enabled.
set -euo pipefail

if command -v dockerd > /dev/null && command -v debootstrap > /dev/null; then
  exit 0
fi
if ! command -v apt-get > /dev/null; then
  echo "install_docker: no apt-get here; install a Docker engine with this system's own package manager" >&2
  exit 1
fi
AS_ROOT=()
if [ "$(id -u)" -ne 0 ]; then
  AS_ROOT=(sudo -n)
fi

# Keeps the package from starting the service. A policy that is there already is left as it is.
POLICY=/usr/sbin/policy-rc.d
if [ ! -e "$POLICY" ]; then
  printf '#!/bin/sh\nexit 101\n' | "${AS_ROOT[@]}" tee "$POLICY" > /dev/null
  "${AS_ROOT[@]}" chmod 755 "$POLICY"
  trap '"${AS_ROOT[@]}" rm -f "$POLICY"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
"${AS_ROOT[@]}" apt-get update -qq
"${AS_ROOT[@]}" apt-get install -y -qq --no-install-recommends docker.io debootstrap iptables > /dev/null
if command -v systemctl > /dev/null; then
  "${AS_ROOT[@]}" systemctl disable --quiet docker.service docker.socket containerd.service 2> /dev/null || true
fi
