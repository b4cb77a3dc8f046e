#!/usr/bin/env bash
# bubblewrap, which the sandboxes of envs/sandbox are made of where no container engine is used.
set -euo pipefail
. "$(dirname "$0")/debian.bash"

install_packages bwrap bubblewrap
