#!/usr/bin/env bash
# The algo, model and learner tests on the newest jax and flax, which need Python >= 3.12.
# In CI an interpreter must be found; elsewhere its absence is a skip, with the reason.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly VENV=.venv-newest LOCK=requirements/newest.txt
readonly TESTS=(
  tests/algo tests/models tests/learner tests/test_learner.py
  tests/faults/test_agg_learner.py tests/faults/test_log_learner.py
)

is_new_enough() {
  "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 12))' 2>/dev/null
}

# The newest on PATH, then pyenv's: the shims of pyenv are on PATH, but not every version behind them is active.
find_interpreter() {
  local candidate
  for candidate in python3.14 python3.13 python3.12 python3; do
    if is_new_enough "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  while read -r candidate; do
    if is_new_enough "$candidate"; then
      echo "$candidate"
      return
    fi
  done < <(ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python 2>/dev/null | sort -rV)
}

python=$(find_interpreter)
if [[ -z $python ]]; then
  echo "second interpreter: no Python >= 3.12 with venv on PATH or in pyenv, which the newest jax and flax need" >&2
  [[ -z ${CI:-} ]] || exit 1
  echo "second interpreter: skipped" >&2
  exit 0
fi
echo "second interpreter: $python ($("$python" --version))"

if [[ ! -e $VENV/.installed || $LOCK -nt $VENV/.installed ]]; then
  test -x "$VENV/bin/python" || "$python" -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -r "$LOCK"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --editable .
  touch "$VENV/.installed"
fi
"$VENV/bin/python" -c 'import flax, jax; print(f"second interpreter: jax {jax.__version__}, flax {flax.__version__}")'
JAX_PLATFORMS=cpu exec "$VENV/bin/python" -m pytest -q -n "${WORKERS:-2}" \
  -m "not slow and not soak and not torch and not data" "${TESTS[@]}"
