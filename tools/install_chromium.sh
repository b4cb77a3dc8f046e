#!/usr/bin/env bash
# A headless browser, from the distribution: what tests marked chromium look at pages with.
set -euo pipefail
. "$(dirname "$0")/debian.bash"

install_packages chromium chromium
