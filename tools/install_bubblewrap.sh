#!/usr/bin/env bash
# bubblewrap, which the sandboxes of envs/sandbox are made of where no container engine is used.
set -euo pipefail

if command -v bwrap > /dev/null; then
  exit 0
fi
if ! command -v apt-get > /dev/null; then
  echo "install_bubblewrap: no apt-get here; install bubblewrap with this system's own package manager" >&2
  exit 1
fi
AS_ROOT=()
if [ "$(id -u)" -ne 0 ]; then
  AS_ROOT=(sudo -n)
fi
export DEBIAN_FRONTEND=noninteractive
"${AS_ROOT[@]}" apt-get update -qq
"${AS_ROOT[@]}" apt-get install -y -qq --no-install-recommends bubblewrap > /dev/null
