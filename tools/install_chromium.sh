#!/usr/bin/env bash
# A headless browser, from the distribution: what tests marked chromium look at pages with.
set -euo pipefail

if command -v chromium >/dev/null; then
  exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
  echo "no chromium here, and only root can install it: apt-get install chromium" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends chromium >/dev/null
