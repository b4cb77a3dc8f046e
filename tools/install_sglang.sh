#!/usr/bin/env bash
# A real SGLang server for this CPU, in .venv-sglang: 1.6 GB, two minutes. Does nothing where it is there already.
# Nothing is compiled: GPU kernels and Triton are stubs, and torchvision is patched to do without its CUDA library.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv-sglang LOCK=requirements/sglang-cpu.txt STUBS=tests/sglang_cpu
# SGLang asks for CUDA packages that a CPU has no use for, torchvision for a torch of its own build.
readonly ALONE='^(sglang|torchvision)=='

stamp=$(cat "$0" "$LOCK" "$STUBS"/install_stubs.py "$STUBS"/stubs/*/*.py | sha256sum | cut -d' ' -f1)
if [[ -f $VENV/.installed && $(<"$VENV/.installed") == "$stamp" ]]; then
  exit 0
fi

pip_install() {
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"
}

# A shim of pyenv may be on PATH without a version behind it.
find_interpreter() {
  local candidate
  for candidate in "$@"; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  echo "SGLang needs Python >= 3.11 with venv; name one: PYTHON=… $0" >&2
  return 1
}

python=$(find_interpreter ${PYTHON:-python3.11 python3})
test -x "$VENV/bin/python" || "$python" -m venv "$VENV"
rm -f "$VENV/.installed"
"$VENV/bin/python" "$STUBS/install_stubs.py" # before pip, which else fetches Triton
pip_install -r <(grep -vE "$ALONE" "$LOCK")
pip_install --no-deps -r <(grep -E "$ALONE" "$LOCK")
"$VENV/bin/python" "$STUBS/install_stubs.py"
# A first start compiles what it imports; a server has three processes, so that is done here.
SGLANG_USE_CPU_ENGINE=1 PYTHONDONTWRITEBYTECODE='' "$VENV/bin/python" -W ignore -c '
import sglang, sglang.launch_server, sglang.srt.entrypoints.http_server, sglang.srt.managers.scheduler
from sglang.srt.models import qwen2, qwen3
print("sglang", sglang.__version__)'
echo "$stamp" >"$VENV/.installed"
