#!/usr/bin/env bash
# Makes .venv from a lock, unless it is up to date: Python 3.12, the CPU stack (or, with GPU=1, the GPU stack) and
# lorarl itself, editable. The GPU stack compiles Transformer Engine's torch extension, which needs the CUDA toolkit
# and about a quarter of an hour.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/lorarl-setup.sha256
# A .venv for GPUs stays one, so that `make test` on a GPU machine does not turn it into one for CPUs. GPU=0 does.
if [ -z "${GPU:-}" ] && [ -f .venv/lorarl-gpu ]; then GPU=1; fi
lock=requirements/cpu.lock build=()
if [ "${GPU:-0}" != 0 ]; then
  lock=requirements/gpu.lock build=(--no-build-isolation-package transformer-engine-torch)
fi
# The folder counts too: after a copy or a move, .venv would run the programs and the lorarl of the old checkout.
want="$({ pwd -P; cat "$lock" pyproject.toml scripts/setup.sh scripts/uv.sh; } | sha256sum)"
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && exit 0

python="$(scripts/python.sh)"
uv="$(scripts/uv.sh)"
echo "setup: $python, $(grep -c '==' "$lock") locked packages into .venv" >&2
export UV_LINK_MODE="${UV_LINK_MODE:-hardlink}"
"$uv" venv -q --clear --python "$python" .venv
# Compile now. If Python may not write bytecode later (PYTHONDONTWRITEBYTECODE, a read-only image), every start would
# compile 8,000 modules.
"$uv" pip install -q --python .venv/bin/python --no-deps --require-hashes --compile-bytecode "${build[@]}" -r "$lock"
"$uv" pip install -q --python .venv/bin/python --no-deps -e .
if [ "$lock" = requirements/gpu.lock ]; then touch .venv/lorarl-gpu; fi
echo "$want" > "$stamp"
