#!/usr/bin/env bash
# Makes .venv from a lock: Python 3.12, the CPU stack (or, with GPU=1, the GPU stack) and lorarl itself, editable. Nothing to do where it
# is up to date. The GPU stack compiles Transformer Engine's torch extension: it needs the CUDA toolkit and about a quarter of an hour.
set -euo pipefail
cd "$(dirname "$0")/.."
cache="${LORARL_CACHE:-$HOME/.cache/lorarl}"

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.*/bin/python /usr/local/bin/python3.12; do
    [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null && { command -v "$candidate"; return; }
  done
  # Elsewhere uv finds or downloads one.
  "$cache/uv/bin/uv" python find 3.12 2>/dev/null || { "$cache/uv/bin/uv" python install 3.12 >&2 && "$cache/uv/bin/uv" python find 3.12; }
}

stamp=.venv/lorarl-setup.sha256
# What a .venv was made for, it stays: `make test` on a GPU machine does not turn it into a CPU's. GPU=0 does.
if [ -z "${GPU:-}" ] && [ -f .venv/lorarl-gpu ]; then GPU=1; fi
lock=requirements/cpu.lock build=()
if [ "${GPU:-0}" != 0 ]; then lock=requirements/gpu.lock build=(--no-build-isolation-package transformer-engine-torch); fi
want="$(cat "$lock" pyproject.toml scripts/setup.sh | sha256sum)"
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && exit 0

if [ ! -x "$cache/uv/bin/uv" ]; then
  echo "setup: installing uv into $cache/uv" >&2
  mkdir -p "$cache" && python3 -m venv "$cache/uv" && "$cache/uv/bin/pip" install -q uv==0.13.9
fi
python="$(find_python)" || { echo "setup: no Python 3.12 was found; install one, or name it: PYTHON=/path/to/python3.12 make setup" >&2; exit 1; }
echo "setup: $python, $(grep -c '==' "$lock") locked packages into .venv" >&2
export UV_LINK_MODE="${UV_LINK_MODE:-hardlink}"
"$cache/uv/bin/uv" venv -q --clear --python "$python" .venv
# Bytecode now: where Python may not write it later (PYTHONDONTWRITEBYTECODE, a read-only image), every start would compile 8,000 modules.
"$cache/uv/bin/uv" pip install -q --python .venv/bin/python --no-deps --require-hashes --compile-bytecode "${build[@]}" -r "$lock"
"$cache/uv/bin/uv" pip install -q --python .venv/bin/python --no-deps -e .
if [ "$lock" = requirements/gpu.lock ]; then touch .venv/lorarl-gpu; fi
echo "$want" > "$stamp"
