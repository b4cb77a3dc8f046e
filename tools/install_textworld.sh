#!/usr/bin/env bash
# TextWorld with ALFWorld's games on top, in a virtual environment of their own: what tools/textworld_parity.py plays
# against. Builds fast-downward from source: needs gcc, g++, make and cmake. Takes some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=.venv-textworld
PYTHON="${PYTHON:-python3}"
WANTED="alfworld==0.4.2 textworld==1.7.0"
STAMP="$VENV/.installed"

if [ "$(cat "$STAMP" 2>/dev/null)" = "$WANTED" ]; then
  exit 0
fi
for tool in gcc g++ make; do
  command -v "$tool" > /dev/null || {
    echo "building fast-downward needs $tool; on Debian and Ubuntu: apt-get install build-essential" >&2
    exit 2
  }
done
test -x "$VENV/bin/python" || "$PYTHON" -m venv "$VENV"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check cmake
# shellcheck disable=SC2086
PATH="$PWD/$VENV/bin:$PATH" "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check $WANTED
echo "$WANTED" > "$STAMP"
