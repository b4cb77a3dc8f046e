#!/usr/bin/env bash
# The stock AgentRL packages in a virtual environment of their own: what tests marked agentrl talk to.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=.venv-agentrl
PYTHON="${PYTHON:-python3}"
WANTED="agentrl-worker==0.4.0 agentrl-eval==0.1.2"
STAMP="$VENV/.installed"

if [ "$(cat "$STAMP" 2>/dev/null)" = "$WANTED" ]; then
  exit 0
fi
test -x "$VENV/bin/python" || "$PYTHON" -m venv "$VENV"
# shellcheck disable=SC2086
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check $WANTED
echo "$WANTED" > "$STAMP"
