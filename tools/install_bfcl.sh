#!/usr/bin/env bash
# Installs what the bfcl environment reads: BFCL's data and simulators, and the one package that these import.
# bfcl-eval's other dependencies (models' clients, an old numpy) are left out: nothing here uses them.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv-bfcl PACKAGES=(bfcl-eval==2026.3.23 mpmath==1.3.0)

if [[ -e $VENV/.installed && ! $0 -nt $VENV/.installed ]]; then
  exit 0
fi
test -x "$VENV/bin/python" || "${PYTHON:-python3}" -m venv "$VENV"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "${PACKAGES[@]}"
touch "$VENV/.installed"
