#!/usr/bin/env bash
# A MariaDB server for the tests marked mariadb. Only the programs: the tests start servers of their own, on
# data folders of their own, and the package's service is neither started nor left enabled.
set -euo pipefail

if command -v mariadbd > /dev/null && command -v mariadb-install-db > /dev/null; then
  exit 0
fi
if ! command -v apt-get > /dev/null; then
  echo "install_mariadb: no apt-get here; install mariadb-server with this system's own package manager" >&2
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
"${AS_ROOT[@]}" apt-get install -y -qq --no-install-recommends mariadb-server > /dev/null
if command -v systemctl > /dev/null; then
  "${AS_ROOT[@]}" systemctl disable --quiet mariadb 2> /dev/null || true
fi
