#!/usr/bin/env bash
# Installs what the manifests are validated with: Kubernetes' published schemas, in a virtual environment of their own.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv-kubernetes PACKAGES=(kubernetes-validate==1.37.0)

if [[ -e $VENV/.installed && ! $0 -nt $VENV/.installed ]]; then
  exit 0
fi
test -x "$VENV/bin/python" || "${PYTHON:-python3}" -m venv "$VENV"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "${PACKAGES[@]}"
touch "$VENV/.installed"
